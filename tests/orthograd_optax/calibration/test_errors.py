"""Calibration errors against uncertainty-calibration, relplot and SciPy."""

import functools

import calibration as uncertainty_calibration
import jax
import jax.numpy as jnp
from logit_sets import (
  assert_close,
  binned,
  confidence64,
  digits,
  log_odds64,
  softmax64,
  synthetic,
)
import numpy as np
import pytest
import relplot
from scipy import integrate, stats

from orthograd_optax import calibration

slow = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize("num_bins", [1, 10, 15])
def test_ece(data, num_bins):
  logits, labels = data
  p = softmax64(logits)
  expected = uncertainty_calibration.get_ece(p, labels, num_bins=num_bins)
  assert_close(calibration.ece(logits, labels, num_bins), expected)
  expected = uncertainty_calibration.get_ece_em(p, labels, num_bins=num_bins)
  actual = calibration.ece(logits, labels, num_bins, binning="mass")
  assert_close(actual, expected)


def test_ece_by_hand():
  # 0.9, 0.9 (one wrong) and 0.6, 0.6 (both right): gaps of both signs.
  p = jnp.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.4, 0.6]])
  labels = jnp.array([0, 0, 0, 1])
  logits = jnp.log(p)
  assert_close(calibration.ece(logits, labels), (0.4 + 0.4) / 2)
  assert_close(calibration.mce(logits, labels), 0.4)
  assert_close(calibration.ece(logits, labels, 1), 0.0, atol=1e-7)
  assert_close(calibration.ece(logits, labels, 2, "mass"), (0.4 + 0.4) / 2)


def test_mce(data):
  logits, labels = data
  confidence, correct = confidence64(logits, labels)
  gaps = [
    abs(confidence[i].mean() - correct[i].mean())
    for i in binned(logits, labels)
    if i.size
  ]
  assert_close(calibration.mce(logits, labels), max(gaps))


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_classwise_ece(data, binning):
  logits, labels = data
  # Of a float32 softmax, so that equal probabilities (of zero or one) are equal
  # in both.
  p = np.asarray(jax.nn.softmax(logits)).astype(np.float64)
  function = {
    "width": uncertainty_calibration.get_ece,
    "mass": uncertainty_calibration.get_ece_em,
  }[binning]
  expected = function(p, labels, num_bins=10, mode="marginal")
  actual = calibration.classwise_ece(logits, labels, 10, binning)
  assert_close(actual, expected)


def test_debiased_ece(data):
  logits, labels = data
  confidence, correct = confidence64(logits, labels)
  expected = 0.0
  for i in binned(logits, labels):
    if i.size == 0:
      continue
    gap = abs(confidence[i].mean() - correct[i].mean())
    sigma = np.sqrt(correct[i].mean() * (1 - correct[i].mean()) / i.size)
    folded = gap
    if sigma > 0:
      folded = stats.foldnorm.mean(gap / sigma, scale=sigma)
    expected += i.size / len(labels) * (2 * gap - folded)
  actual = calibration.debiased_ece(logits, labels)
  assert_close(actual, expected)
  assert actual <= calibration.ece(logits, labels) + 1e-6


def test_debiased_ece_is_that_of_kumar_et_al():
  """Who draw samples for the expectation, and need two images in each bin."""
  logits, labels = synthetic(10, 2.0)
  confidence, correct = confidence64(logits, labels)
  utils = uncertainty_calibration.utils
  data = list(zip(confidence, correct.astype(float), strict=True))
  bins = utils.bin(data, utils.get_equal_bins(list(confidence), 10))
  np.random.seed(0)
  drawn = utils.normal_debiased_ce(bins, power=1, resamples=4000)
  actual = calibration.debiased_ece(logits, labels, 10, "mass")
  assert abs(actual - drawn) < 3e-4
  assert abs(calibration.ece(logits, labels, 10, "mass") - drawn) > 1e-3


def test_debiased_ece_has_less_bias():
  """On a calibrated network the ECE is all bias."""
  keys = jax.random.split(jax.random.key(0), 200)

  def errors(key):
    logits = jax.random.normal(key, (500, 5))
    labels = jax.random.categorical(jax.random.fold_in(key, 1), logits)
    binned = {"num_bins": 15, "binning": "mass"}
    return (
      calibration.ece(logits, labels, **binned),
      calibration.debiased_ece(logits, labels, **binned),
    )

  plain, debiased = jax.vmap(errors)(keys)
  assert plain.mean() > 0.04
  # In units of 0.8 σ, with a gap of N(0, σ²): 2 E|gap| − E|N(gap, σ²)|.
  assert abs(debiased.mean() / plain.mean() - (2 - np.sqrt(2))) < 0.02


def smooth_ece64(logits, labels, sigma):
  """The integral of the definition, with images of the kernel mirrored."""
  confidence, correct = confidence64(logits, labels)
  residual = (confidence - correct) / len(labels)

  def smoothed(t):
    total = 0.0
    for shift in range(-4, 6, 2):
      for centre in (shift + confidence, shift - confidence):
        total = total + stats.norm.pdf((t[:, None] - centre[None]) / sigma)
    return np.abs((total / sigma) @ residual)

  t = np.linspace(0, 1, 4001 if sigma > 0.01 else 32001)
  values = np.concatenate([smoothed(part) for part in np.array_split(t, 40)])
  return integrate.trapezoid(values, t)


@pytest.mark.parametrize("sigma", [slow(0.002), slow(0.02), 0.1, 0.3])
def test_smooth_ece_at_a_bandwidth(sigma):
  for logits, labels in (synthetic(images=300), digits()):
    logits, labels = logits[:300], labels[:300]
    expected = smooth_ece64(logits, labels, sigma)
    actual = calibration.smooth_ece(logits, labels, sigma)
    assert_close(actual, expected, rtol=3e-6 if sigma > 0.01 else 2e-5)


def test_smooth_ece(data, monkeypatch):
  logits, labels = data
  # relplot gives the outermost of its 1,001 points half of their weight, so
  # that confidences of 1 count less: stay off them.
  confidence, correct = confidence64(logits, labels)
  confidence = np.minimum(confidence, 0.998)
  logits = np.log(np.stack([confidence, 1 - confidence], axis=1))
  labels = np.where(correct, 0, 1)
  if np.any(confidence < 0.5):
    logits = np.log(confidence)[:, None] + np.zeros((1, 10))
    others = np.log1p(-confidence)[:, None] - np.log(9)
    logits = np.where(np.arange(10)[None] == 0, logits, others)
  logits = logits.astype(np.float32)
  actual = calibration.smooth_ece(logits, labels)
  # It is its own bandwidth.
  at_own = calibration.smooth_ece(logits, labels, float(actual))
  assert_close(actual, at_own, rtol=1e-5)

  # relplot's integral is over 200 points; more can be had.
  monkeypatch.setattr(relplot.config, "smECE_mesh_pts", 4000)
  confidence, correct = confidence64(logits, labels)
  expected, sigma = relplot.metrics.smECE(
    confidence, correct.astype(float), return_width=True
  )
  at_theirs = calibration.smooth_ece(logits, labels, sigma)
  assert_close(at_theirs, expected, rtol=2e-3)
  # It bisects ten times, and stops above the crossing.
  assert sigma - 1 / 1024 - 2e-4 <= actual <= sigma + 2e-4


def gaps64(probability, outcome, num_bins=10):
  """By SciPy: counts and gaps of bins of equal width."""
  edges = np.linspace(0, 1, num_bins + 1)
  sums = stats.binned_statistic(
    probability, [probability, outcome], "sum", edges
  )
  count = stats.binned_statistic(probability, None, "count", edges).statistic
  confidence, right = sums.statistic
  return count, (confidence - right) / np.maximum(count, 1)


def test_top_k_ece():
  logits, labels = synthetic()
  p = softmax64(logits)
  order = np.argsort(-p, axis=1)
  for k in (2, 5):
    within = np.take_along_axis(p, order[:, :k], axis=1).sum(axis=1)
    inside = (order[:, :k] == labels[:, None]).any(axis=1)
    count, gap = gaps64(within, inside)
    expected = np.sum(count * np.abs(gap)) / len(labels)
    assert_close(calibration.top_k_ece(logits, labels, k), expected)
  one = calibration.top_k_ece(logits, labels, 1)
  assert_close(one, calibration.ece(logits, labels))
  # All classes together are certain, and right.
  assert_close(calibration.top_k_ece(logits, labels, 10), 0, atol=1e-6)


@pytest.mark.parametrize("threshold", [0.01, 0.3])
def test_classwise_ece_with_a_threshold(threshold):
  logits, labels = synthetic()
  p = softmax64(logits)
  errors, masses = [], []
  for c in range(10):
    keep = p[:, c] >= threshold
    own = labels[keep] == c
    count, gap = gaps64(p[keep, c], own)
    errors.append(np.sum(count * np.abs(gap)) / keep.sum())
    utils = uncertainty_calibration.utils
    pairs = list(zip(p[keep, c], own.astype(float), strict=True))
    bins = utils.bin(pairs, utils.get_equal_bins(list(p[keep, c]), 10))
    masses.append(utils.plugin_ce(bins, power=1))
  options = {"threshold": threshold}
  actual = calibration.classwise_ece(logits, labels, **options)
  assert_close(actual, np.mean(errors))
  actual = calibration.classwise_ece(logits, labels, 10, "mass", **options)
  assert_close(actual, np.mean(masses), rtol=2e-6)
  # Of classes that never get there, nothing is known.
  assert np.isnan(calibration.classwise_ece(0 * logits, labels, **options)) == (
    threshold > 0.1
  )
  with pytest.raises(ValueError, match="threshold .*below 1, but is 1.0"):
    calibration.classwise_ece(logits, labels, threshold=1.0)


def test_rms_calibration_error(data):
  logits, labels = data
  confidence, correct = confidence64(logits, labels)
  count, gap = gaps64(confidence, correct)
  expected = np.sqrt(np.sum(count * gap**2) / len(labels))
  assert_close(calibration.rms_calibration_error(logits, labels), expected)
  utils = uncertainty_calibration.utils
  pairs = list(zip(confidence, correct.astype(float), strict=True))
  bins = utils.bin(pairs, utils.get_equal_bins(list(confidence), 10))
  # In float32, confidences near 1 would be equal, and so be in one bin.
  with jax.enable_x64(True):
    actual = calibration.rms_calibration_error(
      np.float64(logits), labels, 10, "mass"
    )
  assert_close(actual, utils.plugin_ce(bins, power=2))


def ks64(logits, labels):
  """In float64, with confidences equal if they are in ten digits."""
  p = softmax64(logits)
  confidence = p.max(axis=1)
  residual = (p.argmax(axis=1) == labels) - confidence
  _, group = np.unique(np.round(log_odds64(logits), 10), return_inverse=True)
  gaps = np.cumsum(np.bincount(group, residual)) / len(labels)
  return np.abs(gaps).max()


def test_ks_calibration_error(data):
  logits, labels = data
  actual = calibration.ks_calibration_error(logits, labels)
  assert_close(actual, ks64(logits, labels), rtol=2e-6)


@pytest.mark.parametrize("classes", [2, 3, 5, 10])
def test_ks_calibration_error_of_ties(classes):
  """Confidences of the same logits in another order may round differently."""
  for seed in range(20):
    random = np.random.default_rng(seed)
    kinds = 2 * random.normal(size=(4, classes)).astype(np.float32)
    logits = random.permuted(kinds[random.integers(0, 4, size=60)], axis=1)
    labels = np.where(
      random.random(60) < 0.6, logits.argmax(axis=1), logits.argmin(axis=1)
    )
    actual = calibration.ks_calibration_error(logits, labels)
    assert_close(actual, ks64(logits, labels), rtol=2e-6)


def test_ks_calibration_error_of_equal_confidences():
  logits = jnp.tile(jnp.array([[2.0, 0.0]]), (6, 1))
  labels = jnp.array([0, 1, 0, 1, 0, 1])
  gap = calibration.confidence(logits) - 0.5
  assert_close(calibration.ks_calibration_error(logits, labels), gap)
