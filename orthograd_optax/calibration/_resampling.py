"""All metrics of a report at once, with a thousand draws of each.

Nothing here draws logits. Each metric is a function of a few sums over
examples, and a draw is how often each example counts: so the draws of all sums
are one product of matrices. Beyond 10,000 examples, random groups of them are
drawn in the place of examples. A sum over a draw varies as much as before, and
what draws take no longer grows with the number of examples.
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
  _inputs,
  _ranking,
  _recalibration,
)
from orthograd_optax.calibration import _metrics as _scores

MAX_UNITS = 10_000
CELLS = 256  # of examples by rank, for what depends on it
COVERAGE = 0.9  # of the selective risk
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
  """Numbers of one model on one set of examples.

  Attributes:
    values: the metrics, by name; and of each bin, predicted class and group
      (``bin_...``, ``class_...``, ``group_...``) the ``count``, ``accuracy``,
      ``confidence`` and ``gap``, confidence less accuracy, in an array.
    draws: of some of these, with an axis of draws before the others.
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
  """Metrics, bins, classes and groups, with draws.

  Args:
    logits: array of shape (examples, classes), checked.
    labels: integer array of shape (examples,), checked.
    groups: the index of each example's group.
    num_groups: number of groups, of which some may have no examples here.
    num_bins: number of bins of equal width, and of equal mass.
    replicates: number of draws.
    seed: which.
    brief: whether accuracy, NLL, Brier score and ECE will do.

  Returns:
    Numbers and draws.
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
  # The first draw is the sample itself. What ranks in cells only approach is
  # moved to where that should be.
  with np.errstate(invalid="ignore"):  # of infinite losses
    moved = {k: x[1:] + (values[k] - x[0])[None] for k, x in draws.items()}
  return Described(values, moved)


def describe_temperature(
  logits: Any, labels: Any, *, num_bins: int, replicates: int, seed: int
) -> Described:
  """The best temperature alone, with draws."""
  del num_bins
  sums = _Sums(len(labels), replicates, seed)
  value = np.asarray(_recalibration.fit_temperature(logits, labels), float)
  drawn = _temperatures(sums, logits, labels, float(value))
  return Described({"temperature": value}, {"temperature": drawn[1:]})


def estimates(
  described: list[Described], level: float
) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Value, low and high: over examples or, of several models, over seeds."""
  first = described[0]
  if len(described) > 1:
    return {
      name: _over_seeds([one.values[name] for one in described], name, level)
      for name in first.values
    }
  found = {
    name: _bootstrap.basic_interval(
      first.values[name], drawn, level, LIMITS.get(name)
    )
    for name, drawn in first.draws.items()
  }
  # The bootstrap has no interval of a share where all or none are right, nor of
  # few examples. Confidences are given: a gap varies as its accuracy does.
  if "accuracy" in first.values:
    count = first.values["bin_count"].sum()
    right = first.values["accuracy"] * count
    found["accuracy"] = _bootstrap.wilson_interval(right, count, level)
  for part in ("bin", "class", "group"):
    if f"{part}_count" in first.values:
      count, accuracy, confidence = (
        first.values[f"{part}_{k}"] for k in ("count", "accuracy", "confidence")
      )
      right = np.nan_to_num(accuracy) * count
      share = _bootstrap.wilson_interval(right, count, level)
      value, low, high = share
      found[f"{part}_accuracy"] = share
      gap = confidence - value, confidence - high, confidence - low
      found[f"{part}_gap"] = gap
  return found


def _over_seeds(values, name, level):
  mean, *ends = _bootstrap.seeds_interval(values, level)
  # Of a bin's accuracy, those of an accuracy.
  limits = LIMITS.get(name) or LIMITS.get(name.rpartition("_")[2])
  low, high = ends if limits is None else np.clip(ends, *limits)
  return mean, low, high


@functools.partial(jax.jit, static_argnames=("num_bins", "brief"))
def _metrics(logits, labels, num_bins, brief) -> dict[str, jax.Array]:
  """What the functions of these names give, in one program."""
  pair = logits, labels
  accuracy = _scores.accuracy(*pair)
  found = {
    "accuracy": accuracy,
    "nll": _scores.nll(*pair),
    "brier": _scores.brier(*pair),
    "ece": _errors.ece(*pair, num_bins),
    "confidence": _scores.max_softmax(*pair),
    "entropy": _scores.entropy(*pair),
  }
  found["overconfidence"] = found["confidence"] - accuracy
  if brief:
    return found
  return found | {
    "ece_equal_mass": _errors.ece(*pair, num_bins, "mass"),
    "classwise_ece": _errors.classwise_ece(*pair, num_bins),
    "rms_calibration_error": _errors.rms_calibration_error(*pair, num_bins),
    "ks_calibration_error": _errors.ks_calibration_error(*pair),
    "auroc": _ranking.auroc(*pair),
    "aurc": _ranking.aurc(*pair),
    "selective_risk": _ranking.selective_risk(*pair, COVERAGE),
    "temperature": _recalibration.fit_temperature(*pair),
  }


@jax.jit
def _each(logits, labels) -> dict[str, jax.Array]:
  """What is known of each example."""
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
  """Sums over examples: of the sample, and of draws from it."""

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
    """Of weights, by an index below ``size``: (1 + replicates, size)."""
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
  """Sums by bin, class or group, (1 + replicates, size)."""
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
  """What depends on the order of examples, from the surest on, in cells."""
  examples = len(each["doubt"])
  size = min(examples, CELLS)
  ordered = np.sort(each["doubt"])
  # Equals share a cell.
  first = np.searchsorted(ordered, each["doubt"])
  cells = _shares(sums, each, first * size // examples, size)
  count, right = cells["count"], cells["correct"]
  wrong = count - right
  kept, errors = np.cumsum(count, axis=1), np.cumsum(wrong, axis=1)
  total, all_wrong = kept[:, -1:], errors[:, -1:]
  with np.errstate(invalid="ignore", divide="ignore"):
    # Within a cell, half of all pairs are in the right order.
    pairs = right * (all_wrong - errors + wrong / 2)
    auroc = pairs.sum(axis=1) / (all_wrong * (total - all_wrong))[:, 0]
  middle = (errors - wrong / 2) / np.maximum(kept - count / 2, 1e-9)
  risk = [
    np.interp(COVERAGE * n[-1], n, e) / (COVERAGE * n[-1])
    for n, e in zip(kept, errors, strict=True)
  ]
  gap = np.cumsum(cells["confidence"] - right, axis=1)
  # From the least sure example on, and so less what comes before.
  gap = np.abs(gap[:, -1:] - np.pad(gap, ((0, 0), (1, 0))))
  return {
    "auroc": auroc,
    "aurc": (count * middle).sum(axis=1) / total[:, 0],
    "selective_risk": np.array(risk),
    "ks_calibration_error": gap.max(axis=1) / total[:, 0],
  }


def _classwise(sums, logits, labels, num_bins) -> np.ndarray:
  """Some classes at a time, for a thousand of them not to need gigabytes."""
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
  """Of draws: where the slope of the loss, known at a few of them, is zero."""
  slope, curvature = map(np.asarray, _slope(logits, labels, temperature))
  # How far T varies, in logarithms, with 1 / T at the least loss.
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
  found = [np.interp(0, -s, logs) for s in np.stack(slopes, axis=1)]
  return np.exp(found)


@jax.jit
def _slope(logits, labels, temperature):
  """Of each example's loss by 1 / T: its first and second derivative."""
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
  """What a calibrated model would show, of these confidences.

  Args:
    confidence: of each example.
    num_bins: number of bins of equal width.
    replicates: number of draws.
    seed: which.

  Returns:
    The ECE of each draw, and the accuracy in each bin, (replicates, bins).

  References:
    Bröcker and Smith, Increasing the Reliability of Reliability Diagrams, 2007
  """
  ordered = np.sort(confidence.astype(np.float64))
  index = _width_index(ordered.astype(confidence.dtype), num_bins)
  # Each example by itself or, of many, those next to each other in a bin.
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
  for i in range(0, replicates, 100):  # for less memory at once
    rows = min(100, replicates - i)
    drawn = random.binomial(count, share, (rows, len(share)))
    right[i : i + rows, index[first]] = np.add.reduceat(drawn, bins, axis=1)
  errors = np.abs(right - expected).sum(axis=1) / len(ordered)
  return errors, right / np.maximum(total, 1)
