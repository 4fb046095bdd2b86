"""Metrics with intervals, by the bootstrap, and tests of calibration."""

from collections.abc import Callable, Iterable
import reprlib
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from orthograd_optax.calibration import _intervals, _predictions, _sample
from orthograd_optax.calibration._inputs import suggesting
from orthograd_optax.calibration._intervals import Estimate
from orthograd_optax.calibration._sample import Sample
from orthograd_optax.calibration._table import METRICS, find

_MAX_LEVELS = 1000  # different probabilities; neighbours are merged


@suggesting
def bootstrap(
  metric: Callable[[Any, Any], Any],
  logits: Any,
  labels: Any,
  *,
  where: Any = None,
  resamples: int = 1000,
  level: float = 0.95,
  random_seed: int = 0,
) -> Estimate:
  r"""Computes a metric with an interval, by the bootstrap over examples.

  Each resample draws as many examples as there are, with replacement, and
  computes the metric :math:`\theta^*`. The interval is the basic one,

  .. math::

    (2 \hat\theta - \theta^*_{97.5\,\%}, \;
      2 \hat\theta - \theta^*_{2.5\,\%}) ,

  because calibration errors are biased upwards. A resample has that bias twice,
  and the basic interval subtracts it. If the value itself lies outside, the
  interval is extended to it. Shares (``accuracy``, ``selective_risk``) have
  Wilson's interval. Metrics that :func:`report` computes take seconds, also for
  100,000 examples of 1,000 classes. Other functions are called once for each
  resample.

  Args:
    metric: a function of (logits, labels), such as :func:`ece`, or
      ``functools.partial(ece, num_bins=15)``. It may use JAX or NumPy.
    logits, labels, where: as for :func:`ece`. The metric is called with the
      examples that count: logits of shape (examples, classes), labels of shape
      (examples,). Tokens of one sequence are taken as independent. If they
      depend on each other, the interval is too narrow.
    resamples: number of resamples.
    level: the confidence level.
    random_seed: seed of the draws.

  Returns:
    An :class:`Estimate`: value, low and high. If all resamples give the same
    number, there is no interval: low and high are NaN.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = 3.0 * jax.random.normal(jax.random.key(0), (400, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), logits / 2.5)
    >>> value, low, high = calibration.bootstrap(
    ...   calibration.ece, logits, labels
    ... )
    >>> print(f"{value:.2f} ({low:.2f} to {high:.2f})")
    0.15 (0.11 to 0.19)

  References:
    Davison and Hinkley, Bootstrap Methods and their Application, 1997
  """
  if not callable(metric):
    raise TypeError(
      "metric must be a function of (logits, labels), such as calibration.ece, "
      f"but is {reprlib.repr(metric)}."
    )
  _predictions.check_draws(resamples, level)
  logits, labels = _predictions.as_numpy(logits, labels, where)
  name, options = find(metric)
  draws = {"resamples": resamples, "random_seed": random_seed}
  if name is None or not _predictions.has_softmax(logits).all():
    return resampled(metric, logits, labels, level, **draws)
  sample = Sample(logits, labels, **options, **draws)
  described = describe(sample, [name])
  return estimates([described], level)[name]


def resampled(metric, logits, labels, level, resamples, random_seed):
  """Returns the estimate of any metric, called once for each resample."""
  draws = _sample.chosen(len(labels), resamples, random_seed)
  drawn = [float(metric(logits[i], labels[i])) for i in draws]
  value = float(metric(logits, labels))
  return Estimate.of(_intervals.basic_interval(value, drawn, level))


class Described(NamedTuple):
  """Metrics of one sample, by name, with bootstrap draws of each."""

  examples: int
  values: dict[str, float]
  draws: dict[str, np.ndarray]


def describe(sample: Sample, names: Iterable[str] = METRICS) -> Described:
  """Computes some metrics, all by default, with bootstrap draws."""
  values, draws = {}, {}
  for name in names:
    metric = METRICS[name]
    drawn = metric.draws(sample)
    value = float(drawn[0] if metric.value is None else metric.value(sample))
    values[name] = value
    # Where draws are approximate, shift them to the exact value.
    with np.errstate(invalid="ignore"):  # infinite losses
      draws[name] = drawn[1:] + (value - drawn[0])
  return Described(sample.examples, values, draws)


def estimates(described: list[Described], level: float) -> dict[str, Estimate]:
  """Returns each metric with its interval, over examples or over seeds."""
  metrics = {}
  for name in described[0].values:
    if len(described) > 1:
      values = [one.values[name] for one in described]
      interval = _intervals.seeds_interval(values, level, METRICS[name].limits)
    else:
      interval = _over_examples(described[0], name, level)
    metrics[name] = Estimate.of(interval)
  return metrics


def summary(described: list[Described], level: float) -> dict[str, Estimate]:
  """Returns estimates. The temperature is NaN if it has no interval."""
  metrics = estimates(described, level)
  if not np.isfinite(sum(metrics["temperature"])):
    metrics["temperature"] = Estimate(np.nan, np.nan, np.nan)
  return metrics


def difference(
  name: str, old: list[Described], new: list[Described], level: float
) -> Estimate:
  """Returns new − old of a metric, paired over draws or over seeds."""
  pairs = list(zip(old, new, strict=True))
  values = [b.values[name] - a.values[name] for a, b in pairs]
  if len(values) > 1:
    return Estimate.of(_intervals.seeds_interval(values, level))
  with np.errstate(invalid="ignore"):  # infinite losses
    draws = new[0].draws[name] - old[0].draws[name]
  return Estimate.of(_intervals.basic_interval(values[0], draws, level))


def _over_examples(one: Described, name: str, level: float):
  metric, value, draws = METRICS[name], one.values[name], one.draws[name]
  if metric.share is not None:
    count = _sample.kept_examples(metric.share, one.examples)
    return _intervals.wilson_interval(value * count, count, level)
  if name == "overconfidence" and one.values["accuracy"] in (0.0, 1.0):
    # Without any variation of the accuracy, the draws are too narrow.
    n, confidence = one.examples, one.values["confidence"]
    _, low, high = _intervals.wilson_interval(
      (confidence - value) * n, n, level
    )
    return value, confidence - high, confidence - low
  if name == "temperature":
    if np.mean(np.isinf(draws)) > (1 - level) / 2 or not value > 0:
      return value, np.nan, np.nan  # the value may be infinite
    logs = _intervals.basic_interval(np.log(value), np.log(draws), level)
    return value, *np.exp(logs[1:])
  return _intervals.basic_interval(value, draws, level, metric.limits)


def consistency(
  confidence: np.ndarray, num_bins: int, resamples: int, random_seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Draws outcomes of a calibrated model with these confidences.

  Returns the ECE of each draw, and the accuracy of each bin, of shape
  (resamples, bins). See Bröcker and Smith, Increasing the Reliability of
  Reliability Diagrams, 2007.
  """
  ordered = np.sort(confidence.astype(np.float64))
  index = _sample._width_index(ordered, num_bins)
  # Draw single examples. With many examples, draw neighbours together.
  first = np.flatnonzero(np.diff(index, prepend=-1))
  many = len(ordered) > _sample.MAX_UNITS
  number = _MAX_LEVELS if many else len(ordered)
  count, share, starts = _levels(ordered, number, first)
  random = np.random.default_rng(random_seed)
  total = np.bincount(index, minlength=num_bins)
  expected = np.bincount(index, ordered, num_bins)
  right = np.zeros((resamples, num_bins))
  bins = np.searchsorted(starts, first)
  for i in range(0, resamples, 100):  # in chunks, to save memory
    rows = min(100, resamples - i)
    size = rows, len(share)
    if many:
      drawn = random.binomial(count, share, size)
    else:
      drawn = random.random(size) < share
    sums = np.add.reduceat(drawn, bins, axis=1, dtype=float)
    right[i : i + rows, index[first]] = sums
  errors = np.abs(right - expected).sum(axis=1) / len(ordered)
  return errors, right / np.maximum(total, 1)


def _levels(ordered, number, first=(0,)):
  """Merges neighbours to about ``number`` levels: counts, means, starts."""
  size = max(1, len(ordered) // number)
  starts = np.union1d(np.arange(0, len(ordered), size), first).astype(int)
  count = np.diff(starts, append=len(ordered))
  mean = np.clip(np.add.reduceat(ordered, starts) / count, 0, 1)
  return count, mean, starts


def gap_p_values(sample: Sample, index: np.ndarray, size: int) -> np.ndarray:
  """Returns the p-value of "the model is calibrated" in each class or group.

  If so, the number of correct predictions is Poisson-binomial: a sum of
  independent outcomes whose probabilities are the confidences.
  """
  order = np.argsort(index, kind="stable")
  ends = np.cumsum(np.bincount(index, minlength=size))[:-1]
  confidence, correct = (
    np.split(sample.each[name][order], ends)
    for name in ("confidence", "correct")
  )
  pairs = zip(confidence, correct, strict=True)
  return np.array([_poisson_binomial(p, int(y.sum())) for p, y in pairs])


def _poisson_binomial(p: np.ndarray, right: int) -> float:
  """Tests ``right`` successes in trials of these probabilities, two-sided."""
  if not len(p):
    return np.nan
  mean, deviation = p.sum(), np.sqrt((p * (1 - p)).sum())
  if deviation > 30:
    z = max(abs(right - mean) - 0.5, 0) / deviation
    return float(2 * special.ndtr(-z))
  # Invert the characteristic function. Outside of this window, probabilities
  # are below 1e-16.
  width = min(len(p) + 1, int(24 * deviation) + 60)
  start = int(np.clip(mean - width / 2, 0, len(p) + 1 - width))
  if not start <= right < start + width:
    return 0.0
  count, share, _ = _levels(np.sort(p), _MAX_LEVELS)
  turn = np.exp(2j * np.pi * np.arange(width) / width)
  with np.errstate(divide="ignore", invalid="ignore"):
    logs = np.log(1 - share[:, None] + share[:, None] * turn[None])
    transform = np.exp((count[:, None] * logs).sum(axis=0))
  mass = np.fft.fft(np.nan_to_num(transform)).real / width
  mass = mass[np.arange(start, start + width) % width]
  tails = mass[: right - start + 1].sum(), mass[right - start :].sum()
  return float(np.clip(2 * min(tails), 0, 1))
