"""Losses for classification, each of one image at a time.

Every function takes logits (n, classes) and labels (n,) of integers, and gives
losses (n,) in the logits' dtype; the mean over a batch is the caller's.
Parameters are scalars and may be traced: runs with different ones share a
compiled program. Written p, the softmax of the logits; y, the label; K, the
number of classes.
"""

import jax
from jax import Array
import jax.numpy as jnp
from jax.typing import ArrayLike
import optax


def cross_entropy(logits: Array, labels: Array) -> Array:
  r"""The cross-entropy, :math:`-\log p_y`.

  Args:
    logits: (n, K).
    labels: (n,), of integers.

  Returns:
    Losses (n,).

  Examples:
    >>> import jax.numpy as jnp
    >>> loss = cross_entropy(jnp.zeros((1, 10)), jnp.array([3]))
    >>> print(f"{loss.item():.3f}")
    2.303
  """
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def label_smoothing(
  logits: Array, labels: Array, smoothing: ArrayLike
) -> Array:
  r"""Cross-entropy with smoothed labels.

  .. math:: -(1 - \alpha) \log p_y - \frac{\alpha}{K} \sum_k \log p_k

  The uniform part has *all* K classes, as in PyTorch's ``CrossEntropyLoss``.
  Where only the wrong classes get :math:`\alpha' / (K - 1)` each, the loss is
  this one with :math:`\alpha = \alpha' K / (K - 1)`.

  Args:
    logits: (n, K).
    labels: (n,), of integers.
    smoothing: α, from 0 to 1; 0 is cross-entropy.

  Returns:
    Losses (n,).

  Examples:
    >>> import jax.numpy as jnp
    >>> logits = jnp.array([[2.0, 0.0, 0.0]])
    >>> loss = label_smoothing(logits, jnp.array([0]), 0.3)
    >>> print(f"{loss.item():.3f}")
    0.640

  References:
    Szegedy et al., `Rethinking the Inception Architecture for Computer Vision
    <https://arxiv.org/abs/1512.00567>`_, 2016
  """
  right = cross_entropy(logits, labels)
  uniform = -jnp.mean(jax.nn.log_softmax(logits, axis=-1), axis=-1)
  return right + smoothing * (uniform - right)


def _log_odds(logits: Array, labels: Array) -> Array:
  """log p_y - log(1 - p_y), (n,), exact also where p_y rounds to 1."""
  is_label = jnp.arange(logits.shape[-1])[None] == labels[:, None]
  others = jax.nn.logsumexp(logits, axis=-1, where=~is_label)
  return jnp.sum(logits, axis=-1, where=is_label) - others


def focal(logits: Array, labels: Array, focus: ArrayLike) -> Array:
  r"""The focal loss, :math:`-(1 - p_y)^\gamma \log p_y`.

  Args:
    logits: (n, K).
    labels: (n,), of integers.
    focus: γ, at least 0, a scalar or (n,); 0 is cross-entropy.

  Returns:
    Losses (n,).

  Examples:
    >>> import jax.numpy as jnp
    >>> loss = focal(jnp.zeros((1, 2)), jnp.array([0]), 3.0)
    >>> print(f"{loss.item():.3f}")
    0.087

  References:
    Lin et al., `Focal Loss for Dense Object Detection
    <https://arxiv.org/abs/1708.02002>`_, 2017

    Mukhoti et al., `Calibrating Deep Neural Networks using Focal Loss
    <https://arxiv.org/abs/2002.09437>`_, 2020
  """
  # By logarithms: the power's derivative is infinite at 0 for γ below 1, and
  # 1 - p_y is 0 in float32 from p_y = 1 - 6e-8 on.
  log_odds = _log_odds(logits, labels)
  log_rest = -jax.nn.softplus(log_odds)  # log(1 - p_y)
  return jnp.exp(focus * log_rest) * jax.nn.softplus(-log_odds)


def focal_sample_dependent(logits: Array, labels: Array) -> Array:
  """FLSD-53, the focal loss with γ = 5 where p_y < 0.2, and 3 elsewhere.

  γ is a constant for the gradient. The loss jumps at p_y = 0.2.

  Args:
    logits: (n, K).
    labels: (n,), of integers.

  Returns:
    Losses (n,).

  Examples:
    >>> import jax.numpy as jnp
    >>> logits, labels = jnp.zeros((1, 10)), jnp.array([3])
    >>> bool(focal_sample_dependent(logits, labels) == focal(logits, labels, 5))
    True

  References:
    Mukhoti et al., `Calibrating Deep Neural Networks using Focal Loss
    <https://arxiv.org/abs/2002.09437>`_, 2020
  """
  probability = jax.nn.sigmoid(_log_odds(logits, labels))
  focus = jnp.where(probability < 0.2, 5.0, 3.0)
  return focal(logits, labels, focus)


def margin_smoothing(
  logits: Array, labels: Array, margin: ArrayLike, weight: ArrayLike
) -> Array:
  r"""Margin-based label smoothing (MbLS): a bound on differences of logits.

  .. math:: -\log p_y + \frac{\lambda}{K} \sum_k \max(0, \max_j l_j - l_k - m)

  The penalty is the *mean* over classes, as in the authors' code, with which
  they set m = 10, λ = 0.1. A sum over classes is this loss with K λ for λ.

  Args:
    logits: (n, K).
    labels: (n,), of integers.
    margin: m, at least 0.
    weight: λ, at least 0; 0 is cross-entropy.

  Returns:
    Losses (n,).

  Examples:
    >>> import jax.numpy as jnp
    >>> logits, labels = jnp.array([[30.0, 0.0]]), jnp.array([0])
    >>> loss = margin_smoothing(logits, labels, 10.0, 0.1)
    >>> print(f"{loss.item():.3f}")
    1.000

  References:
    Liu et al., `The Devil is in the Margin: Margin-based Label Smoothing for
    Network Calibration <https://arxiv.org/abs/2111.15430>`_, 2022
  """
  gaps = jnp.max(logits, axis=-1, keepdims=True) - logits
  penalty = jnp.mean(jax.nn.relu(gaps - margin), axis=-1)
  return cross_entropy(logits, labels) + weight * penalty


def logit_norm(logits: Array, labels: Array, temperature: ArrayLike) -> Array:
  r"""LogitNorm: cross-entropy of the logits' direction.

  The loss is the cross-entropy of :math:`l / (\tau (\|l\| + 10^{-7}))`; so it
  can't be lowered by scaling the logits. The authors' code evaluates a model on
  its logits as they are.

  Args:
    logits: (n, K).
    labels: (n,), of integers.
    temperature: τ, above 0; 0.04 for CIFAR-10 in the paper.

  Returns:
    Losses (n,).

  Examples:
    >>> import jax.numpy as jnp
    >>> logits, labels = jnp.array([[3.0, 4.0]]), jnp.array([1])
    >>> loss = logit_norm(logits, labels, 1.0)
    >>> print(f"{loss.item():.3f}")
    0.598

  References:
    Wei et al., `Mitigating Neural Network Overconfidence with Logit
    Normalization <https://arxiv.org/abs/2205.09310>`_, 2022
  """
  # The plain norm's gradient at 0 is NaN.
  norms = optax.safe_norm(logits, 0.0, axis=-1, keepdims=True)
  return cross_entropy(logits / (norms + 1e-7) / temperature, labels)
