"""How ⟨w, g⟩, ⟨w, w⟩ and ⟨g, g⟩ are measured.

*Wide* sums entries of up to 32 bits in float64: one sweep over w and g, right
at any scale and any angle. *Exact* sums in the entries' own precision, for
float64 leaves and for devices without float64. The caller then scales w and g
by their `magnitude` first, and measures g⊥ itself.
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
  """Arrays that together are one vector, or a batch of vectors."""

  ws: Arrays
  gs: Arrays
  axes: Axes  # of each array, those to sum over; the others index vectors
  length: Any  # entries of a vector, which may be symbolic; or one for each


class Sums(NamedTuple):
  """Inner products of w and g, one entry for each vector."""

  wg: jax.Array
  ww: jax.Array
  gg: jax.Array


def is_whole(x: jax.Array) -> bool:
  """Whether x is known to be on one device, and of known size.

  Only such arrays are reshaped or joined: XLA would gather sharded ones.
  """
  mesh = _mesh(x)
  if mesh.empty:
    # `jit(in_shardings=…)` may shard x all the same, and does not show here.
    whole = jax.device_count() == 1
  else:
    spec = jax.typeof(x).sharding.spec
    whole = AxisType.Auto not in mesh.axis_types and not any(spec)
  return whole and all(isinstance(n, int) for n in x.shape)


def _mesh(x: jax.Array) -> Any:
  """The mesh that x is on, as far as it is known."""
  mesh = jax.typeof(x).sharding.mesh
  return jax.sharding.get_abstract_mesh() if mesh.empty else mesh


def wide(group: Group, *, by_row: bool = False) -> Sums:
  """The sums of a group in float64. Needs `jax.enable_x64`."""
  return _add_up(
    _by_row(w, g, a) if by_row and is_whole(g) else reduce([w], [g], a)[0]
    for w, g, a in zip(*group[:3], strict=True)
  )


def _by_row(w: jax.Array, g: jax.Array, axes: tuple[int, ...]) -> Sums:
  """First along the last axis: a CPU deals rows out to its cores."""
  *others, last = axes or [0]
  if not others or last < g.ndim - 1:
    return reduce([w], [g], axes)[0]
  (sums,) = reduce([w], [g], (last,))
  return Sums(*(lax.reduce_sum(x, tuple(others)) for x in sums))


def reduce(ws: Arrays, gs: Arrays, axes: tuple[int, ...]) -> list[Sums]:
  """The sums in float64 of pairs of arrays of one shape, in one reduction.

  It reads each array once. Three reductions take a CPU several times as long.
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
  """The sums of a group in its own dtype; differentiable."""
  return _add_up(
    Sums(jnp.sum(w * g, a), jnp.sum(w * w, a), jnp.sum(g * g, a))
    for w, g, a in zip(ws, gs, axes, strict=True)
  )


def _add_up(parts: Iterable[Sums]) -> Sums:
  """The sums of several arrays as those of one."""
  columns = zip(*parts, strict=True)
  add = functools.partial(functools.reduce, jnp.add)
  return Sums(*(add(replicated(column)) for column in columns))


def over_devices(sums: Sums, axis_name: Any) -> Sums:
  """Of vectors sharded over mapped axes, the sums of all their parts."""
  return sums if axis_name is None else lax.psum(sums, axis_name)


def group(ws: Arrays, gs: Arrays, axes: Axes) -> Group:
  shapes = ([g.shape[i] for i in a] for g, a in zip(gs, axes, strict=True))
  return Group(ws, gs, axes, sum(map(math.prod, shapes)))


def replicated(xs: Arrays) -> list[jax.Array]:
  """Numbers of one group, on all devices if they are of several arrays.

  The arrays of a group may shard its batch axes each in its own way. If these
  numbers took on the way of one, XLA would reshard the others.
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


def magnitude(xs: Arrays, axes: Axes, axis_name: Any) -> jax.Array:
  """A power of two near the largest |x|, the same on all devices.

  The squares of x / magnitude neither overflow nor vanish.
  """
  peaks = [
    jnp.max(jnp.abs(lax.stop_gradient(x)), a, initial=0)
    for x, a in zip(xs, axes, strict=True)
  ]
  peak = functools.reduce(jnp.maximum, replicated(peaks))
  peak = peak if axis_name is None else lax.pmax(peak, axis_name)
  info = jnp.finfo(peak.dtype)
  power = lax.reduce_precision(peak, info.nexp, mantissa_bits=0)
  # Within what has an inverse: neither 0, nor subnormal, nor infinite.
  return jnp.clip(power, 2.0**info.minexp, 2.0**-info.minexp)
