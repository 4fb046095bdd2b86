"""Intervals: the basic bootstrap, Wilson's for shares, Student's over seeds."""

from typing import Any, NamedTuple

import numpy as np
from scipy import special

Interval = tuple[np.ndarray, np.ndarray, np.ndarray]


class Estimate(NamedTuple):
  """A number with its interval.

  Attributes:
    value: the number, computed from the sample itself.
    low: lower end of the interval; NaN if there is no interval.
    high: upper end of the interval; NaN if there is no interval.
  """

  value: float
  low: float
  high: float

  @classmethod
  def of(cls, triple: Any) -> "Estimate":
    """Returns an estimate from three arrays of one number each."""
    return cls(*map(float, triple))

  def __str__(self) -> str:
    if not np.isfinite(self.low + self.high):
      return f"{self.value:.4f} (no interval)"
    return f"{self.value:.4f} ({self.low:.4f}, {self.high:.4f})"


def basic_interval(
  value: Any, draws: Any, level: float, limits: Any = (-np.inf, np.inf)
) -> Interval:
  """Returns the basic bootstrap interval, from draws along axis 0.

  Draws that are not finite are ignored. The ends are NaN if all draws are
  equal: the bootstrap then says nothing about the spread.
  """
  value, draws = np.asarray(value, np.float64), np.asarray(draws, np.float64)
  finite = np.isfinite(draws)
  known = finite.any(axis=0) & np.isfinite(value)
  draws = np.where(known[None], np.where(finite, draws, np.nan), 0)
  spread = np.nanmax(draws, axis=0) - np.nanmin(draws, axis=0)
  shares = [(1 + level) / 2, (1 - level) / 2]
  with np.errstate(invalid="ignore"):
    known &= spread > 1e-6 * np.abs(value) + 1e-12  # the rest is rounding
    ends = 2 * value - np.nanquantile(draws, shares, axis=0)
  low, high = np.clip(ends, *limits)
  low, high = np.fmin(low, value), np.fmax(high, value)
  return value, np.where(known, low, np.nan), np.where(known, high, np.nan)


def wilson_interval(right: Any, count: Any, level: float) -> Interval:
  """Returns Wilson's interval of the share ``right / count``."""
  right, count = np.asarray(right, np.float64), np.asarray(count, np.float64)
  z2 = special.ndtri((1 + level) / 2) ** 2
  with np.errstate(invalid="ignore", divide="ignore"):
    value = right / count
    centre = (right + z2 / 2) / (count + z2)
    spread = np.sqrt(z2 * (right * (1 - value) + z2 / 4)) / (count + z2)
  low, high = np.fmin(centre - spread, value), np.fmax(centre + spread, value)
  return value, np.where(count, low, np.nan), np.where(count, high, np.nan)


def seeds_interval(
  values: Any, level: float, limits: Any = (-np.inf, np.inf)
) -> Interval:
  """Returns Student's interval of the mean over seeds, along axis 0."""
  values = np.asarray(values, np.float64)
  # A bin or a class may be empty in some seeds.
  known = np.isfinite(values)
  number = known.sum(axis=0)
  with np.errstate(invalid="ignore", divide="ignore"):
    mean = np.where(known, values, 0).sum(axis=0) / number
    squares = np.where(known, (values - mean) ** 2, 0).sum(axis=0)
    error = np.sqrt(squares / (number - 1) / number)
  reach = special.stdtrit(number - 1.0, (1 + level) / 2) * error
  low, high = np.clip([mean - reach, mean + reach], *limits)
  return mean, low, high
