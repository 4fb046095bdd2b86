"""Computes scores of logits, and decomposes proper scores."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from orthograd_optax.calibration import _bins, _fits, _inputs, _ranking


@_inputs.checked("k")
def accuracy(
  logits: Any, labels: Any, k: int = 1, *, where: Any = None
) -> jax.Array:
  """Computes the share of labels that are among the ``k`` largest logits.

  Args:
    logits, labels, where: as for :func:`ece`.
    k: an integer from 1 to the number of classes.

  Returns:
    A number from 0 to 1.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = [[3.0, 1.0, 0.0], [0.0, 1.0, 2.0]]
    >>> print([float(calibration.accuracy(logits, [0, 1], k)) for k in (1, 2)])
    [0.5, 1.0]
  """
  _inputs.check_k(k, logits.classes)
  return logits.mean((logits.rank < k).astype(logits.dtype))


@_inputs.checked()
def nll(logits: Any, labels: Any, *, where: Any = None) -> jax.Array:
  r"""Computes the mean negative log-likelihood (NLL, cross-entropy) in nats.

  .. math:: -\frac{1}{n} \sum_i \log p_i(y_i)

  Args:
    logits, labels, where: as for :func:`ece`.

  Returns:
    A number, at least 0.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([[0.5, 0.25, 0.25]])
    >>> print(f"{calibration.nll(logits, [0]):.4f}")
    0.6931
  """
  return logits.mean(logits.nll)


@_inputs.checked()
def brier(logits: Any, labels: Any, *, where: Any = None) -> jax.Array:
  r"""Computes the Brier score: the squared error of the softmax.

  .. math:: \frac{1}{n} \sum_i \sum_k \left(p_i(k) - [k = y_i]\right)^2

  Args:
    logits, labels, where: as for :func:`ece`.

  Returns:
    A number from 0 to 2: a sum over classes, as Brier defined it, not a mean.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([[0.5, 0.25, 0.25]])
    >>> print(f"{calibration.brier(logits, [0]):.3f}")
    0.375
  """
  return logits.mean(logits.brier)


@_inputs.checked()
def entropy(logits: Any, labels: Any = None, *, where: Any = None) -> jax.Array:
  """Computes the mean entropy of the softmax, in nats.

  Args:
    logits, where: as for :func:`ece`.
    labels: ignored, so that all metrics have the same arguments.

  Returns:
    A number from 0 (certain) to the log of the number of classes (uniform).

  Examples:
    >>> from orthograd_optax import calibration
    >>> print(f"{calibration.entropy([[0.0] * 10]):.4f}")
    2.3026
  """
  return logits.mean(logits.entropy)


@_inputs.checked()
def confidence(
  logits: Any, labels: Any = None, *, where: Any = None
) -> jax.Array:
  """Computes the mean confidence: the largest softmax probability.

  Args:
    logits, labels, where: as for :func:`entropy`.

  Returns:
    A number from 1 / classes to 1.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([[0.25, 0.75]])
    >>> print(f"{calibration.confidence(logits):.4f}")
    0.7500
  """
  return logits.mean(logits.confidence)


@_inputs.checked()
def max_logit(
  logits: Any, labels: Any = None, *, where: Any = None
) -> jax.Array:
  """Computes the mean, over examples, of the largest absolute logit.

  Args:
    logits, labels, where: as for :func:`entropy`.

  Returns:
    A number, at least 0. Adding a constant to the logits changes it, but no
    prediction. A logit of −∞, such as the log of a probability of zero, makes
    it infinite. :func:`from_probabilities` returns no such logits.

  Examples:
    >>> from orthograd_optax import calibration
    >>> print(calibration.max_logit([[1.0, -3.0], [2.0, 1.0]]))
    2.5
  """
  return logits.mean(logits.max_logit)


@_inputs.checked()
def logit_variance(
  logits: Any, labels: Any = None, *, where: Any = None
) -> jax.Array:
  """Computes the mean, over examples, of the logits' unbiased variance.

  Args:
    logits, labels, where: as for :func:`entropy`.

  Returns:
    A number, at least 0. A logit of −∞ makes it NaN: see :func:`max_logit`.

  Examples:
    >>> from orthograd_optax import calibration
    >>> print(f"{calibration.logit_variance([[1.0, 2.0, 3.0]]):.4f}")
    1.0000
  """
  return logits.mean(logits.logit_variance)


@_inputs.checked("num_bins")
def evaluate(
  logits: Any, labels: Any, num_bins: int = 10, *, where: Any = None
) -> dict[str, jax.Array]:
  """Computes the ten metrics of the paper below in one call.

  Args:
    logits, labels, num_bins, where: as for :func:`ece`.

  Returns:
    A dictionary of ``accuracy``, ``top5_accuracy`` (1 with fewer classes),
    ``nll``, ``ece``, ``brier``, ``entropy``, ``confidence``, ``max_logit``,
    ``logit_variance`` and ``confidence_correlation``.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> metrics = calibration.evaluate(logits, [0, 1, 1])
    >>> print(f"accuracy {metrics['accuracy']:.2f}, ECE {metrics['ece']:.4f}")
    accuracy 0.67, ECE 0.3667

  References:
    Hedges, OrthoGrad Improves Neural Calibration, 2025
  """
  metrics = _bins.total(logits, num_bins).metrics()
  # With all logits at hand, this is more precise than the tally.
  metrics["confidence_correlation"] = _ranking.correlation(logits)
  return metrics


@_inputs.suggesting
def sequence_confidence(
  logits: Any,
  tokens: Any = None,
  *,
  kind: Literal["product", "minimum", "mean"] = "product",
  log: bool = False,
  where: Any = None,
) -> jax.Array:
  """Computes the confidence of sequences from the confidence of their tokens.

  Args:
    logits: array of shape (..., tokens, classes).
    tokens: integer array of shape (..., tokens): the generated tokens, whose
      probabilities count. By default, the most probable ones.
    kind: ``"product"``, ``"minimum"`` or ``"mean"`` of the probabilities of the
      tokens. Libraries differ, so name it when you report it. The product falls
      as sequences grow.
    log: whether to return the logarithm. The product of many tokens is 0 in
      float32.
    where: booleans of shape (..., tokens): ``False`` for padding.

  Returns:
    An array of shape (...), for each sequence.

  Examples:
    >>> from orthograd_optax import calibration
    >>> p = [[[0.9, 0.1], [0.5, 0.5]]]  # two tokens
    >>> logits = calibration.from_probabilities(p)
    >>> print(calibration.sequence_confidence(logits).round(2))
    [0.45]
    >>> print(calibration.sequence_confidence(logits, kind="mean").round(2))
    [0.7]
  """
  kinds = "product", "minimum", "mean"
  _inputs.require(kind in kinds, f"kind must be one of {kinds}", repr(kind))
  logits, tokens, where = _inputs.check_pair(
    logits, tokens, where, needs_labels=False
  )
  examples = _inputs.Examples(logits, tokens, where)
  shape = examples.logits.shape[:-1]
  logs = jnp.log(examples.confidence) if tokens is None else -examples.nll
  logs = logs.reshape(shape)
  keep = jnp.ones(shape, bool) if where is None else jnp.asarray(where)
  if kind == "product":
    result = jnp.sum(logs, axis=-1, where=keep)
  elif kind == "minimum":
    result = jnp.min(logs, axis=-1, where=keep, initial=0)
  else:
    result = jnp.log(jnp.mean(jnp.exp(logs), axis=-1, where=keep))
  return result if log else jnp.exp(result)


class Decomposition(NamedTuple):
  """A score as the sum of two parts. Lower is better.

  Attributes:
    calibration: the part due to miscalibration. Recalibration can remove it.
    refinement: the rest, because the model can't tell some examples apart.
  """

  calibration: jax.Array
  refinement: jax.Array


@_inputs.checked("num_bins", "binning")
def brier_decomposition(
  logits: Any,
  labels: Any,
  num_bins: int = 10,
  binning: _bins.Binning = "width",
  *,
  where: Any = None,
) -> Decomposition:
  r"""Splits the Brier score into calibration plus refinement.

  For each class, bin the examples by its probability. With the mean probability
  :math:`\bar p_b` and the frequency of the class :math:`\bar y_b` in a bin,

  .. math::
    \mathrm{calibration} = \sum_{\text{classes}} \sum_b \frac{n_b}{n} \,
      (\bar p_b - \bar y_b)^2 .

  The refinement is the rest: uncertainty minus resolution, in Murphy's words.
  Variation within bins counts as resolution.

  Args:
    logits, labels, num_bins, binning, where: as for :func:`ece`.

  Returns:
    A :class:`Decomposition` whose sum is :func:`brier`. Neither part is
    negative. Noise raises the calibration part, as in :func:`ece`.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> parts = calibration.brier_decomposition(logits, [0, 1, 1])
    >>> print(f"{parts.calibration:.3f} + {parts.refinement:.3f}")
    0.273 + 0.333

  References:
    Stephenson et al, Two extra components in the Brier score decomposition,
    2008
  """
  bins = _bins.by_class(logits, num_bins, binning)
  calibration = jnp.sum(_bins.mean_gap(bins, power=2))
  score = logits.mean(logits.brier)
  return Decomposition(calibration, score - calibration)


@_inputs.checked()
def nll_decomposition(
  logits: Any, labels: Any, *, where: Any = None
) -> Decomposition:
  r"""Splits the negative log-likelihood into calibration plus refinement.

  The refinement is the loss at the best temperature. The calibration is what
  that temperature saves:

  .. math::
    \mathrm{refinement} = \min_T \mathrm{nll}(z / T, y), \qquad
    \mathrm{calibration} = \mathrm{nll}(z, y) - \mathrm{refinement} .

  Args:
    logits, labels, where: as for :func:`ece`.

  Returns:
    A :class:`Decomposition`, whose sum is :func:`nll`. Neither part is
    negative. The temperature is fitted to these same examples.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> parts = calibration.nll_decomposition(logits, [0, 1, 1])
    >>> print(f"{parts.calibration:.3f} + {parts.refinement:.3f}")
    0.240 + 0.682

  References:
    `Berta et al, 2025 <https://arxiv.org/abs/2501.19195>`_
  """
  score = logits.mean(logits.nll)
  best = _fits.loss_at(logits, _fits.best_temperature(logits))
  # Rounding may put the best loss a little above the score.
  refinement = jnp.minimum(best, score)
  return Decomposition(score - refinement, refinement)
