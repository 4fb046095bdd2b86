"""SGD and AdamW with ⊥Grad."""

from typing import Any

import jax
import optax

from orthograd_optax import _checks, _groups
from orthograd_optax._orthograd import orthograd


def orthograd_sgd(
  learning_rate: optax.ScalarOrSchedule,
  momentum: float | jax.Array | None = None,
  nesterov: bool = False,
  accumulator_dtype: Any = None,
  *,
  weight_decay: float | jax.Array = 0.0,
  weight_decay_mask: Any = None,
  renormalize: bool = True,
  projection_eps: float | jax.Array = 1e-30,
  strength: optax.ScalarOrSchedule = 1.0,
  group_by: _groups.GroupBy = "leaf",
  batch_axes: _groups.BatchAxes = None,
  projection_mask: Any = None,
  axis_name: Any = None,
  use_float64: bool = True,
  diagnostics: bool = False,
) -> optax.GradientTransformationExtraArgs:
  r"""Creates SGD with ⊥Grad, in the order of the papers.

  First :func:`orthograd` projects the gradient. Then weight decay is added, as
  the gradient of an l2 penalty. Then momentum is applied:

  .. math::

    m \leftarrow \mu m + \hat g + \lambda w, \qquad w \leftarrow w - \eta m.

  Weight decay still shrinks the parameters. The step as a whole is therefore
  not orthogonal to them.

  Args:
    learning_rate: :math:`\eta`, a number or a schedule.
    momentum: :math:`\mu`, or ``None`` for no momentum.
    nesterov: whether to use Nesterov momentum.
    accumulator_dtype: dtype of the momentum; by default, the parameters'.
    weight_decay: :math:`\lambda`.
    weight_decay_mask: which parameters decay, as in
      :func:`optax.add_decayed_weights`. By default all do.
    renormalize: see :func:`orthograd`, also for ``strength``, ``group_by``,
      ``batch_axes``, ``axis_name``, ``use_float64`` and ``diagnostics``.
    projection_eps: ``eps`` of :func:`orthograd`.
    projection_mask: ``mask`` of :func:`orthograd`: which parameters to project.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`.

  Examples:
    >>> import jax, jax.numpy as jnp, optax
    >>> from orthograd_optax import orthograd_sgd
    >>> optimizer = orthograd_sgd(0.01, momentum=0.9, weight_decay=5e-4)
    >>> params = jnp.array([3.0, 4.0])
    >>> state = optimizer.init(params)
    >>> updates, state = optimizer.update(jnp.array([5.0, 0.0]), state, params)
    >>> print(updates.round(6))
    [-0.040015  0.02998 ]

  References:
    Prieto et al, `Grokking at the Edge of Numerical Stability
    <https://arxiv.org/abs/2501.04697>`_, 2025

    Hedges, OrthoGrad Improves Neural Calibration, 2025
  """
  _checks.check_mask("weight_decay_mask", weight_decay_mask)
  _checks.check_mask("projection_mask", projection_mask)
  trace = lambda decay: optax.trace(decay, nesterov, accumulator_dtype)
  # Spell the options out: inject_hyperparams can't pass on **options.
  return optax.chain(
    orthograd(
      renormalize=renormalize,
      eps=projection_eps,
      strength=strength,
      group_by=group_by,
      batch_axes=batch_axes,
      mask=projection_mask,
      axis_name=axis_name,
      use_float64=use_float64,
      diagnostics=diagnostics,
    ),
    optax.add_decayed_weights(weight_decay, weight_decay_mask),
    optax.identity() if momentum is None else trace(momentum),
    optax.scale_by_learning_rate(learning_rate),
  )


def orthograd_adamw(
  learning_rate: optax.ScalarOrSchedule,
  b1: float | jax.Array = 0.9,
  b2: float | jax.Array = 0.999,
  eps: float | jax.Array = 1e-8,
  eps_root: float | jax.Array = 0.0,
  mu_dtype: Any = None,
  weight_decay: float | jax.Array = 1e-4,
  mask: Any = None,
  *,
  nesterov: bool = False,
  renormalize: bool = True,
  projection_eps: float | jax.Array = 1e-30,
  strength: optax.ScalarOrSchedule = 1.0,
  group_by: _groups.GroupBy = "leaf",
  batch_axes: _groups.BatchAxes = None,
  projection_mask: Any = None,
  axis_name: Any = None,
  use_float64: bool = True,
  diagnostics: bool = False,
) -> optax.GradientTransformationExtraArgs:
  r"""Creates AdamW with ⊥Grad: :func:`orthograd`, then :func:`optax.adamw`.

  With :math:`\hat g` from :func:`orthograd`,

  .. math::

    w \leftarrow w - \eta \, (\mathrm{Adam}(\hat g) + \lambda w).

  Weight decay is decoupled, and still shrinks the parameters. Adam divides each
  entry by its own scale. The step is therefore not orthogonal to the
  parameters.

  Args:
    learning_rate: :math:`\eta`, a number or a schedule.
    b1: see :func:`optax.adamw`.
    b2: see :func:`optax.adamw`.
    eps: see :func:`optax.adamw`.
    eps_root: see :func:`optax.adamw`.
    mu_dtype: see :func:`optax.adamw`.
    weight_decay: :math:`\lambda`.
    mask: which parameters decay, as in :func:`optax.adamw`.
    nesterov: see :func:`optax.adamw`.
    renormalize: see :func:`orthograd`, also for ``strength``, ``group_by``,
      ``batch_axes``, ``axis_name``, ``use_float64`` and ``diagnostics``.
    projection_eps: ``eps`` of :func:`orthograd`.
    projection_mask: ``mask`` of :func:`orthograd`: which parameters to project.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`.

  Examples:
    >>> import jax.numpy as jnp
    >>> from orthograd_optax import orthograd_adamw
    >>> optimizer = orthograd_adamw(0.01, weight_decay=0.1)
    >>> params = jnp.array([3.0, 4.0])
    >>> state = optimizer.init(params)
    >>> updates, state = optimizer.update(jnp.array([5.0, 0.0]), state, params)
    >>> print(updates.round(6))
    [-0.013  0.006]

  References:
    Loshchilov and Hutter, `Decoupled Weight Decay Regularization
    <https://arxiv.org/abs/1711.05101>`_, 2019

    Prieto et al, `Grokking at the Edge of Numerical Stability
    <https://arxiv.org/abs/2501.04697>`_, 2025
  """
  _checks.check_mask("mask", mask)
  _checks.check_mask("projection_mask", projection_mask)
  return optax.chain(
    orthograd(
      renormalize=renormalize,
      eps=projection_eps,
      strength=strength,
      group_by=group_by,
      batch_axes=batch_axes,
      mask=projection_mask,
      axis_name=axis_name,
      use_float64=use_float64,
      diagnostics=diagnostics,
    ),
    optax.adamw(
      learning_rate,
      b1,
      b2,
      eps,
      eps_root,
      mu_dtype,
      weight_decay,
      mask,
      nesterov=nesterov,
    ),
  )
