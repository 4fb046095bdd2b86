"""Many groups in few kernels, for GPUs, where kernel launch dominates.

A network has many short vectors: biases, scales, small kernels. Packed, they
are rows of one array, padded with zeros, and cost as many launches as a single
vector. Longer vectors stay where they are, and share launches of their sums.
`python -m benchmarks.tricks` measures what each of these earns.
"""

from collections.abc import Iterator, Sequence
import itertools
import math
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from orthograd_optax import _sums
from orthograd_optax._sums import Arrays, Axes, Group, Sums

# Vectors of up to this length are packed, as long as the packed array has at
# most this share of all entries.
MAX_PACKED_LENGTH, MAX_PACKED_SHARE = 1 << 14, 1 / 16

# Up to so many arrays are stacked by one kernel.
MAX_STACKED = 32

# Up to so many arrays of one shape, of so many entries in all, are summed by
# one kernel.
MAX_JOINT, MAX_JOINT_ENTRIES = 8, 1 << 25

# Matrices of so many columns are summed by row first. XLA ends a full sum with
# a second kernel, which matrices of one height then share.
MIN_COLUMNS = 256


def choose(groups: Sequence[Group]) -> list[list[int]]:
  """The indices of groups to be packed, a list for each packed array."""
  sizes = [sum(g.size for g in group.gs) for group in groups]
  total = sum(size for size in sizes if isinstance(size, int))
  short = (i for i, group in enumerate(groups) if _is_short(group))
  chosen = []
  for indices in group_by(short, lambda i: _kind(groups[i])):
    # The shortest first, and those of one shape side by side.
    indices.sort(key=lambda i: (sizes[i], groups[i].gs[0].shape))
    padded = [n * sizes[i] for n, i in enumerate(indices, 1)]
    count = sum(size <= MAX_PACKED_SHARE * total for size in padded)
    chosen.append(indices[:count])
  return [indices for indices in chosen if len(indices) > 1]


def group_by(items: Any, key: Any) -> list[list[Any]]:
  """The items, those of equal key in one list."""
  found: dict[Any, list[Any]] = {}
  for item in items:
    found.setdefault(key(item), []).append(item)
  return list(found.values())


def _is_short(group: Group) -> bool:
  if not all(map(_sums.is_whole, [*group.ws, *group.gs])):
    return False
  same = all(len({x.dtype for x in xs}) == 1 for xs in (group.ws, group.gs))
  return same and group.length <= MAX_PACKED_LENGTH


def _kind(group: Group) -> Any:
  """Groups of equal kind can be rows of one array."""
  # The type of an empty slice has all but the length: dtype, sizes of batch
  # axes, and the axes of a shard_map over which values vary.
  empty = lambda xs: lax.slice_in_dim(_row(xs, group.axes), 0, 0, axis=-1)
  return jax.typeof(empty(group.ws)), jax.typeof(empty(group.gs))


def pack(groups: Sequence[Group]) -> Group:
  """One group: two arrays, with a row for each group along the first axis."""
  w = _stack([_row(group.ws, group.axes) for group in groups])
  g = _stack([_row(group.gs, group.axes) for group in groups])
  lengths = np.array([group.length for group in groups], float)
  lengths = lengths.reshape(-1, *(1,) * (w.ndim - 2))
  return Group([w], [g], ((w.ndim - 1,),), lengths)


def _stack(rows: list[jax.Array]) -> jax.Array:
  """Rows of different lengths as one array, padded with zeros."""
  width = max(row.shape[-1] for row in rows)
  parts = []
  for _, same in itertools.groupby(rows, jnp.shape):
    while some := list(itertools.islice(same, MAX_STACKED)):
      stack = jnp.stack(some)
      padding = [(0, 0)] * (stack.ndim - 1) + [(0, width - stack.shape[-1])]
      parts.append(jnp.pad(stack, padding))
  return jnp.concatenate(parts)


def _row(xs: Arrays, axes: Axes) -> jax.Array:
  """Arrays as one, with vectors along its last axis."""
  rows = []
  for x, a in zip(xs, axes, strict=True):
    batch = [n for i, n in enumerate(x.shape) if i not in a]
    x = jnp.moveaxis(x, a, range(len(batch), x.ndim))
    rows.append(x.reshape(*batch, math.prod(x.shape[len(batch) :])))
  return jnp.concatenate(rows, -1)


def unpack(
  packed: jax.Array, closed: jax.Array, groups: Sequence[Group]
) -> list[list[jax.Array]]:
  """The updates of groups, given the packed ones and their closed gates."""
  rows = _share_two_operands(*_keep_result((packed, closed)))
  return [_unrow(row, group) for row, group in zip(rows, groups, strict=True)]


def _unrow(row: jax.Array, group: Group) -> list[jax.Array]:
  """Undoes :func:`_row`; ignores padding."""
  batch, outs, start = row.shape[:-1], [], 0
  for g, a in zip(group.gs, group.axes, strict=True):
    shape = [g.shape[i] for i in a]
    stop = start + math.prod(shape)
    part = row[..., start:stop].reshape(*batch, *shape)
    outs.append(jnp.moveaxis(part, range(len(batch), g.ndim), a))
    start = stop
  return outs


# Keep the packed result in memory: otherwise each group computes it anew.
_keep_result = lax.optimization_barrier


def _share_two_operands(packed: jax.Array, closed: jax.Array) -> jax.Array:
  """No-op, for rows of closed gates are 0 already.

  XLA fuses the steps of all groups into one kernel only if they share two large
  operands.
  """
  return jnp.where(closed[..., None], jnp.zeros_like(packed), packed)


def joint_sums(groups: Sequence[Group]) -> Iterator[tuple[list[int], Sums]]:
  """The sums of groups in float64. Needs `jax.enable_x64`.

  Yields:
    Indices of groups, and their sums, stacked along a first axis.
  """
  groups = [
    group._replace(ws=list(map(_in_layout_of, group.gs, group.ws)))
    for group in groups
  ]
  shape = lambda i: _shape(groups[i])
  stacks = []
  for indices in group_by(range(len(groups)), lambda i: shape(i) or i):
    some = [groups[i] for i in indices]
    measure = _same_shape_sums if shape(indices[0]) else _own_sums
    stacks.append((indices, measure(*some)))

  for some in group_by(stacks, _stack_kind):
    parts = zip(*(sums for _, sums in some), strict=True)
    indices = [i for indices, _ in some for i in indices]
    yield indices, Sums(*map(jnp.concatenate, parts))


def _shape(group: Group) -> Any:
  """The types of w and g, if each is one array, whole and not a batch."""
  arrays = [*group.ws, *group.gs]
  one = len(arrays) == 2 and len(group.axes[0]) == arrays[0].ndim
  whole = one and all(map(_sums.is_whole, arrays))
  return tuple(map(jax.typeof, arrays)) if whole else None


def _own_sums(group: Group) -> Sums:
  return Sums(*(x[None] for x in _sums.wide(group)))


def _stack_kind(stack: tuple[list[int], Sums]) -> Any:
  """Sums of one kind are stacked, and make coefficients in one kernel."""
  (i, *_), sums = stack
  row = sums.wg[:1]
  # Where groups are batches of vectors, these may be sharded.
  return jax.typeof(row) if row.ndim == 1 or _sums.is_whole(row) else i


def _same_shape_sums(*groups: Group) -> Sums:
  ws, gs = [group.ws[0] for group in groups], [group.gs[0] for group in groups]
  by_row = ws[0].ndim == 2 and ws[0].shape[1] >= MIN_COLUMNS
  axes = (1,) if by_row else tuple(range(ws[0].ndim))
  n = min(MAX_JOINT, max(MAX_JOINT_ENTRIES // max(ws[0].size, 1), 1))
  parts = range(0, len(ws), n)
  sums = [x for k in parts for x in _reduce(ws[k : k + n], gs[k : k + n], axes)]
  stack = jnp.stack([jnp.stack(x) for x in zip(*sums, strict=True)])
  return Sums(*(lax.reduce_sum(stack, (2,)) if by_row else stack))


def _reduce(ws: Arrays, gs: Arrays, axes: tuple[int, ...]) -> list[Sums]:
  """As :func:`_sums.reduce`, but under vmap one pair of arrays at a time.

  With a mapped axis that is not the first, a reduction of more than one pair
  needs more shared memory than a GPU has, and does not compile.
  """
  one = lambda w, g: _sums.reduce([w], [g], axes)[0]

  def mapped_reduce(size, mapped, ws, gs):
    in_axes = [[0 if each else None for each in its] for its in mapped]
    with jax.enable_x64(True):  # JAX comes here outside of it
      sums = [
        jax.vmap(one, (i, j), axis_size=size)(w, g)
        for w, g, i, j in zip(ws, gs, *in_axes, strict=True)
      ]
    return sums, jax.tree.map(lambda _: True, sums)

  reduce = jax.custom_batching.custom_vmap(
    lambda ws, gs: _sums.reduce(ws, gs, axes)
  )
  reduce.def_vmap(mapped_reduce)
  return reduce(list(ws), list(gs))


def _in_layout_of(g: jax.Array, w: jax.Array) -> jax.Array:
  """w, times an opaque 1 so that XLA keeps it in g's layout.

  A convolution's gradient has another layout than its weights. XLA may then
  write all products to memory in float64, to transpose those. Where g is NaN
  the factor is -1, which does no harm: the sums are NaN anyway.
  """
  if w.ndim < 3:
    return w
  return jnp.where(g == g, jnp.ones_like(w), -jnp.ones_like(w)) * w
