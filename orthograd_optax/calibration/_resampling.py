"""Computes all metrics of a report, with a thousand bootstrap draws of each.

No logits are drawn. Each metric is a function of a few sums over examples, and
a draw is a count of each example. The sums of all draws are therefore one
product of matrices. With more than 10,000 examples, random groups of examples
are drawn instead of examples. Sums vary as much as before, and the cost of the
draws no longer grows with the number of examples.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from orthograd_optax.calibration import (
  _bootstrap,
  _errors,
  _fits,
  _inputs,
  _ranking,
  _scores,
)

MAX_UNITS = 10_000
MAX_CELLS = 256  # cells of examples by rank, for metrics of ranking
COVERAGE = 0.9  # coverage of the selective risk
UNIT = (0.0, 1.0)
LIMITS = {
  "accuracy": UNIT,
  "confidence": UNIT,
  "overconfidence": (-1.0, 1.0),
  "nll": (0.0, np.inf),
  "brier": (0.0, 2.0),
  "ece": UNIT,
  "ece_equal_mass": UNIT,
  "classwise_ece": UNIT,
  "rms_calibration_error": UNIT,
  "ks_calibration_error": UNIT,
  "auroc": UNIT,
  "aurc": UNIT,
  "selective_risk": UNIT,
  "entropy": (0.0, np.inf),
  "temperature": (0.0, np.inf),
}


@dataclasses.dataclass(frozen=True)
class Described:
  """Metrics of one seed on one set of examples.

  Attributes:
    values: metrics by name. For bins, predicted classes and groups, arrays of
      ``count``, ``accuracy``, ``confidence`` and ``gap`` (confidence −
      accuracy), named ``bin_count`` and so on.
    draws: bootstrap draws of some of these, along axis 0.
  """

  values: dict[str, np.ndarray]
  draws: dict[str, np.ndarray]


def describe(
  logits: Any,
  labels: Any,
  *,
  groups: np.ndarray | None = None,
  num_groups: int = 0,
  num_bins: int = 10,
  replicates: int = 1000,
  seed: int = 0,
  brief: bool = False,
) -> Described:
  """Computes metrics of all examples, bins, classes and groups, with draws.

  Args:
    logits: array of shape (examples, classes), checked.
    labels: integer array of shape (examples,), checked.
    groups: index of each example's group.
    num_groups: number of groups. Some may have no examples here.
    num_bins: number of bins of equal width, and of equal mass.
    replicates: number of draws.
    seed: seed of the draws.
    brief: whether to compute accuracy, NLL, Brier score and ECE only.

  Returns:
    A :class:`Described`.
  """
  each = {k: np.asarray(v) for k, v in _each(logits, labels).items()}
  sums = _Sums(len(each["correct"]), replicates, seed)
  draws = _means(sums, each)
  index = _width_index(each["confidence"], num_bins)
  bins = _shares(sums, each, index, num_bins)
  draws["ece"] = _mean_gap(bins)
  parts = {"bin": (index, num_bins)}
  if not brief:
    draws |= _errors_of(sums, each, bins)
    draws |= _by_rank(sums, each)
    draws["classwise_ece"] = _classwise(sums, logits, labels, num_bins)
    parts["class"] = each["predicted"], logits.shape[1]
    if groups is not None:
      parts["group"] = groups, num_groups
  values = _metrics(logits, labels, num_bins, brief)
  values = {k: np.asarray(v, np.float64) for k, v in values.items()}
  if not brief:
    temperature = float(values["temperature"])
    draws["temperature"] = _temperatures(sums, logits, labels, temperature)
  for part, (index, size) in parts.items():
    count = np.bincount(index, minlength=size)
    with np.errstate(invalid="ignore"):
      accuracy, confidence = (
        np.bincount(index, each[k], size) / count
        for k in ("correct", "confidence")
      )
    values |= {
      f"{part}_count": count,
      f"{part}_accuracy": accuracy,
      f"{part}_confidence": confidence,
      f"{part}_gap": confidence - accuracy,
    }
  # The first draw is the sample itself. Shift the draws so that it equals the
  # exact value: metrics of ranking are approximate, because of the cells.
  with np.errstate(invalid="ignore"):  # of infinite losses
    shifted = {k: x[1:] + (values[k] - x[0])[None] for k, x in draws.items()}
  return Described(values, shifted)


def describe_temperature(
  logits: Any, labels: Any, *, num_bins: int, replicates: int, seed: int
) -> Described:
  """Computes the best temperature only, with draws."""
  del num_bins
  sums = _Sums(len(labels), replicates, seed)
  value = np.asarray(_fits.fit_temperature(logits, labels), float)
  drawn = _temperatures(sums, logits, labels, float(value))
  return Described({"temperature": value}, {"temperature": drawn[1:]})


def estimates(
  described: list[Described], level: float
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Value, low and high of each metric, over examples or over seeds."""
  first = described[0]
  if len(described) > 1:
    return {
      name: _over_seeds([one.values[name] for one in described], name, level)
      for name in first.values
    }
  intervals = {
    name: _bootstrap.basic_interval(
      first.values[name], drawn, level, LIMITS.get(name)
    )
    for name, drawn in first.draws.items()
  }
  # Use Wilson's interval for accuracies: the bootstrap's is empty if all
  # examples are right or all wrong, and poor for few examples. Confidences are
  # given, so a gap varies as its accuracy does.
  if "accuracy" in first.values:
    count = first.values["bin_count"].sum()
    right = first.values["accuracy"] * count
    intervals["accuracy"] = _bootstrap.wilson_interval(right, count, level)
  for part in ("bin", "class", "group"):
    if f"{part}_count" in first.values:
      count, accuracy, confidence = (
        first.values[f"{part}_{k}"] for k in ("count", "accuracy", "confidence")
      )
      right = np.nan_to_num(accuracy) * count
      share = _bootstrap.wilson_interval(right, count, level)
      value, low, high = share
      intervals[f"{part}_accuracy"] = share
      gap = confidence - value, confidence - high, confidence - low
      intervals[f"{part}_gap"] = gap
  return intervals


def _over_seeds(values, name, level):
  mean, *ends = _bootstrap.seeds_interval(values, level)
  # "bin_accuracy" has the limits of "accuracy".
  limits = LIMITS.get(name) or LIMITS.get(name.rpartition("_")[2])
  low, high = ends if limits is None else np.clip(ends, *limits)
  return mean, low, high


@functools.partial(jax.jit, static_argnames=("num_bins", "brief"))
def _metrics(logits, labels, num_bins, brief) -> dict[str, jax.Array]:
  """The metrics, in one program."""
  pair = logits, labels
  accuracy = _scores.accuracy(*pair)
  metrics = {
    "accuracy": accuracy,
    "nll": _scores.nll(*pair),
    "brier": _scores.brier(*pair),
    "ece": _errors.ece(*pair, num_bins),
    "confidence": _scores.confidence(*pair),
    "entropy": _scores.entropy(*pair),
  }
  metrics["overconfidence"] = metrics["confidence"] - accuracy
  if brief:
    return metrics
  return metrics | {
    "ece_equal_mass": _errors.ece(*pair, num_bins, "mass"),
    "classwise_ece": _errors.classwise_ece(*pair, num_bins),
    "rms_calibration_error": _errors.rms_calibration_error(*pair, num_bins),
    "ks_calibration_error": _errors.ks_calibration_error(*pair),
    "auroc": _ranking.auroc(*pair),
    "aurc": _ranking.aurc(*pair),
    "selective_risk": _ranking.selective_risk(*pair, COVERAGE),
    "temperature": _fits.fit_temperature(*pair),
  }


@jax.jit
def _each(logits, labels) -> dict[str, jax.Array]:
  """Figures of each example."""
  return {
    "correct": (_inputs.rank(logits, labels) < 1).astype(logits.dtype),
    "confidence": _inputs.confidence(logits),
    "nll": _inputs.nll(logits, labels),
    "brier": _inputs.brier(logits, labels),
    "entropy": _inputs.entropy(logits),
    "doubt": _ranking.doubt(logits),
    "predicted": jnp.argmax(logits, axis=1),
  }


class _Sums:
  """Sums over the examples of the sample and of each draw."""

  def __init__(self, examples: int, replicates: int, seed: int):
    units = min(examples, MAX_UNITS)
    self.unit = np.arange(examples)
    if units < examples:
      random = np.random.RandomState(seed)
      self.unit = random.permutation(examples) % units
    self.counts = _bootstrap.counts(units, replicates, seed)

  def __call__(
    self, weights: np.ndarray, index: np.ndarray | None = None, size: int = 1
  ) -> np.ndarray:
    """Sums weights by index, which is below ``size``.

    Returns:
      An array of shape (1 + replicates, size).
    """
    units = self.counts.shape[1]
    place = self.unit * size + (0 if index is None else index)
    table = np.bincount(place, weights, units * size).reshape(units, size)
    return np.asarray(self.counts @ table.astype(np.float32), np.float64)


def _means(sums: _Sums, each: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  names = ("correct", "confidence", "nll", "brier", "entropy")
  total = sums(np.ones(len(each["nll"])))[:, 0]
  means = {name: sums(each[name])[:, 0] / total for name in names}
  accuracy = means.pop("correct")
  difference = means["confidence"] - accuracy
  return means | {"accuracy": accuracy, "overconfidence": difference}


def _shares(sums, each, index, size) -> dict[str, np.ndarray]:
  """Sums by bin, class or group, of shape (1 + replicates, size)."""
  return {
    "count": sums(np.ones(len(index)), index, size),
    "correct": sums(each["correct"], index, size),
    "confidence": sums(each["confidence"], index, size),
  }


def _mean_gap(bins) -> np.ndarray:
  gap = np.abs(bins["confidence"] - bins["correct"])
  return gap.sum(axis=1) / bins["count"].sum(axis=1)


def _errors_of(sums, each, bins) -> dict[str, np.ndarray]:
  num_bins = bins["count"].shape[1]
  confidence = each["confidence"]
  edges = np.quantile(
    confidence, np.arange(1, num_bins) / num_bins, method="inverted_cdf"
  )
  mass = _shares(sums, each, np.searchsorted(edges, confidence), num_bins)
  squares = (bins["confidence"] - bins["correct"]) ** 2
  squares = squares / np.maximum(bins["count"], 1)
  mean_square = squares.sum(axis=1) / bins["count"].sum(axis=1)
  return {
    "ece_equal_mass": _mean_gap(mass),
    "rms_calibration_error": np.sqrt(mean_square),
  }


def _by_rank(sums, each) -> dict[str, np.ndarray]:
  """Metrics of ranking, from cells of examples by falling confidence."""
  examples = len(each["doubt"])
  size = min(examples, MAX_CELLS)
  ordered = np.sort(each["doubt"])
  # Ties share a cell.
  first = np.searchsorted(ordered, each["doubt"])
  cells = _shares(sums, each, first * size // examples, size)
  count, right = cells["count"], cells["correct"]
  wrong = count - right
  kept, errors = np.cumsum(count, axis=1), np.cumsum(wrong, axis=1)
  total, all_wrong = kept[:, -1:], errors[:, -1:]
  with np.errstate(invalid="ignore", divide="ignore"):
    # Within a cell, count half of all pairs as in the right order.
    pairs = right * (all_wrong - errors + wrong / 2)
    auroc = pairs.sum(axis=1) / (all_wrong * (total - all_wrong))[:, 0]
  middle = (errors - wrong / 2) / np.maximum(kept - count / 2, 1e-9)
  risk = [
    np.interp(COVERAGE * n[-1], n, e) / (COVERAGE * n[-1])
    for n, e in zip(kept, errors, strict=True)
  ]
  gap = np.cumsum(cells["confidence"] - right, axis=1)
  # Sum from the least confident example on: the total minus what comes before.
  gap = np.abs(gap[:, -1:] - np.pad(gap, ((0, 0), (1, 0))))
  return {
    "auroc": auroc,
    "aurc": (count * middle).sum(axis=1) / total[:, 0],
    "selective_risk": np.array(risk),
    "ks_calibration_error": gap.max(axis=1) / total[:, 0],
  }


def _classwise(sums, logits, labels, num_bins) -> np.ndarray:
  """Draws of the classwise ECE, some classes at a time to save memory."""
  classes = logits.shape[1]
  at_once = max(1, 1000 // num_bins)
  labels, error = np.asarray(labels), 0.0
  for start in range(0, classes, at_once):
    columns = range(start, min(start + at_once, classes))
    p = np.asarray(_probabilities(logits, columns.start, len(columns)))
    gaps = [
      sums(p[:, i] - (labels == c), _width_index(p[:, i], num_bins), num_bins)
      for i, c in enumerate(columns)
    ]
    error = error + np.abs(np.concatenate(gaps, axis=1)).sum(axis=1)
  return error / (classes * sums(np.ones(len(labels)))[:, 0])


@functools.partial(jax.jit, static_argnums=2)
def _probabilities(logits, start, size):
  p = jax.nn.softmax(logits)
  return jax.lax.dynamic_slice_in_dim(p, start, size, axis=1)


def _temperatures(sums, logits, labels, temperature) -> np.ndarray:
  """The best temperature of each draw.

  It interpolates the slope of the loss between 17 temperatures, to zero.
  """
  slope, curvature = map(np.asarray, _slope(logits, labels, temperature))
  # The standard deviation of log T, at the least loss.
  with np.errstate(invalid="ignore", divide="ignore"):
    spread = temperature * np.std(slope) / np.mean(curvature)
  spread = spread / np.sqrt(len(slope))
  if not 0 < spread < 2 or not 1e-6 < temperature < 1e6:
    return np.full(len(sums.counts), np.nan)
  logs = np.log(temperature) + spread * np.linspace(-6, 6, 17)
  slopes = [
    sums(np.asarray(_slope(logits, labels, float(np.exp(t)))[0]))[:, 0]
    for t in logs
  ]
  # The slope falls as T grows.
  roots = [np.interp(0, -s, logs) for s in np.stack(slopes, axis=1)]
  return np.exp(roots)


@jax.jit
def _slope(logits, labels, temperature):
  """First and second derivative of each example's loss by 1 / T."""
  own = jnp.take_along_axis(logits, labels[:, None], axis=1)
  lead = logits - own
  weights = jax.nn.softmax(lead / temperature)
  mean = lambda x: jnp.sum(jnp.where(weights == 0, 0, weights * x), axis=1)
  slope = mean(lead)
  return slope, mean(lead**2) - slope**2


def _width_index(probability: np.ndarray, num_bins: int) -> np.ndarray:
  edges = (np.arange(1, num_bins) / num_bins).astype(probability.dtype)
  return np.searchsorted(edges, probability)


def consistency(
  confidence: np.ndarray, num_bins: int, replicates: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Draws the outcomes of a calibrated model with these confidences.

  Args:
    confidence: confidence of each example.
    num_bins: number of bins of equal width.
    replicates: number of draws.
    seed: seed of the draws.

  Returns:
    The ECE of each draw, and the accuracy of each bin, of shape (replicates,
    bins).

  References:
    Bröcker and Smith, Increasing the Reliability of Reliability Diagrams, 2007
  """
  ordered = np.sort(confidence.astype(np.float64))
  index = _width_index(ordered.astype(confidence.dtype), num_bins)
  # Draw single examples. With many examples, draw neighbours together.
  size = max(1, len(ordered) // MAX_UNITS)
  first = np.flatnonzero(np.diff(index, prepend=-1))
  starts = np.union1d(np.arange(0, len(ordered), size), first)
  count = np.diff(starts, append=len(ordered))
  share = np.clip(np.add.reduceat(ordered, starts) / count, 0, 1)
  random = np.random.default_rng(seed)
  total = np.bincount(index, minlength=num_bins)
  expected = np.bincount(index, ordered, num_bins)
  right = np.zeros((replicates, num_bins))
  bins = np.searchsorted(starts, first)
  for i in range(0, replicates, 100):  # in chunks, to save memory
    rows = min(100, replicates - i)
    drawn = random.binomial(count, share, (rows, len(share)))
    right[i : i + rows, index[first]] = np.add.reduceat(drawn, bins, axis=1)
  errors = np.abs(right - expected).sum(axis=1) / len(ordered)
  return errors, right / np.maximum(total, 1)
