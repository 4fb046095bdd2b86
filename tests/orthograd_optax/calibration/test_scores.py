"""Means over examples, and their parts, against scikit-learn and SciPy."""

import chex
import jax
import jax.numpy as jnp
from logit_sets import (
  KEYS,
  assert_close,
  confidence64,
  digits,
  softmax64,
  synthetic,
)
import numpy as np
from scipy import optimize, special, stats
from sklearn import metrics

from orthograd_optax import calibration


def test_real_case_is_saturated():
  logits, labels = digits()
  confidence = jax.nn.softmax(logits).max(axis=1)
  assert 0.2 < np.mean(confidence == 1) < 0.6
  assert calibration.accuracy(logits, labels) < 0.95


def test_accuracy(data):
  logits, labels = data
  classes = logits.shape[1]
  for k in sorted({1, min(classes - 1, 5)}):
    if classes > 2:
      expected = metrics.top_k_accuracy_score(
        labels, logits, k=k, labels=np.arange(classes)
      )
    else:
      expected = metrics.accuracy_score(labels, logits.argmax(axis=1))
    assert_close(calibration.accuracy(logits, labels, k), expected)


def test_nll(data):
  logits, labels = data
  log_p = special.log_softmax(logits.astype(np.float64), axis=1)
  expected = -log_p[np.arange(len(labels)), labels].mean()
  assert_close(calibration.nll(logits, labels), expected)
  if log_p.min() > -30:  # scikit-learn clips at 2e-16.
    expected = metrics.log_loss(
      labels, softmax64(logits), labels=np.arange(logits.shape[1])
    )
    assert_close(calibration.nll(logits, labels), expected)


def test_brier(data):
  logits, labels = data
  expected = metrics.brier_score_loss(
    labels,
    softmax64(logits),
    labels=np.arange(logits.shape[1]),
    scale_by_half=False,
  )
  assert_close(calibration.brier(logits, labels), expected)


def test_entropy(data):
  logits, labels = data
  expected = stats.entropy(softmax64(logits), axis=1).mean()
  assert_close(calibration.entropy(logits), expected)
  assert calibration.entropy(logits, labels) == calibration.entropy(logits)


def test_logits(data):
  logits, _ = data
  z = logits.astype(np.float64)
  assert_close(calibration.confidence(logits), softmax64(z).max(1).mean())
  assert_close(calibration.max_logit(logits), np.abs(z).max(axis=1).mean())
  expected = z.var(axis=1, ddof=1).mean()
  assert_close(calibration.logit_variance(logits), expected)


def test_evaluate(data):
  logits, labels = data
  actual = calibration.evaluate(logits, labels)
  assert list(actual) == KEYS
  classes = logits.shape[1]
  expected = {
    "accuracy": calibration.accuracy(logits, labels),
    "top5_accuracy": calibration.accuracy(logits, labels, min(5, classes)),
    "nll": calibration.nll(logits, labels),
    "ece": calibration.ece(logits, labels),
    "brier": calibration.brier(logits, labels),
    "entropy": calibration.entropy(logits),
    "confidence": calibration.confidence(logits),
    "max_logit": calibration.max_logit(logits),
    "logit_variance": calibration.logit_variance(logits),
    "confidence_correlation": stats.pearsonr(
      *confidence64(logits, labels)
    ).statistic,
  }
  chex.assert_trees_all_close(dict(actual), expected, rtol=1e-6, atol=1e-7)
  # Their order lasts, for tables.
  over_seeds = jax.vmap(calibration.evaluate, in_axes=(0, None))
  assert list(over_seeds(logits[None], labels)) == KEYS
  other = calibration.evaluate(logits, labels, num_bins=20)
  assert_close(other["ece"], calibration.ece(logits, labels, 20))


def test_impossible_classes():
  logits = jnp.array([[0.0, 1.0, -jnp.inf], [2.0, 0.0, -jnp.inf]])
  labels = jnp.array([1, 1])
  without = calibration.evaluate(logits[:, :2], labels)
  values = calibration.evaluate(logits, labels)
  for key in ("accuracy", "nll", "ece", "brier", "entropy", "confidence"):
    assert_close(values[key], without[key])
  assert calibration.nll(logits, jnp.array([1, 2])) == np.inf
  assert np.isnan(calibration.aurc(-logits, labels))  # as all others


def test_brier_decomposition():
  """With one probability in each bin, refinement is the recalibrated score."""
  random = np.random.default_rng(0)
  kinds = np.array([[0.72, 0.25, 0.03], [0.15, 0.64, 0.21], [0.4, 0.08, 0.52]])
  truth = np.array([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.3, 0.1, 0.6]])
  kind = random.integers(0, 3, size=500)
  labels = np.array([random.choice(3, p=truth[k]) for k in kind])
  logits = np.log(kinds[kind]).astype(np.float32)
  refinement = 0.0
  for c in range(3):
    own = labels == c
    frequency = np.array([own[kind == k].mean() for k in range(3)])
    refinement += metrics.brier_score_loss(own, frequency[kind])
  parts = calibration.brier_decomposition(logits, labels)
  assert_close(parts.refinement, refinement, rtol=2e-6)
  assert_close(sum(parts), calibration.brier(logits, labels))


def test_decompositions_add_up_and_are_not_negative(data):
  logits, labels = data
  for score, decompose in (
    (calibration.brier, calibration.brier_decomposition),
    (calibration.nll, calibration.nll_decomposition),
  ):
    parts = decompose(logits, labels)
    assert_close(sum(parts), score(logits, labels))
    assert min(parts) >= -1e-6


def test_nll_decomposition():
  logits, labels = synthetic()

  def loss(log_t):
    p = softmax64(logits.astype(np.float64) / np.exp(log_t))
    return metrics.log_loss(labels, p, labels=np.arange(10))

  best = optimize.minimize_scalar(loss, bracket=(0, 1), tol=1e-10).fun
  parts = calibration.nll_decomposition(logits, labels)
  assert_close(parts.refinement, best)
  calibrated = logits / calibration.fit_temperature(logits, labels)
  parts = calibration.nll_decomposition(calibrated, labels)
  assert_close(parts.calibration, 0, atol=1e-6)
