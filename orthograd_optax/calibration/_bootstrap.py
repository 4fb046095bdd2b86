"""Intervals of any metric, by the bootstrap over examples."""

from collections.abc import Callable
from typing import Any

import numpy as np

from orthograd_optax.calibration import (
  _inputs,
  _intervals,
  _predictions,
  _resampling,
  _sample,
  _table,
)
from orthograd_optax.calibration._intervals import Estimate


@_inputs.suggesting
def bootstrap(
  metric: Callable[[Any, Any], Any],
  logits: Any,
  labels: Any,
  *,
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
  Wilson's interval.

  Metrics that :func:`report` computes take seconds, also for 100,000 examples
  of 1,000 classes. Any other function is called once for each resample.

  Args:
    metric: a function of (logits, labels), such as :func:`ece`, or
      ``functools.partial(ece, num_bins=15)``. It may use JAX or NumPy.
    logits: array of shape (examples, classes).
    labels: integer array of shape (examples,).
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
  _predictions.check_draws(resamples, level)
  logits, labels = _predictions.as_numpy(logits, labels)
  name, options = _table.find(metric)
  if name is None or not _predictions.has_softmax(logits).all():
    value, draws = resample(metric, logits, labels, resamples, random_seed)
    return Estimate.of(_intervals.basic_interval(value, draws, level))
  draws = {"resamples": resamples, "random_seed": random_seed}
  sample = _sample.Sample(logits, labels, **options, **draws)
  return _resampling.estimates([_resampling.describe(sample, [name])], level)[
    name
  ]


def resample(
  metric: Callable[[Any, Any], Any],
  logits: np.ndarray,
  labels: np.ndarray,
  resamples: int,
  random_seed: int,
) -> tuple[float, np.ndarray]:
  """Returns a metric's value, and its value for each resample."""
  draws = _sample.chosen(len(labels), resamples, random_seed)
  drawn = [float(metric(logits[i], labels[i])) for i in draws]
  return float(metric(logits, labels)), np.array(drawn)
