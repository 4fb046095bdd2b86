"""Vectors keep their norms: against float64 NumPy, whatever the steps."""

import functools

import chex
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
from test_sharded_trees import (
  STACKED,
  VECTORS,
  assert_close,
  assert_only_sums_are_sent,
  assert_sharded_as,
  make_mesh,
  make_shardings,
  make_trees,
)

from orthograd_optax import keep_norms, orthograd

SHAPES = {"experts": (2, 3, 4), "kernel": (2, 5), "bias": (2,)}
OPTIONS = {
  "leaf": {},
  "global": {"group_by": "global"},
  "batch": {"batch_axes": {"experts": (0, 1), "kernel": 0, "bias": None}},
  "grouped batch": {
    "group_by": "global",
    "batch_axes": {"experts": -3, "kernel": 0, "bias": 0},
  },
}


def vectors(tree, option):
  """The vectors that keep their norms, in float64."""
  leaves = {k: np.asarray(tree[k]).astype(np.float64) for k in SHAPES}
  match option:
    case "leaf":
      return [x.ravel() for x in leaves.values()]
    case "global":
      return [np.concatenate([x.ravel() for x in leaves.values()])]
    case "batch":
      rows = [*leaves["experts"].reshape(6, 4), *leaves["kernel"]]
      return [*rows, leaves["bias"]]
    case "grouped batch":
      return list(np.hstack([x.reshape(2, -1) for x in leaves.values()]))
  raise ValueError(option)


def norms(tree, option):
  return np.array([np.linalg.norm(x) for x in vectors(tree, option)])


def draw(rng, scale=1.0, dtype=np.float32):
  return {
    k: jnp.asarray(scale * rng.normal(size=s), dtype) for k, s in SHAPES.items()
  }


@functools.cache
def compiled(option):
  transform = keep_norms(**OPTIONS[option])

  def step(params, updates):
    state = transform.init(params)
    new, same = transform.update(updates, state, params)
    chex.assert_trees_all_equal_shapes_and_dtypes((new, same), (updates, state))
    return optax.apply_updates(params, new)

  return jax.jit(step)


@pytest.mark.parametrize("option", OPTIONS)
@given(
  seed=st.integers(0, 2**32 - 1),
  scale=st.floats(-20, 20),
  step=st.floats(-12, 6),
)
def test_norms_are_constant(option, seed, scale, step):
  """The new vector has the direction of w + u, and the norm of w."""
  rng = np.random.default_rng(seed)
  params, updates = draw(rng, 10**scale), draw(rng, 10 ** (scale + step))
  new = compiled(option)(params, updates)
  moved = {k: np.float64(params[k]) + updates[k] for k in params}
  triples = [vectors(tree, option) for tree in (params, moved, new)]
  for w, to, got in zip(*triples, strict=True):
    expected = to * np.linalg.norm(w) / np.linalg.norm(to)
    atol = 3e-7 * np.linalg.norm(w)
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
  "steps", [500, pytest.param(10_000, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("half_updates", [True, False])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_no_drift(dtype, half_updates, steps):
  """Many steps by apply_updates, in the leaf's dtype."""
  rates = [optax.cosine_decay_schedule(0.1, steps), lambda i: 0.0 * i]
  rate = optax.join_schedules(rates, [steps - 100])
  optimizer = optax.chain(orthograd(), optax.sgd(rate), keep_norms())
  params = {"w": jnp.asarray(np.linspace(-1, 2, 256), dtype)}
  start = np.linalg.norm(np.float64(params["w"]))

  @jax.jit
  def train(params, state):
    def step(carry, i):
      params, state = carry
      g = jnp.sin(i * jnp.arange(1.0, 257.0))
      grads = {"w": g.astype(dtype if half_updates else "float32")}
      updates, state = optimizer.update(grads, state, params)
      params = optax.apply_updates(params, updates)
      return (params, state), params["w"]

    return jax.lax.scan(step, (params, state), jnp.arange(float(steps)))[1]

  path = np.asarray(train(params, optimizer.init(params)))
  lengths = np.linalg.norm(path.astype(np.float64), axis=1)
  # Storing w rounds each entry by up to eps / 2, and u is a tenth of w.
  tolerance = 1.1 / 2 * max(float(jnp.finfo(dtype).eps), 1e-6)
  np.testing.assert_allclose(lengths, start, rtol=tolerance)
  # At a learning rate of 0 they rest, bit by bit.
  assert np.all(path[-100:] == path[-1]) and np.any(path[-200] != path[-1])


def test_zeros():
  transform = keep_norms(batch_axes=0)
  w = jnp.array([[3.0, 4.0], [0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])
  u = jnp.array([[0.0, 0.0], [1.0, 2.0], [-3.0, -4.0], [np.nan, 0.0]])
  new, _ = transform.update(u, transform.init(w), w)
  np.testing.assert_array_equal(new[0], [0, 0])  # nothing to do
  np.testing.assert_array_equal(new[1], u[1])  # no sphere
  np.testing.assert_array_equal(new[2], [0, 0])  # no direction
  assert np.isnan(new[3]).all()


def test_mask_and_complex_leaves():
  params = {"a": jnp.array([3.0 + 4.0j, 0.0j]), "b": jnp.array([1.0, 1.0])}
  updates = jax.tree.map(jnp.ones_like, params)
  transform = keep_norms(mask={"a": True, "b": False})
  new, _ = transform.update(updates, transform.init(params), params)
  chex.assert_trees_all_equal(new["b"], updates["b"])
  to = np.array([4 + 4j, 1])
  expected = to * 5 / np.linalg.norm(to) - np.array([3 + 4j, 0])
  np.testing.assert_allclose(new["a"], expected, atol=1e-6)


@pytest.mark.parametrize("mapping", ["jit", "vmap", "pmap"])
def test_mapped(mapping):
  """Runs that are mapped each keep their norms, with one trace."""
  chex.clear_trace_counter()
  rng = np.random.default_rng(0)
  params, updates = draw(rng), draw(rng)
  transform = keep_norms(batch_axes=0)
  runs = 1 if mapping == "jit" else 2
  vmapped = lambda f: jax.jit(jax.vmap(f))
  mapping = {"jit": jax.jit, "vmap": vmapped, "pmap": jax.pmap}[mapping]
  if runs == 2:
    params, updates = (
      jax.tree.map(lambda x: jnp.stack([x, 2 * x]), t)
      for t in (params, updates)
    )
  # pmap traces once more for results than for what was passed first.
  traces = 2 if mapping is jax.pmap else 1
  update = mapping(chex.assert_max_traces(transform.update, traces))
  state = mapping(transform.init)(params)
  kept, start = params, state
  for _ in range(3):
    new, state = update(updates, state, kept)
    kept = optax.apply_updates(kept, new)
  chex.assert_trees_all_equal(state, start)
  chex.assert_trees_all_close(
    mapping(transform.init)(kept).norms, start.norms, rtol=1e-6
  )


def test_gradients_pass_through():
  """As the plain formula's, by finite differences in float64."""
  w, u, to = np.random.default_rng(0).normal(size=(3, 4))

  def loss(u):
    new = (w + u) * np.linalg.norm(w) / np.linalg.norm(w + u)
    return new @ to

  h = 1e-6 * np.eye(4)
  expected = [(loss(u + d) - loss(u - d)) / 2e-6 for d in h]
  transform = keep_norms()

  def of_ours(u):
    new, _ = transform.update(u, transform.init(w), w)
    return (w + new) @ to

  for x64 in (False, True):
    with jax.enable_x64(x64):
      actual = jax.jit(jax.grad(of_ours))(jnp.asarray(u))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def expected_step(w, g):
  """The updates for one norm in each layer of each leaf."""

  def one(w, g):
    axes = tuple(range(1, w.ndim))
    wide = np.float64(w) + g
    norm = lambda x: np.sqrt((np.float64(x) ** 2).sum(axes, keepdims=True))
    return wide * norm(w) / norm(wide) - w

  return jax.tree.map(one, w, g)


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("group_by", ["leaf", "layer"])
def test_sharded_arrays(on_many, group_by):
  """Nothing is gathered, and each layer keeps its norm."""
  w, g = make_trees(STACKED)
  mesh = make_mesh()
  shardings = make_shardings(STACKED, mesh)
  transform = keep_norms(batch_axes=0, group_by=group_by)
  update = lambda g, w: transform.update(g, transform.init(w), w)[0]
  placed = jax.device_put((g, w), (shardings, shardings))
  step = jax.jit(update, out_shardings=shardings).lower(*placed).compile()
  out = step(*placed)
  assert_sharded_as(out, shardings)
  assert_only_sums_are_sent(step, on_many, VECTORS)
  if group_by == "leaf":
    assert_close(out, expected_step(w, g))


@pytest.mark.parametrize("axis_name", ["model", ("data", "model")])
def test_shard_map(axis_name):
  rng = np.random.default_rng(0)
  w, g = (np.float32(rng.normal(size=(16, 4))) for _ in range(2))
  transform = keep_norms(axis_name=axis_name)
  spec = P(axis_name)

  @jax.jit
  @functools.partial(
    jax.shard_map, mesh=make_mesh(), in_specs=(spec, spec), out_specs=spec
  )
  def update(g, w):
    return transform.update(g, transform.init(w), w)[0]

  expected = expected_step(w[None], g[None])[0]
  np.testing.assert_allclose(update(g, w), expected, atol=3e-6)


def test_errors():
  params = {"a": jnp.ones(3), "b": jnp.ones(3)}
  transform = keep_norms()
  state = transform.init(params)
  with pytest.raises(ValueError, match=r"call update\(updates, state, params"):
    transform.update(params, state)
  with pytest.raises(ValueError, match=r"given {'b': \(\)}, created for other"):
    transform.update(params, transform.init({"b": jnp.ones(3)}), params)
  with pytest.raises(ValueError, match="given a EmptyState"):
    transform.update(params, optax.EmptyState(), params)
  whole = keep_norms(group_by="global")
  none = {"a": params["a"], "b": None}
  with pytest.raises(ValueError, match="'b'.* is None, but .* group 'all'"):
    whole.update(none, whole.init(params), params)
  new, _ = transform.update(none, state, params)  # a leaf of its own
  assert new["b"] is None
  with pytest.raises(ValueError, match="group_by must be"):
    keep_norms(group_by="leaves")
  with pytest.raises(TypeError, match="mask must be"):
    keep_norms(mask=1)
