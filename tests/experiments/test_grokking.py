"""Addition mod 113: its data, one step by hand, and runs that go on."""

import dataclasses
import itertools

import jax
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats
from statsmodels.stats.multitest import multipletests

from experiments import __main__ as command
from experiments import grokking
from experiments import rows as engine_rows
from experiments.files import UserError
from orthograd_optax import orthograd

SMALL = grokking.Recipe(modulus=5, width=6, steps=10)
SEEDS = 100, 101, 102


@pytest.mark.parametrize("seed", [100, 901])
def test_data(seed):
  recipe = grokking.Recipe()
  data = grokking.split(recipe, seed)
  assert data.train.shape == (5107, 2) and data.test.shape == (7662, 2)
  both = [tuple(pair) for pair in np.concatenate(data).tolist()]
  assert set(both) == set(itertools.product(range(113), repeat=2))
  assert len(both) == 12_769
  labels = grokking.sums(data.test, 113)
  assert all(
    (a + b - label) in (0, 113) and 0 <= label < 113
    for (a, b), label in zip(data.test.tolist(), labels.tolist(), strict=True)
  )
  assert np.any(data.train != grokking.split(recipe, seed + 1).train)


def test_initial_weights():
  params = grokking.init(grokking.Recipe(), 100)
  assert [w.shape for w in params] == [(226, 200), (200, 200), (200, 113)]
  for w in params:
    assert w.dtype == np.float32
    bound = 1 / np.sqrt(w.shape[0])
    assert 0.99 * bound < np.abs(w).max() <= bound
    # A uniform number has the standard deviation bound / √3.
    np.testing.assert_allclose(w.std(), bound / np.sqrt(3), rtol=0.02)


def forward(params, pairs, modulus):
  """In float64, with one-hot vectors: inputs of each layer, and logits."""
  x = np.zeros((len(pairs), 2 * modulus))
  x[np.arange(len(pairs)), pairs[:, 0]] = 1
  x[np.arange(len(pairs)), modulus + pairs[:, 1]] = 1
  first = np.maximum(x @ params[0], 0)
  second = np.maximum(first @ params[1], 0)
  return x, first, second, second @ params[2]


def gradients(params, pairs, modulus):
  """Of the mean cross-entropy, by the chain rule."""
  x, first, second, logits = forward(params, pairs, modulus)
  wrong = scipy.special.softmax(logits, axis=1)
  wrong[np.arange(len(pairs)), pairs.sum(axis=1) % modulus] -= 1
  wrong /= len(pairs)
  back_2 = (wrong @ params[2].T) * (second > 0)
  back_1 = (back_2 @ params[1].T) * (first > 0)
  return [x.T @ back_1, first.T @ back_2, second.T @ wrong]


def train_by_hand(recipe, arm, seed):
  """⊥Grad and AdamW as the papers write them, in float64."""
  data = grokking.split(recipe, seed)
  params = [w.astype(np.float64) for w in grokking.init(recipe, seed)]
  m, v = ([np.zeros_like(w) for w in params] for _ in range(2))
  for t in range(1, recipe.steps + 1):
    grads = gradients(params, data.train, recipe.modulus)
    for i, (w, g) in enumerate(zip(params, grads, strict=True)):
      if arm.orthograd:
        along = g - np.sum(w * g) / np.sum(w * w) * w
        g = along * np.linalg.norm(g) / np.linalg.norm(along)
      m[i] = 0.9 * m[i] + 0.1 * g
      v[i] = 0.999 * v[i] + 0.001 * g**2
      step = (m[i] / (1 - 0.9**t)) / (np.sqrt(v[i] / (1 - 0.999**t)) + 1e-8)
      params[i] = w - recipe.learning_rate * (step + arm.weight_decay * w)
  logits = forward(params, data.test, recipe.modulus)[-1]
  labels = data.test.sum(axis=1) % recipe.modulus
  rows = np.arange(len(labels))
  loss = -scipy.special.log_softmax(logits, axis=1)[rows, labels].mean()
  return loss, 100 * np.mean(logits.argmax(axis=1) == labels)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp("grokking")


@pytest.fixture(scope="module")
def rows(folder):
  return grokking.run(folder, SMALL, seeds=SEEDS)


def test_training_against_numpy(rows):
  """Adam divides by |g| at first, so entries near 0 may round to either sign:
  these few steps are with a small network that has none."""
  for arm in grokking.ARMS:
    actual = [
      row
      for row in rows
      if (row["method"], row["epoch"]) == (arm.key, SMALL.steps)
    ]
    assert [row["seed"] for row in actual] == list(SEEDS)
    for row in actual:
      loss, accuracy = train_by_hand(SMALL, arm, row["seed"])
      np.testing.assert_allclose(row["metrics"]["loss"], loss, rtol=1e-5)
      np.testing.assert_allclose(row["metrics"]["top1"], accuracy, rtol=1e-6)


@pytest.mark.slow
def test_optimizer_is_optax():
  """AdamW, which is ⊥AdamW of strength 0, to the bit.

  Nothing is compiled as a whole: two programs may round differently.
  """
  params, data = grokking.init(SMALL, 0), grokking.split(SMALL, 0)
  grads = jax.grad(grokking.loss)(params, data.train, SMALL.modulus)
  for arm in grokking.ARMS:
    arm = jax.tree.map(np.float32, arm)
    alone = optax.adamw(0.01, weight_decay=arm.weight_decay)
    expected = optax.chain(orthograd(), alone) if arm.orthograd else alone
    ours = grokking.optimizer(SMALL, arm)
    a, b = (
      tx.update(grads, tx.init(params), params)[0] for tx in (ours, expected)
    )
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_goes_on(folder, rows, monkeypatch):
  path = folder / "rows.jsonl"
  whole = path.read_bytes()
  trained = []
  train = grokking.train

  def spy(recipe, runs, say):
    trained.append([(run.arm.key, run.seed) for run in runs])
    return train(recipe, runs, say)

  monkeypatch.setattr(grokking, "train", spy)
  grokking.run(folder, SMALL, seeds=SEEDS)
  assert not trained and path.read_bytes() == whole
  # Torn within the rows of the last arm's last seed.
  path.write_bytes(whole[:-100])
  again = grokking.run(folder, SMALL, seeds=SEEDS)
  assert trained == [[(grokking.ARMS[-1].key, 102)]]
  keys = [engine_rows.key(row) for row in again]
  assert len(set(keys)) == len(keys) == len(rows) == 4 * 3 * 2
  assert [row["metrics"] for row in again] == [row["metrics"] for row in rows]


def test_steps_to_goal():
  arm, recipe = grokking.ORTHOGRAD, grokking.Recipe(steps=20)
  row = lambda seed, step, top1: {
    "config_hash": recipe.hash,
    "settings": arm._asdict(),
    "seed": seed,
    "epoch": step,
    "metrics": {"top1": top1},
  }
  actual = [row(1, 5, 3.0), row(1, 10, 99.0), row(1, 15, 98.0), row(1, 20, 100)]
  actual += [row(2, 5, 1.0), row(2, 20, 98.99)]
  assert grokking.steps_to_goal(actual, recipe) == {arm: {1: 10, 2: 21}}
  assert grokking.steps_to_goal(actual, grokking.Recipe()) == {}


def test_stablemax():
  """Loss and metrics are of StableMax's probabilities, in float64 by hand."""
  random = np.random.default_rng(0)
  params = [10 * w for w in grokking.init(SMALL, 0)]
  pairs = random.integers(0, 5, (8, 2))
  z = forward([w.astype(np.float64) for w in params], pairs, 5)[-1]
  assert z.min() < 0 < z.max()
  s = np.where(z < 0, 1 / (1 - np.minimum(z, 0)), z + 1)
  p = s / s.sum(axis=1, keepdims=True)
  expected = -np.log(p[np.arange(8), pairs.sum(axis=1) % 5]).mean()
  data = grokking.Pairs(pairs, pairs)
  actual = grokking.measure(params, data, 5, stablemax=True)["test"]["loss"]
  np.testing.assert_allclose(actual, expected, rtol=1e-5)
  actual = grokking.loss(params, pairs, 5, stablemax=True)
  np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_tests_of_rates():
  random = np.random.default_rng(0)
  draw = lambda low, high: dict(enumerate(random.integers(low, high, 10)))
  tuned = grokking.Arm(False, 3.0)
  goal = {
    grokking.ADAMW: draw(30, 31) | dict.fromkeys(range(7), 101),
    grokking.ORTHOGRAD: draw(10, 40),
    tuned: draw(20, 60),
    grokking.Arm(True, 1.0): draw(1, 2),
    grokking.STABLEMAX: draw(15, 45),
  }
  steps = {arm: np.array(list(its.values())) for arm, its in goal.items()}
  ours = steps[grokking.ORTHOGRAD]
  expected = [
    scipy.stats.fisher_exact([[10, 3], [0, 7]]).pvalue,
    scipy.stats.wilcoxon(ours, steps[tuned]).pvalue,
    scipy.stats.wilcoxon(ours, steps[grokking.STABLEMAX]).pvalue,
  ]
  actual, holm = zip(*grokking.tests({0.01: goal}, 100).values(), strict=True)
  np.testing.assert_allclose(actual, expected, rtol=1e-12)
  adjusted = multipletests(expected, method="holm")[1]
  np.testing.assert_allclose(holm, adjusted, rtol=1e-12)
  goal[tuned] = {seed: goal[tuned][seed] for seed in range(1, 9)}
  goal[grokking.STABLEMAX] = {1: 20}  # too few seeds to test
  _, (p, _) = grokking.tests({0.01: goal}, 100).values()
  expected = scipy.stats.wilcoxon(ours[1:9], steps[tuned][1:9]).pvalue
  np.testing.assert_allclose(p, expected, rtol=1e-12)


@pytest.mark.slow
def test_rates(tmp_path, monkeypatch, capsys):
  """Each rate has a pilot of both methods, and arms with its choices."""
  small = dataclasses.replace(SMALL, learning_rate=0.03)
  rows = grokking.run_rates(tmp_path, small, seeds=(1, 2))
  everything = list(engine_rows.read(tmp_path / "rows.jsonl"))
  pilot = [row for row in everything if row["study"] == grokking.RATES_PILOT]
  last = [row for row in rows if row["epoch"] == small.steps]
  assert {row["study"] for row in rows} == {grokking.RATES_STUDY}
  assert len(last) == 5 * 2 and len({row["method"] for row in last}) == 5
  assert {row["seed"] for row in pilot} == {903, 904, 905}
  for orthograd_ in (False, True):
    steps = {
      arm.weight_decay: np.mean(list(its.values()))
      for arm, its in grokking.steps_to_goal(pilot, small).items()
      if arm.orthograd == orthograd_
    }
    (tuned,) = {
      row["settings"]["weight_decay"]
      for row in last
      if row["settings"]["weight_decay"]
      and row["settings"]["orthograd"] == orthograd_
    }
    assert steps[tuned] == min(steps.values())
    assert len(steps) >= 5
  monkeypatch.setattr(grokking, "train", lambda *_: pytest.fail("it trains"))
  assert grokking.run_rates(tmp_path, small, seeds=(1, 2)) == rows
  monkeypatch.setattr(grokking, "RATES", (0.03,))
  monkeypatch.setattr(grokking, "Recipe", lambda **its: small)
  words = ["grokking", "--rates", "--seeds", "1,2", "--output", str(tmp_path)]
  monkeypatch.setattr("sys.argv", ["experiments", *words, "--steps", "10"])
  command.main()
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 5 + 3
  assert "rate 0.03, adamw: 0 of 2 seeds" in lines[0]


def test_steps_must_fit():
  with pytest.raises(UserError, match="steps is 12, but must be a multiple of"):
    grokking.Recipe(steps=12)


def test_command(folder, rows, monkeypatch, capsys):
  del rows  # which are in the folder
  monkeypatch.setattr(grokking, "Recipe", lambda **_: SMALL)
  words = ["grokking", "--seeds", "100,101,102", "--output", str(folder)]
  monkeypatch.setattr("sys.argv", ["experiments", *words])
  command.main()
  lines = capsys.readouterr().out.splitlines()
  assert len(lines) == 4 + 2
  assert "adamw: 0 of 3 seeds reach 99 %" in lines[0]
