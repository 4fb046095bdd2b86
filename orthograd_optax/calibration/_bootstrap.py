"""Intervals of metrics: the bootstrap over examples, and over seeds."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from orthograd_optax.calibration import _inputs


class Estimate(NamedTuple):
  """A number with its interval.

  Attributes:
    value: the number, of the sample itself.
    low: lower end of the interval.
    high: upper end of the interval.
  """

  value: float
  low: float
  high: float

  @classmethod
  def of(cls, triple: Any) -> "Estimate":
    """An estimate from three arrays of one number each."""
    return cls(*map(float, triple))

  def __str__(self) -> str:
    return f"{self.value:.4f} ({self.low:.4f}, {self.high:.4f})"


def bootstrap(
  metric: Callable[[Any, Any], jax.Array],
  logits: Any,
  labels: Any,
  *,
  replicates: int = 1000,
  level: float = 0.95,
  seed: int = 0,
) -> Estimate:
  r"""A metric with an interval, by the bootstrap over examples.

  Each replicate draws as many examples as there are, with replacement, and
  computes the metric :math:`\theta^*`. The interval is the basic one,

  .. math::

    (2 \hat\theta - \theta^*_{97.5\,\%}, \;
      2 \hat\theta - \theta^*_{2.5\,\%}) ,

  because calibration errors are biased upwards. A replicate has that bias
  twice, and the basic interval subtracts it. If the value itself lies outside,
  the interval is extended to it.

  Args:
    metric: a function of (logits, labels), such as :func:`ece`, or
      ``functools.partial(ece, num_bins=15)``.
    logits: array of shape (examples, classes).
    labels: integer array of shape (examples,).
    replicates: number of replicates.
    level: the confidence level.
    seed: seed of the draws.

  Returns:
    An :class:`Estimate`: value, low and high.

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
  check_draws(replicates, level)
  logits, labels = _inputs.check(logits, labels)
  # Hold at most 10⁸ numbers at once.
  batch = int(np.clip(10**8 // logits.size, 1, replicates))
  keys = jax.random.split(jax.random.key(seed), replicates)
  draws = _draw(metric, batch, logits, labels, keys)
  value = np.asarray(metric(logits, labels))
  return Estimate.of(basic_interval(value, draws, level))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _draw(metric, batch, logits, labels, keys):
  def one(key):
    chosen = jax.random.randint(key, labels.shape, 0, labels.size)
    return metric(logits[chosen], labels[chosen])

  return jax.lax.map(one, keys, batch_size=batch)


def basic_interval(
  value: Any,
  draws: Any,
  level: float,
  limits: tuple[float, float] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """The basic bootstrap interval of each entry of ``value``.

  Args:
    value: a number or an array.
    draws: its replicates, along axis 0.
    level: the confidence level.
    limits: the range of possible values.

  Returns:
    Value, low and high.
  """
  value, draws = np.asarray(value, np.float64), np.asarray(draws, np.float64)
  # Ignore replicates that are not finite: an empty bin has no accuracy.
  known = np.isfinite(draws).any(axis=0) & np.isfinite(value)
  draws = np.where(known[None], draws, 0)
  ends = [(1 + level) / 2, (1 - level) / 2]
  low, high = 2 * value - np.nanquantile(draws, ends, axis=0)
  if limits is not None:
    low, high = np.clip(low, *limits), np.clip(high, *limits)
  low, high = np.fmin(low, value), np.fmax(high, value)
  return value, np.where(known, low, np.nan), np.where(known, high, np.nan)


def wilson_interval(
  right: Any, count: Any, level: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Wilson's interval of a share. The bootstrap's is empty if all are right."""
  right, count = np.asarray(right, np.float64), np.asarray(count, np.float64)
  z2 = special.ndtri((1 + level) / 2) ** 2
  with np.errstate(invalid="ignore", divide="ignore"):
    value = right / count
    centre = (right + z2 / 2) / (count + z2)
    spread = np.sqrt(z2 * (right * (1 - value) + z2 / 4)) / (count + z2)
  low, high = np.fmin(centre - spread, value), np.fmax(centre + spread, value)
  return value, np.where(count, low, np.nan), np.where(count, high, np.nan)


def seeds_interval(
  values: Any, level: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Student's interval of the mean over seeds, along axis 0."""
  values = np.asarray(values, np.float64)
  # A bin or a class may be empty in some seeds.
  known = np.isfinite(values)
  number = known.sum(axis=0)
  with np.errstate(invalid="ignore", divide="ignore"):
    mean = np.where(known, values, 0).sum(axis=0) / number
    squares = np.where(known, (values - mean) ** 2, 0).sum(axis=0)
    error = np.sqrt(squares / (number - 1) / number)
  reach = special.stdtrit(number - 1.0, (1 + level) / 2) * error
  return mean, mean - reach, mean + reach


def check_draws(replicates: Any, level: Any) -> None:
  if not isinstance(replicates, int | np.integer) or replicates < 1:
    raise ValueError(
      f"replicates is {replicates}, but must be a whole number > 0. 1000 is "
      "usual."
    )
  if not 0 < level < 1:
    raise ValueError(f"level is {level}, but must be between 0 and 1.")


@functools.lru_cache(maxsize=4)
def counts(units: int, replicates: int, seed: int) -> jax.Array:
  """How often each unit is drawn: shape (replicates + 1, units).

  The first row is all ones: it is the sample itself.
  """
  # Pass the keys as an argument. Otherwise XLA draws while it compiles.
  keys = jax.random.split(jax.random.key(seed), replicates)
  return _count(keys, units)


@functools.partial(jax.jit, static_argnums=1)
def _count(keys, units):
  def one(key):
    chosen = jax.random.randint(key, (units,), 0, units)
    return jnp.bincount(chosen, length=units).astype(jnp.float32)

  drawn = jax.lax.map(one, keys, batch_size=100)
  return jnp.concatenate([jnp.ones((1, units), jnp.float32), drawn])
