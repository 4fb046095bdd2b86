"""The predictions of one seed, with sums over bootstrap draws.

A metric is a function of a few sums over examples, and a bootstrap draw is a
count of each example. The sums of all draws are therefore one product of
matrices, and no logits are drawn. With more than 10,000 examples, random groups
of examples are drawn, which leaves the variance of the sums unchanged. It runs
in NumPy, in float64: compiling programs would take longer than running them.
"""

from collections.abc import Callable
from concurrent import futures
import dataclasses
import functools
import math
from typing import Any

import numpy as np
from scipy import optimize

MAX_UNITS = 10_000
MAX_CELLS = 256  # cells of examples by rank, for metrics of ranking
COVERAGE = 0.9  # of the selective risk
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-8, 1e8
_CHUNK = 2**17  # logits at once, to stay within a CPU's cache


@dataclasses.dataclass(eq=False)
class Sample:
  """Checked predictions of one seed."""

  logits: np.ndarray
  labels: np.ndarray
  num_bins: int = 10
  resamples: int = 1000
  random_seed: int = 0

  def __post_init__(self):
    self.examples = len(self.labels)
    units = min(self.examples, MAX_UNITS)
    self._draws = units, self.resamples, self.random_seed
    self._unit = np.arange(self.examples)
    if units < self.examples:
      random = np.random.RandomState(self.random_seed)
      self._unit = random.permutation(self.examples) % units

  @functools.cached_property
  def each(self) -> dict[str, np.ndarray]:
    """Computes per-example quantities."""
    return _by_chunk(_each, self) | {"count": np.ones(self.examples)}

  def _by_unit(self, weights, index=None, size=1) -> np.ndarray:
    units = self._draws[0]
    place = self._unit if index is None else self._unit * size + index
    return np.bincount(place, weights, units * size).reshape(units, size)

  def _drawn(self, tables: list[np.ndarray]) -> np.ndarray:
    """Returns sums over the sample, and over each draw, along axis 0."""
    table = np.concatenate(tables, axis=1)
    with np.errstate(invalid="ignore"):  # infinite losses
      drawn = counts(*self._draws) @ table.astype(np.float32)
    return np.concatenate([table.sum(axis=0)[None], drawn], dtype=np.float64)

  def _sums(self, names, index=None, size=1) -> dict[str, np.ndarray]:
    tables = [self._by_unit(self.each[name], index, size) for name in names]
    sums = np.split(self._drawn(tables), len(names), axis=1)
    return dict(zip(names, sums, strict=True))

  @functools.cached_property
  def means(self) -> dict[str, np.ndarray]:
    """Returns means of per-example quantities: 1 + resamples of each."""
    names = ("count", "correct", "confidence", "nll", "brier", "entropy")
    sums = self._sums(names)
    return {name: (sums[name] / sums["count"])[:, 0] for name in names[1:]}

  @functools.cached_property
  def bin_index(self) -> np.ndarray:
    """Returns the bin of equal width that each example is in."""
    return _width_index(self.each["confidence"], self.num_bins)

  @functools.cached_property
  def bins(self) -> dict[str, np.ndarray]:
    return self._binned(self.bin_index, self.num_bins)

  @functools.cached_property
  def mass_bins(self) -> dict[str, np.ndarray]:
    confidence = self.each["confidence"].astype(np.float32)
    ordered = np.sort(confidence)
    sizes = [len(part) for part in np.array_split(ordered, self.num_bins)]
    edges = ordered[np.maximum(np.cumsum(sizes)[:-1] - 1, 0)]
    return self._binned(np.searchsorted(edges, confidence), self.num_bins)

  def _binned(self, index, size) -> dict[str, np.ndarray]:
    return self._sums(("count", "correct", "confidence"), index, size)

  def mean_gap(self, bins: dict[str, np.ndarray]) -> np.ndarray:
    gap = np.abs(bins["confidence"] - bins["correct"])
    return gap.sum(axis=1) / bins["count"].sum(axis=1)

  def rms_gap(self, bins: dict[str, np.ndarray]) -> np.ndarray:
    squares = (bins["confidence"] - bins["correct"]) ** 2
    squares = squares / np.maximum(bins["count"], 1)
    return np.sqrt(squares.sum(axis=1) / bins["count"].sum(axis=1))

  def classwise_ece(self) -> np.ndarray:
    classes = self.logits.shape[1]
    at_once = max(1, 1000 // self.num_bins)
    error, tables = np.zeros(1), []
    for start in range(0, classes, 16):  # a line of cache at a time
      block = self.logits[:, start : start + 16].astype(np.float64)
      block = np.exp(block - self.each["log_norm"][:, None])
      for c, p in enumerate(block.T, start):
        index = _width_index(p, self.num_bins)
        weights = p - (self.labels == c)
        tables.append(self._by_unit(weights, index, self.num_bins))
        if len(tables) == at_once or c == classes - 1:
          gaps = np.abs(self._drawn(tables))
          error, tables = error + gaps.sum(axis=1), []
    return error / (classes * self.bins["count"].sum(axis=1))

  @functools.cached_property
  def ranked(self) -> dict[str, float]:
    """Computes the exact values of the metrics that sort the examples."""
    n, each = self.examples, self.each
    # Round, so that examples tie if they differ by rounding errors only.
    doubt = each["doubt"].astype(np.float32)
    order = np.argsort(doubt)
    ordered, right = doubt[order], each["correct"][order] > 0
    errors = np.concatenate([[0.0], np.cumsum(~right)])
    first = np.searchsorted(ordered, ordered)
    last = np.searchsorted(ordered, ordered, "right")
    kept = np.arange(1, n + 1)
    # Ties, from first to last, share their errors evenly.
    share = (kept - first) / np.maximum(last - first, 1)
    expected = errors[first] + share * (errors[last] - errors[first])
    # For each correct prediction, count the wrong ones of lower confidence.
    lower = errors[-1] - (errors[first] + errors[last]) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
      auroc = lower[right].sum() / (errors[-1] * np.sum(right))
    number = kept_examples(COVERAGE, n)
    # Sum from the least confident example to the end of each tie.
    gap = np.cumsum((each["correct"] - each["confidence"])[order[::-1]])
    noise = 8 * np.finfo(np.float32).eps * np.maximum(np.abs(ordered), 1)
    with np.errstate(invalid="ignore"):
      end = np.diff(ordered) > noise[1:]
    gap = gap[np.append(end[::-1], True)]
    return {
      "auroc": float(auroc),
      "aurc": float(np.mean(expected / kept)),
      "selective_risk": float(expected[number - 1] / number),
      "ks": float(np.abs(gap).max() / n),
    }

  @functools.cached_property
  def ranked_draws(self) -> dict[str, np.ndarray]:
    """Approximates `ranked` for each draw, from cells of examples by rank."""
    size = min(self.examples, MAX_CELLS)
    doubt = self.each["doubt"].astype(np.float32)
    # Ties share a cell.
    first = np.searchsorted(np.sort(doubt), doubt)
    cells = self._binned(first * size // self.examples, size)
    count, right = cells["count"], cells["correct"]
    wrong = count - right
    kept, errors = np.cumsum(count, axis=1), np.cumsum(wrong, axis=1)
    total, all_wrong = kept[:, -1:], errors[:, -1:]
    with np.errstate(invalid="ignore", divide="ignore"):
      # Within a cell, count half of all pairs as ranked correctly.
      pairs = right * (all_wrong - errors + wrong / 2)
      auroc = pairs.sum(axis=1) / (all_wrong * (total - all_wrong))[:, 0]
    middle = (errors - wrong / 2) / np.maximum(kept - count / 2, 1e-9)
    risk = [
      np.interp(COVERAGE * n[-1], n, e) / (COVERAGE * n[-1])
      for n, e in zip(kept, errors, strict=True)
    ]
    gap = np.cumsum(cells["confidence"] - right, axis=1)
    # Sum from the least confident example on: the total minus what is before.
    gap = np.abs(gap[:, -1:] - np.pad(gap, ((0, 0), (1, 0))))
    return {
      "auroc": auroc,
      "aurc": (count * middle).sum(axis=1) / total[:, 0],
      "selective_risk": np.array(risk),
      "ks": gap.max(axis=1) / total[:, 0],
    }

  @functools.cached_property
  def temperature(self) -> float:
    """Fits the temperature that minimizes the loss, as ``fit_temperature``."""
    rows = np.arange(self.examples)
    if np.isneginf(self.logits[rows, self.labels]).any():
      return math.nan
    mean_slope = lambda log_t: float(np.mean(self._slope(math.exp(log_t))))
    low, high = math.log(MIN_TEMPERATURE), math.log(MAX_TEMPERATURE)
    step = self.examples // MAX_UNITS
    if step > 1:  # Narrow the search with some of the examples.
      subset = Sample(self.logits[::step], self.labels[::step])
      near = math.log(subset.temperature)
      if mean_slope(near - 0.2) > 0 >= mean_slope(near + 0.2):
        low, high = near - 0.2, near + 0.2
    if not mean_slope(low) > 0:
      uninformative = (self.logits == self.logits[:, :1]).all()
      return 1.0 if uninformative else MIN_TEMPERATURE
    if mean_slope(high) > 0:
      return MAX_TEMPERATURE
    root: Any = optimize.brentq(mean_slope, low, high, xtol=1e-10)
    return math.exp(root)

  @functools.cached_property
  def temperature_draws(self) -> np.ndarray:
    """Fits the temperature of each draw: ∞ if T → ∞ is best, NaN if none is.

    It interpolates the slope of the loss between temperatures, to zero.
    """
    slope, curvature = self._slopes(self.temperature).values()
    # The standard deviation of log T at the minimum of the loss.
    with np.errstate(invalid="ignore", divide="ignore"):
      spread = self.temperature * np.std(slope) / np.mean(curvature)
    spread = spread / np.sqrt(self.examples)
    if not 0 < spread < 2 or not 1e-6 < self.temperature < 1e6:
      return np.full(1 + self.resamples, np.nan)
    # With many examples, the slope is almost linear.
    nodes = 17 if self.examples <= 10 * MAX_UNITS else 7
    logs = math.log(self.temperature) + spread * np.linspace(-6, 6, nodes)
    nodes = [*np.exp(logs), MAX_TEMPERATURE]
    sums = self._drawn([self._by_unit(self._slope(t)) for t in nodes])
    # The slope falls as T grows.
    roots = [np.interp(0, -s, logs) for s in sums[:, :-1]]
    return np.where(sums[:, -1] > 0, np.inf, np.exp(roots))

  def _slopes(self, temperature: float) -> dict[str, np.ndarray]:
    return _by_chunk(functools.partial(_slopes, temperature=temperature), self)

  def _slope(self, temperature: float) -> np.ndarray:
    return self._slopes(temperature)["slope"]


def _by_chunk(function: Callable, sample: Sample) -> dict[str, np.ndarray]:
  """Applies a function of (logits, labels) to some examples at a time."""
  rows = max(1, _CHUNK // sample.logits.shape[1])

  def one(start):
    part = slice(start, start + rows)
    z = sample.logits[part].astype(np.float64)
    with np.errstate(all="ignore"):
      return function(z, sample.labels[part])

  starts = range(0, sample.examples, rows)
  if len(starts) == 1:
    return one(0)
  with futures.ThreadPoolExecutor() as pool:
    parts = list(pool.map(one, starts))
  return {k: np.concatenate([part[k] for part in parts]) for k in parts[0]}


def _each(z: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
  rows = np.arange(len(z))
  predicted = z.argmax(axis=1)
  top = z[rows, predicted]
  z -= top[:, None]
  e = np.exp(z)
  total = e.sum(axis=1)
  log_total = np.log(total)
  squares = np.einsum("ij,ij->i", e, e) / total**2
  # For a logit of −∞, p log p is 0.
  products = np.einsum("ij,ij->i", e, np.maximum(z, -1e300)) / total
  nll = log_total - z[rows, labels]
  brier = squares - 2 * e[rows, labels] / total + 1
  # The log-odds log((1 − p) / p) of the confidence p: the sum without the top.
  e[rows, predicted] = 0
  others = e.sum(axis=1)
  doubt = np.log(others)
  far = np.flatnonzero(others < 1e-300)
  if far.size:
    z[rows, predicted] = -np.inf
    second = z[far].max(axis=1)
    rest = np.exp(z[far] - np.where(second > -np.inf, second, 0)[:, None])
    doubt[far] = second + np.log(rest.sum(axis=1))
  return {
    "correct": (predicted == labels).astype(np.float64),
    "confidence": 1 / total,
    "nll": nll,
    "brier": brier,
    "entropy": log_total - products,
    "doubt": doubt,
    "predicted": predicted,
    "log_norm": top + log_total,
  }


def _slopes(z, labels, temperature) -> dict[str, np.ndarray]:
  """Returns the first two derivatives of each example's loss by 1 / T."""
  own = z[np.arange(len(z)), labels]
  weights = np.exp((z - z.max(axis=1)[:, None]) / temperature)
  total = weights.sum(axis=1)
  lead = np.maximum(z - own[:, None], -1e150)
  weights *= lead
  slope = weights.sum(axis=1) / total
  squares = np.einsum("ij,ij->i", weights, lead) / total
  return {"slope": slope, "curvature": squares - slope**2}


def _width_index(probability: np.ndarray, num_bins: int) -> np.ndarray:
  """Returns the bin (lo, hi] of each probability, rounded to float32."""
  edges = (np.arange(1, num_bins) / num_bins).astype(np.float32)
  return np.searchsorted(edges, probability.astype(np.float32))


def kept_examples(coverage: float, examples: Any) -> Any:
  """Returns numbers of examples to keep, rounded up: 7 for 0.7 of 10."""
  kept = np.ceil(np.round(coverage * np.asarray(examples), 6))
  return np.maximum(kept, 1).astype(int)


def chosen(units: int, resamples: int, random_seed: int):
  """Yields the indices of each bootstrap draw."""
  random = np.random.default_rng(random_seed)
  for _ in range(resamples):
    yield random.integers(0, units, units)


@functools.lru_cache(maxsize=4)
def counts(units: int, resamples: int, random_seed: int) -> np.ndarray:
  """Returns how often each draw has each unit: shape (resamples, units)."""
  drawn = np.empty((resamples, units), np.float32)
  for i, indices in enumerate(chosen(units, resamples, random_seed)):
    drawn[i] = np.bincount(indices, minlength=units)
  return drawn
