"""Bins examples by confidence; sums that add up over batches."""

import collections
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from orthograd_optax.calibration import _inputs

Binning = Literal["width", "mass"]


def _equal(self: object, other: object) -> bool:
  """Compares two pytrees by the values of their arrays."""
  pairs = zip(*map(jax.tree.leaves, (self, other)), strict=False)
  return type(self) is type(other) and all(np.array_equal(*x) for x in pairs)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Reliability:
  """The data of a reliability diagram.

  Each field has shape (bins,), or (seeds, bins) as from ``jax.vmap``.

  Attributes:
    count: number of examples whose confidence is in the bin.
    confidence: their mean confidence; zero in an empty bin.
    accuracy: the share of correct examples; zero in an empty bin.
  """

  count: jax.Array
  confidence: jax.Array
  accuracy: jax.Array
  __eq__ = _equal


@_inputs.suggesting
def reliability(
  logits: Any, labels: Any, num_bins: int = 10, *, where: Any = None
) -> Reliability:
  """Computes the data of a reliability diagram.

  Args:
    logits, labels, where: as for :func:`ece`.
    num_bins: number of bins (lo, hi] of equal width.

  Returns:
    A :class:`Reliability`. Draw it with
    :func:`orthograd_optax.plots.reliability_diagram`, or merge several seeds
    with :func:`average_reliability`.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> bins = calibration.reliability(logits, [0, 1, 1], 5)
    >>> print(bins.count, bins.confidence.round(2), bins.accuracy)
    [0 0 0 1 2] [0.  0.  0.  0.7 0.9] [0.  0.  0.  1.  0.5]
  """
  return tally(logits, labels, num_bins, where).reliability()


def average_reliability(
  reliabilities: Reliability | Sequence[Reliability],
) -> Reliability:
  """Merges the reliabilities of several seeds.

  Args:
    reliabilities: a sequence of :class:`Reliability`, or one with a leading
      axis for seeds.

  Returns:
    A :class:`Reliability`, where each bin has the examples of all seeds.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> bins = calibration.reliability(logits, [0, 1, 1], 5)
    >>> print(calibration.average_reliability([bins, bins]).count)
    [0 0 0 2 4]
  """
  if isinstance(reliabilities, Reliability):
    stacked = reliabilities
  else:
    reliabilities = list(reliabilities)
    shapes = sorted({r.count.shape for r in reliabilities})
    if len(shapes) != 1:
      raise ValueError(
        "There must be at least one reliability, and all must have the same "
        f"num_bins, but {len(reliabilities)} have the shapes {shapes}."
      )
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *reliabilities)
  if stacked.count.ndim < 2:
    raise ValueError(
      "A reliability must have a leading axis to average over, but its shape "
      f"is {stacked.count.shape}. Give a sequence of them, or use jax.vmap."
    )
  count = jnp.sum(stacked.count, axis=0)
  weight = stacked.count / jnp.maximum(count, 1)[None]
  mean = lambda x: jnp.sum(weight.astype(x.dtype) * x, axis=0)
  return Reliability(count, mean(stacked.confidence), mean(stacked.accuracy))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Tally:
  """Counts and sums over examples, enough to compute :func:`evaluate`.

  Add tallies of batches with ``+``, or of devices with ``jax.lax.psum``. Counts
  are exact. ``+`` also keeps the rounding errors of the sums, so that the
  result stays accurate however many batches are added.

  It has the methods of ``clu.metrics.Metric``, and works in its place: as a
  field of a ``clu.metrics.Collection``, and in metrax's ``NnxWrapper``. For
  Flax NNX, see :func:`nnx_tally`.

  Attributes:
    count: number of examples in each bin of confidence.
    correct: number of correct examples in each bin.
    top5: number of examples whose label is among the five largest logits.
    sums: sums over examples of NLL, Brier score, entropy, largest absolute
      logit and logit variance. By bin, sums of the shortfall s = (upper edge of
      the bin − confidence), of s², and of s over the correct examples.
    lost: the rounding errors of the sums.
  """

  count: jax.Array
  correct: jax.Array
  top5: jax.Array
  sums: dict[str, jax.Array]
  lost: dict[str, jax.Array]
  __eq__ = _equal

  @classmethod
  def empty(cls, num_bins: int = 10, dtype: Any = jnp.float32) -> "Tally":
    """Returns a tally of zeros, to start a loop or a scan.

    Args:
      num_bins: as for :func:`tally`.
      dtype: float64 for float64 logits, else float32.
    """
    batch = jnp.zeros((1, 2), dtype), jnp.zeros(1, jnp.int32)
    return jax.tree.map(jnp.zeros_like, tally(*batch, num_bins))

  @classmethod
  def from_model_output(
    cls, *, logits: Any, labels: Any, where: Any = None, mask: Any = None, **_
  ) -> "Tally":
    """Tallies one batch, as :func:`tally`; ignores other outputs.

    Args:
      logits, labels, where: as for :func:`tally`.
      mask: another name for ``where``, also as numbers: 0 for padding.
    """
    return tally(logits, labels, where=_where(where, mask))

  def merge(self, other: "Tally") -> "Tally":
    """Returns ``self + other``."""
    return self + other

  def reduce(self) -> "Tally":
    """Returns the sum over a leading axis, as from ``jax.lax.all_gather``."""
    first, others = (
      jax.tree.map(lambda x, part=part: x[part], self)
      for part in (0, slice(1, None))
    )
    return jax.lax.scan(lambda a, b: (a + b, None), first, others)[0]

  def compute(self) -> dict[str, jax.Array]:
    """Returns ``metrics()``."""
    return self.metrics()

  def __add__(self, other: "Tally") -> "Tally":
    if self.count.shape != other.count.shape:
      raise ValueError(
        "Tallies must have the same num_bins, but have the shapes "
        f"{self.count.shape} and {other.count.shape}."
      )

    def rounded_off(a, b, lost):
      # The exact error of a sum of two floats (Møller, Knuth).
      total = a + b
      of_b = total - a
      error = (a - (total - of_b)) + (b - of_b)
      return lost + jnp.where(jnp.isfinite(error), error, 0)

    plain = jax.tree.map(jnp.add, self, other)
    lost = jax.tree.map(rounded_off, self.sums, other.sums, plain.lost)
    return dataclasses.replace(plain, lost=lost)

  def reliability(self) -> Reliability:
    """Returns the :func:`reliability` of all examples."""
    shortfall = self.sums["shortfall"] + self.lost["shortfall"]
    edges = _width_edges(self.count.shape[-1], shortfall.dtype)
    return _means(edges, self.count, self.correct, shortfall)

  def metrics(self) -> dict[str, jax.Array]:
    """Returns the metrics of :func:`evaluate`; NaN without examples.

    The correlation of confidence and correctness loses digits if all
    confidences are close together, and is NaN if no digit is left.
    """
    sums = jax.tree.map(jnp.add, self.sums, self.lost)
    s = sums["shortfall"]
    bins = self.reliability()
    count, right = (x.astype(s.dtype) for x in (self.count, self.correct))
    examples = jnp.sum(count, axis=-1)
    confidence = jnp.sum(count * bins.confidence, axis=-1) / examples
    correct = jnp.sum(right, axis=-1) / examples
    # Counts can't be NaN, so take the NaN from the confidence.
    known = jnp.where(jnp.isnan(confidence), jnp.nan, 1).astype(s.dtype)

    # (Co)variance is the sum within bins plus the part between their means.
    # Within a bin, cov(c, y) = −cov(s, y), with confidence c and shortfall s.
    c = bins.confidence - confidence[..., None]
    y = bins.accuracy - correct[..., None]
    mean = s / jnp.maximum(count, 1)
    within = sums["shortfall_squared"] - mean * s
    variance = jnp.sum(within + count * c**2, axis=-1)
    noise = 1e3 * jnp.finfo(s.dtype).eps * jnp.sum(mean * s, axis=-1)
    within = mean * right - sums["shortfall_correct"]
    covariance = jnp.sum(within + count * c * y, axis=-1)
    deviations = jnp.sqrt(variance * examples * correct * (1 - correct))
    correlation = jnp.where(
      (variance > noise) & (deviations > 0),
      jnp.clip(covariance / deviations, -1, 1),
      jnp.nan,
    )

    # Unlike a dict, an OrderedDict keeps its order under jit and vmap.
    return collections.OrderedDict(
      accuracy=correct * known,
      top5_accuracy=self.top5.astype(s.dtype) / examples * known,
      nll=sums["nll"] / examples,
      ece=mean_gap(bins),
      brier=sums["brier"] / examples,
      entropy=sums["entropy"] / examples,
      confidence=confidence,
      max_logit=sums["max_logit"] / examples,
      logit_variance=sums["logit_variance"] / examples,
      confidence_correlation=correlation,
    )


@_inputs.checked("num_bins")
def tally(
  logits: Any, labels: Any, num_bins: int = 10, where: Any = None
) -> Tally:
  """Tallies one batch, to compute :func:`evaluate` batch by batch.

  Args:
    logits, labels, num_bins, where: as for :func:`reliability`.

  Returns:
    A :class:`Tally`. Add the tallies of all batches, then call ``metrics()``.

  Examples:
    >>> from orthograd_optax import calibration
    >>> total = calibration.Tally.empty()
    >>> for probabilities, labels in (([0.1, 0.1], [0, 1]), ([0.7], [1])):
    ...   logits = calibration.from_probabilities(probabilities)
    ...   total += calibration.tally(logits, labels)
    >>> print(f"{total.metrics()['ece']:.4f}")
    0.3667
  """
  return total(logits, num_bins)


def _where(where: Any = None, mask: Any = None, **_) -> Any:
  """Returns ``where``, under the name that others give it."""
  if where is None and mask is not None:
    return jnp.asarray(mask) != 0
  return where


def nnx_tally(num_bins: int = 10) -> Any:
  """Returns a :class:`Tally` as a metric of Flax NNX, which must be installed.

  Args:
    num_bins: as for :func:`tally`.

  Returns:
    An ``nnx.Metric``, also for ``nnx.MultiMetric``. ``update(logits=...,
    labels=...)`` adds a batch, with ``where`` or ``mask`` as for
    :meth:`Tally.from_model_output`. ``compute()`` returns the metrics of
    :func:`evaluate`, and ``reset()`` starts again.

  Examples:
    >>> from orthograd_optax import calibration
    >>> metric = calibration.nnx_tally()
    >>> for probabilities, labels in (([0.1, 0.1], [0, 1]), ([0.7], [1])):
    ...   logits = calibration.from_probabilities(probabilities)
    ...   metric.update(logits=logits, labels=labels)
    >>> print(f"{metric.compute()['ece']:.4f}")
    0.3667
  """
  return _nnx_class()(num_bins)


@functools.cache
def _nnx_class() -> Any:
  try:
    from flax import nnx
  except ImportError as error:
    raise ImportError("nnx_tally needs Flax: pip install flax") from error

  # Flax 0.12.0, which goes with jax 0.8.0, has a property instead.
  has_methods = hasattr(nnx.Variable, "set_value")

  class TallyMetric(nnx.Metric):
    def __init__(self, num_bins: int):
      self.num_bins = num_bins
      self.state = nnx.metrics.MetricState(Tally.empty(num_bins))

    def _get(self) -> Any:
      return self.state.get_value() if has_methods else self.state.value

    def _set(self, value: Any) -> None:
      if has_methods:
        self.state.set_value(value)
      else:
        self.state.value = value

    def reset(self) -> None:
      self._set(Tally.empty(self.num_bins))

    def update(self, *, logits: Any, labels: Any, **options: Any) -> None:
      batch = tally(logits, labels, self.num_bins, _where(**options))
      self._set(self._get() + batch)

    def compute(self) -> Any:
      return self._get().metrics()

  return TallyMetric


def total(examples: _inputs.Examples, num_bins: int) -> Tally:
  """Returns the tally of examples."""
  check_bins(num_bins)
  x, edges = examples, _width_edges(num_bins, examples.dtype)
  keep = jnp.ones(x.size, bool) if x.keep is None else x.keep
  count, correct, *shortfalls = _sums(edges, x.confidence, x.correct, keep)
  names = "nll", "brier", "entropy", "max_logit", "logit_variance"
  sums = {name: x.sum(getattr(x, name)) for name in names}
  names = "shortfall", "shortfall_squared", "shortfall_correct"
  sums |= dict(zip(names, shortfalls, strict=True))
  top5 = jnp.sum((x.rank < 5) & keep, dtype=jnp.int32)
  return Tally(count, correct, top5, sums, jax.tree.map(jnp.zeros_like, sums))


# Bins are (lo, hi], given by their upper edges. The first also has zero.


def by_confidence(examples, num_bins, binning) -> Reliability:
  x = examples
  return bins(x.confidence, x.correct, num_bins, binning, x.keep)


def by_class(examples, num_bins, binning, threshold=0.0) -> Reliability:
  """Returns the reliability of each class's probability, of shape (K, bins)."""
  x, z = examples, examples.logits
  flat = x.labels.ravel()
  keep = jnp.ones(x.size, bool) if x.keep is None else x.keep

  if binning != "width":

    def one_class(c):
      column = jax.lax.dynamic_index_in_dim(z, c, z.ndim - 1)
      p = jnp.ravel(jnp.exp(column - x.high) / x.total)
      kept = keep & (p >= threshold)
      return bins(p, flat == c, num_bins, binning, kept)

    # Some at a time, to save memory.
    return jax.lax.map(one_class, jnp.arange(x.classes), batch_size=16)

  # All classes at a time, bin by bin: sums over examples, which need no copy of
  # the logits, and gather none.
  check_bins(num_bins)
  edges = _width_edges(num_bins, z.dtype)
  axes = tuple(range(z.ndim - 1))
  kept = keep.reshape(*z.shape[:-1], 1)
  # Not of the shape of the logits: XLA would store it before the loop.
  index = jnp.arange(x.classes).reshape((1,) * len(axes) + (-1,))

  def one_bin(ends):
    low, high = ends
    # The condition holds. It keeps XLA from computing all of this before the
    # loop, which would take more memory than the logits.
    top, labels = (jnp.where(high > 0, a, 0) for a in (x.high, x.labels))
    p = jnp.exp(z - top) / x.total
    inside = kept & (p > low) & (p <= high) & (p >= threshold)
    own = inside & (index == labels[..., None])
    short = jnp.where(inside, high - p, 0)
    terms = *(t.astype(z.dtype) for t in (inside, own)), short
    return _inputs.fixed_sums(terms, axes, (0, 0, 0))

  lower = jnp.concatenate([jnp.full(1, -1, z.dtype), edges[:-1]])
  count, correct, short = jax.lax.map(one_bin, (lower, edges))
  count, correct = (a.astype(jnp.int32).T for a in (count, correct))
  return _means(edges, count, correct, short.T)


def bins(probability, outcome, num_bins, binning, keep=None) -> Reliability:
  """Returns the reliability of probabilities, given their outcomes."""
  check_bins(num_bins)
  keep = jnp.ones(outcome.shape, bool) if keep is None else keep
  if binning == "width":
    edges = _width_edges(num_bins, probability.dtype)
  elif binning == "mass":
    size, larger = jnp.divmod(jnp.sum(keep), num_bins)
    nth = jnp.arange(1, num_bins + 1)
    last = nth * size + jnp.minimum(nth, larger) - 1
    edges = jnp.sort(jnp.where(keep, probability, jnp.inf))[last]
  else:
    raise ValueError(f'binning must be "width" or "mass", but is {binning!r}.')
  return _means(edges, *_sums(edges, probability, outcome, keep)[:3])


def mean_gap(reliability: Reliability, power: int = 1) -> jax.Array:
  gap = jnp.abs(reliability.accuracy - reliability.confidence) ** power
  count = reliability.count.astype(gap.dtype)
  return jnp.sum(count * gap, axis=-1) / jnp.sum(count, axis=-1)


def check_bins(num_bins):
  positive = isinstance(num_bins, int | np.integer) and num_bins >= 1
  _inputs.require(positive, "num_bins must be a positive integer", num_bins)


def _width_edges(num_bins, dtype):
  return jnp.asarray(np.arange(1, num_bins + 1) / num_bins, dtype)


def _sums(edges, probability, outcome, keep):
  """Returns counts of examples and outcomes by bin, and shortfall sums."""
  index = jnp.sum(probability[:, None] > edges[None, :-1], axis=1)
  inside = (index[:, None] == jnp.arange(edges.size)[None]) & keep[:, None]
  true = inside & outcome[:, None]
  s = jnp.where(inside, edges[None] - probability[:, None], 0)
  return (
    jnp.sum(inside, axis=0, dtype=jnp.int32),
    jnp.sum(true, axis=0, dtype=jnp.int32),
    jnp.sum(s, axis=0),
    jnp.sum(s**2, axis=0),
    jnp.sum(jnp.where(true, s, 0), axis=0),
  )


def _means(edges, count, correct, shortfall) -> Reliability:
  number = jnp.maximum(count, 1).astype(edges.dtype)
  edges = jnp.broadcast_to(edges, count.shape)
  confidence = jnp.where(count > 0, edges - shortfall / number, 0)
  return Reliability(count, confidence, correct.astype(edges.dtype) / number)
