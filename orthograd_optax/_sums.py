"""Sums ⟨w, g⟩, ⟨w, w⟩ and ⟨g, g⟩.

*Wide* sums entries of up to 32 bits in float64. It takes one sweep over w and
g, and is right at any scale and, but for millions of entries in a row, at any
angle that the gate lets pass. *Exact* sums in the entries' own
dtype, for float64 leaves and for devices without float64. Its caller first
divides w and g by their `magnitude`, and then measures g⊥ itself.
"""

from collections.abc import Iterable, Sequence
import functools
import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

Arrays = Sequence[jax.Array]
Axes = tuple[tuple[int, ...], ...]


class Group(NamedTuple):
  """Arrays that form one vector, or a batch of vectors."""

  ws: Arrays
  gs: Arrays
  axes: Axes  # of each array, the axes to sum over; the others are batch axes
  length: Any  # entries of a vector, perhaps symbolic; packed, one for each row


class Sums(NamedTuple):
  """Inner products of w and g, with one entry for each vector."""

  wg: jax.Array
  ww: jax.Array
  gg: jax.Array


def is_whole(x: jax.Array) -> bool:
  """Whether x is known to lie on one device, and to have a known size.

  Reshape or join only such arrays. XLA would gather sharded ones.
  """
  mesh = _mesh(x)
  if mesh.empty:
    # `jit(in_shardings=…)` may still shard x. That is not visible here.
    whole = jax.device_count() == 1
  else:
    spec = jax.typeof(x).sharding.spec
    whole = AxisType.Auto not in mesh.axis_types and not any(spec)
  return whole and all(isinstance(n, int) for n in x.shape)


def _mesh(x: jax.Array) -> Any:
  """The mesh of x, as far as it is known."""
  mesh = jax.typeof(x).sharding.mesh
  return jax.sharding.get_abstract_mesh() if mesh.empty else mesh


def wide(group: Group, *, by_row: bool = False) -> Sums:
  """Sums a group in float64. Call it under ``jax.enable_x64``."""
  return _add_up(
    _by_row(w, g, a) if by_row and is_whole(g) else reduce([w], [g], a)[0]
    for w, g, a in zip(*group[:3], strict=True)
  )


def _by_row(w: jax.Array, g: jax.Array, axes: tuple[int, ...]) -> Sums:
  """Sums along the last axis first: XLA divides rows among a CPU's cores."""
  *others, last = axes or [0]
  if not others or last < g.ndim - 1:
    return reduce([w], [g], axes)[0]
  (sums,) = reduce([w], [g], (last,))
  return Sums(*(lax.reduce_sum(x, tuple(others)) for x in sums))


def reduce(ws: Arrays, gs: Arrays, axes: tuple[int, ...]) -> list[Sums]:
  """Sums pairs of arrays of one shape in float64, in one reduction.

  It reads each array once. On a CPU, three reductions take several times as
  long.
  """
  products = []
  for w, g in zip(ws, gs, strict=True):
    w, g = w.astype(jnp.float64), g.astype(jnp.float64)
    products += [w * g, w * w, g * g]
  zeros = (lax.full_like(products[0], 0, shape=()),) * len(products)
  add = lambda xs, ys: tuple(map(lax.add, xs, ys))
  sums = iter(lax.reduce(tuple(products), zeros, add, axes))
  return list(map(Sums, sums, sums, sums))


def exact(ws: Arrays, gs: Arrays, axes: Axes) -> Sums:
  """Sums a group in its own dtype. Differentiable."""
  return _add_up(
    Sums(jnp.sum(w * g, a), jnp.sum(w * w, a), jnp.sum(g * g, a))
    for w, g, a in zip(ws, gs, axes, strict=True)
  )


def _add_up(parts: Iterable[Sums]) -> Sums:
  """Adds the sums of several arrays."""
  columns = zip(*parts, strict=True)
  add = functools.partial(functools.reduce, jnp.add)
  return Sums(*(add(replicated(column)) for column in columns))


def over_devices(sums: Sums, axis_name: Any) -> Sums:
  """Adds the sums of all shards, for vectors sharded over mapped axes."""
  return sums if axis_name is None else lax.psum(sums, axis_name)


def group(ws: Arrays, gs: Arrays, axes: Axes) -> Group:
  shapes = ([g.shape[i] for i in a] for g, a in zip(gs, axes, strict=True))
  return Group(ws, gs, axes, sum(map(math.prod, shapes)))


def replicated(xs: Arrays) -> list[jax.Array]:
  """Replicates the numbers of a group over devices, if it has several arrays.

  Each array of a group may shard the batch axes differently. If the numbers
  took the sharding of one array, XLA would reshard the others.
  """
  return [_replicated(x) if len(xs) > 1 and x.ndim else x for x in xs]


def _replicated(x: jax.Array) -> jax.Array:
  mesh = _mesh(x)
  kinds = set(mesh.axis_types)
  if kinds == {AxisType.Explicit}:
    return jax.sharding.reshard(x, NamedSharding(mesh, P()))
  if kinds == {AxisType.Auto}:
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P()))
  return x


def magnitude(xs: Arrays, axes: Axes, axis_name: Any, dtype: Any) -> jax.Array:
  """A power of two near the largest absolute entry, the same on all devices.

  The squares of x / magnitude neither overflow nor underflow.
  """
  peaks = [
    jnp.max(jnp.abs(lax.stop_gradient(x)), a, initial=0).astype(dtype)
    for x, a in zip(xs, axes, strict=True)
  ]
  peak = functools.reduce(jnp.maximum, replicated(peaks))
  peak = peak if axis_name is None else lax.pmax(peak, axis_name)
  info = jnp.finfo(dtype)
  power = lax.reduce_precision(peak, info.nexp, mantissa_bits=0)
  # Clip to powers that have an inverse: not 0, not subnormal, not infinite.
  return jnp.clip(power, 2.0**info.minexp, 2.0**-info.minexp)
