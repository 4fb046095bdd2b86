"""Metrics of the ranks against SciPy, scikit-learn and definitions."""

import itertools

import calibration as uncertainty_calibration
import jax
import jax.numpy as jnp
from logit_sets import assert_close, confidence64, log_odds64, synthetic
import numpy as np
import pytest
from scipy import special, stats
from sklearn import metrics

from orthograd_optax import calibration


@pytest.mark.parametrize("n", [2, 41, 47, 55])
def test_confidence_correlation_of_equal_answers(n):
  """Is NaN, also where the mean of n ones rounds."""
  logits = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
  for labels in (logits.argmax(axis=1), logits.argmin(axis=1)):
    assert np.isnan(calibration.confidence_correlation(logits, labels))


def test_confidence_correlation(data):
  logits, labels = data
  expected = stats.pearsonr(*confidence64(logits, labels)).statistic
  assert_close(calibration.confidence_correlation(logits, labels), expected)


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-4, 1e-5])
def test_correlation_of_a_network_that_knows_nothing_yet(scale):
  """Its confidences are nearly equal, which sums of squares can't resolve."""
  logits, labels = synthetic()
  logits = logits * np.float32(scale)
  expected = stats.pearsonr(*confidence64(logits, labels)).statistic
  actual = calibration.evaluate(logits, labels)["confidence_correlation"]
  # Confidences are about 0.1, with a spacing of 7e-9 in float32.
  assert_close(actual, expected, rtol=1e-4, atol=3e-9 / scale)
  stream = calibration.tally(logits, labels).metrics()
  stream = stream["confidence_correlation"]
  assert np.isnan(stream) or abs(stream - expected) < 1e-3
  equal = np.tile(np.float32([[0.3, 0.1, -0.7]]), (50, 1))
  labels = np.arange(50) % 2
  for values in (
    calibration.evaluate(equal, labels),
    calibration.tally(equal, labels).metrics(),
  ):
    assert np.isnan(values["confidence_correlation"])


def test_undefined_correlation_is_nan():
  correlation = calibration.confidence_correlation
  logits = jnp.array([[1.0, 0.0], [3.0, 0.0]])
  for labels in (jnp.array([0, 0]), jnp.array([1, 1])):  # all right, all wrong
    assert np.isnan(correlation(logits, labels))
    stream = calibration.tally(logits, labels).metrics()
    assert np.isnan(stream["confidence_correlation"])
  equal = jnp.full((7, 2), 0.3).at[:, 0].set(0.1)
  assert np.isnan(correlation(equal, jnp.arange(7) % 2))


def test_aurc(data):
  logits, labels = data
  p = np.asarray(logits, np.float64)
  top = np.sort(p, axis=1)
  log_odds = top[:, -1] - special.logsumexp(top[:, :-1], axis=1)
  if np.unique(log_odds).size < log_odds.size:
    pytest.skip("ties have a test of their own")
  correct = p.argmax(axis=1) == labels
  area, _ = uncertainty_calibration.get_selective_stats(log_odds, correct)
  assert_close(calibration.aurc(logits, labels), 1 - area, rtol=2e-6)


def test_aurc_averages_over_ties():
  confidence = np.array([3.0, 2.0, 2.0, 2.0, 1.0, 1.0])
  wrong = np.array([0, 1, 0, 1, 0, 1])
  areas = []
  for order in itertools.permutations(range(6)):
    if (np.diff(confidence[list(order)]) <= 0).all():
      errors = np.cumsum(wrong[list(order)])
      areas.append(np.mean(errors / np.arange(1, 7)))
  logits = jnp.stack([jnp.asarray(confidence), jnp.zeros(6)], axis=1)
  assert_close(calibration.aurc(logits, jnp.asarray(wrong)), np.mean(areas))


def test_aurc_tells_saturated_confidences_apart():
  logits = jnp.array([[30.0, 0.0], [40.0, 0.0], [50.0, 0.0], [60.0, 0.0]])
  assert np.all(jax.nn.softmax(logits).max(axis=1) == 1)
  good = calibration.aurc(logits, jnp.array([1, 0, 0, 0]))
  bad = calibration.aurc(logits, jnp.array([0, 0, 0, 1]))
  assert_close(good, 1 / 16)
  assert_close(bad, (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


@pytest.mark.parametrize("coverage", [0.05, 0.7, 1.0])
def test_selective_risk(coverage):
  logits, labels = synthetic()
  wrong = logits.argmax(axis=1) != labels
  order = np.argsort(-log_odds64(logits), kind="stable")
  kept = wrong[order][: round(coverage * len(labels))]
  actual = calibration.selective_risk(logits, labels, coverage)
  assert_close(actual, kept.mean())


def test_selective_risk_of_whole_examples():
  # 0.7 · 10 is a little above 7 in floats.
  logits = jnp.stack([jnp.arange(10.0, 0.0, -1.0), jnp.zeros(10)], axis=1)
  labels = jnp.array([0] * 7 + [1] * 3)
  assert calibration.selective_risk(logits, labels, 0.7) == 0
  assert_close(calibration.selective_risk(logits, labels, 0.71), 1 / 8)
  # Equal confidences count as if in random order.
  equal = calibration.selective_risk(0 * logits, labels, 0.5)
  assert_close(equal, 0.3)
  for coverage in (0, 1.1, -1):
    with pytest.raises(
      ValueError, match=f"coverage must be .*but is {coverage}"
    ):
      calibration.selective_risk(logits, labels, coverage)


def test_auroc(data):
  logits, labels = data
  correct = logits.argmax(axis=1) == labels
  expected = metrics.roc_auc_score(correct, log_odds64(logits))
  assert_close(calibration.auroc(logits, labels), expected, rtol=2e-6)
  tied = np.round(logits, 0)
  correct = tied.argmax(axis=1) == labels
  # Rounded, for sums of the same numbers to be equal in another order.
  expected = metrics.roc_auc_score(correct, np.round(log_odds64(tied), 5))
  actual = calibration.auroc(tied, labels)
  assert_close(actual, expected, rtol=2e-4)


def test_auroc_of_no_errors_is_nan():
  logits, _ = synthetic()
  assert np.isnan(calibration.auroc(logits, logits.argmax(axis=1)))
  assert np.isnan(calibration.auroc(logits, logits.argmin(axis=1)))
