"""Losses that the library does not have.

Every function takes logits (n, K) and integer labels (n,), and returns losses
(n,) in the logits' dtype. The caller takes the mean. Docstrings write p for the
softmax of the logits, y for the label and K for the number of classes.
"""

from jax import Array
import jax.numpy as jnp
import optax

from orthograd_optax import calibration


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
    >>> loss = focal_sample_dependent(logits, labels)
    >>> print(f"{loss.item():.3f}")
    1.360

  References:
    Mukhoti et al., `Calibrating Deep Neural Networks using Focal Loss
    <https://arxiv.org/abs/2002.09437>`_, 2020
  """
  probability = jnp.exp(-cross_entropy(logits, labels))
  focus = jnp.where(probability < 0.2, 5.0, 3.0)
  return calibration.focal(logits, labels, focus)
