"""Statistics against formulas, statsmodels, pingouin and the paper's tables."""

import csv
import io
import itertools
import json
import re
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np
import pingouin
import pytest
import scipy.stats
from statsmodels.stats import multitest, power, weightstats

from orthograd_optax import stats


def runs(seed=0, n_a=20, n_b=17, effect=0.7):
  """Two sets whose i-th runs share a seed, of unequal spread."""
  random = np.random.default_rng(seed)
  shared = random.normal(size=max(n_a, n_b))
  a = 5 + effect + shared[:n_a] + random.normal(size=n_a)
  b = 5 + shared[:n_b] + 0.5 * random.normal(size=n_b)
  return a, b


SIZES = pytest.mark.parametrize("n_a, n_b", [(20, 17), (5, 5), (2, 2), (2, 30)])


# Hedges, OrthoGrad Improves Neural Calibration, 2025: d, interval and p of each
# metric, SGD − ⊥Grad, of ResNet-18 (20 seeds) and WRN-28-10 (5 seeds).
PAPER = [
  (20, -0.05, -0.67, 0.57, 0.86, 0.01),
  (20, -0.35, -0.97, 0.28, 0.28, 0.01),
  (20, 0.64, 0.005, 1.28, 0.05, 0.01),
  (20, 0.48, -0.15, 1.11, 0.14, 0.01),
  (20, 0.28, -0.34, 0.91, 0.37, 0.01),
  (20, -1.11, -1.77, -0.44, 0.001, 0.001),
  (20, 1.06, 0.40, 1.72, 0.002, 0.001),
  (20, 1.52, 0.82, 2.22, 2.5e-5, 0.1e-5),
  (20, 2.00, 1.25, 2.77, 2e-7, 1e-7),
  (5, -0.35, -1.60, 0.90, 0.59, 0.01),
  (5, 0.50, -0.76, 1.76, 0.44, 0.01),
  (5, 2.56, 0.89, 4.24, 0.004, 0.001),
  (5, 2.40, 0.77, 4.02, 0.015, 0.001),
  (5, 0.86, -0.43, 2.15, 0.21, 0.01),
  (5, -4.18, -6.40, -1.97, 2e-4, 1e-4),
  (5, 2.91, 1.13, 4.69, 0.002, 0.001),
  (5, 11.20, 6.14, 16.27, 3e-6, 1e-6),
  (5, 15.45, 8.57, 22.34, 6e-6, 1e-6),
]


@pytest.mark.parametrize("n, d, low, high, p, p_digit", PAPER)
def test_the_papers_tables(n, d, low, high, p, p_digit):
  # Digits were cut off in places, not rounded: the logit variance's d of 2.00
  # is 2.01 in the middle of its interval.
  ends = [stats.cohens_d_interval(d + e, n, n) for e in (-0.01, 0.01)]
  for end, reported in ((0, low), (1, high)):
    assert ends[0][end] - 0.005 <= reported <= ends[1][end] + 0.005
  # The p-value is Welch's. Its degrees of freedom are between n − 1 and
  # 2n − 2, depending on variances that the paper doesn't give.
  values = [
    2 * scipy.stats.t.sf((abs(d) + e) * np.sqrt(n / 2), freedom)
    for freedom in (n - 1, 2 * n - 2)
    for e in (-0.01, 0.01)
  ]
  assert min(values) - p_digit <= p <= max(values) + p_digit


def test_compare_gives_the_papers_row():
  """Sets of the logit variance's means and d, in Table 1."""
  noise = scipy.stats.zscore(np.random.default_rng(0).normal(size=20), ddof=1)
  std = (45.73 - 42.30) / 2.01
  row = stats.compare(45.73 + std * noise, 42.30 + std * noise[::-1])
  # The paper subtracts in the other direction.
  np.testing.assert_allclose(row.d, -2.01)
  assert np.round(row.d_interval, 2).tolist() == [-2.77, -1.25]
  np.testing.assert_allclose(row.difference, 42.30 - 45.73)
  assert 1.5e-7 < row.p < 2.5e-7


@SIZES
def test_effect_sizes(n_a, n_b):
  a, b = runs(1, n_a, n_b)
  d = stats.cohens_d(a, b)
  expected = pingouin.compute_effsize(a, b, eftype="cohen")
  np.testing.assert_allclose(d, expected, rtol=1e-12)
  # pingouin's interval is Student's, not the normal one.
  ends = pingouin.compute_esci(d, n_a, n_b, eftype="cohen", decimals=12)
  student = scipy.stats.t.ppf(0.975, n_a + n_b - 2)
  normal = scipy.stats.norm.ppf(0.975)
  expected = d + (np.array(ends) - d) * normal / student
  actual = stats.cohens_d_interval(d, n_a, n_b)
  np.testing.assert_allclose(actual, expected, rtol=1e-9)
  # pingouin's factor is the usual approximation, good to 1 / m².
  g = stats.hedges_g(a, b)
  expected = pingouin.compute_effsize(a, b, eftype="hedges")
  m = n_a + n_b - 2
  np.testing.assert_allclose(g, expected, rtol=0.1 / m**2)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_hedges_g_is_unbiased(n):
  """E d follows from E 1/s, an integral over the chi distribution."""
  m = 2 * n - 2
  mean_of_inverse = scipy.stats.chi(m).expect(lambda x: np.sqrt(m) / x)
  # A set with a pooled standard deviation of 1 and d = 1.
  noise = scipy.stats.zscore(np.arange(n), ddof=1)
  g = stats.hedges_g(1 + noise, noise)
  np.testing.assert_allclose(g * mean_of_inverse, 1, rtol=1e-6)


@SIZES
def test_welch(n_a, n_b):
  a, b = runs(2, n_a, n_b)
  actual = stats.welch_t_test(a, b)
  means = weightstats.CompareMeans.from_data(a, b)
  expected = means.ttest_ind(usevar="unequal")[:2]
  np.testing.assert_allclose(actual, expected, rtol=1e-9)
  assert actual.statistic == actual[0] and actual.pvalue == actual[1]
  assert (actual.statistic > 0) == (a.mean() > b.mean())
  row = stats.compare(b, a, level=0.9)
  expected = means.tconfint_diff(alpha=0.1, usevar="unequal")
  np.testing.assert_allclose(row.difference_interval, expected, rtol=1e-9)


@pytest.mark.parametrize("n", [2, 5, 30])
def test_paired(n):
  a, b = runs(3, n, n)
  differences = weightstats.DescrStatsW(a - b)
  expected = differences.ttest_mean()[:2]
  np.testing.assert_allclose(stats.paired_t_test(a, b), expected, rtol=1e-9)
  row = stats.compare(b, a, paired=True, level=0.9)
  expected = differences.tconfint_mean(alpha=0.1)
  np.testing.assert_allclose(row.difference_interval, expected, rtol=1e-9)


@pytest.mark.parametrize("n", [4, 7, 10])
def test_wilcoxon_is_exact(n):
  """By going through all signs of the differences."""
  a, b = runs(4, n, n, effect=0.3)
  difference = a - b
  ranks = scipy.stats.rankdata(np.abs(difference))
  observed = ranks[difference > 0].sum()
  centre = ranks.sum() / 2
  sums = [
    ranks[list(signs)].sum()
    for signs in itertools.product([False, True], repeat=n)
  ]
  extreme = np.abs(np.array(sums) - centre) >= abs(observed - centre) - 1e-9
  statistic, p = stats.wilcoxon(a, b)
  assert statistic == observed
  np.testing.assert_allclose(p, extreme.mean(), rtol=1e-9)


def test_wilcoxon_with_ties():
  a, b = [3.0, 4.0, 5.0, 9.0, 1.0, 2.0], [2.0, 3.0, 5.0, 7.0, 2.0, 2.0]
  statistic, p = stats.wilcoxon(a, b)
  # Differences 1, 1, 0, 2, −1, 0: of the ranks 2, 2, 4, 2, the positive ones.
  assert statistic == 8
  signs = itertools.product([0, 1], repeat=4)
  sums = np.array([np.dot(s, [2, 2, 4, 2]) for s in signs])
  assert p == pytest.approx(np.mean(abs(sums - 5) >= 3))
  assert stats.wilcoxon(b, a).pvalue == p


@SIZES
@pytest.mark.parametrize("margin", [0.1, 1.0, 5.0])
def test_tost(n_a, n_b, margin):
  a, b = runs(5, n_a, n_b, effect=0.2)
  expected = weightstats.ttost_ind(a, b, -margin, margin, usevar="unequal")
  actual = stats.tost(a, b, margin)
  np.testing.assert_allclose(actual.pvalue, expected[0], rtol=1e-8)
  larger = max(expected[1], expected[2], key=lambda test: test[1])
  np.testing.assert_allclose(actual.statistic, larger[0], rtol=1e-8)
  if n_a == n_b:
    expected = weightstats.ttost_paired(a, b, -margin, margin)
    actual = stats.tost(a, b, margin, paired=True)
    np.testing.assert_allclose(actual.pvalue, expected[0], rtol=1e-8)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm(p_values):
  adjusted = stats.holm(p_values)
  with mock.patch("gc.collect"):  # which it calls, in a process with a lot
    expected = multitest.multipletests(p_values, method="holm")[1]
  np.testing.assert_allclose(adjusted, expected, rtol=1e-12, atol=1e-300)
  assert np.all(adjusted >= p_values) and np.all(adjusted <= 1)
  bonferroni = np.minimum(np.array(p_values) * len(p_values), 1)
  assert np.all(adjusted <= bonferroni)


@pytest.mark.parametrize("d", [0.2, -0.5, 1.0, 2.5])
@pytest.mark.parametrize("wanted", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("paired", [False, True])
def test_required_seeds(d, wanted, paired):
  n = stats.required_seeds(d, wanted, paired=paired)
  tests = power.TTestPower() if paired else power.TTestIndPower()
  actual = lambda n: tests.power(abs(d), n, 0.05)
  # statsmodels also counts effects found with the wrong sign.
  assert actual(n) >= wanted - 1e-9
  assert n == 2 or actual(n - 1) < wanted + 1e-3
  assert isinstance(n, int)


def test_required_seeds_of_extreme_effects():
  assert stats.required_seeds(1e6, 0.999) == 2
  assert stats.required_seeds(1e200, 0.999) == 2
  # For small effects, the normal distribution gives the number.
  z = scipy.stats.norm.ppf([0.975, 0.8]).sum()
  expected = 2 * (z / 1e-4) ** 2
  np.testing.assert_allclose(stats.required_seeds(1e-4, 0.8), expected, 1e-6)


def bca(draws, samples, statistic, level):
  """The BCa interval of Efron (1987), for several samples."""
  value = statistic(*samples)
  resampled = np.array([statistic(*each) for each in draws])
  below = np.mean(resampled < value) + np.mean(resampled == value) / 2
  cubes = squares = 0.0
  for k, sample in enumerate(samples):
    left_out = [np.delete(sample, i) for i in range(sample.size)]
    jackknife = np.array(
      [statistic(*samples[:k], x, *samples[k + 1 :]) for x in left_out]
    )
    influence = (sample.size - 1) * (jackknife.mean() - jackknife) / sample.size
    cubes += np.sum(influence**3)
    squares += np.sum(influence**2)
  z, acceleration = scipy.stats.norm.ppf(below), cubes / squares**1.5 / 6
  shift = z + scipy.stats.norm.ppf([(1 - level) / 2, (1 + level) / 2])
  ends = scipy.stats.norm.cdf(z + shift / (1 - acceleration * shift))
  return np.quantile(resampled, ends)


def test_bootstrap_is_bca():
  a, b = runs(6, 12, 9)
  random = np.random.default_rng(3)
  picks = [random.integers(0, x.size, (2000, x.size)) for x in (a, b)]
  draws = list(zip(a[picks[0]], b[picks[1]], strict=True))
  difference = lambda x, y: x.mean() - y.mean()
  options = {"level": 0.9, "resamples": 2000, "random_seed": 3}
  actual = stats.bootstrap(a, b, **options)
  expected = bca(draws, [a, b], difference, 0.9)
  np.testing.assert_allclose(actual, expected, rtol=1e-9)
  assert actual[0] < a.mean() - b.mean() < actual[1]


def test_bootstrap_of_pairs_and_other_statistics():
  a, b = runs(6)
  low, high = stats.bootstrap(a, statistic=np.median)
  assert low <= np.median(a) <= high
  a, b = runs(7, 15, 15)
  paired = stats.bootstrap(a, b, paired=True)
  alone = stats.bootstrap(a, b)
  assert paired[1] - paired[0] < alone[1] - alone[0]
  ratio = lambda x, y, axis: x.mean(axis=axis) / y.mean(axis=axis)
  low, high = stats.bootstrap(b + 1, b, ratio, paired=True)
  assert low < (b.mean() + 1) / b.mean() < high


def test_bootstrap_covers_as_documented():
  random = np.random.default_rng(0)
  covered = []
  for seed in range(300):
    runs = random.normal(size=5)
    low, high = stats.bootstrap(runs, resamples=500, random_seed=seed)
    covered.append(low < 0 < high)
  assert 0.75 < np.mean(covered) < 0.87


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("n", [5, 20])
@pytest.mark.parametrize("sd_a, sd_b", [(1.0, 1.0), (2.0, 0.5)])
@pytest.mark.parametrize("r", [0.0, 0.9])
@pytest.mark.parametrize("d", [0.0, 1.5])
def test_paired_interval_covers(n, sd_a, sd_b, r, d):
  random = np.random.default_rng(0)
  pooled = np.sqrt((sd_a**2 + sd_b**2) / 2)
  covered = []
  for _ in range(600):
    shared, x, y = random.normal(size=(3, n))
    a = d * pooled + sd_a * (np.sqrt(r) * shared + np.sqrt(1 - r) * x)
    b = sd_b * (np.sqrt(r) * shared + np.sqrt(1 - r) * y)
    low, high = stats.compare(b, a, paired=True).d_interval
    covered.append(low < d < high)
  assert 0.91 < np.mean(covered) < 0.99


def test_paired_interval_by_the_bootstrap():
  """Of the same pairs, where spreads differ and are nearly parallel."""
  random = np.random.default_rng(0)
  b = random.normal(size=200)
  a = 3 * b + 0.5 * random.normal(size=200) + 1
  low, high = stats.compare(b, a, paired=True).d_interval

  def d(x, y, axis):
    squares = (x.var(axis=axis, ddof=1) + y.var(axis=axis, ddof=1)) / 2
    return (x.mean(axis=axis) - y.mean(axis=axis)) / np.sqrt(squares)

  ends = stats.bootstrap(a, b, d, paired=True)
  np.testing.assert_allclose([low, high], ends, atol=0.03)
  assert stats.compare([-5, 0, 5], [-1, 0, 1], paired=True).d_interval[1] > 1


def test_compare():
  old, new = runs(8, 12, 12, effect=-0.7)[::-1]
  alone, pairs = stats.compare(old, new), stats.compare(old, new, paired=True)
  for row in (alone, pairs):
    assert row.n == (12, 12)
    assert row.mean_old == pytest.approx(old.mean())
    assert row.mean_new == pytest.approx(new.mean())
    assert row.std_old == pytest.approx(old.std(ddof=1))
    assert row.std_new == pytest.approx(new.std(ddof=1))
    assert row.difference == pytest.approx(new.mean() - old.mean())
    assert row.d == stats.cohens_d(new, old)
  assert alone.d_interval == stats.cohens_d_interval(alone.d, 12, 12)
  assert alone.p == stats.welch_t_test(new, old).pvalue
  assert pairs.p == stats.paired_t_test(new, old).pvalue
  # They share seeds, so that pairing tells more.
  for name in ("difference_interval", "d_interval"):
    assert np.diff(getattr(pairs, name)) < np.diff(getattr(alone, name))
  assert "\n" not in str(alone)
  assert "Welch, n = 12 and 12" in str(alone)
  assert "paired, n = 12" in str(pairs)
  assert f"d = {alone.d:.2f}" in str(alone)


@pytest.mark.parametrize("paired", [False, True])
def test_differences_are_new_minus_old(paired):
  """A gain of the new method is positive, and a loss is negative."""
  old, new = [75.0, 75.4, 75.1, 75.3, 75.2], [76.0, 76.2, 76.1, 76.4, 76.2]
  gain = stats.compare(old, new, paired)
  loss = stats.compare(old=new, new=old, paired=paired)
  assert gain.difference == pytest.approx(0.98) and gain.d > 2
  assert min(*gain.difference_interval, *gain.d_interval) > 0
  assert gain.verdict == "the new one is higher"
  assert loss.verdict == "the new one is lower"
  assert loss.difference == -gain.difference and loss.d == -gain.d
  ends = np.negative(gain.difference_interval[::-1])
  np.testing.assert_allclose(loss.difference_interval, ends)
  np.testing.assert_allclose(
    loss.d_interval, np.negative(gain.d_interval[::-1])
  )
  record = stats.compare_table({"x": old}, {"x": new}, paired).to_dict()["x"]
  assert record["mean_new"] - record["mean_old"] == record["difference"] > 0


def test_text():
  row = stats.compare([1.24, 1.31, 1.22, 1.27, 1.30], [1.18, 1.26, 1.15, 1.2])
  assert str(row) == (
    "old 1.268 ± 0.038, new 1.198 ± 0.046, new − old = -0.071 (-0.142, 0.001), "
    "d = -1.68 (-3.20, -0.15), p = 0.051 (Welch, n = 5 and 4)"
  )


def test_accepts_jax_arrays():
  a, b = runs(9)
  row = stats.compare(jnp.asarray(a), jnp.asarray(b))
  np.testing.assert_allclose(row.d, stats.cohens_d(b, a), rtol=1e-5)


# The edges: few runs, no spread, NaN, unpaired pairs.

TWO_SETS = {
  "cohens_d": stats.cohens_d,
  "hedges_g": stats.hedges_g,
  "welch_t_test": stats.welch_t_test,
  "paired_t_test": stats.paired_t_test,
  "wilcoxon": stats.wilcoxon,
  "tost": lambda a, b: stats.tost(a, b, 1.0),
  "bootstrap": stats.bootstrap,
  "compare": stats.compare,
}


@pytest.mark.parametrize("name", TWO_SETS)
def test_runs_that_make_no_sense(name):
  function = TWO_SETS[name]
  a, b = ("old", "new") if name == "compare" else ("a", "b")
  with pytest.raises(ValueError, match=rf"two runs in {a},.*\(1,\)"):
    function([1.0], [1.0, 2.0])
  with pytest.raises(ValueError, match=rf"two runs in {b},.*\(0,\)"):
    function([1.0, 2.0], [])
  with pytest.raises(ValueError, match=rf"{b}\[1\] = nan.*how many diverged"):
    function([1.0, 2.0, 3.0], [1.0, float("nan"), 3.0])
  for value in (float("inf"), -1e300):
    with pytest.raises(ValueError, match=re.escape(f"{a}[0] = {value}")):
      function([value, 2.0], [1.0, 3.0])
  with pytest.raises(ValueError, match=rf"two runs in {a},.*\(2, 2\)"):
    function([[1.0, 2.0], [1.0, 2.0]], [1.0, 3.0])


def test_unequal_lengths_are_no_pairs():
  a, b = [1.0, 2.0, 4.0], [1.0, 3.0]
  for function in (
    stats.paired_t_test,
    stats.wilcoxon,
    lambda a, b: stats.tost(a, b, 1.0, paired=True),
    lambda a, b: stats.bootstrap(a, b, paired=True),
  ):
    with pytest.raises(ValueError, match="got 3 in a and 2 in b.*same seeds"):
      function(a, b)
  with pytest.raises(ValueError, match="got 3 in old and 2 in new.*same seeds"):
    stats.compare(a, b, paired=True)


@pytest.mark.parametrize("value", [0.1, 75.3, 1e-8])
def test_no_spread_and_no_difference(value):
  a, b = [value] * 3, [value] * 3
  assert stats.cohens_d(a, [value] * 7) == 0
  assert stats.hedges_g(a, b) == 0
  assert stats.welch_t_test(a, [value] * 7) == (0, 1)
  assert stats.paired_t_test(a, b) == (0, 1)
  assert stats.wilcoxon(a, b) == (0, 1)
  assert stats.tost(a, b, 0.01).pvalue == 0
  assert stats.bootstrap(a, b) == (0, 0)
  for paired in (False, True):
    row = stats.compare(a, b, paired)
    assert (row.d, row.p, row.difference) == (0, 1, 0)
    assert row.difference_interval == (0, 0)
    assert row.d_interval[0] < 0 < row.d_interval[1]


def test_no_spread_but_a_difference():
  a, b = [0.3] * 4, [0.1] * 4
  assert stats.cohens_d(a, b) == np.inf
  assert stats.cohens_d(b, a) == -np.inf
  assert stats.hedges_g(b, a) == -np.inf
  assert stats.welch_t_test(a, b) == (np.inf, 0)
  assert stats.paired_t_test(b, a) == (-np.inf, 0)
  assert stats.tost(a, b, 0.01).pvalue == 1
  low, high = stats.bootstrap(a, b)
  assert low == high == pytest.approx(0.2)
  for paired in (False, True):
    row = stats.compare(b, a, paired)
    assert row.d_interval == (np.inf, np.inf)
    assert row.difference_interval == (row.difference, row.difference)
    assert "new − old = 0.2 (0.2, 0.2), d = inf" in str(row)


def test_one_set_without_spread():
  a, b = [0.3] * 4, [0.1, 0.2, 0.3, 0.4]
  expected = weightstats.DescrStatsW(b).ttest_mean(0.3)[:2]
  t, p = stats.welch_t_test(a, b)
  np.testing.assert_allclose([-t, p], expected)


def test_nearly_equal_runs():
  a = 75.0 + np.array([0.0, 1e-13, 2e-13])
  t, p = stats.welch_t_test(a, a[::-1])
  assert abs(t) < 1 and 0 < p <= 1


def test_options_that_make_no_sense():
  a, b = runs()
  with pytest.raises(ValueError, match="n_b to be at least 2, got 1"):
    stats.cohens_d_interval(1.0, 5, 1)
  with pytest.raises(ValueError, match="d, got NaN"):
    stats.cohens_d_interval(float("nan"), 5, 5)
  for level in (0, 1, 95):
    with pytest.raises(ValueError, match=f"level between 0 and 1, got {level}"):
      stats.cohens_d_interval(1.0, 5, 5, level)
    with pytest.raises(ValueError, match=f"level between 0 and 1, got {level}"):
      stats.compare(a, b, level=level)
    with pytest.raises(ValueError, match=f"level between 0 and 1, got {level}"):
      stats.bootstrap(a, b, level=level)
  for margin in (0, -1, float("nan"), float("inf")):
    with pytest.raises(ValueError, match="positive margin, got"):
      stats.tost(a, b, margin)
  for p_values in ([0.5, 1.1], [-0.1], [float("nan")], [[0.1]]):
    with pytest.raises(ValueError, match="p_values from 0 to 1"):
      stats.holm(p_values)
  for d in (0.0, float("nan"), float("inf")):
    with pytest.raises(ValueError, match="d to be finite and not zero"):
      stats.required_seeds(d, 0.8)
  with pytest.raises(ValueError, match="power between 0 and 1, got 1"):
    stats.required_seeds(0.5, 1)
  with pytest.raises(ValueError, match=r"1e\+12 runs detect, got d = 1e-160"):
    stats.required_seeds(1e-160, 0.8)
  with pytest.raises(ValueError, match="when a run is left out"):
    stats.bootstrap([1, 1, 1, 1, 5], statistic=np.median)


def test_levels_nest():
  ends = [stats.cohens_d_interval(0.5, 9, 7, v) for v in (0.5, 0.9, 0.99)]
  assert ends[2][0] < ends[1][0] < ends[0][0] < 0.5
  assert 0.5 < ends[0][1] < ends[1][1] < ends[2][1]


# Tables.


def table(paired=False):
  a, b = {}, {}
  for seed, name in enumerate(("top1 %", "loss_test", "a|b")):
    a[name], b[name] = runs(seed, 8, 8, effect=seed)
  return stats.compare_table(a, b, paired, names=("SGD", "⊥Grad")), a, b


def test_compare_table():
  result, a, b = table()
  assert list(result.rows) == list(a) == list(result.adjusted)
  for name, row in result.rows.items():
    assert row == stats.compare(a[name], b[name])
  expected = stats.holm([row.p for row in result.rows.values()])
  assert list(result.adjusted.values()) == expected.tolist()
  assert str(result) == result.markdown()
  paired = table(paired=True)[0]
  assert all(row.paired for row in paired.rows.values())
  pandas = pytest.importorskip("pandas")
  frames = [pandas.DataFrame(x) for x in (a, b)]
  again = stats.compare_table(*frames, names=("SGD", "⊥Grad"))
  assert str(again) == str(result)


def test_markdown():
  result, _, _ = table()
  lines = result.markdown().splitlines()
  assert len(lines) == 2 + 3
  cells = [cell.strip() for cell in lines[0].split("|")[1:-1]]
  change = ["⊥Grad − SGD (95 % interval)", "d (⊥Grad − SGD)"]
  assert cells == ["", "SGD", "⊥Grad", *change, "p", "p (Holm)"]
  assert re.fullmatch(r"\| -{9} (\| -+: ){6}\|", lines[1])
  assert len({len(line) for line in lines}) == 1
  assert lines[4].startswith("| a\\|b      | ")
  for line in lines:
    assert line.replace("\\|", "").count("|") == 8
  row = result.rows["top1 %"]
  assert f" {row.d:.2f} ({row.d_interval[0]:.2f}, " in lines[2]


def test_latex():
  text = table()[0].latex()
  assert text.startswith("\\begin{tabular}{lrrrrrr}\n\\hline\n")
  assert text.endswith("\\hline\n\\end{tabular}\n")
  assert "{}top1 \\% & " in text and "{}loss\\_test & " in text
  assert "$\\perp$Grad" in text and "$\\pm$" in text
  body = [line for line in text.splitlines() if line.endswith("\\\\")]
  assert len(body) == 4
  assert all(line.count(" & ") == 6 for line in body)
  assert text.isascii()
  far = {"x": [9.0, 9.1, 9.1, 9.2]}, {"x": [1.0, 1.1, 1.2, 1.1]}
  row = stats.compare_table(*far).latex().splitlines()[4]
  assert re.search(r" & \$-\$97.98 \(\$-\$", row)
  assert re.search(r" & 9\.5\$\\times 10\^\{-12\}\$ ", row)
  names = {"[x] 1e-3 <\n5": [1.0, 2.0]}, {"[x] 1e-3 <\n5": [3.0, 5.0]}
  result = stats.compare_table(*names)
  assert "{}[x] 1e-3 $<$ 5 & " in result.latex()
  assert result.markdown().count("\n") == 3


def test_csv_and_dict_keep_all_digits():
  result, _, _ = table()
  records = list(csv.DictReader(io.StringIO(result.csv())))
  assert [r["metric"] for r in records] == list(result.rows)
  for record, (name, row) in zip(records, result.rows.items(), strict=True):
    assert float(record["d"]) == row.d
    assert float(record["p_holm"]) == result.adjusted[name]
    assert float(record["d_low"]) == row.d_interval[0]
    assert float(record["difference_high"]) == row.difference_interval[1]
    assert int(record["n_new"]) == 8
  assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


@pytest.mark.parametrize(
  "a, text",
  [
    ([1e-9, 3e-9], "2e-09 ± 1.41e-09"),
    ([1e9, 3e9], "2e+09 ± 1.41e+09"),
    ([0.5, 0.5], "0.5 ± 0"),
    ([1.0, 3.0], "2.0 ± 1.4"),
    ([1000.0, 3000.0], "2000 ± 1414"),
  ],
)
def test_numbers_are_readable(a, text):
  row = stats.compare(a, a)
  assert str(row).startswith(f"old {text}, new {text}, new − old = 0")


def test_tables_that_make_no_sense():
  a, b = runs()
  with pytest.raises(ValueError, match=r"same metrics.*\['x'\].*\['y'\]"):
    stats.compare_table({"x": a}, {"y": b})
  with pytest.raises(ValueError, match="at least one"):
    stats.compare_table({}, {})
  with pytest.raises(ValueError, match=r"^loss: .*old\[0\] = nan"):
    stats.compare_table({"loss": [np.nan, 1.0]}, {"loss": [1.0, 2.0]})


def test_verdicts_need_five_runs():
  low, high = [1.0, 1.1, 0.9, 1.05, 0.95], [2.0, 2.1, 1.9, 2.05, 1.95]
  assert stats.compare(high, low).verdict == "the new one is lower"
  assert stats.compare(low, high, True).verdict == "the new one is higher"
  assert stats.compare(low, low[::-1]).verdict == "no difference shown"
  few = stats.compare(high[:4], low)
  assert few.verdict == "" and few.p < 1e-4
