"""The progress of a study: time left, and a line on the terminal."""

import math
import os
import sys
import time
from typing import Any

import jax
import numpy as np

# What the next line may replace.
PASSING = (": epoch ", ": evaluated on ", " shares have ended, ")


class Eta:
  """Estimates the time left from the epochs so far, without the first."""

  def __init__(self, epochs: int):
    self.left, self.times, self.last = epochs, [], time.monotonic()

  def tick(self) -> None:
    now = time.monotonic()
    self.times.append(now - self.last)
    self.left, self.last = self.left - 1, now

  def restart(self) -> None:
    """Starts the clock again, after evaluation or a checkpoint."""
    self.last = time.monotonic()

  @property
  def epoch(self) -> float | None:
    """Returns the median seconds of epochs after the first, which compiles."""
    return float(np.median(self.times[1:])) if len(self.times) > 1 else None

  def __str__(self) -> str:
    """Returns the time left, or how long the first epoch took."""
    if self.epoch is None:
      return f"{sum(self.times):.0f} s with compilation"
    minutes, seconds = divmod(round(self.left * self.epoch), 60)
    return f"{minutes}:{seconds:02d} left"


class Progress:
  """Prints progress: on a terminal over one line, else a line now and then.

  Prints nothing if the variable CI is set.
  """

  def __init__(self, stream: Any = None, every: float = 15.0):
    self.stream = stream or sys.stderr
    self.live, self.every = self.stream.isatty(), every
    self.quiet = bool(os.environ.get("CI")) or jax.process_index() > 0
    self.last, self.width = -math.inf, 0

  def __call__(self, text: str) -> None:
    if self.quiet:
      return
    passing = any(words in text for words in PASSING)
    if self.live:
      end = "\r" if passing else "\n"
      self.stream.write(text.ljust(self.width) + end)
      self.width = len(text) if passing else 0
    elif not passing or time.monotonic() - self.last > self.every:
      self.stream.write(text + "\n")
      self.last = time.monotonic()
    self.stream.flush()
