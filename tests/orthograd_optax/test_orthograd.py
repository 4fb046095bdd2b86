"""The options of orthograd, and their errors."""

import chex
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from small_layers import GRADS, PARAMS, assert_close, project_together, update

from orthograd_optax import orthograd, orthograd_sgd

ignore_single_entries = pytest.mark.filterwarnings(
  "ignore:orthograd can never move"
)


def test_mask():
  mask = {"conv": False, "norm": True, "dense": {"kernel": True, "bias": False}}
  by_rank = lambda params: jax.tree.map(lambda x: x.ndim > 1, params)
  everything, _ = update(orthograd())
  for given_, kept in ((mask, mask), (by_rank, by_rank(PARAMS))):
    got, _ = update(orthograd(mask=given_))
    want = jax.tree.map(
      lambda keep, new, old: new if keep else old,
      jax.tree.map(lambda m, t: jax.tree.map(lambda _: m, t), kept, PARAMS),
      everything,
      GRADS,
    )
    chex.assert_trees_all_equal(got, want)


def test_mask_beside_a_tree_of_batch_axes():
  axes = jax.tree.map(lambda x: x.ndim - 1, PARAMS)
  mask = {"conv": False, "norm": False, "dense": True}
  both = orthograd(mask=mask, batch_axes=axes, eps=0.1, renormalize=False)
  alone = orthograd(batch_axes=-1, eps=0.1, renormalize=False)
  want, _ = update(alone)
  assert_close(update(both)[0], {**GRADS, "dense": want["dense"]})


def test_masked_leaves_take_no_part_in_their_group():
  mask = lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree)
  got, _ = update(orthograd(group_by="global", mask=mask))
  kernels = lambda t: [t["conv"]["kernel"], t["dense"]["kernel"]]
  assert_close(kernels(got), project_together(kernels(PARAMS), kernels(GRADS)))


def test_integer_leaves_pass_if_masked_or_without_update():
  params = {"w": jnp.array([3.0, 4.0]), "steps": jnp.array([1, 2])}
  grads = {"w": jnp.array([5.0, 0.0]), "steps": jnp.array([7, 7])}
  got, _ = update(orthograd(mask={"w": True, "steps": False}), grads, params)
  chex.assert_trees_all_equal(got["steps"], grads["steps"])
  grads["steps"] = None
  got, _ = update(orthograd(diagnostics=True), grads, params)
  assert got["steps"] is None


# Strength, renormalization, diagnostics.


@given(st.floats(0, 1))
def test_strength(strength):
  want = project_together(PARAMS, GRADS, strength=strength)
  got, _ = update(orthograd(strength=strength, group_by="global"))
  assert_close(got, want)


def test_strength_schedule():
  transform = orthograd(strength=optax.linear_schedule(0.0, 1.0, 4))
  state = transform.init(PARAMS)
  for i in range(6):
    got, state = transform.update(GRADS, state, PARAMS)
    want, _ = update(orthograd(strength=min(i / 4, 1.0)))
    assert_close(got, want)
  assert optax.tree.get(state, "count") == 6


def test_sgd_and_orthograd_side_by_side():
  run = lambda s: update(orthograd(strength=s))[0]
  both = jax.jit(jax.vmap(run))(jnp.array([0.0, 1.0]))
  first, second = (jax.tree.map(lambda x, i=i: x[i], both) for i in (0, 1))
  chex.assert_trees_all_equal(first, GRADS)
  assert_close(second, update(orthograd())[0])


def test_without_renormalization():
  want = project_together(PARAMS, GRADS, renormalize=False)
  assert_close(update(orthograd(renormalize=False, group_by="global"))[0], want)


def test_eps():
  want = project_together(PARAMS, GRADS, eps=10.0)
  assert_close(update(orthograd(eps=10.0, group_by="global"))[0], want)


def test_stateless_by_default():
  assert orthograd().init(PARAMS) == optax.EmptyState()


@ignore_single_entries
@pytest.mark.parametrize("strength", [1.0, 0.25])
def test_diagnostics(strength):
  params = {"a": PARAMS, "scalar": jnp.array([2.0]), "zero": jnp.zeros(3)}
  grads = {"a": GRADS, "scalar": jnp.array([5.0]), "zero": jnp.ones(3)}
  transform = orthograd(diagnostics=True, strength=strength)
  _, state = update(transform, grads, params)
  cosine = optax.tree.get(state, "cosine")
  closed = optax.tree.get(state, "gate_closed")
  w, g = (reference.real64(t["dense"]["kernel"]) for t in (PARAMS, GRADS))
  want = np.sum(w * g) / np.linalg.norm(w) / np.linalg.norm(g)
  np.testing.assert_allclose(cosine["a/dense/kernel"], want, rtol=1e-5)
  assert {k for k, v in closed.items() if v} == (
    {"scalar"} if strength == 1 else set()
  )
  assert cosine["scalar"] == 1 and cosine["zero"] == 0
  chex.assert_trees_all_equal_shapes_and_dtypes(state, transform.init(params))


def test_diagnostics_report_no_gate_without_renormalization():
  transform = orthograd(diagnostics=True, renormalize=False)
  _, state = update(transform, jnp.array([5.0]), jnp.array([2.0]))
  assert not optax.tree.get(state, "gate_closed")["all"]


def test_diagnostics_keep_their_dtype():
  with jax.enable_x64(True):
    params, grads = jnp.ones(2, jnp.float32), jnp.array([1.0, 2.0])
    transform = orthograd(diagnostics=True)
    state = transform.init(params)
    chex.assert_trees_all_equal_dtypes(
      transform.update(grads, state, params)[1], state
    )


def test_names_that_would_clash():
  params = {"a/b": jnp.ones(2), "a": {"b": jnp.ones(2)}}
  _, state = update(orthograd(diagnostics=True), params, params)
  assert set(optax.tree.get(state, "cosine")) == {"['a/b']", "['a']['b']"}


# Errors name what was wrong and what to do.


def test_params_are_required():
  for transform in (
    orthograd(),
    orthograd(mask=lambda _: True),
    orthograd_sgd(0.1),
  ):
    with pytest.raises(ValueError) as error:
      transform.update(GRADS, transform.init(PARAMS))
    assert "call update(updates, state, params)" in str(error.value)


@ignore_single_entries
@pytest.mark.parametrize(
  ("grads", "params", "words"),
  [
    ({"a": 1.0}, {"a": 1.0, "b": 2.0}, ["['b']", "only in params"]),
    ({"a": 1.0, "b": 2.0}, {"a": 1.0}, ["['b']", "only in updates"]),
    ({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": None}, ["['b']", "only in updates"]),
    ({"a": 1.0}, {"a": {"b": 1.0}}, ["['a']", "only in updates"]),
    ({"a": [1.0]}, {"a": (1.0,)}, ["['a'] is a list in updates and a tuple"]),
  ],
)
def test_mismatched_trees(grads, params, words):
  grads, params = (jax.tree.map(jnp.asarray, t) for t in (grads, params))
  with pytest.raises(ValueError, match="same structure") as error:
    update(orthograd(), grads, params)
  assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("dtype", [jnp.int32, bool])
def test_integer_and_bool_leaves(dtype):
  params = {"w": jnp.ones(2), "n": jnp.ones(2, dtype)}
  with pytest.raises(TypeError, match=r"\['n'\].*Exclude this leaf with mask"):
    update(orthograd(), params, params)


def test_mismatched_leaves():
  with pytest.raises(ValueError, match=r"\['w'\].*\(2,\).*\(3,\)"):
    update(orthograd(), {"w": jnp.ones(3)}, {"w": jnp.ones(2)})
  with pytest.raises(TypeError, match="both must be real or both complex"):
    update(orthograd(), jnp.ones(2, jnp.complex64), jnp.ones(2))


@pytest.mark.parametrize(
  ("options", "words"),
  [
    ({"strength": 1.5}, "strength must be a number from 0 to 1.*1.5"),
    ({"strength": float("nan")}, "strength must be .* or a schedule.*nan"),
    ({"eps": float("inf")}, "eps must be a finite number, at least 0, not inf"),
    ({"strength": np.array([0.5, 2.0])}, "strength must be .* 2"),
    ({"strength": "0.5"}, "strength must be .*'0.5'"),
    ({"eps": np.array([1e-8, 1e-8])}, "eps must be a finite number"),
    ({"strength": "full"}, "strength must be .*'full'"),
    ({"eps": -1.0}, "eps must be a finite number, at least 0, not -1.0"),
    ({"group_by": "layers"}, "group_by must be 'leaf', .*'layers'"),
  ],
)
def test_impossible_options(options, words):
  with pytest.raises(ValueError, match=words):
    orthograd(**options)


def test_strength_of_several_numbers():
  w, g = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
  strengths = np.array([0.0, 0.5, 1.0], "float32")
  got, _ = update(orthograd(strength=strengths, batch_axes=0), g, w)
  for row, *pair, strength in zip(got, w, g, strengths, strict=True):
    want = reference.project(*map(reference.real64, pair), strength=strength)
    np.testing.assert_allclose(row, want, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(got[0], g[0])
  for strength, axes in ((jnp.ones(2), 0), (strengths, None)):
    with pytest.raises(ValueError, match="one number or, with batch_axes"):
      update(orthograd(strength=strength, batch_axes=axes), g, w)
