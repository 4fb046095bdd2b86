"""Checks runs, and computes their mean and variance."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Runs = Sequence[float] | np.ndarray | Any


def check(runs: Runs, name: str) -> np.ndarray:
  """Returns the runs in float64, or raises an error that names them."""
  values = np.asarray(runs, np.float64)
  if values.ndim != 1 or values.size < 2:
    raise ValueError(
      f"Expected at least two runs in {name}, one number each, got an array "
      f"of shape {values.shape}."
    )
  finite = np.abs(values) < 1e100
  if not np.all(finite):
    first = int(np.argmin(finite))
    raise ValueError(
      f"Expected finite numbers, got {name}[{first}] = {values[first]}. Leave "
      "out the runs that diverged, and report how many diverged."
    )
  return values


def check_two(
  a: Runs, b: Runs, paired: bool = False, names: Sequence[str] = ("a", "b")
) -> tuple[np.ndarray, np.ndarray]:
  """Checks two sets, which must have the same length if they are paired."""
  a, b = check(a, names[0]), check(b, names[1])
  if paired and a.size != b.size:
    raise ValueError(
      f"Expected pairs of runs, got {a.size} in {names[0]} and {b.size} in "
      f"{names[1]}. Give the same seeds in both, in the same order."
    )
  return a, b


def check_level(level: float) -> None:
  if not 0 < level < 1:
    raise ValueError(f"Expected a level between 0 and 1, got {level}.")


def mean(x: np.ndarray) -> float:
  """Returns the mean. It is exact if all runs are equal."""
  return float(x[0] + np.mean(x - x[0]))


def variance(x: np.ndarray) -> float:
  """Returns the unbiased variance. It is 0 if all runs are equal."""
  return float(np.var(x - x[0], ddof=1))
