"""Trees whose leaves are each sharded in its own way: nothing is gathered."""

import collections
import contextlib
import math
import re
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
import reference

from orthograd_optax import orthograd, read_diagnostics

set_mesh: Any = getattr(jax, "set_mesh", getattr(jax.sharding, "use_mesh", 0))


class Leaf(NamedTuple):
  shape: tuple[int, ...]
  spec: P


# Leaves of every length: those that a GPU would pack, those that it would not.
FLAT = {
  "norm": {
    "bias": Leaf((256,), P("model")),
    "scale": Leaf((4, 64), P()),
    "short": Leaf((8,), P()),
    "short_by_fours": Leaf((16,), P("data")),
    "temperature": Leaf((), P()),
  },
  "conv": {
    "kernel": Leaf((3, 3, 8, 64), P(None, None, None, "model")),
    "replica": Leaf((3, 3, 8, 64), P()),
  },
  "dense": {
    "by_row": Leaf((64, 64), P("data")),
    "by_column": Leaf((64, 64), P(None, "model")),
    "full": Leaf((64, 64), P("data", "model")),
    "replica": Leaf((64, 64), P()),
  },
  "table": {
    "long": Leaf((40000,), P(("data", "model"))),
    "replica": Leaf((40000,), P()),
  },
}
# Axis 0 is a batch axis. All leaves of a layer, or none, are sharded along it.
STACKED = {
  "norm": {
    "bias": Leaf((4, 256), P(None, "model")),
    "scale": Leaf((4, 64), P()),
    "short": Leaf((4, 8), P()),
    "short_by_eights": Leaf((4, 16), P(None, "model")),
    "temperature": Leaf((4, 1), P()),
  },
  "block": {
    "up": Leaf((4, 64, 256), P(None, None, "model")),
    "down": Leaf((4, 256, 64), P(None, "model", None)),
    "full": Leaf((4, 64, 64), P(None, "data", "model")),
    "spread": Leaf((4, 64, 64), P(None, ("data", "model"))),
    "replica": Leaf((4, 64, 64), P()),
    "kernel": Leaf((4, 3, 3, 8, 64), P(None, None, None, None, "model")),
  },
  "table": {
    "staged": Leaf((4, 64, 64), P("data")),
    "long": Leaf((4, 40000), P("data", "model")),
  },
}
VECTORS = 4
is_leaf = lambda x: isinstance(x, Leaf)


def make_mesh(axis_type: AxisType = AxisType.Auto) -> Mesh:
  return jax.make_mesh((4, 2), ("data", "model"), axis_types=(axis_type,) * 2)


def make_trees(leaves: Any) -> tuple[Any, Any]:
  """Parameters and gradients, on no device."""
  rng = np.random.default_rng(0)
  draw = lambda leaf: np.asarray(rng.normal(size=leaf.shape), np.float32)
  w, g = (jax.tree.map(draw, leaves, is_leaf=is_leaf) for _ in range(2))
  return w, jax.tree.map(lambda w, g: g + w / 2, w, g)


def make_shardings(leaves: Any, mesh: Mesh) -> Any:
  place = lambda leaf: NamedSharding(mesh, leaf.spec)
  return jax.tree.map(place, leaves, is_leaf=is_leaf)


def expected_update(w, g, group_by, batch_axes, strength) -> Any:
  """The updates and cosines, by way of arrays whose rows are the vectors."""
  rows = lambda x: reference.real64(x).reshape(
    1 if batch_axes is None else VECTORS, -1
  )
  paths, treedef = jax.tree_util.tree_flatten_with_path(g)
  name = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")
  label = {
    "leaf": name,
    "layer": lambda path: name(path[:-1]),
    "global": lambda path: "all",
  }[group_by]
  groups: dict[str, list[int]] = {}
  for i, (path, _) in enumerate(paths):
    groups.setdefault(label(path), []).append(i)
  ws, gs = jax.tree.leaves(w), jax.tree.leaves(g)
  outs, cosines = [None] * len(gs), {}
  for group, members in groups.items():
    wide = [np.concatenate([rows(x[i]) for i in members], 1) for x in (ws, gs)]
    pairs = list(zip(*wide, strict=True))
    out = [reference.project(*pair, strength=strength) for pair in pairs]
    norm = reference.norm
    cosine = [np.sum(w * g) / norm(w) / norm(g) for w, g in pairs]
    cosines[group] = cosine[0] if batch_axes is None else np.array(cosine)
    ends = np.cumsum([rows(ws[i]).shape[1] for i in members])
    parts = np.split(np.stack(out), ends[:-1], axis=1)
    for i, part in zip(members, parts, strict=True):
      outs[i] = part.reshape(ws[i].shape)
  return treedef.unflatten(outs), cosines


def sent(compiled: Any) -> list[tuple[str, str, int]]:
  """Of each array that comes from other devices: how, its dtype, its size."""
  actual = []
  for result, kind in re.findall(
    r"= (.*) ((?:all|ragged|collective|reduce-scatter)[\w-]*)\(",
    compiled.as_text(),
  ):
    for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", result):
      size = math.prod(int(n) for n in dims.split(",") if n)
      actual.append((kind, dtype, size))
  return actual


def assert_only_sums_are_sent(compiled: Any, platform: str, vectors: int):
  """Devices exchange sums, a number for each vector, and nothing else.

  Sums in float64, three at a time, are gathered from all devices and added up
  on each. No leaf is in float64, and no sharded leaf is as small.
  """
  for kind, dtype, size in sent(compiled):
    gathered = kind.startswith("all-gather") and dtype == "f64"
    allowed = vectors * (jax.device_count() if gathered else 1)
    actual = f"{kind} of {dtype}[{size}], traced for {platform}"
    assert size <= allowed, actual


def assert_sharded_as(tree: Any, shardings: Any) -> None:
  actual = jax.tree_util.tree_flatten_with_path(tree)[0]
  for (path, x), wanted in zip(actual, jax.tree.leaves(shardings), strict=True):
    name = jax.tree_util.keystr(path)
    same = x.sharding.is_equivalent_to(wanted, x.ndim)
    assert same, f"{name}: {x.sharding.spec}, not {wanted.spec}"


def assert_close(got: Any, want: Any) -> None:
  for (path, x), y in zip(
    jax.tree_util.tree_flatten_with_path(got)[0],
    jax.tree.leaves(want),
    strict=True,
  ):
    atol = 4e-6 * max(np.abs(y).max(), 1e-3)
    name = jax.tree_util.keystr(path)
    np.testing.assert_allclose(x, y, rtol=0, atol=atol, err_msg=name)


# How the arrays are given, and what jit is told.
PLACES = {
  "committed": {},
  "donated": {"donate_argnums": 0},
  "in_shardings": {"in": True},
  "out_shardings": {"out": True},
  "in_shardings, out_shardings": {"in": True, "out": True},
  "automatic": {"mesh": AxisType.Auto},
  "explicit": {"mesh": AxisType.Explicit},
}
OPTIONS = {
  "leaf": {},
  "leaf, traced strength": {"strength": "traced", "diagnostics": True},
  "layer": {"group_by": "layer", "diagnostics": True},
  "global": {"group_by": "global", "strength": 0.5},
  "stacked": {"batch_axes": 0, "diagnostics": True},
  "stacked layers": {"batch_axes": 0, "group_by": "layer", "strength": 0.5},
  "stacked, global": {
    "batch_axes": 0,
    "group_by": "global",
    "strength": "traced",
    "diagnostics": True,
  },
}


@pytest.mark.mostly_slow(9)
@pytest.mark.parametrize(
  "place, options",
  [
    ("committed", "leaf"),
    ("committed", "stacked"),
    ("donated", "layer"),
    ("donated", "stacked, global"),
    ("in_shardings", "leaf, traced strength"),
    ("in_shardings", "stacked"),
    ("out_shardings", "global"),
    ("out_shardings", "stacked layers"),
    ("in_shardings, out_shardings", "layer"),
    ("automatic", "stacked, global"),
    ("automatic", "leaf, traced strength"),
    ("explicit", "leaf"),
    ("explicit", "stacked layers"),
    ("explicit", "stacked, global"),
  ],
)
def test_nothing_is_gathered(on_many, place, options):
  chosen = OPTIONS[options]
  leaves = STACKED if "batch_axes" in chosen else FLAT
  if options == "stacked, global":
    leaves = {k: v for k, v in leaves.items() if k != "table"}
  check_update(leaves, on_many, PLACES[place], **chosen)


# The batch axis of the kernel is sharded, the others' batch axes are not.
PIPELINED = {
  "kernel": Leaf((4, 64, 64), P("data")),
  "down": Leaf((4, 256, 64), P(None, "model")),
  "full": Leaf((4, 64, 64), P(None, "data", "model")),
  "scale": Leaf((4, 64), P()),
}


@pytest.mark.mostly_slow(4)
@pytest.mark.parametrize("place", ["committed", "out_shardings", "explicit"])
def test_batch_axis_sharded_in_some_leaves_of_a_group(on_many, place):
  options = {"group_by": "layer", "batch_axes": 0}
  check_update(PIPELINED, on_many, PLACES[place], **options)


def check_update(
  leaves,
  platform,
  how,
  *,
  group_by="leaf",
  batch_axes=None,
  strength=1.0,
  diagnostics=False,
):
  """Of leaves that are placed somehow: its values, its sharding, its cost."""
  w, g = make_trees(leaves)
  how, number = dict(how), 0.5 if strength == "traced" else strength
  kind = how.pop("mesh", None)
  mesh = make_mesh(kind or AxisType.Auto)
  shardings = make_shardings(leaves, mesh)

  def update(g, w, number):
    transform = orthograd(
      group_by=group_by,
      batch_axes=batch_axes,
      strength=number if strength == "traced" else strength,
      diagnostics=diagnostics,
    )
    out, state = transform.update(g, transform.init(w), w)
    return out, read_diagnostics(state) if diagnostics else {}

  with set_mesh(mesh) if kind else contextlib.nullcontext():
    placed = jax.device_put((g, w), (shardings, shardings))
    given = (g, w) if how.pop("in", False) else placed
    if given is not placed:
      how["in_shardings"] = shardings, shardings, None
    if how.pop("out", False):
      how["out_shardings"] = shardings, None
    compiled = jax.jit(update, **how).lower(*given, number).compile()
    out, actual = compiled(*placed, number)
  updates, cosines = expected_update(w, g, group_by, batch_axes, number)
  assert_close(out, updates)
  if diagnostics:
    assert_close({name: x.cosine for name, x in actual.items()}, cosines)
  assert_sharded_as(out, shardings)
  vectors = 1 if batch_axes is None else VECTORS
  assert_only_sums_are_sent(compiled, platform, vectors)


def test_what_is_sent_is_seen():
  """A gather, a sum of vectors, and a leaf that changes its sharding."""
  mesh = make_mesh()
  x = jax.device_put(
    jnp.ones((8, 64), jnp.float32), NamedSharding(mesh, P("data", "model"))
  )
  ways = {
    "all-gather": (lambda x: x, P()),
    "all-reduce": (lambda x: x.sum(0), P("model")),
    "all-to-all": (lambda x: x, P("model", "data")),
  }
  for kind, (way, spec) in ways.items():
    how = {"out_shardings": NamedSharding(mesh, spec)}
    compiled = jax.jit(way, **how).lower(x).compile()
    if kind != "all-to-all":  # which may be done by other means
      assert kind in {each for each, _, _ in sent(compiled)}
    with pytest.raises(AssertionError, match=r"of f32\[\d+\]"):
      assert_only_sums_are_sent(compiled, "cpu", VECTORS)


# A step of training, as of a transformer whose layers are stacked.
LAYERS = {
  "scale": Leaf((4, 64), P()),
  "bias": Leaf((4, 256), P(None, "model")),
  "up": Leaf((4, 64, 256), P(None, None, "model")),
  "down": Leaf((4, 256, 64), P(None, "model", None)),
}


def loss(params, x):
  def layer(x, w):
    h = x * jnp.broadcast_to(w["scale"], x.shape) @ w["up"]
    h = jax.nn.relu(h + jnp.broadcast_to(w["bias"], h.shape))
    return x + h @ w["down"], None

  return jnp.mean(lax.scan(layer, x, params)[0] ** 2)


def compile_step(optimizer, params, x):
  """And the arguments that the compiled step takes."""

  def step(params, state, x):
    grads = jax.grad(loss)(params, x)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  given = params, jax.jit(optimizer.init)(params), x
  return jax.jit(step).lower(*given).compile(), given


@pytest.mark.mostly_slow(2)
def test_training_step_of_stacked_layers(on_many):
  """With ⊥Grad, devices send what they do without it, and sums."""
  mesh = make_mesh()
  shardings = make_shardings(LAYERS, mesh)
  host, _ = make_trees(LAYERS)
  host = jax.tree.map(lambda x: x / 8, host)
  x = np.random.default_rng(1).normal(size=(32, 64)).astype(np.float32)
  params = jax.device_put(host, shardings)
  batch = jax.device_put(x, NamedSharding(mesh, P("data")))
  adamw = optax.adamw(0.01)
  plain, _ = compile_step(adamw, params, batch)
  projected = optax.chain(orthograd(batch_axes=0), adamw)
  step, given = compile_step(projected, params, batch)
  before, after = (
    collections.Counter(sent(compiled)) for compiled in (plain, step)
  )
  assert before <= after
  sums = ("all-reduce", "f32", 4), ("all-gather", "f64", 8)
  assert set(after - before) == {sums[on_many != "tpu"]}
  params, state = step(*given)
  mu = optax.tree.get(state, "mu")
  grads = jax.grad(loss)(host, x)
  want, _ = expected_update(host, grads, "leaf", 0, 1.0)
  assert_close(jax.tree.map(lambda m: 10 * m, mu), want)
  for tree in (params, mu, optax.tree.get(state, "nu")):
    assert_sharded_as(tree, shardings)


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "whole"])
def test_vmap_over_an_axis_of_explicitly_sharded_arrays(on_many, sharded):
  first = "data" if sharded else None
  rest = (None, "model") if sharded else ("data", "model")
  leaves = {
    "matrix": Leaf((4, 64, 64), P(first, *rest)),
    "twin": Leaf((4, 64, 64), P(first, None, "model")),
    "bias": Leaf((4, 256), P(first, "model")),
    "short": Leaf((4, 8), P(first)),
    "table": Leaf((4, 40000), P(first, rest[-1])),
  }
  w, g = make_trees(leaves)
  mesh = make_mesh(AxisType.Explicit)
  shardings = make_shardings(leaves, mesh)
  transform = orthograd()
  update = jax.vmap(lambda g, w: transform.update(g, transform.init(w), w)[0])
  with set_mesh(mesh):
    given = jax.device_put((g, w), (shardings, shardings))
    compiled = jax.jit(update).lower(*given).compile()
    out = compiled(*given)
  want, _ = expected_update(w, g, "leaf", 0, 1.0)
  assert_close(out, want)
  assert_sharded_as(out, shardings)
  assert_only_sums_are_sent(compiled, on_many, VECTORS)
