"""The engine against plain loops, one run and one step at a time."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from experiments import datasets, registry
from experiments.config import Config
from experiments.engine import evaluate, models, train
from orthograd_optax import calibration, orthograd_sgd

SAMPLE = datasets.load_sample()


@pytest.fixture(scope="module", autouse=True)
def tiny_model():
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(registry.MODELS, "small", tiny.MODEL)
    yield


def start(method="patches", config=tiny.CONFIG, runs=tiny.RUNS, devices=(1, 1)):
  """An engine on so many devices for runs, and for each batch."""
  count, batch = devices
  mesh = train.make_mesh(batch, jax.devices()[: count * batch])
  engine = train.Engine(config, convolutions=method, mesh=mesh)
  placed = engine.place(runs, SAMPLE.train_labels)
  arrays = [
    engine.replicate(x) for x in (SAMPLE.train_images, SAMPLE.train_labels)
  ]
  return engine, placed, arrays


def train_all(*args, epochs=2, **options):
  engine, runs, arrays = start(*args, **options)
  state = engine.init(runs)
  found = {}
  for epoch in range(epochs):
    state, found = engine.epoch(state, runs, epoch, *arrays)
  return engine, state, train.gather(found)


@pytest.fixture(scope="module")
def trained(tiny_model):
  del tiny_model
  return train_all()


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
    assert index.shape == (4, 5, 16) and offset.shape == (4, 5, 16, 2)
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


def test_engine_is_a_plain_loop(trained):
  """Run by run and step by step, without masks or an axis for runs."""
  _, state, found = trained
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
    for ours, theirs in zip(
      jax.tree.leaves(mine.weights),
      jax.tree.leaves((params, stats)),
      strict=True,
    ):
      np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    assert found["loss"][number] == pytest.approx(loss, rel=1e-4)
    norm = np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(params)))
    assert found["weight_norm"][number] == pytest.approx(norm, rel=1e-4)


def test_runs_are_paired():
  engine, runs, _ = start()
  state = engine.init(runs)
  for leaf in jax.tree.leaves(state.weights.params):
    np.testing.assert_array_equal(leaf[0], leaf[1])
    np.testing.assert_array_equal(leaf[2], leaf[3])
  kernel = state.weights.params["Conv_0"]["kernel"]
  assert not np.array_equal(kernel[0], kernel[2])


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_others(trained):
  _, state, _ = trained
  _, alone, _ = train_all(runs=tiny.RUNS[3:])
  for ours, theirs in zip(
    jax.tree.leaves(alone), jax.tree.leaves(state), strict=True
  ):
    np.testing.assert_allclose(ours[0], theirs[3], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mixed", "sequential"])
def test_methods_agree(trained, method):
  _, state, found = trained
  _, other, also = train_all(method)
  for ours, theirs in zip(
    jax.tree.leaves(other), jax.tree.leaves(state), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
  np.testing.assert_allclose(also["loss"], found["loss"], rtol=1e-4)


@pytest.mark.slow
def test_devices_agree(trained):
  """Two sets of runs, and each batch in four: as on one device."""
  _, state, found = trained
  engine, other, also = train_all(devices=(2, 4))
  kernel = other.weights.params["Conv_0"]["kernel"]
  assert len(kernel.sharding.device_set) == 8
  for ours, theirs in zip(
    jax.tree.leaves(other), jax.tree.leaves(state), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)
  np.testing.assert_allclose(also["loss"], found["loss"], rtol=1e-4)
  images, labels = SAMPLE.test_images[:50], SAMPLE.test_labels[:50]
  found = evaluate.Evaluator(engine)(other.evaluated, images, labels)
  wanted = evaluate.Evaluator(trained[0])(state.evaluated, images, labels)
  (rows, _), (expected, _) = map(evaluate.rows, (found, wanted))
  for row, one in zip(rows, expected, strict=True):
    loss = row["metrics"]["loss"]
    assert loss == pytest.approx(one["metrics"]["loss"], rel=1e-3)


@pytest.mark.slow
def test_bfloat16_is_near(trained):
  _, _, found = trained
  config = dataclasses.replace(tiny.CONFIG, precision="bfloat16")
  _, state, also = train_all(config=config)
  assert {x.dtype for x in jax.tree.leaves(state.weights.params)} == {
    jnp.dtype("float32")
  }
  np.testing.assert_allclose(also["loss"], found["loss"], rtol=0.02)


def test_logits_and_metrics(trained):
  engine, state, _ = trained
  evaluator = evaluate.Evaluator(engine)
  images, labels = SAMPLE.test_images[:333], SAMPLE.test_labels[:333]
  found = evaluator(state.evaluated, images, labels)
  logits, (rows, ensembles) = found.logits, evaluate.rows(found)
  assert not ensembles
  assert logits.shape == (4, 333, 10) and len(rows) == 4
  one = jax.tree.map(lambda x: x[2], state.weights)
  expected = registry.MODELS["small"]().apply(
    one._asdict(),
    train.normalize(images, tiny.CONFIG.data),
  )
  np.testing.assert_allclose(logits[2], expected, atol=1e-4)
  alone = evaluate.Evaluator(engine, "sequential").logits(
    state.weights, images[:20]
  )
  np.testing.assert_allclose(alone, logits[:, :20], atol=1e-4)
  row = rows[2]
  found = calibration.evaluate(expected, labels)
  for name, value in row["metrics"].items():
    if name in found:
      assert value == pytest.approx(float(found[name]), rel=1e-3)
  for name, old in evaluate.ROW_NAMES.items():
    value = float(found[name]) * (100 if "accuracy" in name else 1)
    assert row["metrics"][old] == pytest.approx(value, rel=1e-3)
  p = (
    np.exp(np.float64(expected)) / np.exp(np.float64(expected)).sum(1)[:, None]
  )
  wrong = p.max(1)[p.argmax(1) != labels].mean()
  assert row["metrics"]["wrong_confidence"] == pytest.approx(wrong, rel=1e-3)
  temperature = float(calibration.fit_temperature(expected, labels))
  assert row["metrics"]["temperature"] == pytest.approx(temperature, rel=1e-3)
  scaled = calibration.evaluate(expected / temperature, labels)
  assert row["scaled"]["loss"] == pytest.approx(float(scaled["nll"]), rel=1e-3)
  fit, judge = calibration.split(labels)
  half = float(calibration.fit_temperature(expected[fit], labels[fit]))
  assert row["metrics"]["temperature_half"] == pytest.approx(half, rel=1e-3)
  loss = calibration.nll(expected[judge] / half, labels[judge])
  assert row["scaled_half"]["loss"] == pytest.approx(float(loss), rel=1e-3)
  assert sum(row["bins"]["count"]) == 333
  norm = optax.tree.norm(one.params)
  assert row["metrics"]["weight_norm"] == pytest.approx(float(norm), rel=1e-5)


def test_clean_temperature_and_ensembles(trained):
  engine, state, _ = trained
  evaluator = evaluate.Evaluator(engine)
  labels = SAMPLE.test_labels[:333]
  images, dark = SAMPLE.test_images[:333], SAMPLE.test_images[:333] // 3
  pairs = ((0, 2), (1, 3))
  clean = evaluator(state.evaluated, images, labels, None, pairs)
  found = evaluator(state.evaluated, dark, labels, clean, pairs)
  (*_, row), (pooled, _) = evaluate.rows(found)
  fit, judge = calibration.split(labels)
  for content, which in ((row, 3), (pooled, 4)):
    temperature = float(
      calibration.fit_temperature(clean.logits[which][fit], labels[fit])
    )
    loss = calibration.nll(
      found.logits[which][judge] / temperature, labels[judge]
    )
    assert content["scaled_clean"]["loss"] == pytest.approx(
      float(loss), rel=1e-3
    )
  p = jax.nn.softmax(found.logits[:4])
  np.testing.assert_allclose(
    jnp.exp(found.logits[4]), (p[0] + p[2]) / 2, rtol=1e-4, atol=1e-6
  )


def test_what_can_not_be():
  with pytest.raises(ValueError, match="'fast'.*auto, patches.*sequential"):
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
  drawn = train.draw_images(whole, labels, seed)
  assert len(drawn.own) == 0
  expected = datasets.class_balanced_subset(labels, 10, seed)
  np.testing.assert_array_equal(drawn.train, expected)
  left_out = []
  for fold in range(5):
    its = train.draw_images(folds, labels, 5 * seed + fold)
    assert np.all(np.bincount(labels[its.train]) == 8)
    assert np.all(np.bincount(labels[its.own]) == 2)
    both = np.sort(np.concatenate(its))
    np.testing.assert_array_equal(both, expected)
    left_out.append(its.own)
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
