"""Decides which leaves of a tree form one vector."""

import collections
from collections.abc import Callable
import numbers
from typing import Any, NamedTuple

import jax
from jax import tree_util
import jax.numpy as jnp
import numpy as np
import optax

KeyPath = tuple[Any, ...]
Label = Any  # str, int, or a tuple of these
Partition = str | Callable[[KeyPath, Any], Label]
BatchAxes = Any  # None, an int, a tuple of them, a pytree of these, a callable


class Member(NamedTuple):
  """A leaf of a group. A group is one vector, or a batch of vectors."""

  path: KeyPath
  param: Any
  axes: tuple[int, ...]  # axes to sum over; the others are batch axes

  @property
  def batch(self) -> tuple[int, ...]:
    """The sizes of the batch axes."""
    shape = jnp.shape(self.param)
    return tuple(n for i, n in enumerate(shape) if i not in self.axes)


def where(path: KeyPath) -> str:
  """The name of a leaf in error messages."""
  return tree_util.keystr(path) or "the root"


def check_partition(partition: Partition) -> None:
  names = ("leaf", "layer", "global")
  known = isinstance(partition, str) and partition in names
  if not callable(partition) and not known:
    raise ValueError(
      "partition must be 'leaf', 'layer', 'global' or a callable from"
      f" (key path, leaf) to a group label, not {partition!r}."
      f"{static_hint('partition', partition)}"
    )


def is_array(x: Any) -> bool:
  return isinstance(x, (jax.Array, np.ndarray))


def static_hint(name: str, value: Any) -> str:
  """A hint for errors: inject_hyperparams turns options into arrays."""
  if not is_array(value):
    return ""
  return f" (Under optax.inject_hyperparams, name {name} in static_args.)"


def _absent(x: Any) -> bool:
  return x is None or isinstance(x, optax.MaskedNode)


def check_mask(name: str, mask: Any) -> None:
  """Refuses numbers: optax.inject_hyperparams turns a callable into one."""
  is_number = isinstance(mask, numbers.Number) or isinstance(mask, np.bool_)
  if is_number or any(map(is_array, jax.tree.leaves(mask))):
    raise TypeError(
      f"{name} must be a tree of Python bools, or a callable from the"
      f" parameters to one, not {mask!r}. (Under optax.inject_hyperparams, name"
      f" {name} in static_args.)"
    )


def floating(tree: Any) -> Any:
  """The tree, with None in place of leaves that are not floating-point."""
  keep = lambda x: x if _is_inexact(_dtype(x)) else None
  return jax.tree.map(keep, tree)


def check_trees(updates: Any, params: Any) -> None:
  """Raises for the first leaf that can't be projected, and names it."""
  difference = _difference(updates, params, ())
  if difference:
    raise ValueError(
      "updates and params must be trees of the same structure, but"
      f" {difference}. Pass the parameters that the updates are for."
    )
  params_by_path = dict(tree_util.tree_flatten_with_path(params)[0])
  for path, update in tree_util.tree_flatten_with_path(updates)[0]:
    _check_leaf(path, params_by_path[path], update)


def _difference(updates: Any, params: Any, path: KeyPath) -> str | None:
  """Describes the first difference in structure; None if there is none."""
  if _absent(updates) or tree_util.all_leaves([updates, params]):
    return None
  update_children, param_children = (
    dict(
      tree_util.tree_flatten_with_path(x, is_leaf=lambda y, x=x: y is not x)[0]
    )
    for x in (updates, params)
  )
  for keys, others, name in (
    (update_children, param_children, "updates"),
    (param_children, update_children, "params"),
  ):
    for key in keys:
      if key not in others:
        return f"{where(path + key)} is only in {name}"
  if type(updates) is not type(params):
    names = type(updates).__name__, type(params).__name__
    return (
      f"{where(path)} is a {names[0]} in updates and a {names[1]} in params"
    )
  differences = (
    _difference(child, param_children[key], path + key)
    for key, child in update_children.items()
  )
  return next(filter(None, differences), None)


def _check_leaf(path: KeyPath, param: Any, update: Any) -> None:
  dtypes = _dtype(param), _dtype(update)
  for role, leaf, dtype in zip(
    ("parameter", "update"), (param, update), dtypes, strict=True
  ):
    if not _is_inexact(dtype):
      kind = f"dtype {dtype}" if dtype else f"type {type(leaf).__name__}"
      raise TypeError(
        f"the {role} at {where(path)} has {kind}, but only floating-point"
        " leaves, real or complex, can be projected. Exclude this leaf with"
        " mask, or pass None as its update."
      )
  if len({jnp.issubdtype(d, jnp.complexfloating) for d in dtypes}) > 1:
    raise TypeError(
      f"at {where(path)} the parameter has dtype {dtypes[0]} and the update"
      f" {dtypes[1]}, but both must be real or both complex. Cast one of them."
    )
  if jnp.shape(param) != jnp.shape(update):
    raise ValueError(
      f"at {where(path)} the parameter has shape {jnp.shape(param)} and the"
      f" update {jnp.shape(update)}, but the shapes must be equal. Pass the"
      " parameters that the updates are for."
    )


def _dtype(x: Any) -> Any:
  """The dtype of an array or a number; None for other leaves."""
  if isinstance(x, numbers.Number):
    return jnp.result_type(x)
  return getattr(x, "dtype", None)


def _is_inexact(dtype: Any) -> bool:
  return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def build(
  params: Any, partition: Partition, batch_axes: BatchAxes
) -> dict[str, list[Member]]:
  """The groups of a tree by name, in the order of its leaves.

  Leaves that are not floating-point are in no group.
  """
  leaves = [
    (path, leaf)
    for path, leaf in tree_util.tree_flatten_with_path(params)[0]
    if _is_inexact(_dtype(leaf))
  ]
  batch_axes_of = _lookup(batch_axes, params)
  groups = collections.defaultdict(list)
  for (path, param), label in zip(
    leaves, _labels(leaves, params, partition), strict=True
  ):
    axes = batch_axes_of(path, param)
    groups[label].append(_member(path, param, axes))
  for label, members in groups.items():
    _check_batch(label, members)
  return dict(groups)


def _labels(
  leaves: list[tuple[KeyPath, Any]], params: Any, partition: Partition
) -> list[str]:
  if callable(partition):
    labels = [partition(path, leaf) for path, leaf in leaves]
    for (path, _), label in zip(leaves, labels, strict=True):
      if not _is_label(label):
        raise TypeError(
          f"partition must return a str, an int or a tuple of these, but for"
          f" {where(path)} it returned {label!r}, a {type(label).__name__}."
          " Return a name instead."
        )
    return _distinct(labels, str, repr)
  if partition == "global":
    return ["all"] * len(leaves)

  # Drop ".value" at the end of a path: a box around one array, such as flax's
  # Partitioned or nnx.Param, adds it.
  all_leaves = tree_util.tree_flatten_with_path(params, is_leaf=_absent)[0]
  siblings = collections.Counter(path[:-1] for path, _ in all_leaves)
  box = tree_util.GetAttrKey("value")
  paths = [
    path[:-1] if path[-1:] == (box,) and siblings[path[:-1]] == 1 else path
    for path, _ in leaves
  ]
  if partition == "layer":
    paths = [path[:-1] for path in paths]
  simple = lambda path: (
    tree_util.keystr(path, simple=True, separator="/") or "all"
  )
  return _distinct(paths, simple, tree_util.keystr)


def _is_label(x: Any) -> bool:
  return isinstance(x, (str, numbers.Integral)) or (
    isinstance(x, tuple) and all(map(_is_label, x))
  )


def _distinct(
  keys: list[Any], short: Callable[[Any], str], full: Callable[[Any], str]
) -> list[str]:
  """Short names of keys. If two clash ("a/b", 1 and "1"), full names."""
  names = [short(key) for key in keys]
  clash = len(set(names)) < len(set(keys))
  return [full(key) for key in keys] if clash else names


def _is_axes(x: Any) -> bool:
  return (
    x is None or _is_axis(x) or (type(x) is tuple and all(map(_is_axis, x)))
  )


def _is_axis(x: Any) -> bool:
  return isinstance(x, numbers.Integral) and not isinstance(x, bool)


def _lookup(
  batch_axes: BatchAxes, params: Any
) -> Callable[[KeyPath, Any], Any]:
  """A function from (key path, leaf) to batch axes, as the user gave them."""
  # A module of equinox is callable and a pytree. Take it as a pytree.
  if callable(batch_axes) and tree_util.all_leaves([batch_axes]):
    return batch_axes
  # Look up by path: mask may have removed leaves.
  tree = dict(tree_util.tree_flatten_with_path(batch_axes, is_leaf=_is_axes)[0])
  all_leaves = tree_util.tree_flatten_with_path(params, is_leaf=_absent)[0]
  known = {path[:i] for path, _ in all_leaves for i in range(len(path) + 1)}
  # An absent node stands for everything below it that mask removed.
  absent = {path for path, leaf in all_leaves if _absent(leaf)}
  for path in tree:
    above = {path[:i] for i in range(len(path) + 1)}
    if all_leaves and path not in known and not above & absent:
      raise ValueError(
        f"batch_axes has an entry at {where(path)}, but params have no leaf"
        " there. Remove the entry, or use the name that params have."
      )

  def find(path, leaf):
    del leaf
    for i in range(len(path) + 1):
      if path[:i] in tree:
        return tree[path[:i]]
    raise ValueError(
      f"batch_axes has no entry for {where(path)}. A tree of batch axes must"
      " have the structure of params or a prefix of it. Write None for leaves"
      " without batch axes."
    )

  return find


def _member(path: KeyPath, param: Any, axes: Any) -> Member:
  if not _is_axes(axes):
    raise TypeError(
      f"batch_axes at {where(path)} must be None, a Python int or a tuple of"
      f" ints, not {axes!r}. (Under optax.inject_hyperparams, name batch_axes"
      " in static_args.)"
    )
  shape = jnp.shape(param)
  rank = len(shape)
  axes = () if axes is None else axes if type(axes) is tuple else (axes,)
  batch = {range(rank)[axis] for axis in axes if -rank <= axis < rank}
  if len(batch) < len(axes):
    raise ValueError(
      f"batch_axes at {where(path)} must be axes of a leaf of shape {shape},"
      f" each once, not {axes}. For a leaf without batch axes, give None, in a"
      " tree or from a callable."
    )
  return Member(path, param, tuple(i for i in range(rank) if i not in batch))


def _check_batch(label: str, members: list[Member]) -> None:
  first = members[0]
  for member in members:
    if member.batch != first.batch:
      raise ValueError(
        f"the leaves of group {label!r} must have batch axes of the same"
        f" sizes, but {where(first.path)} has {first.batch} and"
        f" {where(member.path)} has {member.batch}. Choose another partition,"
        " or other batch_axes."
      )


def check_replicas(groups: dict[str, list[Member]], axis_name: Any) -> None:
  """Refuses groups that mix leaves replicated and sharded over ``axis_name``.

  The sums of replicated leaves would be counted once for each device. Under
  ``shard_map(check_vma=True)`` the types say which leaves are replicated.
  """
  names = {axis_name} if isinstance(axis_name, str) else set(axis_name)
  for label, members in groups.items():
    varying = [names & set(_varying_axes(member.param)) for member in members]
    for member, axes in zip(members, varying, strict=True):
      if axes != varying[0]:
        raise ValueError(
          f"in group {label!r}, {where(members[0].path)} varies over the axes"
          f" {sorted(varying[0])} and {where(member.path)} over {sorted(axes)},"
          " but the leaves of a group must all be sharded over axis_name, or"
          " none. Choose another partition, or shard them alike."
        )


def _varying_axes(x: Any) -> Any:
  kind: Any = jax.typeof(jnp.asarray(x))
  # jax 0.11 moved this field.
  return kind.mat.varying if hasattr(kind, "mat") else kind.vma
