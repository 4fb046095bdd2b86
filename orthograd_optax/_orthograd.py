"""⊥Grad (OrthoGrad) as an optax transformation, and its diagnostics."""

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

  Read the diagnostics with :func:`read_diagnostics`.

  Attributes:
    count: the number of updates so far, or ``None`` without a schedule.
    cosine: cos(w, g) of each group at the last update, by the group's name.
    removed_fraction: the share of ‖g‖² that the projection removed.
    gate_closed: whether the gate closed. The group then got no update, because
      only rounding noise was left of its gradient.
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

  For each vector of parameters :math:`w` (by default each leaf of the tree)
  with updates :math:`g`,

  .. math::

    g_\perp = g - s \, \frac{\Re\langle w, g\rangle}{\langle w, w\rangle} \, w,
    \qquad
    \hat g = \frac{\|g\|}{\|g_\perp\| + \varepsilon} \, g_\perp .

  The optimizer then can't lower the loss by scaling a layer up. In a network
  that is positively homogeneous in the layer, that scaling raises confidence
  and changes no prediction.

  **Order.** Put ``orthograd`` first in a chain, on the raw gradient. Weight
  decay before it is parallel to the parameters, and is removed. Momentum after
  it adds steps that were orthogonal to earlier parameters, so the sum is not
  exactly orthogonal to the present ones.

  **The gate.** If a gradient is parallel to its parameters, only rounding noise
  is left of it. With renormalization such a vector gets no update: the gate
  closes. It does if ‖g⊥‖ is below about 1.2e-6 of ‖g‖ in float32, 2e-3 in
  float16 and 1.6e-2 in bfloat16. If one of w and g is float32, half of that.

  **Scalars and zeros.** Exclude scalars with ``mask``, or join them to other
  leaves with ``partition``. A leaf with one entry is parallel to its gradient:
  it never moves, unless it is zero. Parameters that are exactly zero have no
  direction, and their updates pass unchanged.

  **Complex leaves.** Apply ``.conj()`` to the result of :func:`jax.grad` first,
  as for every optax optimizer: :func:`jax.grad` returns the conjugate of the
  direction of steepest ascent. A complex leaf is a vector of twice as many real
  numbers.

  **Other transformations.** :func:`optax.partition` is not ``partition``: it
  gives each label a transformation of its own. ``mask`` is
  :func:`optax.masked` around this transformation alone. The rest of a chain
  still sees all leaves. Under :func:`optax.inject_hyperparams`, name
  ``batch_axes`` in ``static_args``, and each option that is a callable but not
  a schedule.

  Args:
    renormalize: whether to rescale each projected update to its old norm, as
      in both papers' experiments. Without it, an update is never longer than
      the one that came in.
    eps: :math:`\varepsilon` above.
    strength: :math:`s` above, from 0 to 1, or a schedule of it. At 0, updates
      pass unchanged, bit for bit. May be a traced value. With ``batch_axes``,
      may be an array with one number for each vector, such as one for each of
      several models trained at once.
    partition: which leaves form a vector. ``"leaf"``: each leaf is one.
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
    axis_name: the name or names of the axes of ``jax.shard_map`` or
      ``jax.pmap`` over which the *parameters* are sharded. Leave it out under
      ``jax.jit`` and for replicated parameters. The tree may have leaves that
      are replicated over these axes, but no group may mix them with sharded
      ones. ``check_vma=True`` makes that an error; without it, the mistake goes
      unnoticed.
    diagnostics: whether to keep cos(w, g), the removed share of ‖g‖² and the
      gate of each group. Read them with :func:`read_diagnostics`.

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
    if renormalize and (callable(strength) or _is_one(strength)):
      _warn_of_single_entries(_groups.build(params, partition, batch_axes))
    if not stateful:
      return optax.EmptyState()
    shapes_of = lambda axis_name: jax.eval_shape(
      lambda p: record(project(p, p, 1.0, axis_name)[1]),
      _groups.floating(params),
    )
    if not diagnostics:
      shapes = record({})
    else:
      try:
        shapes = shapes_of(axis_name)
      except NameError:  # init is called outside of the mapped function
        shapes = shapes_of(None)
    return OrthogradState(
      count=jnp.zeros([], jnp.int32) if callable(strength) else None,
      **jax.tree.map(jnp.zeros_like, shapes),
    )

  def update_fn(updates, state, params=None, **extra_args) -> Any:
    del extra_args
    if params is None:
      raise ValueError(
        "orthograd needs the parameters, because it projects updates"
        " orthogonally to them: call update(updates, state, params)."
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
  accumulator_dtype: Any = None,
  *,
  weight_decay: float | jax.Array = 0.0,
  weight_decay_mask: Any = None,
  renormalize: bool = True,
  eps: float | jax.Array = 1e-30,
  strength: optax.ScalarOrSchedule = 1.0,
  partition: _groups.Partition = "leaf",
  batch_axes: _groups.BatchAxes = None,
  mask: Any = None,
  axis_name: Any = None,
  diagnostics: bool = False,
) -> optax.GradientTransformationExtraArgs:
  r"""SGD with ⊥Grad, in the order of the papers.

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
    accumulator_dtype: dtype of the momentum. By default, that of the
      parameters.
    weight_decay: :math:`\lambda`.
    weight_decay_mask: which parameters decay, as in
      :func:`optax.add_decayed_weights`. By default all do.
    renormalize: see :func:`orthograd`.
    eps: see :func:`orthograd`.
    strength: see :func:`orthograd`.
    partition: see :func:`orthograd`.
    batch_axes: see :func:`orthograd`.
    mask: which parameters to project; see :func:`orthograd`.
    axis_name: see :func:`orthograd`.
    diagnostics: see :func:`orthograd`.

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
  # Spell the options out: inject_hyperparams can't pass on **options.
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
  r"""AdamW with ⊥Grad: :func:`orthograd`, then :func:`optax.adamw`.

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
    eps: that of :func:`optax.adamw`.
    eps_root: see :func:`optax.adamw`.
    mu_dtype: see :func:`optax.adamw`.
    weight_decay: :math:`\lambda`.
    weight_decay_mask: which parameters decay; ``mask`` of :func:`optax.adamw`.
    nesterov: see :func:`optax.adamw`.
    renormalize: see :func:`orthograd`.
    projection_eps: ``eps`` of :func:`orthograd`.
    strength: see :func:`orthograd`.
    partition: see :func:`orthograd`.
    batch_axes: see :func:`orthograd`.
    mask: which parameters to project; see :func:`orthograd`.
    axis_name: see :func:`orthograd`.
    diagnostics: see :func:`orthograd`.

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
  """Diagnostics of one group at the last update.

  With batch axes, each field is an array with one entry for each vector.

  Attributes:
    cosine: cos(w, g).
    removed_fraction: the share of ‖g‖² that the projection removed.
    gate_closed: whether the gate closed, so that there was no update.
  """

  cosine: jax.Array
  removed_fraction: jax.Array
  gate_closed: jax.Array


def read_diagnostics(state: Any) -> dict[str, Diagnostics]:
  """Reads the diagnostics that ``orthograd(diagnostics=True)`` keeps.

  Args:
    state: the state of an optimizer that has :func:`orthograd` in it, once or
      several times.

  Returns:
    :class:`Diagnostics` by the group's name. If two instances of
    :func:`orthograd` have groups of the same name, the instance's place in the
    state precedes each name.

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
  states = [
    (p, x) for p, x in leaves if is_ours(x) and isinstance(x.cosine, dict)
  ]
  if not states:
    raise ValueError(
      f"this state, of type {type(state).__name__}, has no diagnostics of"
      " orthograd. Pass diagnostics=True to orthograd, and call init again."
    )
  names = [name for _, x in states for name in x.cosine]
  clash = len(set(names)) < len(names)
  return {
    f"{tree_util.keystr(path)} {name}" if clash else name: Diagnostics(
      x.cosine[name], x.removed_fraction[name], x.gate_closed[name]
    )
    for path, x in states
    for name in x.cosine
  }


class Alignment(NamedTuple):
  """The angle between parameters and gradients of each group, by its name.

  It prints as a table. With batch axes, the first two fields are arrays with
  one entry for each vector.

  Attributes:
    cosine: cos(w, g).
    radial_fraction: cos², the share of ‖g‖² that ⊥Grad would remove.
    size: the number of entries in the group.
  """

  cosine: dict[str, jax.Array]
  radial_fraction: dict[str, jax.Array]
  size: dict[str, int]

  def __str__(self) -> str:
    """A table, with the mean over the vectors of a group."""
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
  """Tells on which leaves :func:`orthograd` would act, and how strongly.

  Call it outside the training loop. Inside the loop, use
  ``orthograd(diagnostics=True)``. Expect a radial share of 0 where a
  normalization follows a kernel: that kernel's gradient is orthogonal to it
  already, and ⊥Grad leaves it unchanged.

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
  _, projections = _project(updates, params, partition, batch_axes)
  groups = _groups.build(params, partition, batch_axes)
  return Alignment(
    cosine={name: p.cosine for name, p in projections.items()},
    radial_fraction={
      name: p.removed_fraction for name, p in projections.items()
    },
    size={
      name: sum(jnp.size(member.param) for member in members)
      for name, members in groups.items()
    },
  )


def _check_number(name: str, value: Any, high: float, allowed: str) -> None:
  """Checks an option. Of a traced value, checks dtype and shape only."""
  traced = not _is_known(value)
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
      f"{name} must be a Python bool, True or False, not"
      f" {value!r}.{_groups.static_hint(name, value)}"
    )


def _check_state(state: Any, counts: bool, diagnostics: bool) -> None:
  """Refuses a state made with other options, as in an old checkpoint."""
  ours = isinstance(state, OrthogradState)
  if counts or diagnostics:
    ok = ours and (state.count is not None) == counts
    ok = ok and (state.cosine is not None) == diagnostics
  else:
    ok = not ours
  if not ok:
    used = {"a schedule of strength": counts, "diagnostics": diagnostics}
    options = " and ".join(k for k, v in used.items() if v)
    raise ValueError(
      f"orthograd was given the state {state!r}, of other options: this"
      f" orthograd has {options or 'neither a schedule nor diagnostics'}. Make"
      " the state with this optimizer's init(params), or restore a checkpoint"
      " of the same options."
    )


def _is_known(x: Any) -> bool:
  """Whether x has values here: it is not traced, nor on other hosts."""
  traced = isinstance(x, core.Tracer)
  return not traced and getattr(x, "is_fully_addressable", True)


def _is_one(strength: Any) -> bool:
  return _is_known(strength) and bool(np.all(np.asarray(strength) == 1))


def _warn_of_single_entries(groups: dict[str, list[_groups.Member]]) -> None:
  """Warns of leaves that can't move: their gradient is parallel to them."""
  stuck = []
  for member, *others in groups.values():
    w = member.param
    shape = [jnp.shape(w)[i] for i in member.axes]
    known = isinstance(w, (jax.Array, np.ndarray, float)) and _is_known(w)
    single = not others and all(isinstance(n, int) and n == 1 for n in shape)
    if single and known and not jnp.iscomplexobj(w) and np.any(np.asarray(w)):
      stuck.append(_groups.where(member.path))
  if stuck:
    warnings.warn(
      f"orthograd can never move {', '.join(stuck)}: the gradient of a vector"
      " with one entry is parallel to it. Exclude such leaves with mask, or"
      " join them to other leaves with partition.",
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
  """Projects a tree of updates.

  Returns:
    The tree of projected updates, and the projection of each group by name.
  """
  flat, treedef = tree_util.tree_flatten_with_path(updates)
  leaves = dict(flat)
  groups = _groups.build(params, partition, batch_axes)
  if options.get("axis_name") is not None:
    _groups.check_replicas(groups, options["axis_name"])
  for name, group in groups.items():
    if jnp.ndim(strength) and jnp.shape(strength) != group[0].batch:
      raise ValueError(
        f"strength has shape {jnp.shape(strength)}, but must be one number or,"
        f" with batch_axes, one number for each vector: shape"
        f" {group[0].batch} for {name!r}."
      )
  # Leave out parameters whose update is None. If a whole group has none, use
  # zeros: the state needs an entry for each group.
  members = [
    [m for m in group if m.path in leaves] or group for group in groups.values()
  ]
  projections = _projection.project(
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
  for group, projection in zip(members, projections, strict=True):
    for m, update in zip(group, projection.updates, strict=True):
      if m.path in leaves:
        leaves[m.path] = update
  return treedef.unflatten(leaves.values()), dict(
    zip(groups, projections, strict=True)
  )
