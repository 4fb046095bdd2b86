"""Sharded parameters: the same numbers, nothing gathered, nothing retraced."""

import contextlib
import logging
import math
import os
from pathlib import Path
import re
import socket
import subprocess
import sys
from typing import Any

import jax
from jax import flatten_util, lax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
import reference

from orthograd_optax import orthograd, orthograd_sgd

# Axis 0 may be a batch axis, and axis 1 goes over the eight devices.
SHAPES = {
  "a": {"bias": (8, 8, 2), "kernel": (8, 8, 6)},
  "b": {"kernel": (8, 8, 4)},
}
GROUPS = {
  "leaf": [[0], [1], [2]],
  "layer": [[0, 1], [2]],
  "global": [[0, 1, 2]],
}
SPECS = P(), P("x"), P("y", "x")  # each leaf in its own way
SGD: Any = dict(learning_rate=0.1, momentum=0.9, weight_decay=0.01)


def make_mesh(axis_type: AxisType = AxisType.Auto) -> Mesh:
  return jax.make_mesh((4, 2), ("x", "y"), axis_types=(axis_type,) * 2)


def make_trees(dtype: Any = jnp.float32) -> tuple[Any, Any]:
  """Parameters and gradients: layer a in a dtype, layer b near-parallel.

  They are NumPy's: JAX would compile each step of this for each test.
  """
  rng = np.random.default_rng(0)
  draw = lambda shape: rng.normal(size=shape).astype(np.float32)
  w, g = (
    jax.tree.map(draw, SHAPES, is_leaf=lambda x: isinstance(x, tuple))
    for _ in range(2)
  )
  g["b"]["kernel"] += 3 * w["b"]["kernel"]
  cast = lambda tree: jax.tree.map(lambda x: x.astype(dtype), tree["a"])
  return w | {"a": cast(w)}, g | {"a": cast(g)}


def like(tree: Any, *specs: P) -> Any:
  """A tree of specs: one for each leaf, or the same for all."""
  treedef = jax.tree.structure(tree)
  return treedef.unflatten(specs * (treedef.num_leaves // len(specs)))


def shard(tree: Any, mesh: Mesh, *specs: P) -> Any:
  put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
  return jax.tree.map(put, tree, like(tree, *specs))


def real64(tree: Any) -> list[np.ndarray]:
  return [reference.real64(x) for x in jax.tree.leaves(tree)]


def expected_updates(w, g, group_by="leaf", batch_axes=None, renormalize=True):
  """The leaves, by way of arrays whose rows are the vectors."""
  rows = lambda x: x.reshape(1 if batch_axes is None else len(x), -1)
  ws, outs = real64(w), real64(g)
  for group in GROUPS[group_by]:
    w, g = (np.concatenate([rows(x[i]) for i in group], 1) for x in (ws, outs))
    out = [
      reference.project(*vectors, renormalize=renormalize)
      for vectors in zip(w, g, strict=True)
    ]
    ends = np.cumsum([rows(ws[i]).shape[1] for i in group])
    parts = np.split(np.stack(out), ends[:-1], axis=1)
    for i, part in zip(group, parts, strict=True):
      outs[i] = part.reshape(ws[i].shape)
  return outs


def expected_params(params, targets, momentum=0.9, steps=3):
  """The leaves after some steps of :func:`make_step`."""
  ws, targets = real64(params), real64(targets)
  traces = [np.zeros_like(w) for w in ws]
  for _ in range(steps):
    gs = [w - target for w, target in zip(ws, targets, strict=True)]
    for w, g, m in zip(ws, expected_updates(ws, gs), traces, strict=True):
      m *= momentum
      m += g + SGD["weight_decay"] * w
      w -= SGD["learning_rate"] * m
  return ws


def make_update(**options: Any) -> Any:
  transform = orthograd(**options)
  return lambda g, w: transform.update(g, transform.init(w), w)[0]


def make_step(optimizer: Any, mean: Any = lambda grads: grads) -> Any:
  """A step of descent on ‖w − target‖²/2."""

  def step(params, state, targets):
    grads = mean(jax.tree.map(jnp.subtract, params, targets))
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  return step


def error(actual: Any, expected: list[np.ndarray]) -> float:
  """The largest, relative to its leaf, in units of what rounding may do."""
  leaves = jax.tree.leaves(actual)
  return max(
    np.abs(x - y).max() / np.abs(y).max() / max(2**-19, jnp.finfo(leaf).eps)
    for leaf, x, y in zip(leaves, real64(leaves), expected, strict=True)
  )


def communicated(compiled: Any) -> int:
  """The size of the largest array that goes from device to device."""
  collective = r"= (.*) (?:ragged|all|collective|reduce-scatter)[\w-]*\("
  types = re.findall(collective, compiled.as_text())
  shapes = [shape for t in types for shape in re.findall(r"\[([\d,]*)\]", t)]
  sizes = [math.prod(map(int, filter(None, s.split(",")))) for s in shapes]
  return max(sizes, default=0)


def same_sharding(xs: Any, ys: Any) -> bool:
  same = lambda x, y: x.sharding.is_equivalent_to(y.sharding, x.ndim)
  return all(jax.tree.leaves(jax.tree.map(same, xs, ys)))


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize(
  "batch_axes, specs",
  [
    (None, SPECS),
    (0, [P("x")]),  # each vector on one device
    (0, [P("x", "y")]),
    (0, [P(None, ("x", "y"))]),
  ],
)
@pytest.mark.parametrize(
  "group_by, renormalize",
  [("leaf", True), ("layer", False), ("global", True)],
)
def test_jit(on_many, specs, batch_axes, group_by, renormalize):
  options: Any = dict(
    group_by=group_by, batch_axes=batch_axes, renormalize=renormalize
  )
  trees = make_trees(jnp.bfloat16)
  w, g = shard(trees, make_mesh(), *specs)
  update = jax.jit(make_update(**options)).lower(g, w).compile()
  out = update(g, w)
  assert error(out, expected_updates(*trees, **options)) < 1
  assert same_sharding(out, g)
  # A number for each vector, of wide sums one from each device; where all of a
  # vector is on one, perhaps none. The smallest shard of a leaf has 16 entries.
  vectors, devices = (
    1 if batch_axes is None else 8,
    1 if on_many == "tpu" else 8,
  )
  least = 0 if specs == [P("x")] else 1
  assert least <= communicated(update) <= vectors * devices


@pytest.mark.mostly_slow(4)
@pytest.mark.usefixtures("on_many")
@pytest.mark.parametrize("how", ["placed", "placed, explicit", "to be placed"])
def test_arrays_of_one_shape_may_be_sharded_each_in_its_way(how):
  """Where they are not, some of them are summed up as one."""
  rng = np.random.default_rng(0)
  draw = lambda: [
    rng.normal(size=(64, 256)).astype(np.float32) for _ in range(2)
  ]
  trees, specs = (draw(), draw()), [P("x"), P(None, "x")]
  explicit = how == "placed, explicit"
  mesh = make_mesh(AxisType.Explicit if explicit else AxisType.Auto)
  w, g = shard(trees, mesh, *specs)
  given, options = (g, w), {}
  if how == "to be placed":
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    given, options = trees[::-1], {"in_shardings": (shardings, shardings)}
  with contextlib.nullcontext() if how == "placed" else jax.set_mesh(mesh):
    update = jax.jit(make_update(), **options).lower(*given).compile()
  assert communicated(update) <= 8  # a number from each device
  for x, y, z in zip(*trees, update(g, w), strict=True):
    want = reference.project(*map(reference.real64, (x, y)))
    np.testing.assert_allclose(z, want, rtol=0, atol=1e-5)


def test_communication_is_seen():
  w, g = shard(make_trees(), make_mesh(), P("x", "y"))

  def raveled(g, w):
    (w, _), (g, unravel) = map(flatten_util.ravel_pytree, (w, g))
    return unravel(g - w @ g / (w @ w) * w)

  assert communicated(jax.jit(raveled).lower(g, w).compile()) >= 8 * 8


@pytest.mark.parametrize("sharded", [False, True])
def test_training(sharded, caplog):
  """Buffers are donated, and only the first step is traced and compiled."""
  params, targets = jax.device_put(make_trees())
  expected = expected_params(params, targets)
  optimizer = orthograd_sgd(**SGD, strength=lambda _: 1.0, diagnostics=True)
  state = optimizer.init(params)
  if sharded:
    mesh = make_mesh()
    params, targets = shard((params, targets), mesh, *SPECS)
    shardings = optax.tree.map_params(
      optimizer,
      lambda _, w: w.sharding,
      state,
      params,
      transform_non_params=lambda _: NamedSharding(mesh, P()),
    )
    state = jax.device_put(state, shardings)
  traces = []

  def counted(*args):
    traces.append(args)
    return make_step(optimizer)(*args)

  step = jax.jit(counted, donate_argnums=(0, 1))
  with jax.log_compiles(), caplog.at_level(logging.WARNING):
    for _ in range(3):
      old = params, state
      params, state = step(params, state, targets)
      assert same_sharding((params, state), old)
      # The old diagnostics are no input of the program, so they stay.
      used = [optax.tree.get(old[1], name) for name in ("count", "trace")]
      assert all(x.is_deleted() for x in jax.tree.leaves((old[0], used)))
  assert len(traces) == 1
  compiled = "Finished XLA compilation of jit(counted)"
  assert sum(compiled in message for message in caplog.messages) == 1
  assert error(params, expected) < 1
  # Of each sum, one number from each device.
  sent = communicated(step.lower(params, state, targets).compile())
  assert sent == (8 if sharded else 0)


@pytest.mark.mostly_slow(5)
@pytest.mark.usefixtures("on_many")
@pytest.mark.parametrize("group_by", ["leaf", "layer"])
@pytest.mark.parametrize("batch_axes", [None, 0])
def test_explicit_sharding(batch_axes, group_by):
  trees = make_trees()
  types = lambda tree: jax.tree.map(jax.typeof, tree)
  mesh = make_mesh(AxisType.Explicit)
  options: Any = dict(group_by=group_by, batch_axes=batch_axes)
  transform = orthograd(**options, diagnostics=True)
  with jax.set_mesh(mesh):
    w, g = shard(trees, mesh, P("x", "y"))
    state = transform.init(w)
    assert types(jax.jit(transform.init)(w)) == types(state)
    out, new_state = jax.jit(transform.update)(g, state, w)
    assert types((out, new_state)) == types((g, state))
    assert error(out, expected_updates(*trees, **options)) < 1


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize(
  "group_by, batch_axes, axis_name, specs",
  [
    ("leaf", None, "x", [P(), P("x"), P(None, "x")]),
    ("global", None, "x", [P("x"), P("x"), P(None, "x")]),
    ("leaf", None, ("x", "y"), [P(("x", "y")), P("y", "x"), P("x", "y")]),
    ("layer", None, ("x", "y"), [P("x", "y")]),
    ("global", 0, "x", [P(None, "x")]),
    ("leaf", 0, "y", [P("x", "y")]),  # vectors over y, their batch over x
    ("global", 0, "y", [P("x", "y")]),
    ("layer", 0, None, [P("x")]),  # each vector on one device
  ],
)
def test_shard_map(group_by, batch_axes, axis_name, specs):
  trees = make_trees(jnp.bfloat16)
  options: Any = dict(group_by=group_by, batch_axes=batch_axes)
  specs = like(trees[0], *specs)
  update = jax.shard_map(  # which checks, by default, what is replicated
    make_update(**options, axis_name=axis_name),
    mesh=make_mesh(),
    in_specs=(specs, specs),
    out_specs=specs,
  )
  out = jax.jit(update)(*trees[::-1])
  assert error(out, expected_updates(*trees, **options)) < 1


@pytest.mark.mostly_slow(4)
@pytest.mark.usefixtures("on_many")
@pytest.mark.parametrize("axis_name", ["x", ("x", "y"), None])
def test_shard_map_of_steps(axis_name):
  """Initialized within, and with a leaf that is replicated and stays so."""
  params, targets = make_trees()
  optimizer = orthograd_sgd(**SGD, axis_name=axis_name, diagnostics=True)

  def train(params, targets):
    step = lambda carry, _: (make_step(optimizer)(*carry, targets), None)
    carry = params, optimizer.init(params)
    return lax.scan(step, carry, length=3)[0][0]

  specs = like(params, P(), *[P(axis_name or "x")] * 2)
  mapped = jax.shard_map(
    train, mesh=make_mesh(), in_specs=(specs, specs), out_specs=specs
  )
  expected = expected_params(params, targets, SGD["momentum"])
  actual = error(jax.jit(mapped)(params, targets), expected)
  # Without the name, each device projects its own part.
  assert actual < 1 if axis_name else actual > 1000


@pytest.mark.mostly_slow(5)
@pytest.mark.usefixtures("on_many")
@pytest.mark.parametrize("replicated", ["w", "g"])
def test_gradients_flow_through_shard_map(replicated):
  w, g = (tree["b"]["kernel"] for tree in make_trees())
  w, g = (x[0] if replicated == name else x for name, x in (("w", w), ("g", g)))
  update = make_update()
  one = lambda x: x if x.ndim == 2 else x[0]
  spec = P(("x", "y"))
  mapped = jax.shard_map(
    lambda g, w: update(one(g), one(w))[None],
    mesh=make_mesh(),
    in_specs=tuple(spec if x.ndim == 3 else P() for x in (g, w)),
    out_specs=spec,
  )
  value = lambda g, w: jnp.sum(mapped(g, w) ** 3)
  axes = tuple(0 if x.ndim == 3 else None for x in (g, w))
  others = lambda g, w: jnp.sum(jax.vmap(update, axes)(g, w) ** 3)
  got, want = (jax.grad(jax.jit(f), (0, 1))(g, w) for f in (value, others))
  for x, y in zip(got, want, strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


@pytest.mark.mostly_slow(5)
@pytest.mark.usefixtures("on_many")
@pytest.mark.parametrize("near", [False, True])  # if so, one sweep won't do
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("replicated", ["neither", "w", "g", "both"])
def test_shard_map_of_a_model_on_each_device(near, mapped, replicated):
  """Or of two, by vmap. What differs between devices is beside what doesn't."""
  w, g = (tree["b"]["kernel"] for tree in make_trees())
  g = g if near else g - 3 * w
  w, g = (
    x[0] if replicated in (name, "both") else x
    for name, x in (("w", w), ("g", g))
  )
  given = jnp.linspace(0, 1, 8), g, w
  axes = tuple(None if x.ndim == 2 else 0 for x in given)
  parts = lambda given, i: [
    x if axis is None else x[i] for x, axis in zip(given, axes, strict=True)
  ]
  update = lambda strength, g, w: make_update(strength=strength)(g, w)
  if mapped:
    inner = jax.vmap(update, axes)
  else:
    inner = lambda *given: update(*parts(given, 0))[None]
  # Eight models for the four devices of x, or for all.
  spec = P("x") if mapped else P(("x", "y"))
  outer = jax.shard_map(
    inner,
    mesh=make_mesh(),
    in_specs=tuple(P() if axis is None else spec for axis in axes),
    out_specs=spec,
  )
  expected = []
  for i in range(8):
    strength, g, w = map(reference.real64, parts(given, i))
    expected.append(reference.project(w, g, strength=strength))
  assert error(list(jax.jit(outer)(*given)), expected) < 1


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("mapping", [jax.vmap, jax.pmap])
@pytest.mark.parametrize("group_by, batch_axes", [("leaf", None), ("layer", 0)])
def test_vmap_and_pmap(mapping, group_by, batch_axes):
  trees = make_trees()
  options: Any = dict(group_by=group_by, batch_axes=batch_axes)
  update = jax.jit(make_update(**options, axis_name="i"))
  update = mapping(update, axis_name="i", in_axes=1, out_axes=1)
  out = update(*trees[::-1])
  assert error(out, expected_updates(*trees, **options)) < 1


def test_pmap_over_data():
  """Replicated parameters need no axis name, only the mean of gradients."""
  params, targets = make_trees()
  copies = lambda tree: jax.tree.map(lambda x: np.stack([x] * 8), tree)
  rng = np.random.default_rng(1)
  data = jax.tree.map(
    lambda xs: xs + rng.normal(size=xs.shape).astype(xs.dtype), copies(targets)
  )
  optimizer = orthograd_sgd(**SGD)
  step = make_step(optimizer, lambda grads: lax.pmean(grads, "i"))
  step = jax.pmap(step, axis_name="i")
  carry = copies((params, optimizer.init(params)))
  for _ in range(3):
    carry = step(*carry, data)
  means = jax.tree.map(lambda xs: xs.mean(0, np.float64), data)
  assert error(carry[0], copies(expected_params(params, means))) < 1


@pytest.mark.slow
def test_two_processes():
  """One mesh over two processes: see two_processes.py."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  script = Path(__file__).with_name("two_processes.py")
  env = {
    "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    "PYTHONPATH": os.pathsep.join(sys.path),
  }
  processes = [
    subprocess.Popen(
      [sys.executable, script, str(port), index],
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      env=os.environ | env,
    )
    for index in "01"
  ]
  try:
    for process in processes:
      process.wait(timeout=120)
  finally:
    for process in processes:
      process.kill()  # nothing, if it has ended
    outputs = [process.communicate()[0] for process in processes]
    print(*outputs, sep="\n")  # which pytest shows if the test fails
  for i, output in enumerate(outputs):
    assert f"process {i} of 2: OK" in output
