"""⊥Grad (OrthoGrad) as a gradient transformation, and what is built on it."""

import math
from typing import Any, NamedTuple
import warnings

import jax
from jax import core, tree_util
import jax.numpy as jnp
import numpy as np
import optax

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

  Complex leaves are vectors of twice as many real numbers, and :math:`g` is the
  direction of steepest ascent. :func:`jax.grad` gives the conjugate of that, so
  apply ``.conj()`` to its result first, as for every optax optimizer.

  ``partition`` says which leaves are projected as one vector.
  :func:`optax.partition` does something else: it gives each label a
  transformation of its own. ``mask`` is :func:`optax.masked` around this
  transformation alone; the rest of a chain still sees all leaves.

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
      all arrays; or a callable from (key path, leaf) to a label, a str, an int
      or a tuple of these, where leaves of equal labels form a vector.
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
      over it may be in the tree, but not in a group with sharded ones (an error
      under ``check_vma=True``, unnoticed without). Not needed under
      ``jax.jit``, nor for replicated parameters.
    diagnostics: whether to keep, for each group, cos(w, g), the removed share
      of ‖g‖² and whether the gate closed: see :class:`OrthogradState`; read
      them with :func:`read_diagnostics`.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`, without state unless
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

    Ramped in over 1,000 steps, and watched:

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
  _check_number("eps", eps, math.inf, "a finite number, at least 0")
  if not callable(strength):
    allowed = "a number from 0 to 1 or a schedule of it"
    _check_number("strength", strength, 1.0, allowed)
  _check_flag("renormalize", renormalize)
  _groups.check_partition(partition)
  _groups.check_mask("mask", mask)
  axis_name = tuple(axis_name) if isinstance(axis_name, list) else axis_name
  stateful = diagnostics or callable(strength)

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
    if renormalize and (callable(strength) or _is_one(strength)):
      _warn_of_single_entries(_groups.build(params, partition, batch_axes))
    if not stateful:
      return optax.EmptyState()
    blank = lambda axis_name: jax.eval_shape(
      lambda p: record(project(p, p, 1.0, axis_name)[1]),
      _groups.floating(params),
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
      raise ValueError(
        "orthograd projects updates orthogonally to the parameters, so it needs"
        " them: call update(updates, state, params)."
      )
    _check_state(state, callable(strength), diagnostics)
    _groups.check_trees(updates, params)
    s = strength(state.count) if callable(strength) else strength
    updates, projections = project(updates, params, s, axis_name)
    if stateful:
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
  accumulator_dtype: Any = None,
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
    accumulator_dtype: of the momentum; by default that of the parameters.
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
  _groups.check_mask("weight_decay_mask", weight_decay_mask)
  trace = lambda decay: optax.trace(decay, nesterov, accumulator_dtype)
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
  weight_decay_mask: Any = None,
  *,
  nesterov: bool = False,
  renormalize: bool = True,
  projection_eps: float | jax.Array = 1e-30,
  strength: optax.ScalarOrSchedule = 1.0,
  partition: _groups.Partition = "leaf",
  batch_axes: _groups.BatchAxes = None,
  mask: Any = None,
  axis_name: Any = None,
  diagnostics: bool = False,
) -> optax.GradientTransformationExtraArgs:
  r"""AdamW with ⊥Grad: the gradient is projected, then :func:`optax.adamw`.

  Weight decay is decoupled, so it still shrinks the parameters. Adam divides
  each entry by its own scale, so the step is not orthogonal to the parameters.

  Args:
    learning_rate: this and all up to ``weight_decay`` are options of
      :func:`optax.adamw`.
    b1: likewise.
    b2: likewise.
    eps: likewise; that of :func:`orthograd` is ``projection_eps``.
    eps_root: likewise.
    mu_dtype: likewise.
    weight_decay: likewise.
    weight_decay_mask: which parameters decay, ``mask`` of :func:`optax.adamw`.
    nesterov: likewise an option of :func:`optax.adamw`.
    renormalize: this and all that follow are options of :func:`orthograd`.
    projection_eps: its ``eps``.
    strength: likewise.
    partition: likewise.
    batch_axes: likewise.
    mask: which parameters to project, likewise.
    axis_name: likewise.
    diagnostics: likewise.

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
  _groups.check_mask("weight_decay_mask", weight_decay_mask)
  return optax.chain(
    orthograd(
      renormalize=renormalize,
      eps=projection_eps,
      strength=strength,
      partition=partition,
      batch_axes=batch_axes,
      mask=mask,
      axis_name=axis_name,
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
      weight_decay_mask,
      nesterov=nesterov,
    ),
  )


class Diagnostics(NamedTuple):
  """What :func:`orthograd` found of a group at the last update.

  Attributes:
    cosine: cos(w, g); with batch axes, one for each vector.
    removed_fraction: the share of ‖g‖² that the projection took away.
    gate_closed: whether the group got no update.
  """

  cosine: jax.Array
  removed_fraction: jax.Array
  gate_closed: jax.Array


def read_diagnostics(state: Any) -> dict[str, Diagnostics]:
  """Reads what ``orthograd(diagnostics=True)`` has kept in a state.

  Args:
    state: of an optimizer in which :func:`orthograd` is used, once or several
      times, as in :func:`optax.partition`.

  Returns:
    :class:`Diagnostics` by the group's name. If two instances have groups of
    one name, all names have the instance's place in the state before them.

  Examples:
    >>> import jax.numpy as jnp, optax
    >>> from orthograd_optax import orthograd, read_diagnostics
    >>> optimizer = optax.chain(orthograd(diagnostics=True), optax.sgd(0.1))
    >>> params = {"w": jnp.array([3.0, 4.0])}
    >>> grads = {"w": jnp.array([5.0, 0.0])}
    >>> _, state = optimizer.update(grads, optimizer.init(params), params)
    >>> print(read_diagnostics(state)["w"].cosine)
    0.6
  """
  is_ours = lambda x: isinstance(x, OrthogradState)
  leaves, _ = tree_util.tree_flatten_with_path(state, is_leaf=is_ours)
  kept = [
    (p, x) for p, x in leaves if is_ours(x) and isinstance(x.cosine, dict)
  ]
  if not kept:
    raise ValueError(
      f"this state, of type {type(state).__name__}, has no diagnostics of"
      " orthograd; give orthograd the option diagnostics=True, and call init."
    )
  names = [name for _, x in kept for name in x.cosine]
  apart = len(set(names)) < len(names)
  return {
    f"{tree_util.keystr(path)} {name}" if apart else name: Diagnostics(
      x.cosine[name], x.removed_fraction[name], x.gate_closed[name]
    )
    for path, x in kept
    for name in x.cosine
  }


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
  """Checks an option; of a traced value, what is known of it."""
  traced = isinstance(value, core.Tracer) or (
    isinstance(value, jax.Array) and not value.is_fully_addressable
  )
  try:
    numbers = value if traced else np.asarray(value)
    ok = jnp.issubdtype(numbers.dtype, jnp.number)
    ok = ok and not jnp.iscomplexobj(numbers)
    ok = ok and (name == "strength" or not jnp.ndim(numbers))
    if ok and not traced:
      numbers = numbers.astype(np.float64)
      ok = np.all((numbers >= 0) & (numbers <= high) & np.isfinite(numbers))
  except (TypeError, ValueError):
    ok = False
  if not ok:
    raise ValueError(f"{name} must be {allowed}, not {value!r}.")


def _check_flag(name: str, value: Any) -> None:
  if not isinstance(value, (bool, np.bool_)):
    raise TypeError(
      f"{name} must be True or False, known before anything is traced, not"
      f" {value!r}.{_groups.static_hint(name, value)}"
    )


def _check_state(state: Any, counts: bool, diagnostics: bool) -> None:
  """Refuses the state of other options, such as an old checkpoint's."""
  ours = isinstance(state, OrthogradState)
  if counts or diagnostics:
    ok = ours and (state.count is not None) == counts
    ok = ok and (state.cosine is not None) == diagnostics
  else:
    ok = not ours
  if not ok:
    kind = {"strength": counts, "diagnostics": diagnostics}
    needs = " and ".join(k for k, v in kind.items() if v) or "neither"
    raise ValueError(
      f"the state given to orthograd is {state!r}, which is not that of this"
      f" transformation (a schedule of strength or diagnostics: {needs}). Make"
      " it with init(params) of the optimizer that is updated, or restore a"
      " checkpoint of the same options."
    )


def _is_one(strength: Any) -> bool:
  traced = isinstance(strength, core.Tracer)
  return not traced and bool(np.all(np.asarray(strength) == 1))


def _warn_of_single_entries(groups: dict[str, list[_groups.Member]]) -> None:
  """Of leaves that can't move: a number's gradient is parallel to it."""
  stuck = []
  for member, *others in groups.values():
    w = member.param
    shape = [jnp.shape(w)[i] for i in member.axes]
    known = isinstance(w, (jax.Array, np.ndarray, float))
    known = known and not isinstance(w, core.Tracer)
    single = not others and all(isinstance(n, int) and n == 1 for n in shape)
    if single and known and not jnp.iscomplexobj(w) and np.any(np.asarray(w)):
      stuck.append(_groups.where(member.path))
  if stuck:
    warnings.warn(
      f"orthograd can never move {', '.join(stuck)}: the gradient of a vector"
      " with one entry is parallel to it. Exclude such leaves with mask, or"
      " join them to others with partition.",
      stacklevel=3,
    )


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
  if options.get("axis_name") is not None:
    _groups.check_replicas(groups, options["axis_name"])
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
