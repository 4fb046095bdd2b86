"""Intervals against SciPy's, and against what they promise."""

import functools
import time

import every_metric
import numpy as np
import pytest
from scipy import special, stats

from orthograd_optax import calibration
from orthograd_optax.calibration import (
  _intervals,
  _resampling,
  _sample,
  _table,
)

EXAMPLES, CLASSES = 400, 3  # also of test_report.py, to share programs


def overconfident(seed=0, examples=EXAMPLES, temperature=2.0):
  random = np.random.default_rng(seed)
  logits = 3 * random.normal(size=(examples, CLASSES))
  noise = random.gumbel(size=logits.shape)
  labels = np.argmax(logits / temperature + noise, axis=1)
  return logits.astype(np.float32), labels


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


def test_shares_and_seeds_have_textbook_intervals():
  right, count = np.array([0, 3, 50, 7]), np.array([10, 10, 50, 9])
  actual = _intervals.wilson_interval(right, count, 0.9)
  for i in range(4):
    test = stats.binomtest(int(right[i]), int(count[i]))
    expected = test.proportion_ci(0.9, "wilson")
    assert actual[1][i] == pytest.approx(expected.low, abs=1e-12)
    assert actual[2][i] == pytest.approx(expected.high, abs=1e-12)
  assert np.isnan(_intervals.wilson_interval(0, 0, 0.9)).all()
  values = np.random.default_rng(0).normal(size=7)
  _, low, high = _intervals.seeds_interval(values, 0.9)
  expected = stats.ttest_1samp(values, 0).confidence_interval(0.9)
  np.testing.assert_allclose([low, high], expected)
  # A bin that is empty in some seeds.
  table = np.array([[1.0, np.nan, np.nan], [2.0, np.nan, 5.0], [4.0, 3.0, 7.0]])
  mean, low, high = _intervals.seeds_interval(table, 0.9)
  np.testing.assert_allclose(mean, [7 / 3, 3, 6])
  assert np.isnan([low[1], high[1]]).all()
  expected = stats.ttest_1samp([5.0, 7.0], 0).confidence_interval(0.9)
  np.testing.assert_allclose([low[2], high[2]], expected)


def test_intervals_have_their_value():
  """Also where all draws are above it, as of an ECE that is all noise."""
  value, draws = np.array(0.01), np.linspace(0.02, 0.03, 100)
  _, low, high = _intervals.basic_interval(value, draws, 0.95, (0.0, 1.0))
  assert low == 0 and high == 0.01
  unknown = _intervals.basic_interval(value, draws * np.nan, 0.95)
  assert np.isnan(unknown[1:]).all()


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
    assert accuracy.shape == (200, 10)
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


@pytest.mark.slow
def test_intervals_cover():
  """Of the population's ECE, 95 % intervals have at least 90 %."""
  many, its_labels = overconfident(0, 400_000)
  truth = float(calibration.ece(many, its_labels))
  covered = []
  for seed in range(100):
    pair = overconfident(seed + 1)
    actual = _sample.Sample(*pair, random_seed=seed)
    actual = _resampling.describe(actual, ["ece"])
    _, low, high = _resampling.estimates([actual], 0.95)["ece"]
    covered.append(low <= truth <= high)
  assert np.mean(covered) >= 0.9
