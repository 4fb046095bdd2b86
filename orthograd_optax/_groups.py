"""Decides which leaves of a tree form one vector."""

import collections
from collections.abc import Callable
import numbers
from typing import Any, NamedTuple

import jax
from jax import tree_util
import jax.numpy as jnp
import optax

KeyPath = tuple[Any, ...]
Label = Any  # str, int, or a tuple of these
GroupBy = str | Callable[[KeyPath, Any], Label]
BatchAxes = Any  # None, an int, a tuple of them, a pytree of these, a callable


class Member(NamedTuple):
  """A leaf of a group. A group is one vector, or a batch of vectors."""

  path: KeyPath
  param: Any
  axes: tuple[int, ...]  # axes to sum over; the others are batch axes

  @property
  def batch(self) -> tuple[int, ...]:
    """Returns the sizes of the batch axes."""
    shape = jnp.shape(self.param)
    return tuple(n for i, n in enumerate(shape) if i not in self.axes)


Groups = dict[str, list[Member]]


def where(path: KeyPath) -> str:
  """Returns the name of a leaf for error messages."""
  return tree_util.keystr(path) or "the root"


def is_absent(x: Any) -> bool:
  return x is None or isinstance(x, optax.MaskedNode)


def floating(tree: Any) -> Any:
  """Returns the tree with None in place of leaves that can't be projected."""
  keep = lambda x: x if is_inexact(dtype_of(x)) else None
  return jax.tree.map(keep, tree)


def dtype_of(x: Any) -> Any:
  """Returns the dtype of an array or a number; None for other leaves."""
  if isinstance(x, numbers.Number):
    return jnp.result_type(x)
  return getattr(x, "dtype", None)


def is_inexact(dtype: Any) -> bool:
  return dtype is not None and jnp.issubdtype(dtype, jnp.inexact)


def build(params: Any, group_by: GroupBy, batch_axes: BatchAxes) -> Groups:
  """Returns the groups of a tree by name, in the order of its leaves.

  Leaves that are not floating-point are in no group.
  """
  leaves = [
    (path, leaf)
    for path, leaf in tree_util.tree_flatten_with_path(params)[0]
    if is_inexact(dtype_of(leaf))
  ]
  batch_axes_of = _lookup(batch_axes, params)
  groups = collections.defaultdict(list)
  for (path, param), label in zip(
    leaves, _labels(leaves, params, group_by), strict=True
  ):
    axes = batch_axes_of(path, param)
    groups[label].append(_member(path, param, axes))
  for label, members in groups.items():
    _check_batch(label, members)
  return dict(groups)


def _labels(
  leaves: list[tuple[KeyPath, Any]], params: Any, group_by: GroupBy
) -> list[str]:
  if callable(group_by):
    labels = [group_by(path, leaf) for path, leaf in leaves]
    for (path, _), label in zip(leaves, labels, strict=True):
      if not _is_label(label):
        raise TypeError(
          f"group_by must return a str, an int or a tuple of these. For"
          f" {where(path)} it returned {label!r}, a {type(label).__name__}."
          " Return a name instead."
        )
    return _distinct(labels, str, repr)
  if group_by == "global":
    return ["all"] * len(leaves)

  # Drop ".value" at the end of a path: a box around one array, such as flax's
  # Partitioned or nnx.Param, adds it.
  all_leaves = tree_util.tree_flatten_with_path(params, is_leaf=is_absent)[0]
  siblings = collections.Counter(path[:-1] for path, _ in all_leaves)
  box = tree_util.GetAttrKey("value")
  paths = [
    path[:-1] if path[-1:] == (box,) and siblings[path[:-1]] == 1 else path
    for path, _ in leaves
  ]
  if group_by == "layer":
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
  """Returns short names of keys; full ones if two clash ("a/b", 1 and "1")."""
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
  """Returns a function from (key path, leaf) to the batch axes given."""
  # A module of equinox is callable and a pytree. Take it as a pytree.
  if callable(batch_axes) and tree_util.all_leaves([batch_axes]):
    return batch_axes
  # Look up by path: mask may have removed leaves.
  tree = dict(tree_util.tree_flatten_with_path(batch_axes, is_leaf=_is_axes)[0])
  all_leaves = tree_util.tree_flatten_with_path(params, is_leaf=is_absent)[0]
  known = {path[:i] for path, _ in all_leaves for i in range(len(path) + 1)}
  # An absent node stands for everything below it that mask removed.
  absent = {path for path, leaf in all_leaves if is_absent(leaf)}
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
        f" {where(member.path)} has {member.batch}. Choose another group_by,"
        " or other batch_axes."
      )
