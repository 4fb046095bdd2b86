"""Metrics of (logits, labels)."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import erf, logsumexp
import numpy as np

from orthograd_optax import _bins, _logits


@_logits.checked("k")
def accuracy(logits: Any, labels: Any, k: int = 1) -> jax.Array:
  """The share of images whose label is among the ``k`` largest logits.

  Args:
    logits: array of shape (images, classes).
    labels: integer array of shape (images,).
    k: from 1 to the number of classes.

  Returns:
    A number from 0 to 1.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.array([[3.0, 1.0, 0.0], [0.0, 1.0, 2.0]])
    >>> print(calibration.accuracy(logits, jnp.array([0, 1])))
    0.5
    >>> print(calibration.accuracy(logits, jnp.array([0, 1]), k=2))
    1.0
  """
  if not isinstance(k, int | np.integer) or not 1 <= k <= logits.shape[1]:
    raise ValueError(
      f"k is {k}, but must be a whole number from 1 to the number of classes, "
      f"{logits.shape[1]}."
    )
  return jnp.mean((_logits.rank(logits, labels) < k).astype(logits.dtype))


@_logits.checked()
def nll(logits: Any, labels: Any) -> jax.Array:
  """The mean negative log-likelihood (cross-entropy), in nats.

  Args:
    logits: array of shape (images, classes).
    labels: integer array of shape (images,).

  Returns:
    A number from 0 up.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.log(jnp.array([[0.5, 0.25, 0.25]]))
    >>> print(f"{calibration.nll(logits, jnp.array([0])):.4f}")
    0.6931
  """
  return jnp.mean(_logits.loss(logits, labels))


@_logits.checked()
def brier_score(logits: Any, labels: Any) -> jax.Array:
  """The Brier score: the squared distance of softmax and label.

  It is the sum over the classes, as Brier defined it, not the mean.

  Args:
    logits: array of shape (images, classes).
    labels: integer array of shape (images,).

  Returns:
    A number from 0 to 2.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.log(jnp.array([[0.5, 0.25, 0.25]]))
    >>> print(calibration.brier_score(logits, jnp.array([0])))
    0.375
  """
  return jnp.mean(_logits.brier(logits, labels))


@_logits.checked("num_bins", "binning")
def ece(
  logits: Any, labels: Any, num_bins: int = 10, binning: _bins.Binning = "width"
) -> jax.Array:
  r"""The expected calibration error.

  .. math::

    \sum_b \frac{n_b}{n} \, |\mathrm{accuracy}_b - \mathrm{confidence}_b|

  The noise of each bin biases it upwards (see :func:`debiased_ece`), the more
  so the more bins there are: compare at the same number of bins and images.

  Args:
    logits: array of shape (images, classes).
    labels: integer array of shape (images,).
    num_bins: number of bins.
    binning: ``"width"``, bins (lo, hi] of equal width, the last of which has
      all confidences of exactly 1; or ``"mass"``, bins of equally many images,
      except that equal confidences share a bin.

  Returns:
    A number from 0 to 1.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7]]))
    >>> print(f"{calibration.ece(logits, jnp.array([0, 1, 1])):.4f}")
    0.3667

  References:
    Guo et al, `On Calibration of Modern Neural Networks
    <https://arxiv.org/abs/1706.04599>`_, 2017

    Nixon et al, `Measuring Calibration in Deep Learning
    <https://arxiv.org/abs/1904.01685>`_, 2019 (bins of equal mass)
  """
  return _bins.mean_gap(_bins.by_confidence(logits, labels, num_bins, binning))


@_logits.checked("num_bins", "binning")
def mce(
  logits: Any, labels: Any, num_bins: int = 10, binning: _bins.Binning = "width"
) -> jax.Array:
  """The maximum calibration error: the largest gap of a bin that has images.

  Args:
    logits: array of shape (images, classes).
    labels: integer array of shape (images,).
    num_bins: number of bins.
    binning: as for :func:`ece`.

  Returns:
    A number from 0 to 1. A bin of one image can set it: look at
    :func:`reliability`, too.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7]]))
    >>> print(f"{calibration.mce(logits, jnp.array([0, 1, 1])):.4f}")
    0.4000
  """
  bins = _bins.by_confidence(logits, labels, num_bins, binning)
  # Empty bins have a gap of zero.
  return jnp.max(jnp.abs(bins.accuracy - bins.confidence))


@_logits.checked("num_bins", "binning")
def classwise_ece(
  logits: Any, labels: Any, num_bins: int = 10, binning: _bins.Binning = "width"
) -> jax.Array:
  """The ECE of each class's probability, averaged over the classes.

  For class c, the softmax probability of c takes the place of the confidence,
  and an image is correct if its label is c. A class without images counts like
  any other: its probability ought to be zero.

  Args:
    logits: array of shape (images, classes).
    labels: integer array of shape (images,).
    num_bins: number of bins.
    binning: as for :func:`ece`.

  Returns:
    A number from 0 to 1; divided by the number of classes, it is small where
    they are many.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7]]))
    >>> print(f"{calibration.classwise_ece(logits, jnp.array([0, 1, 1])):.4f}")
    0.3667

  References:
    Kull et al, `Beyond temperature scaling
    <https://arxiv.org/abs/1910.12656>`_, 2019
  """
  probabilities = jax.nn.softmax(logits)
  own = jax.nn.one_hot(labels, logits.shape[1], dtype=bool)

  def one_class(pair):
    probability, outcome = pair
    return _bins.mean_gap(_bins.bins(probability, outcome, num_bins, binning))

  # Some classes at a time, for a thousand of them not to need gigabytes.
  columns = probabilities.T, own.T
  return jnp.mean(jax.lax.map(one_class, columns, batch_size=16))


@_logits.checked("num_bins", "binning")
def debiased_ece(
  logits: Any, labels: Any, num_bins: int = 10, binning: _bins.Binning = "width"
) -> jax.Array:
  r"""The ECE less an estimate of its bias.

  The accuracy of a bin is a mean of few images, and its noise makes gaps where
  there are none. With :math:`\hat e_b` the gap of bin b, and
  :math:`\sigma_b^2 = a_b (1 - a_b) / n_b` the variance of its accuracy, that is

  .. math::

    \sum_b \frac{n_b}{n} \, \big(
      2 |\hat e_b| - \mathbb{E}\,|\mathcal{N}(\hat e_b, \sigma_b^2)| \big).

  Args:
    logits: array of shape (images, classes).
    labels: integer array of shape (images,).
    num_bins: number of bins.
    binning: as for :func:`ece`.

  Returns:
    A number not above :func:`ece`. Where gaps are large beside their noise, no
    bias is left; where there are none at all, √2 − 1 = 41 % of it is gone. It
    is not clipped at zero, which would add some again.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jax.random.normal(jax.random.key(0), (1000, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), logits)
    >>> print(f"{calibration.ece(logits, labels):.3f}")
    0.022
    >>> print(f"{calibration.debiased_ece(logits, labels):.3f}")
    0.005

  References:
    Kumar et al, `Verified Uncertainty Calibration
    <https://arxiv.org/abs/1909.10155>`_, 2019 (who draw samples where the
    expectation above is in closed form)
  """
  bins = _bins.by_confidence(logits, labels, num_bins, binning)
  count = jnp.maximum(bins.count, 1).astype(logits.dtype)
  gap = jnp.abs(bins.accuracy - bins.confidence)
  sigma = jnp.sqrt(bins.accuracy * (1 - bins.accuracy) / count)
  ratio = gap / jnp.where(sigma > 0, sigma, 1)
  folded = sigma * math.sqrt(2 / math.pi) * jnp.exp(-(ratio**2) / 2)
  folded += gap * jnp.where(sigma > 0, erf(ratio / math.sqrt(2)), 1)
  weight = bins.count.astype(logits.dtype) / logits.shape[0]
  return jnp.sum(weight * (2 * gap - folded))


@_logits.checked("bandwidth")
def smooth_ece(
  logits: Any, labels: Any, bandwidth: float | None = None
) -> jax.Array:
  r"""The smooth calibration error (smECE), which needs no bins.

  With a Gaussian kernel :math:`K_\sigma` reflected at 0 and 1, confidences
  :math:`f_i` and correctness :math:`y_i`,

  .. math::

    \mathrm{smECE}_\sigma = \int_0^1 \Big| \frac{1}{n} \sum_i
      K_\sigma(t, f_i) \, (f_i - y_i) \Big| \, dt ,

  at the one bandwidth where :math:`\mathrm{smECE}_\sigma = \sigma` (or 0.001,
  if that is below it). It changes continuously with the predictions, unlike
  :func:`ece`.

  Args:
    logits: array of shape (images, classes).
    labels: integer array of shape (images,).
    bandwidth: a fixed :math:`\sigma`, from 0.001 to 1, instead of that one.

  Returns:
    A number from 0 to 1.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7]]))
    >>> print(f"{calibration.smooth_ece(logits, jnp.array([0, 1, 1])):.4f}")
    0.1927

  References:
    Błasiok and Nakkiran, `Smooth ECE
    <https://arxiv.org/abs/2309.12236>`_, 2023
  """
  smallest, modes = 1e-3, 2048
  if bandwidth is not None and not smallest <= bandwidth <= 1:
    raise ValueError(
      f"bandwidth is {bandwidth}, but must be from {smallest} to 1, or None."
    )
  confidence = _logits.confidence(logits)
  correct = (_logits.rank(logits, labels) < 1).astype(logits.dtype)
  residual = (confidence - correct) / logits.shape[0]
  spectrum = _cosine_sums(residual, confidence, modes)
  k = jnp.arange(modes, dtype=logits.dtype)

  def error(sigma, points=modes):
    # The reflected kernel multiplies mode k of a cosine series by its damping.
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
  # The error falls with the bandwidth, so that there is one crossing.
  bounds = jnp.asarray(smallest, k.dtype), jnp.asarray(1.0, k.dtype)
  low, high = jax.lax.fori_loop(0, 30, halve, bounds)
  return error((low + high) / 2, 16 * modes)


@_logits.checked()
def entropy(logits: Any, labels: Any = None) -> jax.Array:
  """The mean entropy of the softmax, in nats.

  Args:
    logits: array of shape (images, classes).
    labels: not needed; accepted so that all metrics are called alike.

  Returns:
    A number from 0 (sure) to the log of the number of classes (no idea).

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> print(f"{calibration.entropy(jnp.zeros((1, 10))):.4f}")
    2.3026
  """
  return jnp.mean(_logits.entropy(logits))


@_logits.checked()
def max_softmax(logits: Any, labels: Any = None) -> jax.Array:
  """The mean confidence.

  Args:
    logits: array of shape (images, classes).
    labels: not needed; accepted so that all metrics are called alike.

  Returns:
    A number from 1 / classes to 1.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.log(jnp.array([[0.25, 0.75]]))
    >>> print(f"{calibration.max_softmax(logits):.4f}")
    0.7500
  """
  return jnp.mean(_logits.confidence(logits))


@_logits.checked()
def max_logit(logits: Any, labels: Any = None) -> jax.Array:
  """The mean, over images, of the largest absolute logit.

  Args:
    logits: array of shape (images, classes).
    labels: not needed; accepted so that all metrics are called alike.

  Returns:
    A number from 0 up. Adding a constant to the logits changes it, though no
    prediction.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> print(calibration.max_logit(jnp.array([[1.0, -3.0], [2.0, 1.0]])))
    2.5
  """
  return jnp.mean(_logits.max_logit(logits))


@_logits.checked()
def logit_variance(logits: Any, labels: Any = None) -> jax.Array:
  """The mean, over images, of the unbiased variance of the logits.

  Args:
    logits: array of shape (images, classes).
    labels: not needed; accepted so that all metrics are called alike.

  Returns:
    A number from 0 up.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> print(calibration.logit_variance(jnp.array([[1.0, 2.0, 3.0]])))
    1.0
  """
  return jnp.mean(_logits.logit_variance(logits))


@_logits.checked()
def confidence_correlation(logits: Any, labels: Any) -> jax.Array:
  """Pearson's correlation of confidence and correctness.

  Args:
    logits: array of shape (images, classes).
    labels: integer array of shape (images,).

  Returns:
    A number from -1 to 1, and NaN if all images are correct, or none, or all
    confidences are equal.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.log(jnp.array([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7]]))
    >>> labels = jnp.array([0, 0, 0])
    >>> print(f"{calibration.confidence_correlation(logits, labels):.4f}")
    1.0000
  """
  confidence = _logits.confidence(logits)
  correct = (_logits.rank(logits, labels) < 1).astype(logits.dtype)
  # Exactly zero, if all confidences are equal.
  x = confidence - confidence[0]
  x, y = x - jnp.mean(x), correct - jnp.mean(correct)
  deviations = jnp.sqrt(jnp.sum(x**2)) * jnp.sqrt(jnp.sum(y**2))
  return jnp.sum(x * y) / deviations


@_logits.checked()
def aurc(logits: Any, labels: Any) -> jax.Array:
  """The area under the risk–coverage curve.

  Keep the images on which the network is surest, and count the errors: the mean
  error rate over all numbers of images kept. It asks whether confidence ranks
  images well, whatever its scale. Images are ranked by the log-odds of their
  confidence, which tell apart even confidences that round to 1; those of equal
  rank count as if in random order.

  Args:
    logits: array of shape (images, classes).
    labels: integer array of shape (images,).

  Returns:
    A number from 0 to 1, the lower the better.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.array([[9.0, 0.0], [5.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
    >>> print(f"{calibration.aurc(logits, jnp.array([0, 0, 1, 0])):.4f}")
    0.1458

  References:
    Geifman et al, `Bias-Reduced Uncertainty Estimation for Deep Neural
    Classifiers <https://arxiv.org/abs/1805.08206>`_, 2019
  """
  # The log of (1 − p) / p, p being the confidence.
  ascending = jnp.sort(logits, axis=1)
  doubt = logsumexp(ascending[:, :-1] - ascending[:, -1:], axis=1)
  order = jnp.argsort(doubt)
  doubt, wrong = doubt[order], (_logits.rank(logits, labels) > 0)[order]
  errors = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(wrong)])
  errors = errors.astype(logits.dtype)
  # Images first to last, of equal doubt, share their errors evenly.
  first = jnp.searchsorted(doubt, doubt, side="left")
  last = jnp.searchsorted(doubt, doubt, side="right")
  kept = jnp.arange(1, logits.shape[0] + 1)
  share = ((kept - first) / (last - first)).astype(logits.dtype)
  expected = errors[first] + share * (errors[last] - errors[first])
  return jnp.mean(expected / kept.astype(logits.dtype))


def evaluate(
  logits: Any, labels: Any, num_bins: int = 10
) -> dict[str, jax.Array]:
  """All of the paper's metrics at once.

  Args:
    logits: array of shape (images, classes).
    labels: integer array of shape (images,).
    num_bins: number of bins of the ECE.

  Returns:
    A dictionary of ``top1`` and ``top5`` (:func:`accuracy`, in percent; with
    fewer than five classes ``top5`` is 100), ``loss`` (:func:`nll`), ``ece``,
    ``brier``, ``entropy``, ``max_softmax``, ``max_logit``, ``logit_variance``
    and ``confidence_correlation``.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> labels = jnp.arange(1000) % 10
    >>> noise = jax.random.normal(jax.random.key(0), (3, 1000, 10))
    >>> three_seeds = noise + 2.0 * jax.nn.one_hot(labels, 10)[None]
    >>> over_seeds = jax.vmap(calibration.evaluate, in_axes=(0, None))
    >>> metrics = over_seeds(three_seeds, labels)
    >>> print(metrics["ece"].round(2))
    [0.25 0.25 0.24]

  References:
    Hedges, OrthoGrad Improves Neural Calibration, 2025
  """
  metrics = _bins.tally(logits, labels, num_bins).metrics()
  # With all logits at hand, this can be had to full precision.
  metrics["confidence_correlation"] = confidence_correlation(logits, labels)
  return metrics


def _cosine_sums(weights, values, modes):
  """Sums of w cos(k π x), for k from 0 to ``modes`` − 1."""
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
