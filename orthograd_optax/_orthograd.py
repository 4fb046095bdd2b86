"""⊥Grad (OrthoGrad) as a gradient transformation, and what is built on it."""

import math
from typing import Any, NamedTuple

import jax
from jax import tree_util
import jax.numpy as jnp
import numpy as np
import optax
from optax._src import base

from orthograd_optax import _groups, _projection


class OrthogradState(NamedTuple):
  """State of :func:`orthograd`, if it has a schedule or keeps diagnostics.

  Attributes:
    count: number of updates so far, if ``strength`` is a schedule.
    cosine: cos(w, g) of each group at the last update, by the group's name.
    removed_fraction: the share of ‖g‖² that the projection took away.
    gate_closed: whether the group got no update, because what was left of its
      gradient was rounding noise.
  """

  count: Any  # pyright: ignore[reportIncompatibleMethodOverride]
  cosine: Any
  removed_fraction: Any
  gate_closed: Any


_DIAGNOSTICS = {
  "cosine": jnp.float32,
  "removed_fraction": jnp.float32,
  "gate_closed": jnp.bool_,
}


def orthograd(
  *,
  renormalize: bool = True,
  eps: float | jax.Array = 1e-30,
  strength: optax.ScalarOrSchedule = 1.0,
  partition: _groups.Partition = "leaf",
  batch_axes: _groups.BatchAxes = None,
  mask: Any = None,
  axis_name: Any = None,
  diagnostics: bool = False,
) -> optax.GradientTransformationExtraArgs:
  r"""Projects updates orthogonally to the parameters (⊥Grad, OrthoGrad).

  For each group of parameters :math:`w` (by default each array of the tree)
  with updates :math:`g`,

  .. math::

    g_\perp = g - s \, \frac{\Re\langle w, g\rangle}{\langle w, w\rangle} \, w,
    \qquad
    \hat g = \frac{\|g\|}{\|g_\perp\| + \varepsilon} \, g_\perp,

  so that the loss can't be lowered by scaling a layer up, which in a network
  that is positively homogeneous in that layer inflates confidence and moves no
  decision boundary.

  It belongs first in a chain, on the raw gradient. Weight decay placed before
  it is parallel to the parameters and is removed; momentum after it mixes
  directions that were orthogonal to earlier parameters.

  What is left of a gradient parallel to its parameter is rounding noise. With
  renormalization, a group of which no more is left gets no update; that is
  about 1.2e-6 of the gradient in float32, 2e-3 in float16 and 1.6e-2 in
  bfloat16 (the coarsest dtype of a group counts). So an array with one element
  never moves, unless it is zero: exclude scalars by ``mask``, or join them to
  others by ``partition``. A group of parameters that is exactly zero has no
  direction, and its updates pass unchanged.

  Under :func:`optax.inject_hyperparams`, name ``batch_axes`` and whatever is a
  callable but no schedule in ``static_args``.

  Args:
    renormalize: whether to rescale each projected update to its old norm, as
      in both papers' experiments. Without, it is never longer than before.
    eps: :math:`\varepsilon` above.
    strength: :math:`s` above, from 0 (updates pass exactly unchanged, and so do
      not depend on it) to 1, or a schedule of it. May be a traced value, and
      with ``batch_axes`` an array with one for each vector, such as for each of
      several models trained at once.
    partition: what forms a vector: ``"leaf"``, each array; ``"layer"``, arrays
      with the same parent in the tree, such as kernel and bias; ``"global"``,
      all arrays; or a callable from (key path, leaf) to a label, where leaves
      whose labels have the same text form a vector.
    batch_axes: axes that index separate vectors in a leaf, such as layers
      stacked for ``jax.lax.scan``, experts, heads or output channels: an int or
      a tuple of ints, for all leaves; a tree of these (or ``None``) with the
      structure of the parameters or a prefix of it (but a tuple of ints always
      means axes); or a callable from (key path, leaf). In a group of several
      leaves, their batch axes correspond in ascending order.
    mask: as in :func:`optax.masked`: a tree of booleans, or a callable that
      makes one of the parameters; where it is ``False``, updates pass.
    axis_name: the name (or names) of the axes of ``jax.shard_map`` or
      ``jax.pmap`` over which the *parameters* are sharded. Leaves replicated
      over it may be in the tree, but not in a group with sharded ones. Not
      needed under ``jax.jit``, nor for replicated parameters.
    diagnostics: whether to keep, for each group, cos(w, g), the removed share
      of ‖g‖² and whether the gate closed: see :class:`OrthogradState`; read
      them with ``optax.tree.get(state, "cosine")``.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`, without state unless
    ``strength`` is a schedule or ``diagnostics`` is set.

  Examples:
    >>> import jax, jax.numpy as jnp, optax
    >>> from orthograd_optax import orthograd
    >>> optimizer = optax.chain(orthograd(), optax.sgd(0.1))
    >>> params = {"w": jnp.array([3.0, 4.0])}
    >>> grads = {"w": jnp.array([5.0, 0.0])}
    >>> state = optimizer.init(params)
    >>> updates, state = optimizer.update(grads, state, params)
    >>> print([f"{u:.3f}" for u in updates["w"]])
    ['-0.400', '0.300']

    Ramped in over 1,000 steps, and watched:

    >>> ramp = optax.linear_schedule(0.0, 1.0, 1000)
    >>> transform = orthograd(strength=ramp, diagnostics=True)
    >>> updates, state = transform.update(grads, transform.init(params), params)
    >>> print(updates["w"], optax.tree.get(state, "cosine")["w"])
    [5. 0.] 0.6

  References:
    Prieto et al, `Grokking at the Edge of Numerical Stability
    <https://arxiv.org/abs/2501.04697>`_, 2025

    Hedges, OrthoGrad Improves Neural Calibration, 2025
  """
  _check_number("eps", eps, math.inf, "a finite number, at least 0")
  if not callable(strength):
    allowed = "a number from 0 to 1 or a schedule of it"
    _check_number("strength", strength, 1.0, allowed)
  _groups.check_partition(partition)
  axis_name = tuple(axis_name) if isinstance(axis_name, list) else axis_name

  def project(updates, params, strength, axis_name):
    return _project(
      updates,
      params,
      partition,
      batch_axes,
      strength=strength,
      renormalize=renormalize,
      eps=eps,
      axis_name=axis_name,
    )

  def record(projections):
    if not diagnostics:
      return dict.fromkeys(_DIAGNOSTICS)
    # Without any leaf, a lone number: optax.tree.map_params initializes with a
    # placeholder that has none, and wants a prefix of the real state.
    return {
      field: {
        name: getattr(projection, field).astype(dtype)
        for name, projection in projections.items()
      }
      or jnp.zeros([], dtype)
      for field, dtype in _DIAGNOSTICS.items()
    }

  def init_fn(params) -> Any:
    if not diagnostics and not callable(strength):
      return optax.EmptyState()
    blank = lambda axis_name: jax.eval_shape(
      lambda p: record(project(p, p, 1.0, axis_name)[1]), params
    )
    if not diagnostics:
      shapes = record({})
    else:
      try:
        shapes = blank(axis_name)
      except NameError:  # no such axis: init is called outside of the mapping
        shapes = blank(None)
    return OrthogradState(
      count=jnp.zeros([], jnp.int32) if callable(strength) else None,
      **jax.tree.map(jnp.zeros_like, shapes),
    )

  def update_fn(updates, state, params=None, **extra_args) -> Any:
    del extra_args
    if params is None:
      raise ValueError(base.NO_PARAMS_MSG)
    _groups.check_trees(updates, params)
    s = strength(state.count) if callable(strength) else strength
    updates, projections = project(updates, params, s, axis_name)
    if isinstance(state, OrthogradState):
      count = state.count
      count = None if count is None else optax.safe_increment(count)
      state = OrthogradState(count=count, **record(projections))
    return updates, state

  transform = optax.GradientTransformationExtraArgs(init_fn, update_fn)
  return transform if mask is None else optax.masked(transform, mask)


def orthograd_sgd(
  learning_rate: optax.ScalarOrSchedule,
  momentum: float | jax.Array | None = None,
  nesterov: bool = False,
  weight_decay: float | jax.Array = 0.0,
  weight_decay_mask: Any = None,
  *,
  renormalize: bool = True,
  eps: float | jax.Array = 1e-30,
  strength: optax.ScalarOrSchedule = 1.0,
  partition: _groups.Partition = "leaf",
  batch_axes: _groups.BatchAxes = None,
  mask: Any = None,
  axis_name: Any = None,
  diagnostics: bool = False,
) -> optax.GradientTransformationExtraArgs:
  r"""Stochastic gradient descent with ⊥Grad, in the order of the papers.

  The gradient is projected by :func:`orthograd`, then weight decay is added to
  it as an l2 penalty's gradient, then momentum is applied:

  .. math::

    m \leftarrow \mu m + \hat g + \lambda w, \qquad w \leftarrow w - \eta m.

  So weight decay still shrinks the parameters, and the step as a whole is not
  orthogonal to them.

  Args:
    learning_rate: :math:`\eta`, a number or a schedule.
    momentum: :math:`\mu`, or ``None`` to keep no trace.
    nesterov: whether to use Nesterov momentum.
    weight_decay: :math:`\lambda`.
    weight_decay_mask: which parameters decay, as in
      :func:`optax.add_decayed_weights`; by default all do.
    renormalize: this and all that follow are options of :func:`orthograd`.
    eps: likewise.
    strength: likewise.
    partition: likewise.
    batch_axes: likewise.
    mask: likewise.
    axis_name: likewise.
    diagnostics: likewise.

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
  # Options are spelled out because inject_hyperparams can't pass on **options.
  return optax.chain(
    orthograd(
      renormalize=renormalize,
      eps=eps,
      strength=strength,
      partition=partition,
      batch_axes=batch_axes,
      mask=mask,
      axis_name=axis_name,
      diagnostics=diagnostics,
    ),
    optax.add_decayed_weights(weight_decay, weight_decay_mask),
    optax.identity() if momentum is None else optax.trace(momentum, nesterov),
    optax.scale_by_learning_rate(learning_rate),
  )


class Alignment(NamedTuple):
  """Where gradients lie relative to their parameters, by group.

  Attributes:
    cosine: cos(w, g) of each group, by the group's name; with batch axes, an
      array with one entry for each vector.
    radial_fraction: cosine², the share of ‖g‖² that ⊥Grad would remove.
    size: the number of entries in each group.
  """

  cosine: dict[str, jax.Array]
  radial_fraction: dict[str, jax.Array]
  size: dict[str, int]

  def __str__(self) -> str:
    """A table; of a group of many vectors, the mean over them."""
    width = max([len("group"), *map(len, self.size)])
    header = f"{'group':{width}}  {'size':>10}  {'cos(w, g)':>10}  radial share"
    rows = [
      f"{name:{width}}  {size:>10,}  {jnp.mean(self.cosine[name]):>+10.4f}  "
      f"{jnp.mean(self.radial_fraction[name]):>12.2%}"
      for name, size in self.size.items()
    ]
    return "\n".join([header, *rows])


def alignment(
  updates: optax.Updates,
  params: optax.Params,
  *,
  partition: _groups.Partition = "leaf",
  batch_axes: _groups.BatchAxes = None,
) -> Alignment:
  """Tells where :func:`orthograd` would act on a network, and how much.

  A parameter tensor followed by a normalization has a gradient orthogonal to it
  already, and ⊥Grad leaves it as it is. To be called outside the training loop;
  inside one, see the option ``diagnostics`` of :func:`orthograd`.

  Args:
    updates: gradients of a loss with respect to ``params``.
    params: the parameters.
    partition: as in :func:`orthograd`.
    batch_axes: as in :func:`orthograd`.

  Returns:
    An :class:`Alignment`, which prints as a table.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import alignment
    >>> params = {"norm": jnp.array([1.0, 2.0]), "out": jnp.array([3.0, 4.0])}
    >>> grads = {"norm": jnp.array([2.0, -1.0]), "out": jnp.array([5.0, 0.0])}
    >>> print(alignment(grads, params))
    group        size   cos(w, g)  radial share
    norm            2     +0.0000         0.00%
    out             2     +0.6000        36.00%
  """
  _groups.check_partition(partition)
  _groups.check_trees(updates, params)
  _, found = _project(updates, params, partition, batch_axes)
  groups = _groups.build(params, partition, batch_axes)
  return Alignment(
    cosine={name: p.cosine for name, p in found.items()},
    radial_fraction={name: p.removed_fraction for name, p in found.items()},
    size={
      name: sum(jnp.size(member.param) for member in members)
      for name, members in groups.items()
    },
  )


def _check_number(name: str, value: Any, high: float, allowed: str) -> None:
  """Checks an option, unless it is an array, which may be traced."""
  if isinstance(value, jax.Array):
    return
  try:
    numbers = np.asarray(value)
    ok = np.all((numbers >= 0) & (numbers <= high) & np.isfinite(numbers))
  except (TypeError, ValueError):
    ok = False
  ok = ok and (name == "strength" or not np.ndim(value))
  if not ok:
    raise ValueError(f"{name} must be {allowed}, not {value!r}.")


def _project(
  updates: Any,
  params: Any,
  partition: _groups.Partition,
  batch_axes: _groups.BatchAxes,
  *,
  strength: Any = 1.0,
  **options: Any,
) -> tuple[Any, dict[str, _projection.Projection]]:
  """Projects a tree of updates, and says what was found in each group."""
  flat, treedef = tree_util.tree_flatten_with_path(updates)
  leaves = dict(flat)
  groups = _groups.build(params, partition, batch_axes)
  for name, group in groups.items():
    if jnp.ndim(strength) and jnp.shape(strength) != group[0].batch:
      raise ValueError(
        f"strength has shape {jnp.shape(strength)}, but must be a single number"
        f" or, with batch_axes, have one for each vector: in {name!r} those"
        f" have shape {group[0].batch}."
      )
  # A parameter whose update is None has no part in its group; if that is so for
  # all of them, zeros keep the group's place in the state.
  members = [
    [m for m in group if m.path in leaves] or group for group in groups.values()
  ]
  found = _projection.project(
    [[jnp.asarray(m.param) for m in group] for group in members],
    [
      [
        jnp.asarray(leaves[m.path])
        if m.path in leaves
        else jnp.zeros_like(m.param)
        for m in group
      ]
      for group in members
    ],
    tuple(tuple(m.axes for m in group) for group in members),
    strength=strength,
    **options,
  )
  for group, projection in zip(members, found, strict=True):
    for m, update in zip(group, projection.updates, strict=True):
      if m.path in leaves:
        leaves[m.path] = update
  return treedef.unflatten(leaves.values()), dict(
    zip(groups, found, strict=True)
  )
