"""Computes scores of logits and labels, or of logits alone."""

from typing import Any

import jax
import jax.numpy as jnp

from orthograd_optax.calibration import _bins, _inputs, _ranking


@_inputs.checked("k")
def accuracy(logits: Any, labels: Any, k: int = 1) -> jax.Array:
  """Computes the share of labels that are among the ``k`` largest logits.

  Args:
    logits: array of shape (examples, classes).
    labels: integer array of shape (examples,).
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
  _inputs.check_k(k, logits.shape[1])
  return jnp.mean((_inputs.rank(logits, labels) < k).astype(logits.dtype))


@_inputs.checked()
def nll(logits: Any, labels: Any) -> jax.Array:
  r"""Computes the mean negative log-likelihood (NLL, cross-entropy) in nats.

  .. math:: -\frac{1}{n} \sum_i \log p_i(y_i)

  Args:
    logits: array of shape (examples, classes).
    labels: integer array of shape (examples,).

  Returns:
    A number, at least 0.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.log(jnp.array([[0.5, 0.25, 0.25]]))
    >>> print(f"{calibration.nll(logits, jnp.array([0])):.4f}")
    0.6931
  """
  return jnp.mean(_inputs.nll(logits, labels))


@_inputs.checked()
def brier(logits: Any, labels: Any) -> jax.Array:
  r"""Computes the Brier score: the squared error of the softmax.

  .. math:: \frac{1}{n} \sum_i \sum_k \left(p_i(k) - [k = y_i]\right)^2

  It is a sum over classes, as Brier defined it, not a mean.

  Args:
    logits: array of shape (examples, classes).
    labels: integer array of shape (examples,).

  Returns:
    A number from 0 to 2.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.log(jnp.array([[0.5, 0.25, 0.25]]))
    >>> print(calibration.brier(logits, jnp.array([0])))
    0.375
  """
  return jnp.mean(_inputs.brier(logits, labels))


@_inputs.checked()
def entropy(logits: Any, labels: Any = None) -> jax.Array:
  """Computes the mean entropy of the softmax, in nats.

  Args:
    logits: array of shape (examples, classes).
    labels: ignored, so that all metrics have the same arguments.

  Returns:
    A number from 0 (certain) to the log of the number of classes (uniform).

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> print(f"{calibration.entropy(jnp.zeros((1, 10))):.4f}")
    2.3026
  """
  return jnp.mean(_inputs.entropy(logits))


@_inputs.checked()
def confidence(logits: Any, labels: Any = None) -> jax.Array:
  """Computes the mean confidence: the largest softmax probability.

  Args:
    logits: array of shape (examples, classes).
    labels: ignored, so that all metrics have the same arguments.

  Returns:
    A number from 1 / classes to 1.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = jnp.log(jnp.array([[0.25, 0.75]]))
    >>> print(f"{calibration.confidence(logits):.4f}")
    0.7500
  """
  return jnp.mean(_inputs.confidence(logits))


@_inputs.checked()
def max_logit(logits: Any, labels: Any = None) -> jax.Array:
  """Computes the mean, over examples, of the largest absolute logit.

  Args:
    logits: array of shape (examples, classes).
    labels: ignored, so that all metrics have the same arguments.

  Returns:
    A number, at least 0. Adding a constant to the logits changes it, but no
    prediction. A logit of −∞, such as the log of a probability of zero, makes
    it infinite. :func:`from_probabilities` returns no such logits.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> print(calibration.max_logit(jnp.array([[1.0, -3.0], [2.0, 1.0]])))
    2.5
  """
  return jnp.mean(_inputs.max_logit(logits))


@_inputs.checked()
def logit_variance(logits: Any, labels: Any = None) -> jax.Array:
  """Computes the mean, over examples, of the logits' unbiased variance.

  Args:
    logits: array of shape (examples, classes).
    labels: ignored, so that all metrics have the same arguments.

  Returns:
    A number, at least 0. A logit of −∞, such as the log of a probability of
    zero, makes it NaN. :func:`from_probabilities` returns no such logits.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> print(calibration.logit_variance(jnp.array([[1.0, 2.0, 3.0]])))
    1.0
  """
  return jnp.mean(_inputs.logit_variance(logits))


@_inputs.suggesting
def evaluate(
  logits: Any, labels: Any, num_bins: int = 10
) -> dict[str, jax.Array]:
  """Computes the ten metrics of the paper below in one call.

  Args:
    logits: array of shape (examples, classes).
    labels: integer array of shape (examples,).
    num_bins: number of bins of the ECE.

  Returns:
    A dictionary of ``accuracy``, ``top5_accuracy``, ``nll``, ``ece``,
    ``brier``, ``entropy``, ``confidence``, ``max_logit``, ``logit_variance``
    and ``confidence_correlation``. The functions of these names describe them.
    ``top5_accuracy`` is ``accuracy`` with ``k=5``, or 1 with fewer classes.

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
  # With all logits at hand, this is more precise than the tally.
  correlation = _ranking.confidence_correlation(logits, labels)
  return metrics | {"confidence_correlation": correlation}
