"""What is refused, and what errors and warnings say."""

from typing import Any
import warnings

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
import reference
from small_trees import GRADS, PARAMS, assert_words, update

from orthograd_optax import orthograd, orthograd_adamw, orthograd_sgd

OPTIMIZERS: dict[str, Any] = {
  "orthograd": lambda **options: orthograd(**options),
  "orthograd_sgd": orthograd_sgd,
  "orthograd_adamw": orthograd_adamw,
}


def test_mask_that_does_not_fit():
  wrong = {"a": True}
  for mask in (wrong, lambda _: wrong):
    for transform in (
      orthograd(mask=mask),
      orthograd_sgd(0.1, projection_mask=mask),
    ):
      with pytest.raises(ValueError) as error:
        transform.init(PARAMS)
      assert_words(error, "mask must be a tree of bools with the structure of")


@pytest.mark.parametrize("name", ["renormalize", "use_float64", "diagnostics"])
@pytest.mark.parametrize("value", ["no", 1, None])
def test_flags_must_be_bools(name, value):
  with pytest.raises(TypeError, match=f"{name} must be a Python bool"):
    orthograd(**{name: value})


@pytest.mark.parametrize("factory", OPTIMIZERS)
@pytest.mark.parametrize("value", ["no", 1, None, np.array(True)], ids=repr)
def test_renormalize_is_a_flag(factory, value):
  options = {} if factory == "orthograd" else {"learning_rate": 0.1}
  with pytest.raises(TypeError) as error:
    OPTIMIZERS[factory](renormalize=value, **options)
  assert_words(error, "renormalize must be a Python bool", repr(value))


@pytest.mark.parametrize(
  "value", [jnp.array(1), jnp.ones(2), np.ones(2)], ids=["0d", "1d", "NumPy"]
)
def test_array_as_group_by(value):
  with pytest.raises(ValueError) as error:
    orthograd(group_by=value)
  rule = "group_by must be 'leaf', 'layer', 'global' or a callable"
  assert_words(error, rule, repr(value), "name group_by in static_args")


# Numbers.

NUMBERS = {
  "eps": ("a finite number, at least 0", [-1.0, np.nan, np.inf, 1j]),
  "strength": ("a number from 0 to 1", [-1.0, 2.0, np.nan, np.inf, 1j]),
}
IMPOSSIBLE = [(k, x) for k, (_, values) in NUMBERS.items() for x in values]


@pytest.mark.parametrize("name, value", IMPOSSIBLE, ids=str)
@pytest.mark.parametrize(
  "kind", [lambda x: x, np.array, jnp.array], ids=["Python", "NumPy", "JAX"]
)
def test_impossible_numbers(name, value, kind):
  value, (rule, _) = kind(value), NUMBERS[name]
  with pytest.raises(ValueError) as error:
    orthograd(**{name: value})
  assert_words(error, f"{name} must be {rule}", f"not {value!r}")
  with pytest.raises(ValueError) as error:  # while something else is traced
    jax.jit(lambda g: update(orthograd(**{name: value}), g)[0])(GRADS)
  assert_words(error, f"{name} must be {rule}", f"not {value!r}")


@pytest.mark.parametrize("value", [np.ones(2), jnp.ones(1)], ids=str)
def test_vector_as_eps(value):
  with pytest.raises(ValueError) as error:
    orthograd(eps=value)
  assert_words(error, "eps must be a finite number", repr(value))


@pytest.mark.parametrize(
  "name, value",
  [
    ("eps", jnp.ones(2)),
    ("eps", jnp.array(1j)),
    ("eps", jnp.array(True)),
    ("strength", jnp.array(1j)),
    ("strength", jnp.array(True)),
  ],
  ids=str,
)
def test_impossible_traced_numbers(name, value):
  """Shape and dtype of a traced number are known."""
  with pytest.raises(ValueError) as error:
    jax.jit(lambda x: update(orthograd(**{name: x}))[0])(value)
  kind = jax.typeof(value).str_short()
  assert_words(error, f"{name} must be {NUMBERS[name][0]}", kind)


class NumbersTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(*NUMBERS)
  def test_possible_numbers(self, name):
    want, _ = update(orthograd(**{name: 1.0}))
    run: Any = self.variant(lambda x: update(orthograd(**{name: x}))[0])
    one = 1, np.float32(1), np.array(1.0), jnp.array(1), jnp.array(1.0)
    for value in one:
      chex.assert_trees_all_close(run(value), want, rtol=1e-6)


# States.

RAMP = optax.linear_schedule(0.0, 1.0, 10)
STATES = {
  "neither": {},
  "strength": {"strength": RAMP},
  "diagnostics": {"diagnostics": True},
  "strength and diagnostics": {"strength": RAMP, "diagnostics": True},
}


@pytest.mark.parametrize("given", STATES)
@pytest.mark.parametrize("wanted", STATES)
def test_state_of_another_transformation(given, wanted):
  transform = orthograd(**STATES[wanted])
  state = orthograd(**STATES[given]).init(PARAMS)
  if given == wanted:
    transform.update(GRADS, state, PARAMS)
    return
  with pytest.raises(ValueError) as error:
    transform.update(GRADS, state, PARAMS)
  remedy = "this optimizer's init(params)", "checkpoint with the same options"
  options = {"neither": "neither a schedule nor diagnostics"}
  has, had = (
    options.get(name, name.replace("strength", "a schedule of strength"))
    for name in (wanted, given)
  )
  of = f"an orthograd with {had}" if state else "type EmptyState"
  assert_words(error, f"this orthograd has {has}, but was given", *remedy)
  assert_words(error, f"a state of {of}, created with different options")
  assert len(str(error.value)) < 400  # no arrays


@pytest.mark.parametrize("wanted", STATES)
def test_empty_tuple_as_a_state(wanted):
  transform = orthograd(**STATES[wanted])
  if wanted == "neither":
    for state in ((), optax.EmptyState()):
      got, same = transform.update(GRADS, state, PARAMS)
      assert same is state
      chex.assert_trees_all_equal(got, update(transform)[0])
    return
  with pytest.raises(ValueError, match="state of type tuple, created with"):
    transform.update(GRADS, (), PARAMS)


# Trees.


@pytest.mark.parametrize("kind", ["parameter", "update", "both"])
def test_string_leaf(kind):
  params, grads = (
    {**tree, "name": "x" if kind in (mine, "both") else jnp.ones(2)}
    for tree, mine in ((PARAMS, "parameter"), (GRADS, "update"))
  )
  with pytest.raises(TypeError) as error:
    orthograd().update(grads, (), params)
  named = "update" if kind == "update" else "parameter"
  assert_words(error, f"the {named} at ['name'] has type str", "floating-point")
  assert_words(error, "Exclude this leaf with mask, or pass None")
  got, _ = update(orthograd(), {**grads, "name": None}, {**params, "name": "x"})
  want = {**update(orthograd())[0], "name": None}
  chex.assert_trees_all_close(got, want, rtol=1e-6)


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize(
  "options",
  [{}, {"group_by": "layer"}, {"diagnostics": True}, {"strength": RAMP}],
  ids=lambda options: " ".join(options) or "none",
)
def test_parameters_without_updates(options):
  """A whole module of equinox, with functions and without gradients of them."""
  eqx = pytest.importorskip("equinox")
  model = eqx.nn.MLP(4, 3, 8, 2, key=jax.random.key(0))
  x = jax.random.normal(jax.random.key(1), (12, 4))
  grads = eqx.filter_grad(lambda m: jnp.mean(jax.vmap(m)(x) ** 2))(model)
  assert any(callable(leaf) for leaf in jax.tree.leaves(model))
  update(optax.sgd(0.1), grads, model)  # which has no objections
  arrays = eqx.filter(model, eqx.is_inexact_array)
  want, want_state = update(orthograd(**options), grads, arrays)
  got, state = update(orthograd(**options), grads, model)
  chex.assert_trees_all_close(got, want, rtol=1e-6)
  chex.assert_trees_all_close(state, want_state, rtol=1e-6)
  eqx.apply_updates(model, got)


# The warning of leaves that can't move.

STUCK = {"w": jnp.ones(3), "s": jnp.array(2.0), "t": {"u": jnp.ones((1, 1))}}


def warnings_of(transform, params) -> list[str]:
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    transform.init(params)
  assert all(each.category is UserWarning for each in caught)
  return [str(each.message) for each in caught]


@pytest.mark.parametrize(
  "transform, named",
  [
    (orthograd(), "['s'], ['t']['u']"),
    (orthograd(diagnostics=True), "['s'], ['t']['u']"),
    (orthograd(strength=RAMP), "['s'], ['t']['u']"),
    (orthograd(strength=jnp.array(1.0)), "['s'], ['t']['u']"),
    (orthograd(group_by="layer"), "['t']['u']"),
    (orthograd(mask={"w": True, "s": False, "t": True}), "['t']['u']"),
    (orthograd_sgd(0.1, momentum=0.9), "['s'], ['t']['u']"),
    (orthograd_adamw(0.1), "['s'], ['t']['u']"),
    (optax.inject_hyperparams(orthograd_sgd)(0.1), "['s'], ['t']['u']"),
  ],
)
def test_warning_of_leaves_that_never_move(transform, named):
  (message,) = warnings_of(transform, STUCK)
  for words in (
    f"orthograd can never move {named}: the gradient of a vector with one entry"
    " is parallel to it",
    "Exclude such leaves with mask, or join them to other leaves with",
  ):
    assert words in message
  grads = jax.tree.map(jnp.cos, STUCK)
  got, _ = orthograd().update(grads, (), STUCK)
  assert got["s"] == got["t"]["u"] == 0


@pytest.mark.parametrize("wrap", [lambda x: x, optax.chain, optax.MultiSteps])
def test_warning_points_at_the_line_of_the_user(wrap):
  optimizer = wrap(*([orthograd_sgd(0.1)] + [2] * (wrap is optax.MultiSteps)))
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    optimizer.init(STUCK)
  assert {warning.filename for warning in caught} == {__file__}


def test_warning_of_vectors_with_one_entry():
  params = {"scale": jnp.ones((3, 1))}
  assert not warnings_of(orthograd(), params)
  (message,) = warnings_of(orthograd(batch_axes=0), params)
  assert "can never move ['scale']" in message


@pytest.mark.parametrize(
  "transform, params",
  [
    (orthograd(mask={"w": True, "s": False, "t": False}), STUCK),
    (orthograd(group_by="global"), STUCK),
    (orthograd(group_by=lambda path, leaf: "all"), STUCK),
    (orthograd(renormalize=False), STUCK),
    (orthograd(strength=0.5), STUCK),
    (orthograd(strength=jnp.array(0.5)), STUCK),
    (orthograd(), {"zero": jnp.zeros(1)}),
    (orthograd(), {"complex": jnp.ones((), jnp.complex64)}),
    (orthograd(), {"count": jnp.ones((), jnp.int32)}),
  ],
)
def test_no_warning(transform, params):
  assert not warnings_of(transform, params)


# shard_map.


@pytest.mark.parametrize("axis_name", ["i", ("i",), ["i"]], ids=str)
def test_replica_in_a_group_with_shards(axis_name):
  mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
  rng = np.random.default_rng(0)
  shapes = {"kernel": (8, 3), "bias": (8,)}
  w, g = (
    {k: rng.normal(size=s).astype(np.float32) for k, s in shapes.items()}
    for _ in range(2)
  )

  def run(group_by, **specs):
    transform = orthograd(group_by=group_by, axis_name=axis_name)
    mapped = jax.shard_map(
      lambda g, w: transform.update(g, transform.init(w), w)[0],
      mesh=mesh,
      in_specs=(specs, specs),
      out_specs=specs,
      check_vma=True,
    )
    return jax.jit(mapped)(g, w)

  for specs in (
    {"kernel": P("i"), "bias": P()},
    {"kernel": P(), "bias": P("i")},
  ):
    with pytest.raises(ValueError) as error:
      run("layer", **specs)
    assert_words(error, "group 'all'", "['kernel']", "['bias']", "['i']", "[]")
    rule = "must all be sharded over axis_name, or none"
    assert_words(error, rule, "Choose another group_by, or shard them alike")
    alone = jax.tree.map(
      lambda w, g: reference.project(*map(reference.real64, (w, g))), w, g
    )
    chex.assert_trees_all_close(run("leaf", **specs), alone, atol=1e-5)
  flat = lambda t: np.concatenate(
    [reference.real64(t[k]).ravel() for k in shapes]
  )
  want = reference.project(flat(w), flat(g))
  for spec in (P("i"), P()):
    got = run("layer", kernel=spec, bias=spec)
    np.testing.assert_allclose(flat(got), want, rtol=0, atol=1e-5)


def test_gradients_that_were_not_averaged():
  """Replicated weights, and gradients that differ between devices."""
  mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
  transform = orthograd(axis_name="i")
  w, g = np.arange(1.0, 4), np.cos(np.arange(24)).reshape(8, 3)

  def run(average):
    def update(g, w):
      g = g[0] if not average else jax.lax.pmean(g[0], "i")
      return transform.update({"w": g}, (), {"w": w})[0]["w"][None]

    specs = dict(in_specs=(P("i"), P()), out_specs=P() if average else P("i"))
    mapped = jax.shard_map(update, mesh=mesh, check_vma=True, **specs)
    return jax.jit(mapped)(g, w)

  with pytest.raises(ValueError) as error:
    run(average=False)
  assert_words(error, "update at ['w'] differs between the devices", "['i']")
  assert_words(error, "replicated", "jax.lax.pmean")
  want = reference.project(reference.real64(w), g.mean(0, dtype=np.float64))
  np.testing.assert_allclose(run(average=True)[0], want, rtol=1e-5)
