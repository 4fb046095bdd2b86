"""What is told of a study while it runs."""

import math
import os
import sys
import time
from typing import Any

import jax
import numpy as np


class Eta:
  """How long an epoch takes, and how long the rest will, without the first."""

  def __init__(self, epochs: int):
    self.left, self.times, self.last = epochs, [], time.monotonic()

  def tick(self) -> float:
    now = time.monotonic()
    spent, self.last = now - self.last, now
    self.times.append(spent)
    self.left -= 1
    return spent

  def restart(self) -> None:
    """After something that is no part of training."""
    self.last = time.monotonic()

  @property
  def epoch(self) -> float | None:
    """Seconds of a usual epoch; the first one was compiled, too."""
    return float(np.median(self.times[1:])) if len(self.times) > 1 else None

  def __str__(self) -> str:
    """How long the rest will take, or how long the first epoch took."""
    if self.epoch is None:
      return f"{sum(self.times):.0f} s with compilation"
    minutes, seconds = divmod(round(self.left * self.epoch), 60)
    return f"{minutes}:{seconds:02d} left"


class Progress:
  """A line on the terminal that is written over; elsewhere a line now and then.

  In CI (where the variable CI is set) it says nothing.
  """

  def __init__(self, stream: Any = None, every: float = 15.0):
    self.stream = stream or sys.stderr
    self.live, self.every = self.stream.isatty(), every
    self.quiet = bool(os.environ.get("CI")) or jax.process_index() > 0
    self.last, self.width = -math.inf, 0

  def __call__(self, text: str) -> None:
    if self.quiet:
      return
    passing = ": epoch " in text or ": evaluated on " in text
    if self.live:
      end = "\r" if passing else "\n"
      self.stream.write(text.ljust(self.width) + end)
      self.width = len(text) if passing else 0
    elif not passing or time.monotonic() - self.last > self.every:
      self.stream.write(text + "\n")
      self.last = time.monotonic()
    self.stream.flush()
