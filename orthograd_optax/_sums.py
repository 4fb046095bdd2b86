"""Sums ⟨w, g⟩, ⟨w, w⟩ and ⟨g, g⟩.

*Wide* sums entries of up to 32 bits in float64. It takes one sweep over w and
g. It is accurate at any scale, and at any angle unless a reduction has millions
of entries. *Exact* sums in the entries' own dtype, for float64 leaves and for
devices without fast float64. Its caller first divides w and g by their
`magnitude`, and then measures g⊥ itself.

These functions call `lax` instead of `jax.numpy`, which takes several times as
long to trace. They are traced for every leaf.
"""

from collections.abc import Iterable, Sequence
import functools
import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from orthograd_optax import _sharding

Arrays = Sequence[jax.Array]
Axes = tuple[tuple[int, ...], ...]

# On a GPU, sum up to this many arrays of one shape, of at most this many
# entries in all, in one kernel.
MAX_JOINT, MAX_JOINT_ENTRIES = 8, 1 << 25

# On a GPU, sum matrices of at least this many columns by row first. XLA ends a
# full sum with a second kernel, which matrices of equal height then share.
MIN_COLUMNS = 256


class Group(NamedTuple):
  """Arrays that form one vector, or a batch of vectors.

  Attributes:
    ws: the arrays of w.
    gs: the arrays of g, in the shapes of ``ws``.
    axes: the axes to sum over, of each array. The others are batch axes.
  """

  ws: Arrays
  gs: Arrays
  axes: Axes

  @property
  def length(self) -> Any:
    """Returns the number of entries of a vector, perhaps symbolic."""
    arrays = zip(self.gs, self.axes, strict=True)
    return sum(math.prod(g.shape[i] for i in a) for g, a in arrays)


class Sums(NamedTuple):
  """Inner products of w and g, with one entry for each vector."""

  wg: jax.Array
  ww: jax.Array
  gg: jax.Array


def wide(group: Group) -> Sums:
  """Sums a group in float64. Call it under ``jax.enable_x64``."""
  return _add_up(_by_row(*arrays) for arrays in zip(*group, strict=True))


def _by_row(w: jax.Array, g: jax.Array, axes: tuple[int, ...]) -> Sums:
  """Sums along the last axis first: XLA divides rows among a CPU's cores."""
  *others, last = axes or [0]
  if not others or last < g.ndim - 1 or not _sharding.is_whole(g):
    return _reduce([w], [g], axes)[0]
  (sums,) = _reduce([w], [g], (last,))
  return Sums(*(lax.reduce_sum(x, tuple(others)) for x in sums))


def _reduce(ws: Arrays, gs: Arrays, axes: tuple[int, ...]) -> list[Sums]:
  """Sums pairs of arrays of one shape in float64, in one reduction.

  It reads each array once. On a CPU, three reductions take several times as
  long.
  """
  products = []
  for w, g in zip(ws, gs, strict=True):
    w, g = (lax.convert_element_type(x, jnp.float64) for x in (w, g))
    products += [lax.mul(w, g), lax.mul(w, w), lax.mul(g, g)]
  zeros = (lax.full_like(products[0], 0, shape=()),) * len(products)
  add = lambda xs, ys: tuple(map(lax.add, xs, ys))
  sums = iter(lax.reduce(tuple(products), zeros, add, axes))
  return list(map(Sums, sums, sums, sums))


def wide_stacks(groups: Sequence[Group]) -> list[tuple[list[int], Sums]]:
  """Sums groups in float64, in few kernels, for GPUs.

  Kernel launch dominates small reductions. Arrays of one shape therefore share
  the kernels of their sums, and the sums of all groups are stacked, so that all
  coefficients are computed in one kernel.

  Args:
    groups: the groups to sum. Call this under ``jax.enable_x64``.

  Returns:
    Pairs of the indices of groups, and their sums stacked along axis 0.
  """
  groups = [
    group._replace(ws=list(map(_in_layout_of, group.gs, group.ws)))
    for group in groups
  ]
  parts = []
  for indices in _equal(map(_joint_key, groups)):
    first, *others = [groups[i] for i in indices]
    joint = _joint_key(first) is not None
    parts.append((indices, (_joint if joint else _alone)(first, *others)))
  stacks = []
  for places in _equal(_stack_key(sums) for _, sums in parts):
    indices = [i for place in places for i in parts[place][0]]
    columns = zip(*(parts[place][1] for place in places), strict=True)
    stacks.append((indices, Sums(*(lax.concatenate(x, 0) for x in columns))))
  return stacks


def _equal(keys: Iterable[Any]) -> list[list[int]]:
  """Returns the indices of equal keys. A key of ``None`` stands alone."""
  places: list[list[int]] = []
  by_key: dict[Any, list[int]] = {}
  for place, key in enumerate(keys):
    if key is not None and key in by_key:
      by_key[key].append(place)
    else:
      places.append([place])
      by_key[key] = places[-1]
  return places


def _joint_key(group: Group) -> Any:
  """Returns equal keys for groups that one reduction can sum.

  These are single arrays of one shape.

  Batch axes must come first. Otherwise a reduction of several arrays needs more
  shared memory than a GPU has, and does not compile.
  """
  arrays, axes = [*group.ws, *group.gs], group.axes[0]
  if len(arrays) > 2 or axes != tuple(range(arrays[0].ndim))[-len(axes) :]:
    return None
  whole = all(map(_sharding.is_whole, arrays))
  return (*map(jax.typeof, arrays), axes) if whole else None


def _stack_key(sums: Sums) -> Any:
  """Returns equal keys for sums that can be stacked.

  Their batch axes are not sharded.
  """
  row = lax.slice_in_dim(sums.wg, 0, 1)
  return jax.typeof(row) if row.ndim == 1 or _sharding.is_whole(row) else None


def _alone(group: Group) -> Sums:
  sums = _alone_reduce(*group[:2], axes=group.axes)
  return Sums(*(lax.expand_dims(x, (0,)) for x in sums))


@functools.partial(jax.jit, static_argnames="axes")
def _alone_reduce(ws: Arrays, gs: Arrays, axes: Axes) -> Sums:
  arrays = zip(ws, gs, axes, strict=True)
  return _add_up(_reduce([w], [g], a)[0] for w, g, a in arrays)


def _joint(*groups: Group) -> Sums:
  ws, gs = [group.ws[0] for group in groups], [group.gs[0] for group in groups]
  axes, shape = groups[0].axes[0], ws[0].shape
  by_row = axes == (0, 1) and shape[1] >= MIN_COLUMNS
  n = min(MAX_JOINT, max(MAX_JOINT_ENTRIES // max(ws[0].size, 1), 1))
  parts = [(ws[k : k + n], gs[k : k + n]) for k in range(0, len(ws), n)]
  first_axes = (1,) if by_row else axes
  sums = [x for part in parts for x in _joint_reduce(*part, first_axes)]
  columns = [
    lax.expand_dims(x, (0,)) for xs in zip(*sums, strict=True) for x in xs
  ]
  stack = lax.concatenate(columns, 0)
  stack = lax.reduce_sum(stack, (1,)) if by_row else stack
  return Sums(*lax.split(stack, [len(groups)] * 3))


@functools.partial(jax.jit, static_argnames="axes")
def _joint_reduce(ws: Arrays, gs: Arrays, axes: tuple[int, ...]) -> list[Sums]:
  """Calls :func:`_reduce`, under vmap for one pair of arrays at a time.

  vmap may add a batch axis that is not the first.
  """
  one = lambda w, g: _reduce([w], [g], axes)[0]

  def mapped_reduce(size, mapped, ws, gs):
    in_axes = [[0 if each else None for each in its] for its in mapped]
    with jax.enable_x64(True):  # JAX calls this outside of the caller's context
      sums = [
        jax.vmap(one, (i, j), axis_size=size)(w, g)
        for w, g, i, j in zip(ws, gs, *in_axes, strict=True)
      ]
    return sums, jax.tree.map(lambda _: True, sums)

  reduce = jax.custom_batching.custom_vmap(lambda ws, gs: _reduce(ws, gs, axes))
  reduce.def_vmap(mapped_reduce)
  return reduce(list(ws), list(gs))


def _in_layout_of(g: jax.Array, w: jax.Array) -> jax.Array:
  """Multiplies w by an opaque 1, so that XLA keeps w in g's layout.

  A convolution's gradient and weights have different layouts. XLA may then
  write all products to memory in float64, to transpose them. Where g is NaN,
  the factor is -1; the sums are NaN anyway.
  """
  if w.ndim < 3:
    return w
  one = lax.full_like(w, 1)
  return lax.mul(lax.select(lax.eq(g, g), one, lax.neg(one)), w)


def exact(ws: Arrays, gs: Arrays, axes: Axes) -> Sums:
  """Sums a group in its own dtype. Differentiable."""
  return _add_up(
    Sums(*(lax.reduce_sum(lax.mul(x, y), a) for x, y in pairs))
    for w, g, a in zip(ws, gs, axes, strict=True)
    for pairs in [((w, g), (w, w), (g, g))]
  )


def square(xs: Arrays, axes: Axes) -> jax.Array:
  """Returns ⟨x, x⟩ of a group, in its own dtype. Differentiable."""
  return _add(
    [lax.reduce_sum(lax.mul(x, x), a) for x, a in zip(xs, axes, strict=True)]
  )


def over_devices(sums: Any, axis_name: Any) -> Any:
  """Adds the sums of all shards, for vectors sharded over mapped axes."""
  return sums if axis_name is None else lax.psum(sums, axis_name)


def magnitude(xs: Arrays, axes: Axes, axis_name: Any, dtype: Any) -> jax.Array:
  """Returns a power of two near the largest absolute entry, over all devices.

  The squares of x / magnitude neither overflow nor underflow.
  """
  peaks = [
    lax.reduce_max(lax.abs(lax.stop_gradient(x)), a).astype(dtype)
    for x, a in zip(xs, axes, strict=True)
  ]
  peak = functools.reduce(lax.max, _sharding.replicated(peaks))
  peak = peak if axis_name is None else lax.pmax(peak, axis_name)
  return _power_of_two(peak)


@jax.jit
def _power_of_two(peak: jax.Array) -> jax.Array:
  info = jnp.finfo(peak.dtype)
  power = lax.reduce_precision(peak, info.nexp, mantissa_bits=0)
  # Clip to powers that have an inverse: not 0, not subnormal, not infinite.
  return jnp.clip(power, 2.0**info.minexp, 2.0**-info.minexp)


def _add_up(parts: Iterable[Sums]) -> Sums:
  """Adds the sums of several arrays."""
  return Sums(*map(_add, zip(*parts, strict=True)))


def _add(xs: Arrays) -> jax.Array:
  return functools.reduce(lax.add, _sharding.replicated(xs))
