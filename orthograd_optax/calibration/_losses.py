"""Losses that calibrate during training, with the signature of optax's."""

import jax
from jax import Array
import jax.numpy as jnp
from jax.typing import ArrayLike

# optax is imported by its first use: reports don't need it, and wait for it.


def _cross_entropy(logits: Array, labels: Array) -> Array:
  import optax

  return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def smoothed(
  logits: Array, labels: Array, smoothing: ArrayLike = 0.05
) -> Array:
  r"""Computes the cross-entropy with smoothed labels.

  .. math:: -(1 - \alpha) \log p_y - \frac{\alpha}{K} \sum_k \log p_k

  It equals ``optax.softmax_cross_entropy`` of ``optax.smooth_labels``. To give
  :math:`\alpha' / (K - 1)` to each wrong class, as some papers do, set
  :math:`\alpha = \alpha' K / (K - 1)`.

  Args:
    logits: array of shape (..., K), with the softmax p.
    labels: integer array y of shape (...).
    smoothing: α, from 0 to 1; may be traced. With 0, this is cross-entropy.

  Returns:
    Losses of shape (...), in the dtype of the logits: take their mean.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits, label = jnp.array([2.0, 0.0, 0.0]), jnp.array(0)
    >>> print(f"{calibration.smoothed(logits, label, 0.3):.3f}")
    0.640

  References:
    `Szegedy et al, 2016 <https://arxiv.org/abs/1512.00567>`_
  """
  right = _cross_entropy(logits, labels)
  uniform = -jnp.mean(jax.nn.log_softmax(logits, axis=-1), axis=-1)
  return right + smoothing * (uniform - right)


def focal(logits: Array, labels: Array, focus: ArrayLike = 3.0) -> Array:
  r"""Computes the focal loss.

  .. math:: -(1 - p_y)^\gamma \log p_y

  Args:
    logits, labels: as for :func:`smoothed`.
    focus: γ, at least 0, a scalar or of shape (...). With 0, this is
      cross-entropy.

  Returns:
    Losses of shape (...).

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> print(f"{calibration.focal(jnp.zeros(2), jnp.array(0), 3.0):.3f}")
    0.087

  References:
    `Lin et al, 2017 <https://arxiv.org/abs/1708.02002>`_;
    `Mukhoti et al, 2020 <https://arxiv.org/abs/2002.09437>`_ (calibration)
  """
  # Compute by logarithms. For γ < 1, the derivative of the power is infinite at
  # 0; and in float32, 1 - p_y is 0 above p_y = 1 - 6e-8.
  classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  is_label = classes == jnp.expand_dims(labels, -1)
  others = jax.nn.logsumexp(logits, axis=-1, where=~is_label)
  log_odds = jnp.sum(logits, axis=-1, where=is_label) - others
  log_rest = -jax.nn.softplus(log_odds)  # log(1 - p_y)
  return jnp.exp(focus * log_rest) * jax.nn.softplus(-log_odds)


def mbls(
  logits: Array,
  labels: Array,
  margin: ArrayLike = 10.0,
  weight: ArrayLike = 0.1,
) -> Array:
  r"""Computes margin-based label smoothing (MbLS): penalizes logit gaps.

  .. math:: -\log p_y + \frac{\lambda}{K} \sum_k \max(0, \max_j l_j - l_k - m)

  The penalty is the *mean* over classes, as in the authors' code, where m = 10
  and λ = 0.1. For a sum over classes, pass K λ as the weight.

  Args:
    logits, labels: as for :func:`smoothed`.
    margin: m, at least 0.
    weight: λ, at least 0. With 0, this is cross-entropy.

  Returns:
    Losses of shape (...).

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits, label = jnp.array([30.0, 0.0]), jnp.array(0)
    >>> print(f"{calibration.mbls(logits, label, 10.0, 0.1):.3f}")
    1.000

  References:
    `Liu et al, 2022 <https://arxiv.org/abs/2111.15430>`_
  """
  gaps = jnp.max(logits, axis=-1, keepdims=True) - logits
  penalty = jnp.mean(jax.nn.relu(gaps - margin), axis=-1)
  return _cross_entropy(logits, labels) + weight * penalty


def logit_norm(
  logits: Array, labels: Array, temperature: ArrayLike = 0.04
) -> Array:
  r"""Computes LogitNorm: the cross-entropy of normalized logits.

  .. math:: -\log \mathrm{softmax}\left(l / (\tau (\|l\| + 10^{-7}))\right)_y

  Scaling the logits can't lower the loss. Evaluate the model on its unscaled
  logits, as the authors' code does.

  Args:
    logits, labels: as for :func:`smoothed`.
    temperature: τ, above 0. The paper uses 0.04 for CIFAR-10.

  Returns:
    Losses of shape (...).

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits, label = jnp.array([3.0, 4.0]), jnp.array(1)
    >>> print(f"{calibration.logit_norm(logits, label, 1.0):.3f}")
    0.598

  References:
    `Wei et al, 2022 <https://arxiv.org/abs/2205.09310>`_
  """
  import optax

  # In float16, squares overflow and 1e-7 is lost.
  wide = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  # The gradient of the plain norm is NaN at 0.
  norms = optax.safe_norm(wide, 0.0, axis=-1, keepdims=True)
  losses = _cross_entropy(wide / (norms + 1e-7) / temperature, labels)
  return losses.astype(logits.dtype)


def stablemax_cross_entropy(
  logits: Array, labels: Array, *, where: ArrayLike | None = None
) -> Array:
  r"""Computes the cross-entropy with StableMax in place of softmax.

  .. math::

    -\log \frac{s(l_y)}{\sum_k s(l_k)}, \qquad
    s(x) = \begin{cases} x + 1 & x \ge 0 \\ 1 / (1 - x) & x < 0 \end{cases}

  As logits grow, a probability tends to 1 as 1 / l instead of exponentially. In
  float32 the loss and its gradient therefore don't round to zero once the
  training examples are fitted. The model's probabilities are s(l) / Σ s(l). The
  metrics of this module take a softmax, so give them log s(l) as logits.

  Args:
    logits, labels: as for :func:`smoothed`.
    where: which elements count, as in
      :func:`optax.losses.softmax_cross_entropy_with_integer_labels`: of shape
      (...), examples, the others having a loss of 0; or of shape (..., K),
      classes. The label's class always counts.

  Returns:
    Losses of shape (...), in the dtype of the logits.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits, label = jnp.array([1.0, 0.0, -1.0]), jnp.array(0)
    >>> loss = calibration.stablemax_cross_entropy(logits, label)
    >>> print(f"{loss:.3f}")  # log((2 + 1 + 1/2) / 2)
    0.560

  References:
    `Prieto et al, 2025 <https://arxiv.org/abs/2501.04697>`_
  """
  dtype = logits.dtype
  classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
  is_label = classes == jnp.expand_dims(labels, -1)
  is_other = ~is_label & (logits != -jnp.inf)
  if where is not None:
    where = jnp.asarray(where)
    where = where if where.ndim == logits.ndim else where[..., None]
    is_other &= where
    is_label &= jnp.any(where, axis=-1, keepdims=True)
  # Values that don't count may be NaN.
  logits = jnp.where(is_label | is_other, logits, 0)
  logits = logits.astype(jnp.promote_types(dtype, jnp.float32))
  # log s(x), whose slope is 1 / (1 + |x|). `maximum` halves its slope at a tie,
  # so each term contributes one half at 0. `relu` would contribute nothing, and
  # selecting s(x) by `where` gives NaN at 1, where 1 / (1 - x) is infinite.
  logs = jnp.log1p(jnp.maximum(logits, 0)) - jnp.log1p(jnp.maximum(-logits, 0))
  # Sum the other classes alone, so that 1 - p_y does not round to 0.
  others = jax.nn.logsumexp(logs, axis=-1, where=is_other)
  losses = jax.nn.softplus(others - jnp.sum(logs, axis=-1, where=is_label))
  return losses.astype(dtype)
