"""Options that are refused or accepted, and what errors and warnings say."""

from typing import Any
import warnings

from absl.testing import parameterized
import chex
import jax
from jax import export
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest
import reference
from small_trees import GRADS, PARAMS, update

from orthograd_optax import (
  orthograd,
  orthograd_adamw,
  orthograd_sgd,
  read_diagnostics,
)

OPTIMIZERS: dict[str, Any] = {
  "orthograd": lambda **options: orthograd(**options),
  "orthograd_sgd": orthograd_sgd,
  "orthograd_adamw": orthograd_adamw,
}


def assert_words(error: Any, *words: str) -> None:
  missing = [word for word in words if word not in str(error.value)]
  assert not missing, f"{missing} not in: {error.value}"


# optax.inject_hyperparams takes each callable for a schedule: it calls it with
# the count, and passes on what that returns.

MASKS = {
  "matrices": lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree),
  "vectors": lambda tree: jax.tree.map(lambda x: x.ndim < 2, tree),
  "kernels": lambda tree: jax.tree_util.tree_map_with_path(
    lambda path, _: "kernel" in jax.tree_util.keystr(path), tree
  ),
  "arrays": lambda tree: jax.tree.map(lambda x: jnp.array(x.ndim > 1), tree),
}
MASK_OPTIONS = [
  (orthograd, "mask"),
  (orthograd_sgd, "projection_mask"),
  (orthograd_adamw, "projection_mask"),
  (orthograd_sgd, "weight_decay_mask"),
  (orthograd_adamw, "mask"),
]
each_mask_option = pytest.mark.parametrize(
  "factory, name",
  MASK_OPTIONS,
  ids=[f"{factory.__name__}, {name}" for factory, name in MASK_OPTIONS],
)


def required(factory) -> dict[str, float]:
  return {} if factory is orthograd else {"learning_rate": 0.1}


@each_mask_option
@pytest.mark.parametrize("mask", MASKS)
def test_injected_callable_mask(factory, name, mask):
  options = {name: MASKS[mask], **required(factory)}
  injected = optax.inject_hyperparams(factory)(**options)
  with pytest.raises(TypeError) as error:
    injected.init(PARAMS)
  rule = "a tree of Python bools", "a callable from the parameters to one"
  assert_words(error, f"{name} must be", *rule, f"name {name} in static_args")


@pytest.mark.mostly_slow(2)
@each_mask_option
def test_injected_static_mask(factory, name):
  options = {name: MASKS["matrices"], "weight_decay": 0.1, **required(factory)}
  if factory is orthograd:
    del options["weight_decay"]
  injected = optax.inject_hyperparams(factory, static_args=name)(**options)
  want, _ = update(factory(**options))
  # optax.adamw rounds its hyperparameters, once they are arrays, to float32.
  chex.assert_trees_all_close(update(injected)[0], want, rtol=1e-4)
  plain, _ = update(factory(**{**options, name: None}))
  assert not np.allclose(want["a"]["bias"], plain["a"]["bias"], rtol=1e-3)
  chex.assert_trees_all_close(
    want["a"]["kernel"], plain["a"]["kernel"], rtol=1e-6
  )


@each_mask_option
@pytest.mark.parametrize("of_leaves", [False, True])
def test_array_as_a_mask(factory, name, of_leaves):
  true = jnp.array(True)
  mask = jax.tree.map(lambda _: true, PARAMS) if of_leaves else true
  with pytest.raises(TypeError) as error:
    factory(**{name: mask}, **required(factory))
  rule = f"{name} must be a tree of Python bools"
  assert_words(error, rule, repr(true), f"name {name} in static_args")


@pytest.mark.parametrize("factory", OPTIMIZERS)
@pytest.mark.parametrize("value", ["no", 1, None, np.array(True)], ids=repr)
def test_renormalize_is_a_flag(factory, value):
  options = {} if factory == "orthograd" else {"learning_rate": 0.1}
  with pytest.raises(TypeError) as error:
    OPTIMIZERS[factory](renormalize=value, **options)
  assert_words(error, "renormalize must be a Python bool", repr(value))


def test_traced_renormalize():
  run = lambda flag: update(orthograd(renormalize=flag))[0]
  with pytest.raises(TypeError) as error:
    jax.jit(run)(True)
  rule = "renormalize must be a Python bool, True or False"
  assert_words(error, rule, "name renormalize in static_args")
  for flag in (True, np.True_):
    chex.assert_trees_all_equal(run(flag), update(orthograd())[0])


@pytest.mark.parametrize(
  "value", [jnp.array(1), jnp.ones(2), np.ones(2)], ids=["0d", "1d", "NumPy"]
)
def test_array_as_group_by(value):
  with pytest.raises(ValueError) as error:
    orthograd(group_by=value)
  rule = "group_by must be 'leaf', 'layer', 'global' or a callable"
  assert_words(error, rule, repr(value), "name group_by in static_args")


def test_injected_callable_group_by():
  def together(path=(), leaf=None):  # the count is taken for a path
    del path, leaf
    return 0

  injected = optax.inject_hyperparams(orthograd)(group_by=together)
  with pytest.raises(ValueError) as error:
    injected.init(PARAMS)
  assert_words(error, "group_by must be", "not 0")
  injected = optax.inject_hyperparams(orthograd, static_args="group_by")(
    group_by=together
  )
  want, _ = update(orthograd(group_by="global"))
  chex.assert_trees_all_close(update(injected)[0], want, rtol=1e-6)


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


# Labels.

LEAVES = {k: jnp.arange(1.0, 4.0) + i for i, k in enumerate("abc")}


@pytest.mark.parametrize(
  "labels, names",
  [
    (("x", "y", "x"), {"x", "y"}),
    ((1, 2, 1), {"1", "2"}),
    ((np.int64(1), 2, 1), {"1", "2"}),
    ((("x", 1), ("x", 2), ("x", 1)), {"('x', 1)", "('x', 2)"}),
    (((), ("x", (1, "y")), ()), {"()", "('x', (1, 'y'))"}),
    ((1, "1", 1), {"1", "'1'"}),
    (((1,), ("1",), (1,)), {"(1,)", "('1',)"}),
    (("(1,)", (1,), "(1,)"), {"'(1,)'", "(1,)"}),
  ],
)
def test_labels(labels, names):
  """In each case a and c form a vector, and b is another."""
  of = dict(zip("abc", labels, strict=True))
  transform = orthograd(group_by=lambda p, _: of[p[0].key], diagnostics=True)
  grads = jax.tree.map(jnp.cos, LEAVES)
  got, state = update(transform, grads, LEAVES)
  assert set(read_diagnostics(state)) == names
  pairs = [
    (reference.real64(LEAVES[k]), reference.real64(grads[k])) for k in of
  ]
  joined = np.concatenate([pairs[0], pairs[2]], 1)
  want_a, want_c = np.split(reference.project(*joined), 2)
  for key, want in (
    ("a", want_a),
    ("b", reference.project(*pairs[1])),
    (
      "c",
      want_c,
    ),
  ):
    np.testing.assert_allclose(got[key], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  "label", [Ellipsis, 1.5, None, [1], (1, None), (1, 1.5)], ids=repr
)
def test_impossible_labels(label):
  give = lambda path, _: label if path[0].key == "b" else "x"
  transform = orthograd(group_by=give)
  with pytest.raises(TypeError) as error:
    transform.update(LEAVES, optax.EmptyState(), LEAVES)
  rule = "group_by must return a str, an int or a tuple of these"
  kind = type(label).__name__
  assert_words(error, rule, "['b']", repr(label), kind, "Return a name instead")


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


def test_surplus_entry_of_batch_axes():
  axes = {"a": {"kernel": 0, "bias": None}, "b": None}
  orthograd(batch_axes=axes).update(GRADS, (), PARAMS)
  for surplus, name in (
    ({**axes, "c": None}, "['c']"),
    ({**axes, "a": {**axes["a"], "scale": 0}}, "['a']['scale']"),
    ({**axes, "b": {"kernel": {"value": 0}}}, "['b']['kernel']['value']"),
  ):
    with pytest.raises(ValueError) as error:
      orthograd(batch_axes=surplus).update(GRADS, (), PARAMS)
    rule = f"batch_axes has an entry at {name}, but params have no leaf there"
    assert_words(error, rule, "Remove the entry, or use the name that params")


def test_string_in_batch_axes():
  axes = {"a": "kernel", "b": None}
  with pytest.raises(TypeError) as error:
    orthograd(batch_axes=axes).update(GRADS, (), PARAMS)
  assert_words(error, "batch_axes at ['a']", "int or a tuple of ints")
  assert_words(error, "not 'kernel'")


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


# Shapes that are known later.


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize(
  "options",
  [
    {},
    {"group_by": "layer", "strength": 0.5},
    {"group_by": "global", "diagnostics": True},
    {"batch_axes": 0, "diagnostics": True},
  ],
  ids=str,
)
def test_symbolic_shapes(on_each, options):
  del on_each
  transform = orthograd(**options)
  step = lambda g, w: transform.update(g, transform.init(w), w)
  n, m = export.symbolic_shape("n, m")
  shapes = {"x": {"kernel": (3, n, m), "bias": (3, m)}, "y": {"bias": (3, 4)}}
  symbolic = jax.tree.map(
    lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
    shapes,
    is_leaf=lambda x: isinstance(x, tuple),
  )
  exported = export.export(jax.jit(step))(symbolic, symbolic)
  for sizes in ((5, 7), (60, 300)):
    rng = np.random.default_rng(0)
    of = dict(zip((n, m), sizes, strict=True))
    draw = lambda x, of=of, rng=rng: jnp.asarray(
      rng.normal(size=[of.get(d, d) for d in x.shape]), jnp.float32
    )
    w, g = (jax.tree.map(draw, symbolic) for _ in range(2))
    got, want = exported.call(g, w), step(g, w)
    chex.assert_trees_all_close(got, want, rtol=0, atol=1e-5)


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


@pytest.mark.mostly_slow(5)
@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize("renormalize", [True, False])
def test_second_derivatives_at_strength_zero(renormalize):
  """They equal the plain formula's: by s twice, and by s and w."""
  rng = np.random.default_rng(0)
  w, g, cotangent = jnp.asarray(rng.normal(size=(3, 5)), jnp.float32)

  def ours(s, w):
    transform = orthograd(strength=s, renormalize=renormalize)
    return jnp.vdot(cotangent, transform.update(g, (), w)[0])

  def plain(s, w):
    rest = g - s * jnp.vdot(w, g) / jnp.vdot(w, w) * w
    gain = jnp.linalg.norm(g) / jnp.linalg.norm(rest) if renormalize else 1.0
    return jnp.vdot(cotangent, gain * rest)

  for derivative in (
    lambda f: jax.grad(f)(0.0, w),
    lambda f: jax.grad(jax.grad(f))(0.0, w),
    lambda f: jax.jacfwd(jax.grad(f), 1)(0.0, w),
    lambda f: jax.grad(lambda w: jax.grad(f)(0.0, w))(w),
    lambda f: jax.grad(lambda s: jnp.sum(jax.grad(f, 1)(s, w)))(0.0),
  ):
    np.testing.assert_allclose(
      derivative(ours), derivative(plain), rtol=1e-4, atol=1e-5
    )


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


# Complex leaves.


@pytest.mark.mostly_slow(3)
@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize("group_by", ["leaf", "global"])
def test_complex_leaves_are_pairs_of_real_ones(group_by):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(
    rng.normal(size=(*shape, 2)) @ [1, 1j], jnp.complex64
  )
  matrix, target = draw(6, 4), draw(6)
  params = {"w": draw(4), "shift": draw(6)}

  def loss(params):
    error = matrix @ params["w"] + params["shift"] - target
    return jnp.sum(jnp.abs(error) ** 2)

  split = lambda tree: jax.tree.map(lambda x: jnp.stack([x.real, x.imag]), tree)
  join = lambda tree: jax.tree.map(lambda x: x[0] + 1j * x[1], tree)
  pairs = split(params)
  transform = orthograd(group_by=group_by)
  want, _ = update(transform, jax.grad(lambda x: loss(join(x)))(pairs), pairs)
  grads = jax.grad(loss)(params)
  ascent = jax.tree.map(jnp.conj, grads)
  chex.assert_trees_all_close(
    split(update(transform, ascent, params)[0]), want, rtol=1e-4, atol=1e-4
  )
  wrong = split(update(transform, grads, params)[0])
  assert np.abs(wrong["w"] - want["w"]).max() > 0.1 * np.abs(want["w"]).max()


# Derivatives. (w, g) → ĝ is homogeneous: of degree 0 in w, 1 in g.

HUGE = 2.0**100  # about 1e30, and a factor that rounds nothing


@pytest.mark.mostly_slow(7)
@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize(
  "of_w, of_g",
  [
    (HUGE, HUGE),
    (1 / HUGE, 1 / HUGE),
    (HUGE, 1 / HUGE),
    (1 / HUGE, HUGE),
    (1.0, HUGE),
    (1 / HUGE, 1.0),
  ],
  ids=lambda x: f"{x:.0e}",
)
def test_derivatives_at_extreme_scales(of_w, of_g, renormalize):
  transform = orthograd(renormalize=renormalize, eps=0.0)
  run = jax.jit(lambda w, g: transform.update(g, (), w)[0])
  rng = np.random.default_rng(0)
  w, g, dw, dg, cotangent = (
    {k: np.float32(rng.normal(size=s)) for k, s in shapes.items()}
    for shapes in [{"short": (5,), "long": (40, 300)}] * 5
  )
  scale = lambda tree, factor: {k: np.float32(factor) * tree[k] for k in tree}
  scaled = scale(w, of_w), scale(g, of_g)

  got, got_along = jax.jvp(run, scaled, (scale(dw, of_w), scale(dg, of_g)))
  want, want_along = jax.jvp(run, (w, g), (dw, dg))
  close = lambda x, y, factor: chex.assert_trees_all_close(
    scale(x, 1 / factor), y, rtol=1e-4, atol=1e-5
  )
  close(got, want, of_g)
  close(got_along, want_along, of_g)

  def slopes(w, g, factor):
    _, back = jax.vjp(run, w, g)
    return back(jax.tree.map(jnp.asarray, scale(cotangent, factor)))

  # The derivative by w is of the scale of factor · g / w, which must fit.
  factor = float(np.sqrt(of_w / of_g))
  got_w, got_g = slopes(*scaled, factor)
  want_w, want_g = slopes(w, g, 1.0)
  close(got_w, want_w, factor * of_g / of_w)
  close(got_g, want_g, factor)
