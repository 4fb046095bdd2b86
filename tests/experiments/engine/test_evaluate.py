"""Sets of images, and the metrics of runs and ensembles on them."""

import contextlib
import threading

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from experiments import datasets, registry
from experiments.datasets import cache
from experiments.engine import evaluate, train
from orthograd_optax import calibration

from .small_studies import (
  SAMPLE,
)


@pytest.fixture(autouse=True)
def tiny_model(monkeypatch):
  monkeypatch.setitem(registry.MODELS, "small", tiny.MODEL)


def test_sets_of_images():
  clean, labels = evaluate.images_of("clean", SAMPLE)
  np.testing.assert_array_equal(clean, SAMPLE.test_images)
  first, _ = evaluate.images_of("gaussian_noise/3", SAMPLE)
  again, _ = evaluate.images_of("gaussian_noise/3", SAMPLE)
  other, _ = evaluate.images_of("gaussian_noise/4", SAMPLE)
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other) and len(labels) == 1000
  with pytest.raises(ValueError, match="severity is 7"):
    evaluate.images_of("fog/7", SAMPLE)


def test_sets_are_made_ahead(monkeypatch):
  sample = datasets.load_sample()
  made = []

  def images_of(name, *args, _make=evaluate.images_of):
    made.append((name, threading.current_thread() is threading.main_thread()))
    if name == "fog/2":
      raise cache.DataError("no fog")
    return _make(name, *args)

  monkeypatch.setattr(evaluate, "images_of", images_of)
  with contextlib.closing(evaluate.Sets(sample)) as sets:
    sets.ask(["contrast/1", "fog/2"])
    sets.ask(["contrast/1"])
    images, labels = sets["contrast/1"]
    # One that failed is tried again.
    with pytest.raises(cache.DataError, match="no fog"):
      sets["fog/2"]
    np.testing.assert_array_equal(sets["clean"][0], sample.test_images)
  there, here = [("contrast/1", False), ("fog/2", False)], [("fog/2", True)]
  assert made == [*there, *here, ("clean", False)]
  expected, _ = images_of("contrast/1", sample)
  np.testing.assert_array_equal(images, expected)
  np.testing.assert_array_equal(labels, sample.test_labels)


def test_logits_and_metrics(trained):
  engine, state, _ = trained
  evaluator = evaluate.Evaluator(engine)
  images, labels = SAMPLE.test_images[:333], SAMPLE.test_labels[:333]
  actual = evaluator(state.evaluated, images, labels)
  logits, (rows, ensembles) = actual.logits, evaluate.rows(actual)
  assert not ensembles
  chex.assert_shape(logits, (4, 333, 10))
  assert len(rows) == 4
  one = jax.tree.map(lambda x: x[2], state.weights)
  expected = registry.MODELS["small"]().apply(
    one._asdict(),
    train.normalize(images, tiny.CONFIG.data),
  )
  np.testing.assert_allclose(logits[2], expected, atol=1e-4)
  alone = evaluate.Evaluator(engine, sequential=True).logits(
    state.weights, images[:20]
  )
  np.testing.assert_allclose(alone, logits[:, :20], atol=1e-4)
  row = rows[2]
  actual = calibration.evaluate(expected, labels)
  for name, value in row["metrics"].items():
    if name in actual:
      assert value == pytest.approx(float(actual[name]), rel=1e-3)
  for name, old in evaluate.ROW_NAMES.items():
    value = float(actual[name]) * (100 if "accuracy" in name else 1)
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
  actual = evaluator(state.evaluated, dark, labels, clean, pairs)
  (*_, row), (pooled, _) = evaluate.rows(actual)
  fit, judge = calibration.split(labels)
  for content, which in ((row, 3), (pooled, 4)):
    temperature = float(
      calibration.fit_temperature(clean.logits[which][fit], labels[fit])
    )
    loss = calibration.nll(
      actual.logits[which][judge] / temperature, labels[judge]
    )
    assert content["scaled_clean"]["loss"] == pytest.approx(
      float(loss), rel=1e-3
    )
  p = jax.nn.softmax(actual.logits[:4])
  np.testing.assert_allclose(
    jnp.exp(actual.logits[4]), (p[0] + p[2]) / 2, rtol=1e-4, atol=1e-6
  )
