"""Vectors of parameters that keep their norms, as an optax transformation."""

import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import optax

from orthograd_optax import _checks, _groups, _projection, _sums
from orthograd_optax._sums import Arrays, Axes, Group


class KeepNormsState(NamedTuple):
  """State of :func:`keep_norms`.

  Attributes:
    norms: the norm of each vector at ``init``, by the group's name.
  """

  norms: Any


def keep_norms(
  *,
  group_by: _groups.GroupBy = "leaf",
  batch_axes: _groups.BatchAxes = None,
  mask: Any = None,
  axis_name: Any = None,
) -> optax.GradientTransformationExtraArgs:
  r"""Makes every vector of parameters keep the norm that it has at ``init``.

  For each vector :math:`w` (by default each leaf of the tree) with updates
  :math:`u`, the new vector is scaled back to the sphere on which it started:

  .. math::

    w + u \;\to\; \|w_0\| \, \frac{w + u}{\|w + u\|} .

  Put it last in a chain, after the learning rate, because it needs the whole
  step. With :func:`orthograd` first, this is gradient descent on spheres.
  Weight decay before it only shortens the step.

  Norms are kept up to the rounding of the stored parameters: to 1e-6 in float32
  and within 0.5 % in bfloat16. Errors don't accumulate. A vector
  that is zero at ``init`` has no sphere, and its updates pass unchanged. A
  vector whose updates are all zero does not change, not even by rounding. An
  update that would make a vector zero is dropped.

  Args:
    group_by: which leaves form a vector, as in :func:`orthograd`.
    batch_axes: axes of a leaf that index separate vectors, such as stacked
      layers or experts, as in :func:`orthograd`. Each keeps its own norm.
    mask: a tree of booleans, or a callable from the parameters to one, as in
      :func:`optax.masked`. Where it is ``False``, updates pass unchanged.
    axis_name: the names of mapped axes over which the *parameters* are sharded,
      as in :func:`orthograd`. Call ``init`` inside of the mapped function, too.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`. Its state is the norms.

  Examples:
    >>> import jax.numpy as jnp, optax
    >>> from orthograd_optax import keep_norms, orthograd
    >>> optimizer = optax.chain(orthograd(), optax.sgd(0.1), keep_norms())
    >>> params = {"w": jnp.array([3.0, 4.0])}
    >>> grads = {"w": jnp.array([5.0, 0.0])}
    >>> updates, _ = optimizer.update(grads, optimizer.init(params), params)
    >>> new = optax.apply_updates(params, updates)
    >>> print([f"{w:.3f}" for w in new["w"]], jnp.linalg.norm(new["w"]))
    ['2.587', '4.279'] 5.0
  """
  _checks.check_group_by(group_by)
  _checks.check_mask("mask", mask)
  axis_name = tuple(axis_name) if isinstance(axis_name, list) else axis_name
  build = lambda params: _groups.build(params, group_by, batch_axes)
  axes_of = lambda members: tuple(m.axes for m in members)

  def init_fn(params) -> Any:
    norms = {}
    for name, members in build(params).items():
      ws = [jnp.asarray(m.param) for m in members]
      norms[name], _ = _measure(ws, ws, axes_of(members), axis_name)
    # optax.tree.map_params calls init with a placeholder, which has no leaves.
    return KeepNormsState(norms or jnp.zeros([]))

  def update_fn(updates, state, params=None, **extra_args) -> Any:
    del extra_args
    if params is None:
      raise ValueError(
        "keep_norms needs the parameters, because it scales them back after"
        " each step: call update(updates, state, params)."
      )
    _checks.check_trees(updates, params)
    _checks.check_norms(state, groups := build(params))
    flat, treedef = jax.tree_util.tree_flatten_with_path(updates)
    leaves = dict(flat)
    if axis_name is not None:
      _checks.check_replicas(groups, leaves, axis_name)
    for name, members in groups.items():
      if _checks.has_updates(name, members, leaves):
        ws = [jnp.asarray(m.param) for m in members]
        us = [jnp.asarray(leaves[m.path]) for m in members]
        us = _retract(ws, us, state.norms[name], axes_of(members), axis_name)
        leaves |= zip([m.path for m in members], us, strict=True)
    return treedef.unflatten(leaves.values()), state

  transform = optax.GradientTransformationExtraArgs(init_fn, update_fn)
  fitting = functools.partial(_checks.fitting_mask, mask)
  return transform if mask is None else optax.masked(transform, fitting)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _retract(
  ws: Arrays, updates: Arrays, norm: jax.Array, axes: Axes, axis_name: Any
) -> list[jax.Array]:
  """Returns the updates that end at the norm."""
  axes = _projection.split_axes(axes, updates)
  ws, us = _floats(ws, updates)
  new = list(map(lax.add, ws, us))
  length, moves = _measure(new, us, axes, axis_name)
  gone, norm = length == 0, norm.astype(length.dtype)
  unit = _projection.scale(new, 1 / jnp.where(gone, 1, length), axes)
  outs = list(map(lax.sub, _projection.scale(unit, norm, axes), ws))
  outs = _projection.scale(outs, jnp.where(gone, 0, jnp.ones_like(norm)), axes)
  untouched = (norm == 0) | ~moves
  outs = _projection.keep(untouched, _projection.split(updates), outs, axes)
  return _projection.join(outs, updates)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _measure(xs: Arrays, us: Arrays, axes: Axes, axis_name: Any) -> Any:
  """Returns ‖x‖, and whether u is not zero, for each vector."""
  axes, (xs, us) = _projection.split_axes(axes, xs), _floats(xs, us)
  dtype, scale = xs[0].dtype, _projection.scale

  def wide(xs, us):
    with jax.enable_x64(True):
      sums = _sums.over_devices(_sums.wide(Group(xs, us, axes)), axis_name)
      return lax.sqrt(sums.ww).astype(dtype), sums.gg != 0

  def exact(xs, us):
    x, u = (_sums.magnitude(z, axes, axis_name, dtype) for z in (xs, us))
    sums = _sums.exact(scale(xs, 1 / x, axes), scale(us, 1 / u, axes), axes)
    sums = _sums.over_devices(sums, axis_name)
    return x * lax.sqrt(sums.ww), sums.gg != 0

  if dtype == jnp.float64:
    return exact(xs, us)
  return lax.platform_dependent(
    xs, us, cpu=wide, cuda=wide, rocm=wide, default=exact
  )


def _floats(*groups: Arrays) -> list[list[jax.Array]]:
  """Returns real arrays of one dtype: float64 if any is, else float32."""
  parts = [_projection.split(xs) for xs in groups]
  bits = max(jnp.finfo(x.dtype).bits for xs in parts for x in xs)
  dtype = jnp.float64 if bits > 32 else jnp.float32
  return [[lax.convert_element_type(x, dtype) for x in xs] for xs in parts]
