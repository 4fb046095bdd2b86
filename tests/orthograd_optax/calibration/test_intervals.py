"""Intervals against SciPy's, and against what they promise."""

import numpy as np
import pytest
from scipy import stats
from small_reports import overconfident

from orthograd_optax import calibration
from orthograd_optax.calibration import _intervals, _resampling, _sample


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
