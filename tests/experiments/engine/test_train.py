"""The engine against plain loops, one run and one step at a time."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from experiments import datasets, registry
from experiments.config import SGD, Config, Run
from experiments.engine import evaluate, models, train
from orthograd_optax import calibration, orthograd_sgd

from .small_studies import (
  SAMPLE,
  start,
  train_all,
)


@pytest.fixture(scope="module", autouse=True)
def tiny_model():
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(registry.MODELS, "small", tiny.MODEL)
    yield


def test_crop():
  images = SAMPLE.train_images[:6]
  random = np.random.default_rng(0)
  index = random.integers(0, 6, 40)
  offset = random.integers(-4, 5, (40, 2))
  flip = random.random(40) < 0.5
  actual = train.crop(jnp.asarray(images), index, jnp.asarray(offset), flip)
  padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
  for i, image in enumerate(np.asarray(actual)):
    top, left = offset[i] + 4
    expected = padded[index[i], top : top + 32, left : left + 32]
    if flip[i]:
      # A crop is mirrored after it was cut out.
      expected = expected[:, ::-1]
    np.testing.assert_array_equal(image, expected)


def test_normalize():
  images = SAMPLE.train_images[:2]
  expected = (images / 255 - [0.4914, 0.4822, 0.4465]) / [
    0.2023,
    0.1994,
    0.2010,
  ]
  np.testing.assert_allclose(
    train.normalize(images, tiny.CONFIG.data), expected, atol=1e-5
  )


def test_batches():
  """Each image once an epoch; the same for both optimizers of a seed."""
  _, runs, _ = start()
  seen = []
  for epoch in (0, 1):
    parts = jax.vmap(
      lambda run, e=epoch: train.batches(run, e, 16, tiny.CONFIG.data)
    )(runs)
    assert parts.mix is None
    index, mask, offset, flip = map(np.asarray, parts[:4])
    chex.assert_shape([index, mask, flip], (4, 5, 16))
    chex.assert_shape(offset, (4, 5, 16, 2))
    assert mask.sum(axis=(1, 2)).tolist() == [70] * 4
    for i in range(4):
      np.testing.assert_array_equal(
        np.sort(index[i][mask[i]]), np.asarray(runs.subset[i])
      )
    for a, b in ((0, 1), (2, 3)):
      for x in (index, offset, flip):
        np.testing.assert_array_equal(x[a], x[b])
    assert not np.array_equal(index[0], index[2])
    assert set(np.unique(offset)) == set(range(-4, 5))
    assert 0.3 < flip.mean() < 0.7
    seen.append(index[0])
  assert not np.array_equal(*seen)
  # A mirrored digit is another one.
  digits = dataclasses.replace(tiny.CONFIG.data, mirror=False)
  run = jax.tree.map(lambda x: x[0], runs)
  assert not np.any(train.batches(run, 0, 16, digits).flip)


def test_groups_share_a_program(monkeypatch):
  """Other seeds and numbers are not traced again; another schedule is."""
  once = chex.assert_max_traces(train.Engine._epoch, n=1)
  monkeypatch.setattr(train.Engine, "_epoch", once)
  engine, runs, arrays = start()
  others = [
    Run(dataclasses.replace(SGD, learning_rate=0.3, strength=0.5), seed)
    for seed in range(5, 9)
  ]
  state = jax.eval_shape(engine.init, runs)
  for epoch, group in ((0, runs), (3, engine.place(others, arrays[1]))):
    engine.epoch.lower(state, group, epoch, *arrays)
  cosine = [Run(dataclasses.replace(SGD, schedule="cosine"), 0)] * 4
  with pytest.raises(AssertionError, match="traced > 1 times"):
    placed = engine.place(cosine, arrays[1])
    engine.epoch.lower(state, placed, 0, *arrays)


def test_engine_is_a_plain_loop(trained):
  """Run by run and step by step, without masks or an axis for runs."""
  _, state, actual = trained
  config, model = tiny.CONFIG, registry.MODELS["small"]()
  _, runs, _ = start()

  def make(strength):
    return orthograd_sgd(
      config.learning_rate,
      momentum=config.momentum,
      weight_decay=config.weight_decay,
      strength=strength,
    )

  @jax.jit
  def step(strength, params, stats, state, images, labels):
    def objective(params):
      logits, new = model.apply(
        {"params": params, "batch_stats": stats},
        train.normalize(images, tiny.CONFIG.data),
        train=True,
        mutable=["batch_stats"],
      )
      return calibration.nll(logits, labels), new["batch_stats"]

    (loss, new), grads = jax.value_and_grad(objective, has_aux=True)(params)
    updates, state = make(strength).update(grads, state, params)
    return loss, optax.apply_updates(params, updates), new, state

  for number in (0, 3):
    method, seed = tiny.RUNS[number]
    strength = method.strength
    run = jax.tree.map(lambda x, i=number: x[i], runs)
    key = jax.random.fold_in(jax.random.key(seed), 0)
    variables = models.init(model, key)
    params, stats = variables["params"], variables["batch_stats"]
    optimizer = make(strength).init(params)
    loss = 0.0
    for epoch in range(2):
      parts = map(
        np.asarray, train.batches(run, epoch, 16, tiny.CONFIG.data)[:4]
      )
      loss = 0.0
      for index, mask, offset, flip in zip(*parts, strict=True):
        take = [x[mask] for x in (index, offset, flip)]
        images = train.crop(jnp.asarray(SAMPLE.train_images), *take)
        labels = SAMPLE.train_labels[index[mask]]
        this, params, stats, optimizer = step(
          strength, params, stats, optimizer, images, labels
        )
        loss += float(this) * len(labels) / 70
    mine = jax.tree.map(lambda x, i=number: x[i], state)
    expected = train.Weights(params, stats)
    chex.assert_trees_all_close(mine.weights, expected, rtol=2e-4, atol=2e-5)
    assert actual["loss"][number] == pytest.approx(loss, rel=1e-4)
    norm = np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(params)))
    assert actual["weight_norm"][number] == pytest.approx(norm, rel=1e-4)


def test_runs_are_paired():
  engine, runs, _ = start()
  state = engine.init(runs)
  of = lambda run: jax.tree.map(lambda x: x[run], state.weights.params)
  chex.assert_trees_all_equal(of(0), of(1))
  chex.assert_trees_all_equal(of(2), of(3))
  kernel = state.weights.params["Conv_0"]["kernel"]
  assert not np.array_equal(kernel[0], kernel[2])


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_others(trained):
  _, state, _ = trained
  _, alone, _ = train_all(runs=tiny.RUNS[3:])
  last = jax.tree.map(lambda x: x[3:], state)
  chex.assert_trees_all_close(alone, last, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_convolutions_agree(trained):
  _, state, actual = trained
  _, other, also = train_all("mixed")
  chex.assert_trees_all_close(other, state, rtol=1e-3, atol=1e-4)
  np.testing.assert_allclose(also["loss"], actual["loss"], rtol=1e-4)


@pytest.mark.slow
def test_devices_agree(trained):
  """Two sets of runs, and each batch in four: as on one device."""
  _, state, actual = trained
  engine, other, also = train_all(devices=(2, 4))
  kernel = other.weights.params["Conv_0"]["kernel"]
  assert len(kernel.sharding.device_set) == 8
  chex.assert_trees_all_close(other, state, rtol=1e-3, atol=1e-4)
  np.testing.assert_allclose(also["loss"], actual["loss"], rtol=1e-4)
  images, labels = SAMPLE.test_images[:50], SAMPLE.test_labels[:50]
  actual = evaluate.Evaluator(engine)(other.evaluated, images, labels)
  wanted = evaluate.Evaluator(trained[0])(state.evaluated, images, labels)
  (rows, _), (expected, _) = map(evaluate.rows, (actual, wanted))
  for row, one in zip(rows, expected, strict=True):
    loss = row["metrics"]["loss"]
    assert loss == pytest.approx(one["metrics"]["loss"], rel=1e-3)


@pytest.mark.slow
def test_bfloat16_is_near(trained):
  _, _, actual = trained
  config = dataclasses.replace(tiny.CONFIG, precision="bfloat16")
  _, state, also = train_all(config=config)
  chex.assert_type(jax.tree.leaves(state.weights), jnp.float32)
  np.testing.assert_allclose(also["loss"], actual["loss"], rtol=0.02)


def test_what_can_not_be():
  with pytest.raises(ValueError, match="'fast'.*one of auto, direct, mixed"):
    train.Engine(tiny.CONFIG, convolutions="fast")
  with pytest.raises(ValueError, match="batch is 3.*number of devices"):
    train.make_mesh(3)
  config = dataclasses.replace(tiny.CONFIG, batch_size=12)
  with pytest.raises(ValueError, match="batch_size is 12.*multiple of the 8"):
    train.Engine(config, mesh=train.make_mesh(8))


def test_compiler_options(monkeypatch):
  """Only known ones, on a GPU, where XLA_FLAGS leaves the choice."""
  monkeypatch.setenv("XLA_FLAGS", "")
  assert train.compiler_options() == {}  # on a CPU
  known = {"xla_backend_optimization_level": "1", "xla_gpu_autotune_level": "0"}
  unknown = {
    "xla_no_such_option": "1",
    "xla_gpu_enable_command_buffer": "NO_SUCH_COMMAND",
  }
  monkeypatch.setattr(train, "COMPILER_OPTIONS", known | unknown)
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  assert train.compiler_options() == known
  monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=4")
  assert list(train.compiler_options()) == ["xla_backend_optimization_level"]
  monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
  assert train.compiler_options() == {}


@pytest.mark.parametrize("seed", [0, 7])
def test_images_of_folds(seed):
  """Five seeds share their images, and each leaves out others."""
  labels = np.random.default_rng(seed).permutation(np.arange(400) % 10)
  whole = Config(per_class=10)
  folds = Config(per_class=8, calibrate=2, seeds_per_subset=5)
  drawn, own = train.draw_images(whole, labels, seed)
  assert len(own) == 0
  expected = datasets.class_balanced_subset(labels, 10, seed)
  np.testing.assert_array_equal(drawn, expected)
  left_out = []
  for fold in range(5):
    drawn, own = train.draw_images(folds, labels, 5 * seed + fold)
    assert np.all(np.bincount(labels[drawn]) == 8)
    assert np.all(np.bincount(labels[own]) == 2)
    both = np.sort(np.concatenate([drawn, own]))
    np.testing.assert_array_equal(both, expected)
    left_out.append(own)
  np.testing.assert_array_equal(np.sort(np.concatenate(left_out)), expected)


def test_runs_never_train_on_reserved_images():
  load = lambda **settings: train.load_dataset(
    Config(dataset="sample", per_class=10, **settings)
  )
  everything, held_out = load(), load(evaluate_on="held_out")
  reserved = load(reserve=True)
  for ours, expected in zip(reserved[:2], held_out[:2], strict=True):
    np.testing.assert_array_equal(ours, expected)
  for ours, expected in zip(reserved[2:], everything[2:], strict=True):
    np.testing.assert_array_equal(ours, expected)
