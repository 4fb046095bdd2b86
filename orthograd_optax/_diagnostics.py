"""Where ⊥Grad acts: before training, and during it."""

import collections
from typing import Any, NamedTuple

import jax
from jax import tree_util
import jax.numpy as jnp
import optax

from orthograd_optax import _checks, _groups, _orthograd


class Diagnostics(NamedTuple):
  """Diagnostics of one group at the last update.

  With batch axes, each field is an array with one entry for each vector.

  Attributes:
    cosine: cos(w, g). The projection removed cos² of ‖g‖², at full strength.
    gate_closed: whether the gate closed, so that there was no update.
  """

  cosine: jax.Array
  gate_closed: jax.Array


def read_diagnostics(state: Any) -> dict[str, Diagnostics]:
  """Reads the diagnostics that ``orthograd(diagnostics=True)`` keeps.

  Args:
    state: the state of an optimizer that has :func:`orthograd` in it, once or
      several times. It may be a Flax NNX optimizer, its ``nnx.state``, or a
      state that Orbax restored as dictionaries and lists.

  Returns:
    :class:`Diagnostics` by the group's name, as plain arrays. If two instances
    of :func:`orthograd` have groups of the same name, the instance's place in
    the state precedes each name.

  Examples:
    >>> import jax.numpy as jnp, optax
    >>> from orthograd_optax import orthograd, read_diagnostics
    >>> optimizer = optax.chain(orthograd(diagnostics=True), optax.sgd(0.1))
    >>> params = {"w": jnp.array([3.0, 4.0])}
    >>> grads = {"w": jnp.array([5.0, 0.0])}
    >>> _, state = optimizer.update(grads, optimizer.init(params), params)
    >>> print(read_diagnostics(state)["w"].cosine)
    0.6
  """
  # Search by the names of the fields: not every copy of a state keeps its type.
  fields = collections.defaultdict(dict)
  for path, leaf in tree_util.tree_flatten_with_path(state)[0]:
    names = [getattr(key, "name", getattr(key, "key", None)) for key in path]
    for i, name in enumerate(names[:-1]):
      if name in Diagnostics._fields:
        fields[path[:i], names[i + 1]][name] = leaf
  complete = {
    place: Diagnostics(**values)
    for place, values in fields.items()
    if len(values) == 2 and values["gate_closed"].dtype == jnp.bool_
  }
  if not complete:
    raise ValueError(
      "read_diagnostics expects the state of an optimizer with"
      " orthograd(diagnostics=True), but found no diagnostics in this"
      f" {type(state).__name__}. Pass the whole state, such as opt_state or"
      " nnx.state(optimizer). If diagnostics was off, turn it on and call init"
      " again."
    )
  groups = [group for _, group in complete]
  clash = len(set(groups)) < len(groups)
  return {
    f"{tree_util.keystr(path)} {group}" if clash else group: values
    for (path, group), values in complete.items()
  }


class Alignment(NamedTuple):
  """The angle between parameters and gradients of each group, by its name.

  It prints as a table.

  Attributes:
    cosine: cos(w, g); with batch axes, an array with one entry for each vector.
    size: the number of entries in the group.
  """

  cosine: dict[str, jax.Array]
  size: dict[str, int]

  def __str__(self) -> str:
    """Returns a table, with the mean over the vectors of a group.

    The radial share, cos², is the fraction of ‖g‖² that ⊥Grad would remove.
    """
    width = max([len("group"), *map(len, self.size)])
    header = f"{'group':{width}}  {'size':>10}  {'cos(w, g)':>10}  radial share"
    rows = [
      f"{name:{width}}  {size:>10,}  {jnp.mean(self.cosine[name]):>+10.4f}  "
      f"{jnp.mean(self.cosine[name] ** 2):>12.2%}"
      for name, size in self.size.items()
    ]
    return "\n".join([header, *rows])


def alignment(
  updates: optax.Updates,
  params: optax.Params,
  *,
  group_by: _groups.GroupBy = "leaf",
  batch_axes: _groups.BatchAxes = None,
) -> Alignment:
  """Reports how strongly :func:`orthograd` would act on each leaf.

  Call it outside the training loop. Inside the loop, use
  ``orthograd(diagnostics=True)``. Expect a radial share of 0 where a
  normalization follows a kernel: that kernel's gradient is orthogonal to it
  already, and ⊥Grad leaves it unchanged.

  Args:
    updates: gradients of a loss with respect to ``params``.
    params: the parameters.
    group_by: as in :func:`orthograd`.
    batch_axes: as in :func:`orthograd`.

  Returns:
    An :class:`Alignment`, which prints as a table.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import alignment
    >>> params = {"norm": jnp.array([1.0, 2.0]), "out": jnp.array([3.0, 4.0])}
    >>> grads = {"norm": jnp.array([2.0, -1.0]), "out": jnp.array([5.0, 0.0])}
    >>> print(alignment(grads, params))
    group        size   cos(w, g)  radial share
    norm            2     +0.0000         0.00%
    out             2     +0.6000        36.00%
  """
  _checks.check_group_by(group_by)
  _checks.check_trees(updates, params)
  groups = _groups.build(params, group_by, batch_axes)
  _, projections = _orthograd.project_tree(updates, groups)
  return Alignment(
    cosine={name: p.cosine for name, p in projections.items()},
    size={
      name: sum(jnp.size(member.param) for member in members)
      for name, members in groups.items()
    },
  )
