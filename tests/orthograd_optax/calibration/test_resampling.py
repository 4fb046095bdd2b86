"""The bootstrap against SciPy's, and tests of calibration."""

import functools
import itertools
import time

import chex
import every_metric
import numpy as np
import pytest
from scipy import special, stats
from small_reports import EXAMPLES, overconfident

from orthograd_optax import calibration
from orthograd_optax.calibration import _intervals, _resampling, _sample, _table


def test_bootstrap_of_a_mean_is_that_of_scipy():
  logits, labels = overconfident()
  log_p = special.log_softmax(logits.astype(np.float64), axis=1)
  losses = -log_p[np.arange(len(labels)), labels]
  expected = stats.bootstrap(
    [losses], np.mean, method="basic", n_resamples=20_000, rng=0
  ).confidence_interval
  actual = calibration.bootstrap(
    calibration.nll, logits, labels, resamples=4000
  )
  assert actual.value == pytest.approx(losses.mean(), rel=1e-6)
  width = expected.high - expected.low
  assert abs(actual.low - expected.low) < 0.05 * width
  assert abs(actual.high - expected.high) < 0.05 * width
  again = calibration.bootstrap(calibration.nll, logits, labels, random_seed=1)
  assert again.value == actual.value and again.low != actual.low


def test_bootstrap_refuses():
  logits, labels = overconfident()
  for resamples in (0, 2.5):
    with pytest.raises(ValueError, match=f"resamples must .* is {resamples}"):
      calibration.bootstrap(
        calibration.nll, logits, labels, resamples=resamples
      )
  with pytest.raises(TypeError, match="function .* but is 'ece'"):
    calibration.bootstrap("ece", logits, labels)
  with pytest.raises(ValueError, match="level must .* is 95"):
    calibration.bootstrap(calibration.nll, logits, labels, level=95)


def sample(units=_sample.MAX_UNITS):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(_sample, "MAX_UNITS", units)
    return _sample.Sample(*overconfident())


@functools.cache
def described(units=_sample.MAX_UNITS):
  return _resampling.describe(sample(units))


NAMES = (
  *("nll", "ece", "classwise_ece", "auroc", "confidence", "brier", "entropy"),
  *("rms_calibration_error", "ks_calibration_error", "aurc", "temperature"),
)


METRICS = {name: every_metric.METRICS[name] for name in NAMES} | {
  "selective_risk": functools.partial(calibration.selective_risk, coverage=0.9),
  "ece_equal_mass": every_metric.METRICS["ece_mass"],
}


def test_values_are_those_of_the_functions():
  logits, labels = overconfident()
  for name, function in METRICS.items():
    expected = float(function(logits, labels))
    assert described().values[name] == pytest.approx(expected, abs=1e-6), name


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("name", METRICS)
def test_sums_are_as_good_as_drawing_logits(name):
  """The same draws, by another way: of logits, or of sums."""
  logits, labels = overconfident()
  assert _table.find(METRICS[name]) == (name, {})
  own = lambda z, y: METRICS[name](z, y)  # not in the table
  assert _table.find(own) == (None, {})
  expected = calibration.bootstrap(own, logits, labels)
  one = described()
  value, low, high = _intervals.basic_interval(
    one.values[name], one.draws[name], 0.95, _table.METRICS[name].limits
  )
  assert value == pytest.approx(expected.value, rel=1e-6)
  # Ranks are in cells, and bins of equal mass stay where they are.
  ranked = ("auroc", "aurc", "selective_risk", "ks_calibration_error")
  rough = name in (*ranked, "ece_equal_mass")
  share = (0.1 if rough else 1e-3) * (expected.high - expected.low)
  assert low == pytest.approx(expected.low, abs=share)
  assert high == pytest.approx(expected.high, abs=share)


def test_groups_of_examples_vary_as_examples_do():
  few, all_of_them = (
    _resampling.estimates([described(*units)], 0.95) for units in ((100,), ())
  )
  for name in ("nll", "ece", "confidence", "temperature", "auroc"):
    widths = [e[name].high - e[name].low for e in (few, all_of_them)]
    # A spread of 100 numbers is known to 7 %.
    assert 0.75 < widths[0] / widths[1] < 1.3, name


def test_bootstrap_uses_sums(monkeypatch):
  """Also for other numbers of bins; but not for other options."""
  logits, labels = overconfident()
  few = functools.partial(calibration.ece, num_bins=5)
  assert _table.find(few) == ("ece", {"num_bins": 5})
  actual = calibration.bootstrap(few, logits, labels)
  generic = calibration.bootstrap(lambda z, y: few(z, y), logits, labels)
  np.testing.assert_allclose(actual, generic, rtol=1e-4)
  for other in (
    functools.partial(calibration.accuracy, k=2),
    functools.partial(calibration.rms_calibration_error, binning="mass"),
    functools.partial(calibration.selective_risk, coverage=0.5),
    functools.partial(calibration.classwise_ece, threshold=0.1),
    calibration.smooth_ece,
    max,
  ):
    assert _table.find(other) == (None, {})
  # Shares have Wilson's interval, all correct or not.
  right = logits.argmax(axis=1)
  value, low, high = calibration.bootstrap(calibration.accuracy, logits, right)
  assert value == high == 1 and 0.98 < low < 0.995
  unknown = calibration.bootstrap(calibration.aurc, logits, right)
  assert unknown.value == 0 and np.isnan(unknown[1:]).all()
  assert str(unknown) == "0.0000 (no interval)"


@pytest.mark.slow
def test_bootstrap_of_many_classes_takes_seconds():
  random = np.random.default_rng(0)
  logits = random.standard_normal((100_000, 1000), np.float32)
  labels = random.integers(0, 1000, 100_000)
  start = time.process_time()
  actual = calibration.bootstrap(calibration.ece, logits, labels)
  assert time.process_time() - start < 30
  assert actual.low < actual.value < actual.high


def test_bins_are_those_of_reliability():
  bins = calibration.reliability(*overconfident())
  actual = sample().bins
  np.testing.assert_array_equal(actual["count"][0], bins.count)
  for name, mean in (
    ("correct", bins.accuracy),
    ("confidence", bins.confidence),
  ):
    np.testing.assert_allclose(actual[name][0], mean * bins.count, rtol=1e-5)
  # Each draw has as many examples as the sample.
  np.testing.assert_allclose(actual["count"].sum(axis=1), EXAMPLES)


def test_p_values_are_exact():
  """Against sums over all outcomes, and SciPy's binomial test."""
  random = np.random.default_rng(0)
  p = random.uniform(0.1, 1, size=9)
  outcomes = np.array(list(itertools.product([0, 1], repeat=9)))
  mass = np.prod(np.where(outcomes, p, 1 - p), axis=1)
  number = outcomes.sum(axis=1)
  for right in range(10):
    tails = mass[number <= right].sum(), mass[number >= right].sum()
    result = _resampling._poisson_binomial(p, right)
    assert result == pytest.approx(min(2 * min(tails), 1), abs=1e-12)
  for n, share, right in ((3000, 0.99, 2950), (40_000, 0.6, 24_300)):
    result = _resampling._poisson_binomial(np.full(n, share), right)
    binomial = stats.binom(n, share)
    tails = binomial.cdf(right), binomial.sf(right - 1)
    assert result == pytest.approx(2 * min(tails), rel=0.02)
  assert _resampling._poisson_binomial(np.ones(5), 4) < 1e-12
  assert _resampling._poisson_binomial(np.full(4, 0.5), 2) == 1
  assert np.isnan(_resampling._poisson_binomial(np.ones(0), 0))


def test_a_calibrated_model_has_uniform_p_values():
  random = np.random.default_rng(0)
  p_values = []
  for seed in range(200):
    confidence = random.uniform(0.4, 1, size=150).astype(np.float32)
    correct = random.uniform(size=150) < confidence
    bins = np.ceil(confidence * 10)
    gaps = [
      abs((confidence[bins == b] - correct[bins == b]).sum())
      for b in np.unique(bins)
    ]
    errors, accuracy = _resampling.consistency(confidence, 10, 200, seed)
    chex.assert_shape(accuracy, (200, 10))
    p_values.append((1 + np.sum(errors >= sum(gaps) / 150)) / 201)
  assert stats.kstest(p_values, "uniform").pvalue > 0.05


def test_consistency_of_many_examples_is_that_of_each(monkeypatch):
  confidence = np.random.default_rng(0).beta(5, 1, size=3000)
  confidence = confidence.astype(np.float32)
  one, accuracy = _resampling.consistency(confidence, 10, 2000, 0)
  monkeypatch.setattr(_sample, "MAX_UNITS", 100)
  monkeypatch.setattr(_resampling, "_MAX_LEVELS", 100)
  many, its_accuracy = _resampling.consistency(confidence, 10, 2000, 1)
  assert stats.ks_2samp(one, many).pvalue > 0.05
  for b in range(4, 10):
    assert stats.ks_2samp(accuracy[:, b], its_accuracy[:, b]).pvalue > 0.01
