"""Tests of two sets of runs, their adjustment, and bootstrap intervals."""

from collections.abc import Callable
import math
from typing import Any, NamedTuple
import warnings

import numpy as np
import scipy

from ._runs import Runs, check_level, check_one, check_two, expect


class TestResult(NamedTuple):
  """The result of a test.

  Attributes:
    statistic: the statistic of the test, larger if the first set is larger.
    pvalue: the probability of a statistic this extreme without a difference.
  """

  __test__ = False  # Tells pytest that this is not a class of tests.
  statistic: float
  pvalue: float


def welch_t_test(a: Runs, b: Runs) -> TestResult:
  r"""Runs Welch's t-test, two-sided: do the means differ?

  .. math:: t = \frac{\bar a - \bar b}{\sqrt{s_a^2 / n_a + s_b^2 / n_b}}

  Args:
    a, b: one number for each run of each set.

  Returns:
    t and p. The variances of the sets may differ.

  Examples:
    >>> from orthograd_optax import stats
    >>> t, p = stats.welch_t_test([3, 4, 5], [1, 2, 3])
    >>> print(f"t = {t:.2f}, p = {p:.3f}")
    t = 2.45, p = 0.070
  """
  return t_test(*check_two(a, b), paired=False)[0]


def paired_t_test(a: Runs, b: Runs) -> TestResult:
  r"""Runs the paired t-test, two-sided: is the mean difference zero?

  With the differences :math:`\delta = a - b` and their standard deviation
  :math:`s`,

  .. math:: t = \frac{\bar \delta}{s / \sqrt n}

  Args:
    a, b: one number for each run. The i-th runs share a seed.

  Returns:
    t and p.

  Examples:
    >>> from orthograd_optax import stats
    >>> t, p = stats.paired_t_test([3, 4, 5], [1.9, 3, 4.1])
    >>> print(f"t = {t:.2f}, p = {p:.4f}")
    t = 17.32, p = 0.0033
  """
  return t_test(*check_two(a, b, paired=True), paired=True)[0]


def t_test(
  a: np.ndarray, b: np.ndarray, paired: bool, level: float = 0.95
) -> tuple[TestResult, tuple[float, float]]:
  """Returns t and p, and the confidence interval of the difference a − b."""
  if np.ptp(a - b) == 0 if paired else np.ptp(a) == np.ptp(b) == 0:
    # SciPy's result would depend on rounding.
    gap = float(a[0] - b[0])
    t = math.copysign(math.inf, gap) if gap else 0.0
    return TestResult(t, float(gap == 0)), (gap, gap)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)  # of nearly equal runs
    if paired:
      result: Any = scipy.stats.ttest_rel(a, b)
    else:
      result = scipy.stats.ttest_ind(a, b, equal_var=False)
    low, high = map(float, result.confidence_interval(level))
  return TestResult(float(result.statistic), float(result.pvalue)), (low, high)


def wilcoxon(a: Runs, b: Runs) -> TestResult:
  """Runs Wilcoxon's signed-rank test, two-sided, on pairs of runs.

  It tests ranks where :func:`paired_t_test` tests means. Use at least six
  pairs: with n pairs p is at least 2 / 2ⁿ, so five can't reach 0.05.

  Args:
    a, b: one number for each run. The i-th runs share a seed.

  Returns:
    The sum of the ranks of the positive differences a − b, and p. The p-value
    is exact for up to 50 pairs without ties.

  Examples:
    >>> from orthograd_optax import stats
    >>> w, p = stats.wilcoxon([3, 4, 5, 6, 9], [2.9, 3.8, 4.5, 5.6, 8.7])
    >>> print(f"W = {w:.0f}, p = {p:.4f}")
    W = 15, p = 0.0625
  """
  a, b = check_two(a, b, paired=True)
  if np.array_equal(a, b):
    return TestResult(0.0, 1.0)
  two_sided: Any = scipy.stats.wilcoxon(a - b)
  # The one-sided test returns the sum of the positive ranks; the two-sided one
  # returns the smaller of the two sums.
  greater: Any = scipy.stats.wilcoxon(a - b, alternative="greater")
  return TestResult(float(greater.statistic), float(two_sided.pvalue))


def tost(a: Runs, b: Runs, margin: float, paired: bool = False) -> TestResult:
  """Runs two one-sided tests (TOST): are the means equal up to a margin?

  Use it to show that two sets are equal. A large p of :func:`welch_t_test` does
  not show that; a small p of this test does.

  Args:
    a, b: one number for each run of each set.
    margin: the largest difference that does not matter, in the units of ``a``.
    paired: whether the i-th runs share a seed.

  Returns:
    t and p of the weaker of the two tests. p is the probability of means this
    close if they really differ by the margin or more.

  Examples:
    >>> from orthograd_optax import stats
    >>> a = [75.2, 75.0, 75.4, 75.1, 75.3]
    >>> b = [75.1, 75.3, 75.2, 75.0, 75.3]
    >>> print(f"p = {stats.tost(a, b, margin=0.5).pvalue:.4f}")
    p = 0.0004

  References:
    Schuirmann, A comparison of the two one-sided tests procedure, 1987
  """
  advice = "Give the largest difference that does not matter."
  expect(0 < margin < math.inf, "a positive margin", margin, advice)
  a, b = check_two(a, b, paired)
  # Both a − b and b − a must be below the margin.
  below, above = (t_test(x - margin, y, paired)[0] for x, y in ((a, b), (b, a)))
  t, p = max(below, above)  # the weaker test
  p = p / 2 if t < 0 else 1 - p / 2  # one-sided
  return TestResult(t if below >= above else -t, p)


def bootstrap(
  a: Runs,
  b: Runs | None = None,
  statistic: Callable[..., Any] | None = None,
  *,
  level: float = 0.95,
  paired: bool = False,
  resamples: int = 9999,
  random_seed: int = 0,
) -> tuple[float, float]:
  """Returns a bootstrap interval, bias-corrected and accelerated (BCa).

  Args:
    a, b: one number for each run of one set, or of two.
    statistic: a function of ``a`` (or ``a`` and ``b``) and ``axis``, such as
      ``numpy.mean``. The default is the mean of a, or of a − b.
    level: confidence level.
    paired: whether the i-th runs share a seed, and are drawn together.
    resamples, random_seed: number and seed of the resamples.

  Returns:
    The lower and the upper end. With few runs the interval is too short: with
    five, a 95 % interval covers the mean about 80 % of the time.

  Examples:
    >>> from orthograd_optax import stats
    >>> low, high = stats.bootstrap([3, 4, 5, 9], [1, 2, 3, 2])
    >>> print(f"{low:.2f} to {high:.2f}")
    1.50 to 6.25

  References:
    Efron, Better Bootstrap Confidence Intervals, 1987
  """
  check_level(level)
  samples = [check_one(a, "a")] if b is None else [*check_two(a, b, paired)]
  if statistic is None:
    if paired and b is not None:
      samples = [samples[0] - samples[1]]
    statistic = lambda x, *y, axis: (
      np.mean(x, axis) - sum(np.mean(z, axis) for z in y)
    )
  if all(np.ptp(x) == 0 for x in samples):  # All resamples are equal.
    value = float(statistic(*samples, axis=-1))
    return value, value
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    result = scipy.stats.bootstrap(
      samples,
      statistic,
      paired=paired and len(samples) == 2,
      confidence_level=level,
      n_resamples=resamples,
      method="BCa",
      rng=np.random.default_rng(random_seed),
    )
  low, high = map(float, result.confidence_interval)
  expected = "a statistic that changes when a run is left out"
  got = "one that does not, so BCa is undefined"
  advice = "Use another statistic, or more runs."
  expect(not np.isnan([low, high]).any(), expected, got, advice)
  return low, high


def holm(p_values: Runs) -> np.ndarray:
  """Adjusts the p-values of several tests by Holm's method.

  Reject the tests whose adjusted p is at most α. The probability of any false
  rejection is then at most α, however the tests depend on each other.

  Args:
    p_values: the p-value of each test.

  Returns:
    Adjusted p-values, in the same order.

  Examples:
    >>> from orthograd_optax import stats
    >>> print(stats.holm([0.01, 0.04, 0.03]))
    [0.03 0.06 0.06]

  References:
    Holm, A Simple Sequentially Rejective Multiple Test Procedure, 1979
  """
  p = np.asarray(p_values, np.float64)
  valid = p.ndim == 1 and np.all((p >= 0) & (p <= 1))
  expect(valid, "p_values from 0 to 1 in a list", p.tolist())
  order = np.argsort(p, kind="stable")
  adjusted = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
  return np.minimum(adjusted, 1)[np.argsort(order)]
