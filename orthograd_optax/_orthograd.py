"""⊥Grad (OrthoGrad) as an optax transformation."""

import functools
import math
from typing import Any, NamedTuple

import jax
from jax import tree_util
import jax.numpy as jnp
import numpy as np
import optax

from orthograd_optax import _checks, _groups, _projection


class OrthogradState(NamedTuple):
  """State of :func:`orthograd`, if it has a schedule or keeps diagnostics.

  Read the diagnostics with :func:`read_diagnostics`.

  Attributes:
    count: the number of updates so far, or ``None`` without a schedule.
    cosine: cos(w, g) of each group at the last update, by the group's name.
    gate_closed: whether the gate closed. The group then got no update, because
      projection left only rounding noise of its gradient.
  """

  count: Any  # pyright: ignore[reportIncompatibleMethodOverride]
  cosine: Any
  gate_closed: Any


_DIAGNOSTICS = {
  "cosine": jnp.float32,
  "gate_closed": jnp.bool_,
}


def orthograd(
  *,
  renormalize: bool = True,
  eps: float | jax.Array = 1e-30,
  strength: optax.ScalarOrSchedule = 1.0,
  group_by: _groups.GroupBy = "leaf",
  batch_axes: _groups.BatchAxes = None,
  mask: Any = None,
  axis_name: Any = None,
  use_float64: bool = True,
  diagnostics: bool = False,
) -> optax.GradientTransformationExtraArgs:
  r"""Projects updates orthogonally to the parameters (⊥Grad, OrthoGrad).

  For each vector of parameters :math:`w` (by default each leaf of the tree)
  with updates :math:`g`,

  .. math::

    g_\perp = g - s \, \frac{\Re\langle w, g\rangle}{\langle w, w\rangle} \, w,
    \qquad
    \hat g = \frac{\|g\|}{\|g_\perp\| + \varepsilon} \, g_\perp .

  To first order, a step then no longer changes the layer's norm. In a network
  that is positively homogeneous in the layer, a larger norm raises confidence
  and changes no prediction.

  **Order.** Put ``orthograd`` first in a chain, on the raw gradient. Weight
  decay before it is parallel to the parameters, and is removed. Momentum after
  it adds steps that were orthogonal to earlier parameters, so the sum is not
  exactly orthogonal to the current ones.

  **The gate.** If a gradient is parallel to its parameters, projection leaves
  only rounding noise. With renormalization, the gate then closes: the vector
  gets no update. The gate closes if ‖g⊥‖ / ‖g‖ is below about 1.2e-6 in
  float32, 2e-3 in float16 and 1.6e-2 in bfloat16. If only one of w and g has 16
  bits, its threshold is half as large.

  **Scalars and zeros.** Exclude scalars with ``mask``, or join them to other
  leaves with ``group_by``. A leaf with one entry is parallel to its gradient:
  it never moves unless it is zero. Parameters that are exactly zero have no
  direction, and their updates pass unchanged.

  **Complex leaves.** Apply ``.conj()`` to the result of :func:`jax.grad` first,
  as for every optax optimizer: :func:`jax.grad` returns the conjugate of the
  direction of steepest ascent. A complex leaf is a vector of twice as many real
  numbers.

  **Other transformations.** ``mask`` is :func:`optax.masked` around this
  transformation alone. The rest of a chain still sees all leaves. Under
  :func:`optax.inject_hyperparams`, name ``batch_axes`` in ``static_args``, and
  each option that is a callable but not a schedule.

  Args:
    renormalize: whether to rescale each projected update to its old norm, as
      in both papers' experiments. Without it, an update is never longer than
      the incoming one.
    eps: :math:`\varepsilon` above.
    strength: :math:`s` above, from 0 to 1, or a schedule of it. At 0, updates
      pass unchanged, bit for bit. May be a traced value. With ``batch_axes``,
      may be an array with one number for each vector, such as one for each of
      several models trained at once.
    group_by: which leaves form a vector. ``"leaf"``: each leaf is one.
      ``"layer"``: leaves with the same parent in the tree form one, such as
      kernel and bias. ``"global"``: all leaves form one. A callable from (key
      path, leaf) to a label: leaves of equal labels form one. A label is a str,
      an int or a tuple of these.
    batch_axes: axes of a leaf that index separate vectors, such as layers
      stacked for ``jax.lax.scan``, experts, heads or output channels. An int or
      a tuple of ints holds for all leaves. A tree of these (or ``None``) has
      the structure of the parameters or a prefix of it; a tuple of ints always
      means axes. A callable maps (key path, leaf) to axes. In a group of
      several leaves, batch axes correspond in ascending order.
    mask: a tree of booleans, or a callable from the parameters to one, as in
      :func:`optax.masked`. Where it is ``False``, updates pass unchanged.
    axis_name: the name or names of the ``jax.shard_map`` or ``jax.pmap`` axes
      over which the *parameters* are sharded. Leave it out under
      ``jax.jit`` and for replicated parameters. The tree may have leaves that
      are replicated over these axes, but no group may mix them with sharded
      ones, and their gradients must be averaged over the axes first. With
      ``check_vma=True`` such mistakes raise an error; without it, they go
      unnoticed.
    use_float64: whether to sum in float64 on CPUs and GPUs. Set it to ``False``
      for a GPU with slow float64. Float32 sums read the parameters and updates
      three times instead of once, and lose digits where a gradient is nearly
      parallel to its parameters.
    diagnostics: whether to keep cos(w, g) and the gate of each group. Read them
      with :func:`read_diagnostics`.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`. It has no state unless
    ``strength`` is a schedule or ``diagnostics`` is set.

  Examples:
    >>> import jax, jax.numpy as jnp, optax
    >>> from orthograd_optax import orthograd, read_diagnostics
    >>> optimizer = optax.chain(orthograd(), optax.sgd(0.1))
    >>> params = {"w": jnp.array([3.0, 4.0])}
    >>> grads = {"w": jnp.array([5.0, 0.0])}
    >>> state = optimizer.init(params)
    >>> updates, state = optimizer.update(grads, state, params)
    >>> print([f"{u:.3f}" for u in updates["w"]])
    ['-0.400', '0.300']

    Ramp the strength up over 1,000 steps, and keep diagnostics:

    >>> ramp = optax.linear_schedule(0.0, 1.0, 1000)
    >>> transform = orthograd(strength=ramp, diagnostics=True)
    >>> updates, state = transform.update(grads, transform.init(params), params)
    >>> print(updates["w"], read_diagnostics(state)["w"].cosine)
    [5. 0.] 0.6

  References:
    Prieto et al, `Grokking at the Edge of Numerical Stability
    <https://arxiv.org/abs/2501.04697>`_, 2025

    Hedges, OrthoGrad Improves Neural Calibration, 2025
  """
  _checks.check_number("eps", eps, math.inf, "a finite number, at least 0")
  if not callable(strength):
    allowed = "a number from 0 to 1 or a schedule of it"
    _checks.check_number("strength", strength, 1.0, allowed)
  _checks.check_flag("renormalize", renormalize)
  _checks.check_flag("use_float64", use_float64)
  _checks.check_flag("diagnostics", diagnostics)
  _checks.check_group_by(group_by)
  _checks.check_mask("mask", mask)
  axis_name = tuple(axis_name) if isinstance(axis_name, list) else axis_name
  stateful = diagnostics or callable(strength)
  project = functools.partial(
    project_tree, renormalize=renormalize, eps=eps, use_float64=use_float64
  )

  def record(projections):
    if not diagnostics:
      return dict.fromkeys(_DIAGNOSTICS)
    # For a tree without leaves, return a scalar. optax.tree.map_params calls
    # init with such a placeholder, and needs a prefix of the real state.
    return {
      field: {
        name: getattr(projection, field).astype(dtype)
        for name, projection in projections.items()
      }
      or jnp.zeros([], dtype)
      for field, dtype in _DIAGNOSTICS.items()
    }

  def init_fn(params) -> Any:
    groups = _groups.build(params, group_by, batch_axes)
    if renormalize and (callable(strength) or _is_one(strength)):
      _checks.warn_of_single_entries(groups)
    if not stateful:
      return optax.EmptyState()

    def shapes(axis_name):
      def projections(params):
        groups = _groups.build(params, group_by, batch_axes)
        return record(project(params, groups, axis_name=axis_name)[1])

      return jax.eval_shape(projections, _groups.floating(params))

    empty = record({})
    if diagnostics:
      try:
        empty = shapes(axis_name)
      except NameError:  # init is called outside of the mapped function
        empty = shapes(None)
    return OrthogradState(
      count=jnp.zeros([], jnp.int32) if callable(strength) else None,
      **jax.tree.map(jnp.zeros_like, empty),
    )

  def update_fn(updates, state, params=None, **extra_args) -> Any:
    del extra_args
    if params is None:
      raise ValueError(
        "orthograd needs the parameters, because it projects updates"
        " orthogonally to them: call update(updates, state, params)."
      )
    _check_state(state, callable(strength), diagnostics)
    _checks.check_trees(updates, params)
    groups = _groups.build(params, group_by, batch_axes)
    s = strength(state.count) if callable(strength) else strength
    updates, projections = project(
      updates, groups, strength=s, axis_name=axis_name
    )
    if stateful:
      count = state.count
      count = None if count is None else optax.safe_increment(count)
      state = OrthogradState(count=count, **record(projections))
    return updates, state

  transform = optax.GradientTransformationExtraArgs(init_fn, update_fn)
  if mask is None:
    return transform
  return optax.masked(transform, lambda tree: _checks.fitting_mask(mask, tree))


def _is_one(strength: Any) -> bool:
  return _checks.is_known(strength) and bool(np.all(np.asarray(strength) == 1))


def _check_state(state: Any, counts: bool, diagnostics: bool) -> None:
  """Refuses a state created with different options, as in an old checkpoint."""

  def describe(counts, diagnostics):
    used = {"a schedule of strength": counts, "diagnostics": diagnostics}
    options = " and ".join(k for k, v in used.items() if v)
    return options or "neither a schedule nor diagnostics"

  given = (False, False)
  if isinstance(state, OrthogradState):
    given = state.count is not None, state.cosine is not None
  elif counts or diagnostics:
    given = None
  if given != (counts, diagnostics):
    kind = f"of an orthograd with {describe(*given)}" if given else ""
    raise ValueError(
      f"this orthograd has {describe(counts, diagnostics)}, but was given a"
      f" state {kind or f'of type {type(state).__name__}'}, created with"
      " different options. Call this optimizer's init(params), or restore a"
      " checkpoint with the same options."
    )


def project_tree(
  updates: Any,
  groups: _groups.Groups,
  *,
  strength: Any = 1.0,
  axis_name: Any = None,
  **options: Any,
) -> tuple[Any, dict[str, _projection.Projection]]:
  """Projects a tree of updates.

  Args:
    updates: the tree.
    groups: the groups of its parameters.
    strength: as in :func:`orthograd`.
    axis_name: as in :func:`orthograd`.
    **options: options of :func:`_projection.project_groups`.

  Returns:
    The tree of projected updates, and the projection of each group by name.
  """
  flat, treedef = tree_util.tree_flatten_with_path(updates)
  leaves = dict(flat)
  _checks.check_strength(strength, groups)
  if axis_name is not None:
    _checks.check_replicas(groups, leaves, axis_name)
  # Leave out parameters whose update is None. If a whole group has none, use
  # zeros: the state needs an entry for each group.
  members = [
    [m for m in group if m.path in leaves] or group for group in groups.values()
  ]
  projections = _projection.project_groups(
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
    axis_name=axis_name,
    **options,
  )
  for group, projection in zip(members, projections, strict=True):
    for m, update in zip(group, projection.updates, strict=True):
      if m.path in leaves:
        leaves[m.path] = update
  return treedef.unflatten(leaves.values()), dict(
    zip(groups, projections, strict=True)
  )
