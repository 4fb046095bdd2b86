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

from orthograd_optax import _sums
from orthograd_optax._sums import Arrays, Axes, Sums

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


def choose(
  ws: Sequence[Arrays], gs: Sequence[Arrays], axes: Sequence[Axes]
) -> list[list[int]]:
  """The indices of groups to be packed, a list for each packed array."""
  sizes = [sum(g.size for g in each) for each in gs]
  total = sum(size for size in sizes if isinstance(size, int))
  kinds = group_by(
    (i for i in range(len(ws)) if _is_short(ws[i], gs[i], axes[i])),
    lambda i: _kind(ws[i], gs[i], axes[i]),
  )
  chosen = []
  for indices in kinds:
    # The shortest first, and those of one shape side by side.
    indices.sort(key=lambda i: (sizes[i], gs[i][0].shape))
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


def _is_short(ws: Arrays, gs: Arrays, axes: Axes) -> bool:
  if not all(map(_sums.is_whole, [*ws, *gs])):
    return False
  same = all(len({x.dtype for x in xs}) == 1 for xs in (ws, gs))
  return same and _sums.length(gs, axes) <= MAX_PACKED_LENGTH


def _kind(ws: Arrays, gs: Arrays, axes: Axes) -> Any:
  """Groups of equal kind can be rows of one array."""
  # The type of an empty slice has all but the length: dtype, sizes of batch
  # axes, and the axes of a shard_map over which values vary.
  empty = lambda xs: lax.slice_in_dim(_flatten(xs, axes), 0, 0, axis=-1)
  return jax.typeof(empty(ws)), jax.typeof(empty(gs))


def pack(xs: Sequence[Arrays], axes: Sequence[Axes]) -> jax.Array:
  """One array: groups along the first axis, vectors along the last."""
  rows = list(map(_flatten, xs, axes))
  width = max(row.shape[-1] for row in rows)
  parts = []
  for _, same in itertools.groupby(rows, jnp.shape):
    while some := list(itertools.islice(same, MAX_STACKED)):
      stack = jnp.stack(some)
      padding = [(0, 0)] * (stack.ndim - 1) + [(0, width - stack.shape[-1])]
      parts.append(jnp.pad(stack, padding))
  return jnp.concatenate(parts)


def unpack(
  packed: jax.Array,
  closed: jax.Array,
  gs: Sequence[Arrays],
  axes: Sequence[Axes],
) -> list[list[jax.Array]]:
  """The updates of groups, given the packed ones and their closed gates."""
  packed = _share_two_operands(*_keep_result((packed, closed)))
  return list(map(_unflatten, packed, gs, axes))


# Keep the packed result in memory: otherwise each group computes it anew.
_keep_result = lax.optimization_barrier


def _share_two_operands(packed: jax.Array, closed: jax.Array) -> jax.Array:
  """No-op, for rows of closed gates are 0 already.

  XLA fuses the steps of all groups into one kernel only if they share two large
  operands.
  """
  return jnp.where(closed[..., None], jnp.zeros_like(packed), packed)


def _flatten(xs: Arrays, axes: Axes) -> jax.Array:
  """One array, with vectors along its last axis."""
  rows = []
  for x, a in zip(xs, axes, strict=True):
    batch = [n for i, n in enumerate(x.shape) if i not in a]
    x = jnp.moveaxis(x, a, range(len(batch), x.ndim))
    rows.append(x.reshape(*batch, math.prod(x.shape[len(batch) :])))
  return jnp.concatenate(rows, -1)


def _unflatten(row: jax.Array, like: Arrays, axes: Axes) -> list[jax.Array]:
  """Undoes :func:`_flatten`; ignores padding."""
  batch, outs, start = row.shape[:-1], [], 0
  for x, a in zip(like, axes, strict=True):
    shape = [x.shape[i] for i in a]
    stop = start + math.prod(shape)
    part = row[..., start:stop].reshape(*batch, *shape)
    outs.append(jnp.moveaxis(part, range(len(batch), x.ndim), a))
    start = stop
  return outs


def joint_sums(
  ws: Sequence[Arrays],
  gs: Sequence[Arrays],
  axes: Sequence[Axes],
  axis_name: Any,
) -> Iterator[tuple[list[int], Sums]]:
  """The sums of groups in float64. Needs `jax.enable_x64`.

  Yields:
    Indices of groups, and their sums, stacked along a first axis.
  """
  ws = [list(map(_in_layout_of, g, w)) for w, g in zip(ws, gs, strict=True)]

  def shape(i):
    """Types of the arrays of a group that may be summed with others."""
    (*arrays,) = *ws[i], *gs[i]
    one = len(arrays) == 2 and len(axes[i][0]) == arrays[0].ndim
    joint = one and all(map(_sums.is_whole, arrays))
    return tuple(map(jax.typeof, arrays)) if joint else i

  stacks = []
  for indices in group_by(range(len(ws)), shape):
    i = indices[0]
    if shape(i) == i:
      sums = _sums.wide(ws[i], gs[i], axes[i], by_row=False)
      sums = Sums(*(x[None] for x in sums))
    else:
      sums = _same_shape_sums(*([xs[i][0] for i in indices] for xs in (ws, gs)))
    stacks.append((indices, sums))

  for some in group_by(stacks, _stack_kind):
    parts = zip(*(sums for _, sums in some), strict=True)
    total = Sums(*(jnp.concatenate(part) for part in parts))
    indices = [i for indices, _ in some for i in indices]
    yield indices, _sums.over_devices(total, axis_name)


def _stack_kind(stack: tuple[list[int], Sums]) -> Any:
  """Sums of one kind are stacked, and make coefficients in one kernel."""
  (i, *_), sums = stack
  row = sums.wg[:1]
  # Where groups are batches of vectors, these may be sharded.
  return jax.typeof(row) if row.ndim == 1 or _sums.is_whole(row) else i


def _same_shape_sums(ws: Arrays, gs: Arrays) -> Sums:
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
