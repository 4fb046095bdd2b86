"""Projects many groups in few kernels, for GPUs.

Kernel launch dominates small reductions, and a network has many short vectors:
biases, scales, small kernels. Short vectors are packed: they become rows of one
array, padded with zeros, and take as many launches as one vector. Longer
vectors stay in place; those of one shape share the launches of their sums.
`python -m benchmarks.tricks` measures what each trick saves.
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

# Pack vectors of up to this length, into an array of at most this share of all
# entries.
MAX_PACKED_LENGTH, MAX_PACKED_SHARE = 1 << 14, 1 / 16

# Stack up to this many arrays in one kernel.
MAX_STACKED = 32

# Sum up to this many arrays of one shape, of at most this many entries in all,
# in one kernel.
MAX_JOINT, MAX_JOINT_ENTRIES = 8, 1 << 25

# Sum matrices of at least this many columns by row first. XLA ends a full sum
# with a second kernel. Matrices of equal height then share that kernel.
MIN_COLUMNS = 256


def choose(groups: Sequence[Group]) -> list[list[int]]:
  """Chooses the groups to pack: a list of indices for each packed array."""
  sizes = [sum(g.size for g in group.gs) for group in groups]
  total = sum(size for size in sizes if isinstance(size, int))
  short = (i for i, group in enumerate(groups) if _is_short(group))
  chosen = []
  for indices in group_by(short, lambda i: _kind(groups[i])):
    # Sort by length, and put equal shapes side by side.
    indices.sort(key=lambda i: (sizes[i], groups[i].gs[0].shape))
    padded = [n * sizes[i] for n, i in enumerate(indices, 1)]
    count = sum(size <= MAX_PACKED_SHARE * total for size in padded)
    chosen.append(indices[:count])
  return [indices for indices in chosen if len(indices) > 1]


def group_by(items: Any, key: Any) -> list[list[Any]]:
  """Lists of the items of equal key."""
  by_key: dict[Any, list[Any]] = {}
  for item in items:
    by_key.setdefault(key(item), []).append(item)
  return list(by_key.values())


def _is_short(group: Group) -> bool:
  if not all(map(_sums.is_whole, [*group.ws, *group.gs])):
    return False
  one_dtype = all(
    len({x.dtype for x in xs}) == 1 for xs in (group.ws, group.gs)
  )
  return one_dtype and group.length <= MAX_PACKED_LENGTH


def _kind(group: Group) -> Any:
  """A key: groups of equal kind can be rows of one array."""
  # The type of an empty slice has everything but the length: dtype, sizes of
  # batch axes, and the axes of a shard_map over which values vary.
  empty = lambda xs: lax.slice_in_dim(_row(xs, group.axes), 0, 0, axis=-1)
  return jax.typeof(empty(group.ws)), jax.typeof(empty(group.gs))


def pack(groups: Sequence[Group]) -> Group:
  """Packs groups into one group of two arrays, with one row each."""
  w = _stack([_row(group.ws, group.axes) for group in groups])
  g = _stack([_row(group.gs, group.axes) for group in groups])
  lengths = np.array([group.length for group in groups], float)
  lengths = lengths.reshape(-1, *(1,) * (w.ndim - 2))
  return Group([w], [g], ((w.ndim - 1,),), lengths)


def _stack(rows: list[jax.Array]) -> jax.Array:
  """Stacks rows of different lengths, padded with zeros."""
  width = max(row.shape[-1] for row in rows)
  parts = []
  for _, of_one_shape in itertools.groupby(rows, jnp.shape):
    while chunk := list(itertools.islice(of_one_shape, MAX_STACKED)):
      stack = jnp.stack(chunk)
      padding = [(0, 0)] * (stack.ndim - 1) + [(0, width - stack.shape[-1])]
      parts.append(jnp.pad(stack, padding))
  return jnp.concatenate(parts)


def _row(xs: Arrays, axes: Axes) -> jax.Array:
  """Joins the arrays of a group into one, with vectors along axis -1."""
  rows = []
  for x, a in zip(xs, axes, strict=True):
    batch = [n for i, n in enumerate(x.shape) if i not in a]
    x = jnp.moveaxis(x, a, range(len(batch), x.ndim))
    rows.append(x.reshape(*batch, math.prod(x.shape[len(batch) :])))
  return jnp.concatenate(rows, -1)


def unpack(
  packed: jax.Array, closed: jax.Array, groups: Sequence[Group]
) -> list[list[jax.Array]]:
  """Cuts the updates of groups out of the packed updates."""
  rows = _share_two_operands(*_keep_result((packed, closed)))
  return [_unrow(row, group) for row, group in zip(rows, groups, strict=True)]


def _unrow(row: jax.Array, group: Group) -> list[jax.Array]:
  """Undoes :func:`_row`, and ignores padding."""
  batch, outs, start = row.shape[:-1], [], 0
  for g, a in zip(group.gs, group.axes, strict=True):
    shape = [g.shape[i] for i in a]
    stop = start + math.prod(shape)
    part = row[..., start:stop].reshape(*batch, *shape)
    outs.append(jnp.moveaxis(part, range(len(batch), g.ndim), a))
    start = stop
  return outs


# Keep the packed result in memory. Otherwise each group computes it again.
_keep_result = lax.optimization_barrier


def _share_two_operands(packed: jax.Array, closed: jax.Array) -> jax.Array:
  """No-op: rows of closed gates are 0 already.

  XLA fuses the updates of all groups into one kernel only if they share two
  large operands.
  """
  return jnp.where(closed[..., None], jnp.zeros_like(packed), packed)


def joint_sums(groups: Sequence[Group]) -> Iterator[tuple[list[int], Sums]]:
  """Sums groups in float64. Call it under ``jax.enable_x64``.

  Yields:
    Indices of groups, and their sums stacked along axis 0.
  """
  groups = [
    group._replace(ws=list(map(_in_layout_of, group.gs, group.ws)))
    for group in groups
  ]
  shape = lambda i: _shape(groups[i])
  stacks = []
  for indices in group_by(range(len(groups)), lambda i: shape(i) or i):
    of_one_shape = [groups[i] for i in indices]
    measure = _same_shape_sums if shape(indices[0]) else _own_sums
    stacks.append((indices, measure(*of_one_shape)))

  for of_one_kind in group_by(stacks, _stack_kind):
    parts = zip(*(sums for _, sums in of_one_kind), strict=True)
    indices = [i for indices, _ in of_one_kind for i in indices]
    yield indices, Sums(*map(jnp.concatenate, parts))


def _shape(group: Group) -> Any:
  """The types of w and g, if each is one whole array without batch axes."""
  arrays = [*group.ws, *group.gs]
  single = len(arrays) == 2 and len(group.axes[0]) == arrays[0].ndim
  whole = single and all(map(_sums.is_whole, arrays))
  return tuple(map(jax.typeof, arrays)) if whole else None


def _own_sums(group: Group) -> Sums:
  return Sums(*(x[None] for x in _sums.wide(group)))


def _stack_kind(stack: tuple[list[int], Sums]) -> Any:
  """A key: sums of one kind are stacked, to solve in one kernel."""
  (i, *_), sums = stack
  row = sums.wg[:1]
  # Batch axes may be sharded: stack whole arrays only.
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
  """:func:`_sums.reduce`, but under vmap one pair of arrays at a time.

  If the mapped axis is not the first, a reduction of several pairs needs more
  shared memory than a GPU has, and does not compile.
  """
  one = lambda w, g: _sums.reduce([w], [g], axes)[0]

  def mapped_reduce(size, mapped, ws, gs):
    in_axes = [[0 if each else None for each in its] for its in mapped]
    with jax.enable_x64(True):  # JAX calls this outside of the caller's
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
  """Multiplies w by an opaque 1, so that XLA keeps w in g's layout.

  A convolution's gradient and weights have different layouts. XLA may then
  write all products to memory in float64, to transpose them. Where g is NaN,
  the factor is -1; the sums are NaN anyway.
  """
  if w.ndim < 3:
    return w
  return jnp.where(g == g, jnp.ones_like(w), -jnp.ones_like(w)) * w
