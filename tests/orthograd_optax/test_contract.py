"""What optax and jax ask of a gradient transformation."""

import dataclasses
import functools
from typing import Any

import chex
from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from orthograd_optax import alignment, orthograd, orthograd_sgd

# With batch_axes=0, as below, the vectors of "b" have one entry each.
pytestmark = pytest.mark.filterwarnings("ignore:orthograd can never move")

PARAMS = {"w": jnp.arange(1.0, 7.0).reshape(2, 3), "b": jnp.array([1.0, -2.0])}
GRADS = {"w": jnp.ones((2, 3)), "b": jnp.array([3.0, 0.5])}
PROJECTED, _ = orthograd().update(GRADS, optax.EmptyState(), PARAMS)

TRANSFORMS = {
  "plain": orthograd(),
  "schedule": orthograd(strength=optax.linear_schedule(0.0, 1.0, 3)),
  "diagnostics": orthograd(diagnostics=True),
  "layer": orthograd(group_by="layer", diagnostics=True),
  "batch_axes": orthograd(batch_axes=0, diagnostics=True),
  "tree": orthograd(batch_axes={"w": 0, "b": None}, diagnostics=True),
  "mask": orthograd(mask={"w": True, "b": False}, diagnostics=True),
  "sgd": orthograd_sgd(0.1, momentum=0.9, weight_decay=1e-3),
}
each_transform = pytest.mark.parametrize(
  "transform", TRANSFORMS.values(), ids=TRANSFORMS
)


def loss(params):
  return jnp.sum((params["w"] @ jnp.ones(3) - 1) ** 2 * params["b"] ** 2)


def train(optimizer, params=PARAMS, steps=3, **extra):
  """A few steps under jit and scan."""

  @jax.jit
  def run(params, state):
    def step(carry, _):
      params, state = carry
      grads = jax.grad(loss)(params)
      updates, state = optimizer.update(grads, state, params, **extra)
      return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, state), length=steps)[0]

  return run(params, optimizer.init(params))


# jax.


@pytest.mark.mostly_slow(3)
@each_transform
def test_jit_equals_eager_and_does_not_retrace(transform):
  chex.clear_trace_counter()
  update = jax.jit(chex.assert_max_traces(transform.update, 1))
  state = transform.init(PARAMS)
  for _ in range(3):
    want, want_state = transform.update(GRADS, state, PARAMS)
    got, state = update(GRADS, state, PARAMS)
    chex.assert_trees_all_close(
      (got, state), (want, want_state), rtol=1e-6, atol=1e-6
    )
    chex.assert_trees_all_equal_shapes_and_dtypes(state, want_state)


@each_transform
def test_init_on_shapes_alone(transform):
  shapes = jax.eval_shape(lambda: PARAMS)
  chex.assert_trees_all_equal(transform.init(shapes), transform.init(PARAMS))
  chex.assert_trees_all_equal(
    jax.jit(transform.init)(PARAMS), transform.init(PARAMS)
  )


@pytest.mark.mostly_slow(3)
@each_transform
def test_state_is_stable_in_scan_and_cond(transform):
  params, state = train(transform)
  chex.assert_tree_all_finite((params, state))
  update = lambda: transform.update(GRADS, state, PARAMS)
  skip = lambda: (GRADS, state)
  chex.assert_trees_all_equal(
    jax.lax.cond(jnp.array(False), update, skip), skip()
  )


@pytest.mark.mostly_slow(3)
@each_transform
def test_vmap_over_runs(transform):
  stack = lambda *x: jnp.stack(x)
  half = jax.tree.map(lambda x: x / 2, PARAMS)
  params = jax.tree.map(stack, PARAMS, half)
  grads = jax.tree.map(stack, GRADS, GRADS)
  step = lambda g, w: transform.update(g, transform.init(w), w)
  got = jax.vmap(step)(grads, params)
  want = jax.tree.map(stack, step(GRADS, PARAMS), step(GRADS, half))
  chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-6)


@each_transform
def test_state_can_be_mapped(transform):
  state = transform.init(PARAMS)
  same = optax.tree.map_params(transform, lambda x: x, state)
  chex.assert_trees_all_equal(same, state)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype_of_updates_is_kept(dtype):
  grads = jax.tree.map(lambda x: x.astype(dtype), GRADS)
  got, _ = orthograd().update(grads, optax.EmptyState(), PARAMS)
  chex.assert_trees_all_equal_dtypes(got, grads)


# optax's wrappers.


def test_extra_arguments_are_ignored():
  got, _ = orthograd().update(GRADS, optax.EmptyState(), PARAMS, value=1.0)
  chex.assert_trees_all_equal(got, PROJECTED)


@pytest.mark.parametrize(
  "wrapped",
  [
    optax.chain(orthograd()),
    optax.named_chain(("orthograd", orthograd())),
    optax.masked(orthograd(), {"w": True, "b": True}),
    optax.partition({"all": orthograd()}, lambda tree: "all"),
    optax.inject_hyperparams(orthograd)(),
    optax.inject_hyperparams(orthograd)(strength=optax.constant_schedule(1.0)),
    optax.inject_hyperparams(orthograd_sgd)(-1.0),
    optax.MultiSteps(orthograd(), 1),
    optax.apply_if_finite(orthograd(), 1),
    optax.with_extra_args_support(orthograd()),
  ],
)
def test_wrappers_change_nothing(wrapped):
  got, _ = jax.jit(wrapped.update)(GRADS, wrapped.init(PARAMS), PARAMS)
  chex.assert_trees_all_close(got, PROJECTED, rtol=1e-6)


def test_partition_into_projected_and_plain():
  labels = {"w": "projected", "b": "plain"}
  optimizer = optax.partition(
    {"projected": orthograd(), "plain": optax.identity()}, labels
  )
  got, _ = optimizer.update(GRADS, optimizer.init(PARAMS), PARAMS)
  chex.assert_trees_all_equal(got, {"w": PROJECTED["w"], "b": GRADS["b"]})


def test_injected_strength_can_be_changed():
  transform = optax.inject_hyperparams(orthograd)(strength=1.0)
  state = transform.init(PARAMS)
  state.hyperparams["strength"] = jnp.array(0.0)
  got, _ = jax.jit(transform.update)(GRADS, state, PARAMS)
  chex.assert_trees_all_equal(got, GRADS)


def test_gradients_accumulate_before_the_projection():
  transform = optax.MultiSteps(orthograd(), 2)
  state = transform.init(PARAMS)
  double = jax.tree.map(lambda x: 2 * x, GRADS)
  nothing = jax.tree.map(jnp.zeros_like, GRADS)
  first, state = transform.update(nothing, state, PARAMS)
  second, state = transform.update(double, state, PARAMS)
  chex.assert_trees_all_equal(first, nothing)
  chex.assert_trees_all_close(second, PROJECTED, rtol=1e-6)


def test_apply_if_finite_sees_bad_gradients():
  transform = optax.apply_if_finite(orthograd(), 5)
  bad = {**GRADS, "b": jnp.array([jnp.inf, 1.0])}
  got, state = transform.update(bad, transform.init(PARAMS), PARAMS)
  chex.assert_trees_all_equal(got, jax.tree.map(jnp.zeros_like, GRADS))
  assert optax.tree.get(state, "notfinite_count") == 1


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize(
  "optimizer",
  [
    optax.sgd(0.1, momentum=0.9),
    optax.adam(0.1),
    optax.adamw(0.1),
    optax.lion(0.1),
    optax.lamb(0.1),
    optax.adafactor(0.1),
    optax.contrib.muon(0.1),
    optax.contrib.schedule_free(optax.sgd(0.1), learning_rate=0.1),
  ],
  ids="sgd adam adamw lion lamb adafactor muon schedule_free".split(),
)
def test_before_other_optimizers(optimizer):
  chained = optax.chain(orthograd(), optimizer)
  got, _ = jax.jit(chained.update)(GRADS, chained.init(PARAMS), PARAMS)
  want, _ = jax.jit(optimizer.update)(PROJECTED, optimizer.init(PARAMS), PARAMS)
  chex.assert_trees_all_close(got, want, rtol=1e-4)
  chex.assert_tree_all_finite(train(chained))


def test_in_sharpness_aware_minimization():
  projected = optax.chain(orthograd(), optax.sgd(0.1))
  ascent = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
  optimizer = optax.contrib.sam(projected, ascent, opaque_mode=True)
  gradient = lambda params, _: jax.grad(loss)(params)
  chex.assert_tree_all_finite(train(optimizer, grad_fn=gradient))


def test_weight_decay_before_the_projection_is_annihilated():
  # The trap of the README: a decay placed first does nothing at all.
  wrong = optax.chain(optax.add_decayed_weights(0.1), orthograd())
  right = optax.chain(orthograd(), optax.add_decayed_weights(0.1))
  nothing = jax.tree.map(jnp.zeros_like, GRADS)
  got, _ = wrong.update(nothing, wrong.init(PARAMS), PARAMS)
  chex.assert_trees_all_equal(got, nothing)
  got, _ = right.update(nothing, right.init(PARAMS), PARAMS)
  chex.assert_trees_all_close(got, jax.tree.map(lambda w: 0.1 * w, PARAMS))


# Parameter trees of the libraries in use.


@functools.partial(
  jax.tree_util.register_dataclass, data_fields=["w", "b"], meta_fields=[]
)
@dataclasses.dataclass
class Layer:
  w: Any
  b: Any


@pytest.mark.parametrize(
  "make",
  [
    lambda w, b: (w, b),
    lambda w, b: [w, None, {"b": b, "none": None}],
    lambda w, b: Layer(w, Layer(b, None)),
    lambda w, b: {"w": w, "masked": optax.MaskedNode(), "b": b},
  ],
)
def test_containers(make):
  params, grads = make(**PARAMS), make(**GRADS)
  for group_by in ("leaf", "layer"):
    transform = orthograd(diagnostics=True, group_by=group_by)
    got, _ = transform.update(grads, transform.init(params), params)
    chex.assert_trees_all_equal_structs(got, grads)
  got, _ = orthograd().update(grads, optax.EmptyState(), params)
  chex.assert_trees_all_close(got, make(**PROJECTED), rtol=1e-6)


def test_no_leaves_at_all():
  transform = orthograd(diagnostics=True)
  assert transform.update({}, transform.init({}), {})[0] == {}


class Network(nn.Module):
  """Convolution, batch norm, dense: as the residual networks are built."""

  @nn.compact
  def __call__(self, x):
    x = nn.Conv(8, (3, 3), use_bias=False)(x)
    x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
    return nn.Dense(3)(x.mean((1, 2)))


def cross_entropy(logits):
  labels = jnp.arange(len(logits)) % 3
  return optax.losses.softmax_cross_entropy_with_integer_labels(
    logits, labels
  ).mean()


# flax itself adds vectors to matrices.
allow_rank_promotion = pytest.mark.usefixtures("rank_promotion")


@pytest.fixture
def rank_promotion():
  with jax.numpy_rank_promotion("allow"):
    yield


@allow_rank_promotion
def test_linen_and_the_scale_invariance_of_normalized_kernels():
  x = jax.random.normal(jax.random.key(0), (12, 8, 8, 2))
  variables = Network().init(jax.random.key(1), x)
  stats = {"batch_stats": variables["batch_stats"]}

  def objective(params):
    logits, _ = Network().apply(
      {"params": params, **stats}, x, mutable=["batch_stats"]
    )
    return cross_entropy(logits)

  # A few steps of SGD first: biases start at zero.
  gradient = jax.jit(jax.grad(objective))
  params = variables["params"]
  for _ in range(5):
    grads = gradient(params)
    params = jax.tree.map(lambda w, g: w - 0.5 * g, params, grads)
  grads = gradient(params)
  actual = alignment(grads, params)
  assert set(actual.cosine) == {
    *("BatchNorm_0/bias", "BatchNorm_0/scale", "Conv_0/kernel"),
    *("Dense_0/bias", "Dense_0/kernel"),
  }
  # A kernel before a batch norm has an orthogonal gradient already (up to the
  # epsilon of the norm); the dense layer has not.
  assert abs(actual.cosine["Conv_0/kernel"]) < 1e-3
  assert abs(actual.cosine["Dense_0/kernel"]) > 0.1
  transform = orthograd()
  got, _ = transform.update(grads, transform.init(params), params)
  kernel = lambda tree: tree["Conv_0"]["kernel"]
  np.testing.assert_allclose(
    kernel(got), kernel(grads), atol=2e-3 * np.abs(kernel(grads)).max()
  )


@allow_rank_promotion
def test_boxed_linen_parameters():
  init = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "model"))
  layer = nn.Dense(3, kernel_init=init, bias_init=nn.initializers.ones)
  params = layer.init(jax.random.key(0), jnp.ones((1, 2)))["params"]
  transform = orthograd(group_by="layer", diagnostics=True)
  got, state = transform.update(params, transform.init(params), params)
  assert isinstance(got["kernel"], nn.Partitioned)
  # Box or no box, kernel and bias are one layer.
  assert set(optax.tree.get(state, "cosine")) == {"all"}
  assert set(alignment(params, params).cosine) == {"kernel", "bias"}


@allow_rank_promotion
def test_nnx():
  class Model(nnx.Module):
    def __init__(self, rngs):
      self.first = nnx.Linear(4, 8, rngs=rngs)
      self.last = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
      return self.last(nnx.relu(self.first(x)))

  model = Model(nnx.Rngs(0))
  optimizer = nnx.Optimizer(
    model,
    orthograd_sgd(0.5, group_by="layer", diagnostics=True),
    wrt=nnx.Param,
  )
  x = jax.random.normal(jax.random.key(1), (12, 4))

  @nnx.jit
  def step(model, optimizer):
    objective = lambda model: cross_entropy(model(x))
    value, grads = nnx.value_and_grad(objective)(model)
    optimizer.update(model, grads)
    return value

  values = [step(model, optimizer) for _ in range(20)]
  assert values[-1] < values[0]
  params = nnx.state(model, nnx.Param)
  actual = alignment(params, params, group_by="layer")
  assert set(actual.cosine) == {"first", "last"}


@allow_rank_promotion
def test_equinox():
  eqx = pytest.importorskip("equinox")
  model = eqx.nn.MLP(4, 3, 8, 2, key=jax.random.key(0))
  x = jax.random.normal(jax.random.key(1), (12, 4))
  optimizer = orthograd_sgd(
    0.5,
    projection_mask=jax.tree.map(
      lambda x: x.ndim > 1, eqx.filter(model, eqx.is_array)
    ),
  )
  state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

  @eqx.filter_jit
  def step(model, state):
    objective = lambda model: cross_entropy(jax.vmap(model)(x))
    value, grads = eqx.filter_value_and_grad(objective)(model)
    params = eqx.filter(model, eqx.is_inexact_array)
    updates, state = optimizer.update(grads, state, params)
    return eqx.apply_updates(model, updates), state, value

  values = []
  for _ in range(20):
    model, state, value = step(model, state)
    values.append(value)
  assert values[-1] < values[0]


def test_equinox_batch_axes_as_a_module():
  eqx = pytest.importorskip("equinox")
  # A module of batch axes is a callable, and yet meant as a tree.
  model = eqx.filter(
    eqx.nn.Linear(3, 2, key=jax.random.key(0)), eqx.is_inexact_array
  )
  axes = jax.tree.map(lambda x: 0 if x.ndim > 1 else None, model)
  axes = eqx.tree_at(lambda m: m.weight, axes, 0)
  grads = jax.tree.map(jnp.cos, model)
  transform = orthograd(batch_axes=axes)
  got, _ = transform.update(grads, transform.init(model), model)
  want, _ = orthograd(batch_axes=0).update(
    grads.weight, optax.EmptyState(), model.weight
  )
  chex.assert_trees_all_close(got.weight, want)
