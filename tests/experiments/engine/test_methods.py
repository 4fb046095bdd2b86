"""Methods as parts: each against plain code, and all as programs."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from experiments import datasets, registry
from experiments.config import METHODS, ORTHOGRAD, SGD, Config, Method, Run
from experiments.engine import methods, models, train
from orthograd_optax import orthograd

SAMPLE = datasets.load_sample()
KINDS = {"kernel": "kernel, then norm", "scale": "norm scale"}
KINDS |= {"head": "dense kernel"}
SHAPES = {"kernel": (3, 3, 2, 4), "scale": (4,), "head": (4, 3)}


def arrays(runs, seed):
  """A tree of all runs, or without an axis for them."""
  random = np.random.default_rng(seed)
  draw = lambda shape: jnp.asarray(random.standard_normal(shape), jnp.float32)
  return {name: draw((*runs, *shape)) for name, shape in SHAPES.items()}


def stacked(*of):
  """The methods of several runs as one, of arrays."""
  resolved = [method.resolve(Config()) for method in of]
  return jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *resolved)


def steps(method, params, grads, at=(0.0, 0.5), **options):
  """Parameters after a step at each share of the training."""
  state = methods.init(method, KINDS, params, **options)
  for progress in at:
    params, state = methods.update(
      method, KINDS, grads, state, params, progress, eps=1e-30, **options
    )
  return params, state


def assert_close(actual, expected):
  for x, y in zip(
    jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


def test_schedule_is_that_of_optax():
  method = dataclasses.replace(
    SGD, schedule="cosine", learning_rate=0.3, warm_up=0.1
  )
  expected = optax.warmup_cosine_decay_schedule(0.0, 0.3, 10, 100)
  for step in (0, 3, 9, 10, 11, 50, 99, 100):
    actual = methods.learning_rate(method.resolve(Config()), step / 100)
    assert actual == pytest.approx(float(expected(step)), abs=1e-6)
  constant = methods.learning_rate(SGD.resolve(Config()), 0.7)
  assert constant == pytest.approx(0.01)


def test_strength_is_ramped():
  of = lambda name, at: methods.strength(METHODS[name].resolve(Config()), at)
  assert [of("orthograd", at) for at in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]
  assert [of("orthograd_ramped_in", at) for at in (0.0, 0.25)] == [0.0, 0.25]
  assert [of("orthograd_ramped_out", at) for at in (0.0, 0.25)] == [1.0, 0.75]


@pytest.mark.parametrize(
  ("where", "projected"),
  [
    ("all", {"kernel", "scale", "head"}),
    ("head", {"head"}),
    ("body", {"kernel", "scale"}),
    ("norms", {"scale"}),
    ("normed_kernels", {"kernel"}),
    ("unnormed", {"scale", "head"}),
    ("none", set()),
  ],
)
def test_where(where, projected):
  """One step of SGD, with the gradients of some parameters projected."""
  params, grads = arrays((2,), 0), arrays((2,), 1)
  method = dataclasses.replace(ORTHOGRAD, where=where, weight_decay=0.0)
  actual, _ = steps(stacked(method, method), params, grads, at=(0.0,))
  for name in SHAPES:
    for run in range(2):
      w, g = (np.float64(x[name][run]) for x in (params, grads))
      if name in projected:
        rest = g - np.sum(w * g) / np.sum(w * w) * w
        g = rest * np.linalg.norm(g) / np.linalg.norm(rest)
      np.testing.assert_allclose(
        actual[name][run], w - 0.01 * g, rtol=1e-5, atol=1e-6
      )


def test_the_head_decays_apart():
  params, zeros = arrays((1,), 0), jax.tree.map(jnp.zeros_like, arrays((1,), 0))
  method = dataclasses.replace(SGD, weight_decay=0.1, head_decay=4.0)
  actual, _ = steps(stacked(method), params, zeros, at=(0.0,))
  for name, rate in {"kernel": 0.1, "scale": 0.1, "head": 0.4}.items():
    np.testing.assert_allclose(
      actual[name], params[name] * (1 - 0.01 * rate), rtol=1e-6
    )


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize(
  "name", ["sgd", "orthograd_global", "adamw", "lion", "muon", "sgdp"]
)
def test_numbers_are_an_axis(name):
  """Runs that differ in numbers, together and each alone."""
  first = METHODS[name]
  second = dataclasses.replace(
    first,
    strength=0.3,
    learning_rate=0.2,
    momentum=0.5,
    weight_decay=0.1,
    head_decay=2.0,
  )
  params, grads = arrays((2,), 0), arrays((2,), 1)
  together, _ = steps(stacked(first, second), params, grads)
  for i, method in enumerate((first, second)):
    alone, _ = steps(
      stacked(method),
      *jax.tree.map(lambda x, i=i: x[i : i + 1], (params, grads)),
    )
    assert_close(jax.tree.map(lambda x, i=i: x[i : i + 1], together), alone)


def test_is_the_chain_of_optax():
  """⊥Grad, then AdamW, of one run."""
  method = dataclasses.replace(
    METHODS["orthograd_adamw"], learning_rate=1e-3, weight_decay=0.02
  )
  params, grads = arrays((), 0), arrays((), 1)
  one = lambda tree: jax.tree.map(lambda x: x[None], tree)
  actual, _ = steps(stacked(method), one(params), one(grads))
  optimizer = optax.chain(orthograd(), optax.adamw(1e-3, weight_decay=0.02))
  state = optimizer.init(params)
  for _ in range(2):
    updates, state = optimizer.update(grads, state, params)
    params = optax.apply_updates(params, updates)
  assert_close(actual, one(params))


def test_mixup():
  method = dataclasses.replace(METHODS["mixup"], mixing=0.4).resolve(Config())
  mask = jnp.arange(16) < 11
  keys = jax.random.split(jax.random.key(0), 500)
  actual = jax.vmap(methods.mix, (None, 0, None))(method, keys, mask)
  assert actual is not None
  partner = np.asarray(actual.partner)
  # A permutation of the images that there are.
  assert (np.sort(partner[:, :11]) == np.arange(11)).all()
  share = np.asarray(actual.share)
  # Mean and variance of a beta distribution.
  assert share.mean() == pytest.approx(0.5, abs=0.06)
  assert share.var() == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.02)
  assert methods.mix(SGD.resolve(Config()), keys[0], mask) is None


def test_sam_ascends():
  params, grads = arrays((), 0), arrays((), 1)
  method = dataclasses.replace(METHODS["sam"], radius=0.3).resolve(Config())
  actual = methods.ascend(method, params, grads)
  norm = np.sqrt(sum(np.sum(np.float64(g) ** 2) for g in grads.values()))
  for name, w in params.items():
    expected = np.float64(w) + 0.3 * np.float64(grads[name]) / norm
    np.testing.assert_allclose(actual[name], expected, rtol=1e-5, atol=1e-6)
  zeros = jax.tree.map(jnp.zeros_like, grads)
  assert_close(methods.ascend(method, params, zeros), params)


def test_average():
  method = stacked(dataclasses.replace(METHODS["average"], averaging=0.5))
  mean = first = arrays((1,), 0)
  seen = [arrays((1,), seed) for seed in range(1, 20)]
  for step, new in enumerate(seen):
    mean = methods.average(method, mean, new, step)
  expected = jax.tree.map(np.float64, first)
  for step, new in enumerate(seen):
    keep = min(0.5, (1 + step) / (10 + step))
    expected = jax.tree.map(
      lambda a, b, k=keep: k * a + (1 - k) * np.float64(b), expected, new
    )
  assert_close(mean, expected)


@pytest.fixture(scope="module", autouse=True)
def tiny_model():
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(registry.MODELS, "small", tiny.MODEL)
    yield


def start(*of, devices=(1, 1), **changes):
  config = dataclasses.replace(tiny.CONFIG, **changes)
  mesh = train.make_mesh(devices[1], jax.devices()[: devices[0] * devices[1]])
  engine = train.Engine(config, convolutions="patches", mesh=mesh)
  runs = engine.place(
    [Run(method, i // 2) for i, method in enumerate(of)], SAMPLE.train_labels
  )
  images, labels = SAMPLE.train_images, SAMPLE.train_labels
  return engine, runs, (engine.replicate(images), engine.replicate(labels))


@pytest.mark.parametrize("name", METHODS)
def test_all_can_be_computed(name):
  """Each has a step, a loss and batches; ⊥Grad or not is the same program."""
  method = stacked(METHODS[name], METHODS[name])
  params = arrays((2,), 0)
  new, _ = jax.eval_shape(steps, method, params, params)
  assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, params)
  logits, labels = jnp.zeros((2, 5, 10)), jnp.zeros((2, 5), int)
  losses = jax.vmap(methods.per_example_loss)(method, logits, labels)
  assert losses.shape == (2, 5) and np.isfinite(losses).all()
  if not name.startswith("orthograd"):
    pair = "orthograd" if name == "sgd" else f"orthograd_{name}"
    both = [METHODS[n].resolve(tiny.CONFIG) for n in (name, pair)]
    assert jax.tree.structure(both[0]) == jax.tree.structure(both[1])


PROGRAMS = {
  jax.tree.structure(method.resolve(Config())): name
  for name, method in METHODS.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PROGRAMS.values(), "plain"])
def test_all_are_programs(name, monkeypatch):
  """Each can be traced with a network, and watched."""
  plain = dataclasses.replace(SGD, where="none")
  monkeypatch.setitem(METHODS, "plain", plain)
  engine, runs, data = start(METHODS[name], METHODS[name])
  engine.diagnostics = True
  state = jax.eval_shape(engine.init, runs)
  new, actual = jax.eval_shape(engine.epoch, state, runs, 0, *data)
  assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, state)
  assert actual["loss"].shape == (2,)
  kinds = {key for key in actual if key.startswith("radial")}
  some = {"orthograd_head": 2, "orthograd_norms": 2, "plain": 0}
  assert len(kinds) == some.get(name, len(kinds))


def trained(*of, **options):
  engine, runs, data = start(*of, **options)
  state, actual = engine.epoch(engine.init(runs), runs, 0, *data)
  return engine, runs, state, train.gather(actual)


def plain_loop(run: train.Runs, gradients):
  """An epoch of SGD, without masks or an axis for runs."""
  method, model = run.method, registry.MODELS["small"]()
  key = jax.random.fold_in(jax.random.key(run.seed), 0)
  weights = train.Weights(**models.init(model, key))
  momentum = jax.tree.map(jnp.zeros_like, weights.params)
  batches = train.batches(run, 0, tiny.CONFIG.batch_size, tiny.CONFIG.data)
  history = []
  for i in range(len(batches.mask)):
    batch = jax.tree.map(lambda x, i=i: x[i], batches)
    grads, stats = gradients(model, method, weights, batch)
    momentum = jax.tree.map(
      lambda m, g, w: method.momentum * m + g + method.weight_decay * w,
      momentum,
      grads,
      weights.params,
    )
    params = jax.tree.map(
      lambda w, m: w - method.learning_rate * m, weights.params, momentum
    )
    weights = train.Weights(params, stats)
    history.append(weights)
  return history


@jax.jit
def value(model_params, stats, x, targets):
  """Loss and new statistics: targets are probabilities of classes."""
  logits, new = registry.MODELS["small"]().apply(
    {"params": model_params, "batch_stats": stats},
    x,
    train=True,
    mutable=["batch_stats"],
  )
  loss = -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=1))
  return loss, new["batch_stats"]


def pixels(batch, images=SAMPLE.train_images):
  mask = np.asarray(batch.mask)
  which = [np.asarray(x)[mask] for x in (batch.image, batch.offset, batch.flip)]
  x = train.crop(jnp.asarray(images), *map(jnp.asarray, which))
  labels = jax.nn.one_hot(SAMPLE.train_labels[which[0]], 10)
  return train.normalize(x, tiny.CONFIG.data), labels


def mixed_gradients(model, method, weights, batch):
  del model, method
  x, targets = pixels(batch)
  partner = np.asarray(batch.mix.partner)[: len(x)]
  share = batch.mix.share
  x = share * x + (1 - share) * x[partner]
  targets = share * targets + (1 - share) * targets[partner]
  return jax.grad(value, has_aux=True)(*weights, x, targets)


def sharp_gradients(model, method, weights, batch):
  del model
  x, targets = pixels(batch)
  grads, stats = jax.grad(value, has_aux=True)(*weights, x, targets)
  norm = optax.tree.norm(grads)
  away = jax.tree.map(
    lambda w, g: w + method.radius * g / norm, weights.params, grads
  )
  grads, _ = jax.grad(value, has_aux=True)(
    away, weights.batch_stats, x, targets
  )
  return grads, stats


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "gradients"), [("mixup", mixed_gradients), ("sam", sharp_gradients)]
)
def test_engine_is_a_plain_loop(name, gradients):
  """On eight devices: four share each batch."""
  method = dataclasses.replace(METHODS[name], radius=0.5)
  _, runs, state, actual = trained(method, method, devices=(2, 4))
  run = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[0]), runs)
  expected = plain_loop(run, gradients)[-1]
  mine = jax.tree.map(lambda x: np.asarray(x)[0], state.weights)
  for ours, theirs in zip(
    jax.tree.leaves(mine), jax.tree.leaves(expected), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
  assert np.isfinite(actual["loss"]).all()


@pytest.mark.slow
def test_average_is_evaluated():
  method = dataclasses.replace(METHODS["average"], averaging=0.8)
  _, runs, state, _ = trained(method, METHODS["average"])
  plain = dataclasses.replace(method, wrapper="none")
  _, _, same, _ = trained(plain, plain)
  assert_close(state.weights, same.weights)
  assert same.evaluated is same.weights
  assert state.evaluated is state.average is not None
  away = optax.tree.norm(optax.tree.sub(state.average, state.weights))
  assert 0.01 < float(away) < 10
  del runs


def test_what_can_not_be():
  with pytest.raises(ValueError, match="strength is 2.0.*at most 1.0"):
    dataclasses.replace(SGD, strength=2.0).check_settings()
  with pytest.raises(ValueError, match="name is ''"):
    Method().check_settings()
  with pytest.raises(ValueError, match="loss is 'mse'.*cross_entropy, label"):
    Method("x", loss="mse").check_settings()
  for method in METHODS.values():
    method.check_settings()
