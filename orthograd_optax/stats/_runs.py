"""Checks runs, and computes their mean and variance."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Runs = Sequence[float] | np.ndarray | Any


def expect(holds: Any, expected: str, got: Any, advice: str = "") -> None:
  if not holds:
    raise ValueError(f"Expected {expected}, got {got}. {advice}".rstrip())


def check_one(runs: Runs, name: str) -> np.ndarray:
  """Returns the runs in float64, or raises an error that names them."""
  values = np.asarray(runs, np.float64)
  valid = values.ndim == 1 and values.size >= 2
  expected = f"at least two runs in {name}, one number each"
  expect(valid, expected, f"an array of shape {values.shape}")
  finite = np.abs(values) < 1e100
  first = int(np.argmin(finite))
  advice = "Leave out the runs that diverged, and report how many diverged."
  got = f"{name}[{first}] = {values[first]}"
  expect(np.all(finite), "finite numbers", got, advice)
  return values


def check_two(
  a: Runs, b: Runs, paired: bool = False, names: Sequence[str] = ("a", "b")
) -> tuple[np.ndarray, np.ndarray]:
  """Checks two sets, which must have the same length if they are paired."""
  a, b = check_one(a, names[0]), check_one(b, names[1])
  got = f"{a.size} in {names[0]} and {b.size} in {names[1]}"
  advice = "Give the same seeds in both, in the same order."
  expect(not paired or a.size == b.size, "pairs of runs", got, advice)
  return a, b


def check_level(level: float) -> None:
  expect(0 < level < 1, "a level between 0 and 1", level)


def mean(x: np.ndarray) -> float:
  """Returns the mean. It is exact if all runs are equal."""
  return float(x[0] + np.mean(x - x[0]))


def variance(x: np.ndarray) -> float:
  """Returns the unbiased variance. It is 0 if all runs are equal."""
  return float(np.var(x - x[0], ddof=1))
