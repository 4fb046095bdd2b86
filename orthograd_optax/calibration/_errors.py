"""Calibration errors: the distance between confidence and accuracy."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from orthograd_optax.calibration import _bins, _inputs


@_inputs.checked("num_bins", "binning")
def ece(
  logits: Any,
  labels: Any,
  num_bins: int = 10,
  binning: _bins.Binning = "width",
  *,
  where: Any = None,
) -> jax.Array:
  r"""Computes the expected calibration error (ECE).

  .. math:: \sum_b \frac{n_b}{n} |\mathrm{accuracy}_b - \mathrm{confidence}_b|

  Compare ECEs at the same number of bins and of examples. The noise of each bin
  biases the ECE upwards, more so with more bins; see :func:`debiased_ece`.

  Args:
    logits: array of shape (..., classes).
    labels: integer array of shape (...).
    num_bins: number of bins.
    binning: ``"width"`` for bins (lo, hi] of equal width; the last one has all
      confidences of exactly 1. ``"mass"`` for bins of equally many examples,
      the adaptive ECE; equal confidences share a bin.
    where: booleans of shape (...): ``True`` for the examples to count,
      ``False`` for padding, whose logits and labels don't matter.

  Returns:
    A number from 0 to 1.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> print(f"{calibration.ece(logits, [0, 1, 1]):.4f}")
    0.3667

  References:
    `Guo et al, 2017 <https://arxiv.org/abs/1706.04599>`_;
    `Nixon et al, 2019 <https://arxiv.org/abs/1904.01685>`_ (equal mass)
  """
  return _bins.mean_gap(_bins.by_confidence(logits, num_bins, binning))


@_inputs.checked("num_bins", "binning")
def mce(
  logits: Any,
  labels: Any,
  num_bins: int = 10,
  binning: _bins.Binning = "width",
  *,
  where: Any = None,
) -> jax.Array:
  r"""Computes the maximum calibration error (MCE): the largest gap of a bin.

  .. math:: \max_b |\mathrm{accuracy}_b - \mathrm{confidence}_b|

  Args:
    logits, labels, num_bins, binning, where: as for :func:`ece`.

  Returns:
    A number from 0 to 1. A bin of one example can determine it: look at
    :func:`reliability` too.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> print(f"{calibration.mce(logits, [0, 1, 1]):.4f}")
    0.4000
  """
  bins = _bins.by_confidence(logits, num_bins, binning)
  # Empty bins have a gap of zero.
  return jnp.max(jnp.abs(bins.accuracy - bins.confidence))


@_inputs.checked("num_bins", "binning")
def rms_calibration_error(
  logits: Any,
  labels: Any,
  num_bins: int = 10,
  binning: _bins.Binning = "width",
  *,
  where: Any = None,
) -> jax.Array:
  r"""Computes the root-mean-square calibration error of the bins.

  .. math::
    \sqrt{\sum_b \frac{n_b}{n} (\mathrm{accuracy}_b - \mathrm{confidence}_b)^2}

  Args:
    logits, labels, num_bins, binning, where: as for :func:`ece`.

  Returns:
    A number from 0 to 1, between :func:`ece` and :func:`mce`: large gaps weigh
    more than in the ECE.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> print(f"{calibration.rms_calibration_error(logits, [0, 1, 1]):.4f}")
    0.3697

  References:
    `Hendrycks et al, 2019 <https://arxiv.org/abs/1812.04606>`_ (equal mass)
  """
  bins = _bins.by_confidence(logits, num_bins, binning)
  return jnp.sqrt(_bins.mean_gap(bins, power=2))


@_inputs.checked()
def ks_calibration_error(
  logits: Any, labels: Any, *, where: Any = None
) -> jax.Array:
  r"""Computes the Kolmogorov–Smirnov calibration error, without bins.

  Sort the examples by their confidence :math:`f_i`. With the correctness
  :math:`y_i`,

  .. math:: \max_k \left| \frac{1}{n} \sum_{i \le k} (y_i - f_i) \right| .

  Of examples with equal confidence, only the last counts as k. Confidences are
  equal if their log-odds differ only by rounding.

  Args:
    logits, labels, where: as for :func:`ece`.

  Returns:
    A number from 0 to 1. It is at least \|accuracy − mean confidence\|, and
    equal to it if the model is overconfident at every confidence.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> print(f"{calibration.ks_calibration_error(logits, [0, 1, 1]):.4f}")
    0.1667

  References:
    `Gupta et al, 2021 <https://arxiv.org/abs/2006.12800>`_
  """
  doubts = logits.doubt
  residual = logits.correct.astype(logits.dtype) - logits.confidence
  if (keep := logits.keep) is not None:
    doubts = jnp.where(keep, doubts, -jnp.inf)  # the last in order
    residual = jnp.where(keep, residual, 0)
  order = jnp.argsort(-doubts)
  gap = jnp.abs(jnp.cumsum(residual[order]))
  doubts = doubts[order]
  noise = 8 * jnp.finfo(doubts.dtype).eps * jnp.maximum(jnp.abs(doubts), 1)
  last = doubts[:-1] - doubts[1:] > noise[:-1]
  number = jnp.asarray(logits.number, gap.dtype)
  return jnp.max(gap[:-1], where=last, initial=gap[-1]) / number


@_inputs.checked("num_bins", "binning", "threshold")
def classwise_ece(
  logits: Any,
  labels: Any,
  num_bins: int = 10,
  binning: _bins.Binning = "width",
  *,
  threshold: float = 0.0,
  where: Any = None,
) -> jax.Array:
  """Computes the ECE of each class's probability, averaged over classes.

  For class c, the softmax probability of c replaces the confidence, and an
  example is correct if its label is c. A class without examples counts like any
  other: its probability should be zero.

  Args:
    logits, labels, num_bins, binning, where: as for :func:`ece`.
    threshold: smallest probability that counts, such as 1 / classes or 0.01.
      With a thousand classes, most probabilities are correctly close to zero,
      which hides the errors of the others.

  Returns:
    A number from 0 to 1: a mean over the classes that reach the threshold. NaN
    if none does.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> error = calibration.classwise_ece(logits, [0, 1, 1], threshold=0.5)
    >>> print(f"{error:.4f}")
    0.3500

  References:
    `Kull et al, 2019 <https://arxiv.org/abs/1910.12656>`_;
    `Nixon et al, 2019 <https://arxiv.org/abs/1904.01685>`_ (thresholds)
  """
  rule = "threshold must be at least 0 and below 1"
  advice = "Give the smallest probability that counts."
  _inputs.require(0 <= threshold < 1, rule, threshold, advice)
  bins = _bins.by_class(logits, num_bins, binning, threshold)
  return jnp.mean(_bins.mean_gap(bins), where=jnp.any(bins.count > 0, axis=1))


@_inputs.checked("k", "num_bins", "binning")
def top_k_ece(
  logits: Any,
  labels: Any,
  k: int,
  num_bins: int = 10,
  binning: _bins.Binning = "width",
  *,
  where: Any = None,
) -> jax.Array:
  """Computes the ECE of "the label is among the top k classes".

  The sum of the k largest probabilities replaces the confidence. An example is
  correct if its label is among these classes. With k = 1 this is :func:`ece`.

  Args:
    logits, labels, num_bins, binning, where: as for :func:`ece`.
    k: an integer from 1 to the number of classes.

  Returns:
    A number from 0 to 1.

  Examples:
    >>> from orthograd_optax import calibration
    >>> p = [[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]]
    >>> logits = calibration.from_probabilities(p)
    >>> print(f"{calibration.top_k_ece(logits, [1, 2], k=2):.4f}")
    0.5500

  References:
    `Gupta et al, 2021 <https://arxiv.org/abs/2006.12800>`_
  """
  _inputs.check_k(k, logits.classes)
  largest, _ = jax.lax.top_k(logits.logits, k)
  within = jnp.exp(largest - logits.high) / logits.total
  # Rounding may push the sum above 1, out of the last bin.
  within = jnp.minimum(jnp.sum(within, axis=-1), 1).ravel()
  inside = logits.rank < k
  bins = _bins.bins(within, inside, num_bins, binning, logits.keep)
  return _bins.mean_gap(bins)


@_inputs.checked("num_bins", "binning")
def debiased_ece(
  logits: Any,
  labels: Any,
  num_bins: int = 10,
  binning: _bins.Binning = "width",
  *,
  where: Any = None,
) -> jax.Array:
  r"""Computes the ECE minus an estimate of its bias.

  The noise of a bin's accuracy adds to its gap. With the gap :math:`\hat e_b`
  and the variance :math:`\sigma_b^2 = a_b (1 - a_b) / n_b` of the accuracy,

  .. math::
    \sum_b \frac{n_b}{n} \left(
      2 |\hat e_b| - \mathbb{E}\,|\mathcal{N}(\hat e_b, \sigma_b^2)| \right).

  Args:
    logits, labels, num_bins, binning, where: as for :func:`ece`.

  Returns:
    A number, at most :func:`ece`, possibly negative: clipping would add bias.
    If gaps are much larger than their noise, no bias is left. If there are no
    gaps at all, √2 − 1 = 41 % of the bias is removed.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> print(f"{calibration.debiased_ece(logits, [0, 1, 1]):.4f}")
    0.3363

  References:
    `Kumar et al, 2019 <https://arxiv.org/abs/1909.10155>`_ (by sampling)
  """
  bins = _bins.by_confidence(logits, num_bins, binning)
  count = jnp.maximum(bins.count, 1).astype(logits.dtype)
  gap = jnp.abs(bins.accuracy - bins.confidence)
  sigma = jnp.sqrt(bins.accuracy * (1 - bins.accuracy) / count)
  ratio = gap / jnp.where(sigma > 0, sigma, 1)
  folded = sigma * math.sqrt(2 / math.pi) * jnp.exp(-(ratio**2) / 2)
  folded += gap * jnp.where(sigma > 0, jax.lax.erf(ratio / math.sqrt(2)), 1)
  weight = bins.count.astype(logits.dtype) / jnp.asarray(
    logits.number, logits.dtype
  )
  return jnp.sum(weight * (2 * gap - folded))


@_inputs.checked("bandwidth")
def smooth_ece(
  logits: Any,
  labels: Any,
  bandwidth: float | None = None,
  *,
  where: Any = None,
) -> jax.Array:
  r"""Computes the smooth calibration error (smECE), without bins.

  With a Gaussian kernel :math:`K_\sigma` reflected at 0 and 1, confidences
  :math:`f_i` and correctness :math:`y_i`,

  .. math::
    \mathrm{smECE}_\sigma = \int_0^1 \left| \frac{1}{n} \sum_i
      K_\sigma(t, f_i) \, (f_i - y_i) \right| \, dt ,

  at the bandwidth where :math:`\mathrm{smECE}_\sigma = \sigma`, at least 0.001.
  Unlike :func:`ece`, it is continuous in the predictions.

  Args:
    logits, labels, where: as for :func:`ece`.
    bandwidth: a fixed :math:`\sigma`, from 0.001 to 1. By default, as above.

  Returns:
    A number from 0 to 1.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> print(f"{calibration.smooth_ece(logits, [0, 1, 1]):.4f}")
    0.1927

  References:
    `Błasiok and Nakkiran, 2023 <https://arxiv.org/abs/2309.12236>`_
  """
  smallest, modes = 1e-3, 2048
  valid = bandwidth is None or smallest <= bandwidth <= 1
  rule = f"bandwidth must be from {smallest} to 1, or None"
  _inputs.require(valid, rule, bandwidth)
  confidence, number = logits.confidence, logits.number
  residual = confidence - logits.correct.astype(logits.dtype)
  residual = residual / jnp.asarray(number, logits.dtype)
  if logits.keep is not None:
    residual = jnp.where(logits.keep, residual, 0)
    confidence = jnp.where(logits.keep, confidence, 0)
  spectrum = _cosine_sums(residual, confidence, modes)
  k = jnp.arange(modes, dtype=logits.dtype)

  def error(sigma, points=modes):
    # In a cosine series, the reflected kernel multiplies mode k by a damping.
    damped = spectrum * jnp.exp(-((math.pi * k * sigma) ** 2) / 2)
    smoothed = 2 * jnp.abs(jnp.fft.irfft(damped, 2 * points)[: points + 1])
    return jnp.sum(smoothed) - (smoothed[0] + smoothed[-1]) / 2

  def halve(_, interval):
    low, high = interval
    middle = (low + high) / 2
    above = error(middle) > middle
    return jnp.where(above, middle, low), jnp.where(above, high, middle)

  if bandwidth is not None:
    return error(bandwidth, 16 * modes)
  # The error falls as the bandwidth grows, so there is one crossing.
  bounds = jnp.asarray(smallest, k.dtype), jnp.asarray(1.0, k.dtype)
  low, high = jax.lax.fori_loop(0, 30, halve, bounds)
  return error((low + high) / 2, 16 * modes)


def _cosine_sums(weights, values, modes):
  """Returns the sums of w cos(k π x), for k from 0 to ``modes`` − 1."""
  columns = 64
  rows = modes // columns
  # cos(a + b) = cos a cos b − sin a sin b, with k = columns · row + column.
  angles = lambda k: math.pi * jnp.mod(values[:, None] * k[None], 2)
  a = angles(columns * jnp.arange(rows, dtype=values.dtype))
  b = angles(jnp.arange(columns, dtype=values.dtype))
  dot = lambda x, y: jnp.matmul(x.T, y, precision="highest")
  cosines = dot(weights[:, None] * jnp.cos(a), jnp.cos(b))
  sines = dot(weights[:, None] * jnp.sin(a), jnp.sin(b))
  return (cosines - sines).ravel()
