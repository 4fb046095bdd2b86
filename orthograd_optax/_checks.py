"""Checks of what users pass. Errors name the value, the rule and the remedy."""

import numbers
import sys
from typing import Any
import warnings

import jax
from jax import core, tree_util
import jax.numpy as jnp
import numpy as np

from orthograd_optax import _groups, _sharding
from orthograd_optax._groups import where


def check_group_by(group_by: Any) -> None:
  names = ("leaf", "layer", "global")
  known = isinstance(group_by, str) and group_by in names
  if not callable(group_by) and not known:
    raise ValueError(
      "group_by must be 'leaf', 'layer', 'global' or a callable from"
      f" (key path, leaf) to a group label, not {group_by!r}."
      f"{_static_hint('group_by', group_by)}"
    )


def _is_array(x: Any) -> bool:
  return isinstance(x, (jax.Array, np.ndarray))


def _static_hint(name: str, value: Any) -> str:
  """Returns a hint for errors: inject_hyperparams turns options into arrays."""
  if not _is_array(value):
    return ""
  return f" (Under optax.inject_hyperparams, name {name} in static_args.)"


def check_mask(name: str, mask: Any) -> None:
  """Refuses numbers: optax.inject_hyperparams turns a callable into one."""
  is_number = isinstance(mask, numbers.Number) or isinstance(mask, np.bool_)
  if is_number or any(map(_is_array, jax.tree.leaves(mask))):
    raise TypeError(
      f"{name} must be a tree of Python bools, or a callable from the"
      f" parameters to one, not {mask!r}. (Under optax.inject_hyperparams, name"
      f" {name} in static_args.)"
    )


def fitting_mask(mask: Any, tree: Any) -> Any:
  """Returns the mask of a tree, after checking that it fits."""
  # A module of equinox is callable and a pytree. Take it as a pytree.
  if callable(mask) and tree_util.all_leaves([mask]):
    mask = mask(tree)
  try:
    jax.tree.map(lambda *_: None, mask, tree)
  except ValueError as error:
    raise ValueError(
      "mask must be a tree of bools with the structure of the parameters or a"
      f" prefix of it, or a callable that returns one, but differs: {error}"
    ) from error
  return mask


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


def _difference(updates: Any, params: Any, path: _groups.KeyPath) -> str | None:
  """Describes the first difference in structure; None if there is none."""
  if _groups.is_absent(updates) or tree_util.all_leaves([updates, params]):
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


def _check_leaf(path: _groups.KeyPath, param: Any, update: Any) -> None:
  dtypes = _groups.dtype_of(param), _groups.dtype_of(update)
  for role, leaf, dtype in zip(
    ("parameter", "update"), (param, update), dtypes, strict=True
  ):
    if not _groups.is_inexact(dtype):
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


def check_number(name: str, value: Any, high: float, allowed: str) -> None:
  """Checks an option. For traced values, only dtype and shape are checked."""
  traced = not is_known(value)
  try:
    numbers = value if traced else np.asarray(value)
    ok = jnp.issubdtype(numbers.dtype, jnp.number)
    ok = ok and not jnp.iscomplexobj(numbers)
    ok = ok and (name == "strength" or not jnp.ndim(numbers))
    if ok and not traced:
      numbers = numbers.astype(np.float64)
      ok = np.all((numbers >= 0) & (numbers <= high) & np.isfinite(numbers))
  except (TypeError, ValueError):
    ok = False
  if not ok:
    raise ValueError(f"{name} must be {allowed}, not {value!r}.")


def check_flag(name: str, value: Any) -> None:
  if not isinstance(value, (bool, np.bool_)):
    raise TypeError(
      f"{name} must be a Python bool, True or False, not"
      f" {value!r}.{_static_hint(name, value)}"
    )


def check_strength(strength: Any, groups: _groups.Groups) -> None:
  for name, members in groups.items():
    if jnp.ndim(strength) and jnp.shape(strength) != members[0].batch:
      raise ValueError(
        f"strength has shape {jnp.shape(strength)}, but must be one number or,"
        f" with batch_axes, one number for each vector: shape"
        f" {members[0].batch} for {name!r}."
      )


def check_replicas(
  groups: _groups.Groups, updates: dict[_groups.KeyPath, Any], axis_name: Any
) -> None:
  """Refuses groups whose sums over ``axis_name`` would be wrong.

  The sums of replicated leaves would be counted once for each device. Under
  ``shard_map(check_vma=True)`` the types say which leaves are replicated.
  """
  names = {axis_name} if isinstance(axis_name, str) else set(axis_name)
  for label, members in groups.items():
    first = names & _sharding.varying_axes(members[0].param)
    for path, param, _ in members:
      axes = names & _sharding.varying_axes(param)
      if axes != first:
        raise ValueError(
          f"in group {label!r}, {where(members[0].path)} varies over"
          f" the axes {sorted(first)} and {where(path)} over"
          f" {sorted(axes)}, but the leaves of a group must all be sharded over"
          " axis_name, or none. Choose another group_by, or shard them alike."
        )
      local = names & _sharding.varying_axes(updates.get(path, 0)) - axes
      if local:
        raise ValueError(
          f"the update at {where(path)} differs between the devices of"
          f" the axes {sorted(local)}, but the parameter is replicated over"
          " them. Average the gradients first, with jax.lax.pmean."
        )


def check_norms(state: Any, groups: _groups.Groups) -> None:
  """Refuses a state of :func:`keep_norms` with the norms of other vectors."""
  norms = getattr(state, "norms", None)
  norms = norms if isinstance(norms, dict) else {}
  given = {name: jnp.shape(norm) for name, norm in norms.items()}
  expected = {name: members[0].batch for name, members in groups.items()}
  if given != expected:
    raise ValueError(
      f"keep_norms expected a state with norms of the shapes {expected}, but"
      f" was given {given or f'a {type(state).__name__}'}, created for other"
      " parameters or with different options. Call this optimizer's"
      " init(params)."
    )


def has_updates(
  label: str, members: list[_groups.Member], updates: dict[_groups.KeyPath, Any]
) -> bool:
  """Returns whether a group is updated. Raises if only a part of it is."""
  absent = [m.path for m in members if m.path not in updates]
  if 0 < len(absent) < len(members):
    raise ValueError(
      f"the update at {where(absent[0])} is None, but the leaf belongs to group"
      f" {label!r}, whose norm is kept as a whole. Exclude the leaf with mask,"
      " or choose another group_by."
    )
  return not absent


def is_known(x: Any) -> bool:
  """Returns whether x has values here: not traced, and not on other hosts."""
  traced = isinstance(x, core.Tracer)
  return not traced and getattr(x, "is_fully_addressable", True)


def warn_of_single_entries(groups: _groups.Groups) -> None:
  """Warns of leaves that can't move: their gradient is parallel to them."""
  stuck = []
  for member, *others in groups.values():
    w = member.param
    shape = [jnp.shape(w)[i] for i in member.axes]
    known = isinstance(w, (jax.Array, np.ndarray, float)) and is_known(w)
    single = not others and all(isinstance(n, int) and n == 1 for n in shape)
    if single and known and not jnp.iscomplexobj(w) and np.any(np.asarray(w)):
      stuck.append(where(member.path))
  if stuck:
    warnings.warn(
      f"orthograd can never move {', '.join(stuck)}: the gradient of a vector"
      " with one entry is parallel to it. Exclude such leaves with mask, or"
      " join them to other leaves with group_by.",
      stacklevel=_user_level(),
    )


def _user_level() -> int:
  """Returns the stack level of the user's line, for the caller's warning.

  optax, flax and jax may call ``init``.
  """
  level, frame = 0, sys._getframe(1)
  inside = ("orthograd_optax", "optax", "flax", "jax", "contextlib")
  while frame.f_globals.get("__name__", "").partition(".")[0] in inside:
    if frame.f_back is None:
      break
    level, frame = level + 1, frame.f_back
  return level + 1
