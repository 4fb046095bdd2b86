"""Finds how an array is sharded, as far as this is known while tracing."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def is_whole(x: jax.Array) -> bool:
  """Returns whether x is known to lie on one device, with a known size.

  Stack or reshape only such arrays. XLA would gather sharded ones.
  """
  mesh = _mesh(x)
  if mesh.empty:
    # `jit(in_shardings=…)` may still shard x. That is not visible here.
    whole = jax.device_count() == 1
  else:
    spec = jax.typeof(x).sharding.spec
    whole = AxisType.Auto not in mesh.axis_types and not any(spec)
  return whole and all(isinstance(n, int) for n in x.shape)


def replicated(xs: Sequence[jax.Array]) -> list[jax.Array]:
  """Replicates the numbers of a group over devices, if it has several arrays.

  Each array of a group may shard the batch axes differently. If the numbers
  took the sharding of one array, XLA would reshard the others.
  """
  return [_replicated(x) if len(xs) > 1 and x.ndim else x for x in xs]


def varying_axes(x: Any) -> frozenset[str]:
  """Returns the axes of a ``shard_map`` over which x differs."""
  kind: Any = jax.typeof(jnp.asarray(x))
  # jax 0.11 moved this field.
  return kind.mat.varying if hasattr(kind, "mat") else kind.vma


def _mesh(x: jax.Array) -> Any:
  """Returns the mesh of x, or the current one if x has none."""
  mesh = jax.typeof(x).sharding.mesh
  return jax.sharding.get_abstract_mesh() if mesh.empty else mesh


def _replicated(x: jax.Array) -> jax.Array:
  mesh = _mesh(x)
  kinds = set(mesh.axis_types)
  if kinds == {AxisType.Explicit}:
    return jax.sharding.reshard(x, NamedSharding(mesh, P()))
  if kinds == {AxisType.Auto}:
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P()))
  return x
