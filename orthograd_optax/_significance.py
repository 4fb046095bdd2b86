"""Effect sizes, intervals and tests for two sets of runs."""

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple
import warnings

import numpy as np
from scipy import special, stats

Runs = Sequence[float] | np.ndarray | Any


class TestResult(NamedTuple):
  """The result of a test.

  Attributes:
    statistic: the statistic of the test, positive if the first set is larger.
    pvalue: the probability of a statistic at least as extreme, if there is no
      difference.
  """

  __test__ = False  # Tells pytest that this is not a class of tests.

  statistic: float
  pvalue: float


def cohens_d(a: Runs, b: Runs) -> float:
  r"""Cohen's d: the difference of the means, in standard deviations.

  .. math::

    d = \frac{\bar a - \bar b}{s}, \qquad
    s^2 = \frac{(n_a - 1) s_a^2 + (n_b - 1) s_b^2}{n_a + n_b - 2}

  Args:
    a: one number for each run.
    b: one number for each run of the other set.

  Returns:
    The effect size. By convention 0.2 is small, 0.5 medium and 0.8 large.

  Examples:
    >>> from orthograd_optax import stats
    >>> print(f"{stats.cohens_d([3, 4, 5], [1, 2, 3]):.2f}")
    2.00

  References:
    Cohen, Statistical Power Analysis for the Behavioral Sciences, 1988
  """
  a, b = check(a, "a"), check(b, "b")
  freedom = a.size + b.size - 2
  squares = (a.size - 1) * variance(a) + (b.size - 1) * variance(b)
  return _ratio(mean(a) - mean(b), math.sqrt(squares / freedom))


def cohens_d_interval(
  d: float, n_a: int, n_b: int, level: float = 0.95
) -> tuple[float, float]:
  r"""A confidence interval of Cohen's d, by the normal approximation.

  .. math::

    d \pm z \, \sqrt{\frac{n_a + n_b}{n_a n_b} + \frac{d^2}{2 (n_a + n_b)}}

  "OrthoGrad Improves Neural Calibration" uses it in its tables.

  Args:
    d: Cohen's d.
    n_a: number of runs in the first set.
    n_b: number of runs in the second set.
    level: the confidence level.

  Returns:
    The lower and the upper end.

  Examples:
    The max logit of that paper, with 20 seeds:

    >>> from orthograd_optax import stats
    >>> low, high = stats.cohens_d_interval(1.52, 20, 20)
    >>> print(f"{low:.2f} to {high:.2f}")
    0.82 to 2.22

  References:
    Hedges and Olkin, Statistical Methods for Meta-Analysis, 1985
  """
  for name, n in (("n_a", n_a), ("n_b", n_b)):
    if not n >= 2:
      raise ValueError(f"{name} is {n}, but must be at least 2.")
  if math.isnan(d):
    raise ValueError("d is NaN, but must be a number.")
  d, n_a, n_b = float(d), int(n_a), int(n_b)
  variance = (n_a + n_b) / (n_a * n_b) + d * d / (2 * (n_a + n_b))
  return normal_interval(d, variance, level)


def hedges_g(a: Runs, b: Runs) -> float:
  r"""Hedges' g: Cohen's d, corrected for its upward bias in small sets.

  .. math::

    g = \frac{\Gamma(m / 2)}{\sqrt{m / 2} \; \Gamma((m - 1) / 2)} \, d,
    \qquad m = n_a + n_b - 2

  Args:
    a: one number for each run.
    b: one number for each run of the other set.

  Returns:
    The effect size. The factor is exact; :math:`1 - 3 / (4 m - 1)` often
    approximates it.

  Examples:
    >>> from orthograd_optax import stats
    >>> print(f"{stats.hedges_g([3, 4, 5], [1, 2, 3]):.2f}")
    1.60

  References:
    Hedges, Distribution Theory for Glass's Estimator of Effect Size and Related
    Estimators, 1981
  """
  d = cohens_d(a, b)
  half = (len(a) + len(b) - 2) / 2
  log_factor = special.gammaln(half) - special.gammaln(half - 0.5)
  return float(d * math.exp(log_factor) / math.sqrt(half))


def welch_t_test(a: Runs, b: Runs) -> TestResult:
  r"""Welch's t-test, two-sided: do the means differ?

  .. math::

    t = \frac{\bar a - \bar b}{\sqrt{s_a^2 / n_a + s_b^2 / n_b}}

  The variances may differ.

  Args:
    a: one number for each run.
    b: one number for each run of the other set.

  Returns:
    t and p.

  Examples:
    >>> from orthograd_optax import stats
    >>> t, p = stats.welch_t_test([3, 4, 5], [1, 2, 3])
    >>> print(f"t = {t:.2f}, p = {p:.3f}")
    t = 2.45, p = 0.070
  """
  return _two_sided(*_welch(check(a, "a"), check(b, "b")))


def paired_t_test(a: Runs, b: Runs) -> TestResult:
  r"""The paired t-test, two-sided: is the mean difference zero?

  With the differences :math:`\delta = a - b` and their standard deviation
  :math:`s`,

  .. math::

    t = \frac{\bar \delta}{s / \sqrt n}

  Args:
    a: one number for each run.
    b: one number for each run of the other set. The i-th runs share a seed.

  Returns:
    t and p.

  Examples:
    >>> from orthograd_optax import stats
    >>> t, p = stats.paired_t_test([3, 4, 5], [1.9, 3, 4.1])
    >>> print(f"t = {t:.2f}, p = {p:.4f}")
    t = 17.32, p = 0.0033
  """
  return _two_sided(*_paired(*check_pairs(a, b)))


def wilcoxon(a: Runs, b: Runs) -> TestResult:
  """Wilcoxon's signed-rank test, two-sided, for pairs of runs.

  It tests ranks where :func:`paired_t_test` tests means. Use at least six
  pairs: with n pairs p is at least 2 / 2ⁿ, so that five can't reach 0.05.

  Args:
    a: one number for each run.
    b: one number for each run of the other set. The i-th runs share a seed.

  Returns:
    The sum of the ranks of the positive differences, and p. The p-value is
    exact for up to 50 pairs without ties.

  Examples:
    >>> from orthograd_optax import stats
    >>> w, p = stats.wilcoxon([3, 4, 5, 6, 9], [2.9, 3.8, 4.5, 5.6, 8.7])
    >>> print(f"W = {w:.0f}, p = {p:.4f}")
    W = 15, p = 0.0625
  """
  a, b = check_pairs(a, b)
  difference = a - b
  if not np.any(difference):
    return TestResult(0.0, 1.0)
  result: Any = stats.wilcoxon(difference)
  # SciPy's two-sided test returns the smaller of the two sums.
  difference = difference[difference != 0]
  ranks = stats.rankdata(np.abs(difference))
  statistic = float(np.sum(ranks[difference > 0]))
  return TestResult(statistic, float(result.pvalue))


def tost(a: Runs, b: Runs, margin: float, paired: bool = False) -> TestResult:
  """Two one-sided tests (TOST): are the means equal up to a margin?

  Use it to show that two sets are equal. A large p of :func:`welch_t_test` does
  not show that; a small p of this test does.

  Args:
    a: one number for each run.
    b: one number for each run of the other set.
    margin: the largest difference that does not matter, in the units of ``a``.
    paired: whether the i-th runs share a seed.

  Returns:
    t and p of the weaker of the two tests. p is the probability of means this
    close, if they really differ by the margin or more.

  Examples:
    >>> from orthograd_optax import stats
    >>> a = [75.2, 75.0, 75.4, 75.1, 75.3]
    >>> b = [75.1, 75.3, 75.2, 75.0, 75.3]
    >>> t, p = stats.tost(a, b, margin=0.5)
    >>> print(f"p = {p:.4f}")
    p = 0.0004

  References:
    Schuirmann, A comparison of the two one-sided tests procedure and the power
    approach, 1987
  """
  if not 0 < margin < math.inf:
    raise ValueError(
      f"margin is {margin}, but must be a positive number. Give the largest "
      "difference that does not matter."
    )
  if paired:
    difference, error, freedom = _paired(*check_pairs(a, b))
  else:
    difference, error, freedom = _welch(check(a, "a"), check(b, "b"))
  # One test is that the difference is below margin, the other that it is above
  # -margin.
  below = _ratio(difference - margin, error)
  above = _ratio(difference + margin, error)
  statistic = max(below, -above)
  p = float(special.stdtr(freedom, statistic))
  return TestResult(below if below >= -above else above, p)


def bootstrap_interval(
  a: Runs,
  b: Runs | None = None,
  statistic: Callable[..., Any] | None = None,
  *,
  level: float = 0.95,
  paired: bool = False,
  resamples: int = 9999,
  seed: int = 0,
) -> tuple[float, float]:
  """A bootstrap interval, bias-corrected and accelerated (BCa).

  Args:
    a: one number for each run.
    b: one number for each run of the other set, if there is one.
    statistic: a function of ``a`` (or ``a`` and ``b``) and ``axis``, such as
      ``numpy.mean``. By default, the mean or the difference of the means.
    level: the confidence level.
    paired: whether the i-th runs share a seed, and are drawn together.
    resamples: number of resamples.
    seed: seed of the resamples.

  Returns:
    The lower and the upper end. With few runs the interval is too short: with
    five, a 95 % interval covers the mean about 80 % of the time.

  Examples:
    >>> from orthograd_optax import stats
    >>> low, high = stats.bootstrap_interval([3, 4, 5, 9], [1, 2, 3, 2])
    >>> print(f"{low:.2f} to {high:.2f}")
    1.50 to 6.25

  References:
    Efron, Better Bootstrap Confidence Intervals, 1987
  """
  _check_level(level)
  if b is None:
    samples = [check(a, "a")]
  elif paired:
    samples = list(check_pairs(a, b))
    if statistic is None:
      samples = [samples[0] - samples[1]]
  else:
    samples = [check(a, "a"), check(b, "b")]
  if statistic is None:
    statistic = lambda x, *y, axis=-1: (
      np.mean(x, axis=axis) - sum(np.mean(z, axis=axis) for z in y)
    )
  # Without spread, all resamples are equal.
  if all(np.ptp(x) == 0 for x in samples):
    value = float(statistic(*samples, axis=-1))
    return value, value
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", stats.DegenerateDataWarning)
    warnings.simplefilter("ignore", RuntimeWarning)
    result = stats.bootstrap(
      samples,
      statistic,
      paired=paired and len(samples) == 2,
      confidence_level=level,
      n_resamples=resamples,
      method="BCa",
      rng=np.random.default_rng(seed),
    )
  low, high = map(float, result.confidence_interval)
  if math.isnan(low) or math.isnan(high):
    raise ValueError(
      "The statistic does not change when any one run is left out, so BCa's "
      "acceleration is undefined. Use another statistic, or more runs."
    )
  return low, high


def holm(p_values: Runs) -> np.ndarray:
  """Holm's adjustment of the p-values of several tests.

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
  if p.ndim != 1 or not np.all((p >= 0) & (p <= 1)):
    raise ValueError(
      f"p_values are {p.tolist()}, but must be a list of numbers from 0 to 1."
    )
  order = np.argsort(p, kind="stable")
  remaining = np.arange(p.size, 0, -1)
  adjusted = np.empty_like(p)
  adjusted[order] = np.maximum.accumulate(p[order] * remaining)
  return np.minimum(adjusted, 1)


def required_seeds(
  d: float, power: float = 0.8, *, level: float = 0.95, paired: bool = False
) -> int:
  """The number of runs that a t-test needs to detect an effect.

  Args:
    d: the effect size: Cohen's d or, if paired, the mean of the differences
      divided by their standard deviation.
    power: the probability of detecting the effect.
    level: 1 − α. The effect is detected if the two-sided p is below α.
    paired: whether the i-th runs share a seed.

  Returns:
    The least number of runs in each set, or of pairs.

  Examples:
    >>> from orthograd_optax import stats
    >>> stats.required_seeds(0.5, power=0.8)
    64
  """
  if not math.isfinite(d) or d == 0:
    raise ValueError(
      f"d is {d}, but must be finite and not zero: no number of runs detects "
      "an effect of zero."
    )
  if not 0 < power < 1:
    raise ValueError(f"power is {power}, but must be between 0 and 1.")
  _check_level(level)

  def detects(n):
    freedom, root = (n - 1, n) if paired else (2 * n - 2, n / 2)
    critical = special.stdtrit(freedom, (1 + level) / 2)
    # Count the tail of the right sign only.
    shift = min(abs(d), 1e6) * math.sqrt(root)
    return 1 - special.nctdtr(freedom, shift, critical) >= power

  high = 2
  while not detects(high):
    high *= 2
    if high > 2**40:
      raise ValueError(
        f"d is {d}, power {power} and level {level}, which needs more than "
        "10¹² runs. Give a larger d, or a lower power or level."
      )
  low = max(2, high // 2)
  while low < high:
    middle = (low + high) // 2
    low, high = (low, middle) if detects(middle) else (middle + 1, high)
  return high


def check(runs, name) -> np.ndarray:
  values = np.asarray(runs, np.float64)
  if values.ndim != 1:
    raise ValueError(
      f"{name} has shape {values.shape}, but must be (runs,): one number for "
      "each run."
    )
  if values.size < 2:
    raise ValueError(
      f"{name} has {values.size} run(s), but must have at least two."
    )
  sane = np.abs(values) < 1e100  # neither NaN nor infinite
  if not np.all(sane):
    first = int(np.argmin(sane))
    raise ValueError(
      f"{name}[{first}] is {values[first]}, but runs must be finite numbers. "
      "Leave out the runs that diverged, and report how many they are."
    )
  return values


def check_pairs(a, b) -> tuple[np.ndarray, np.ndarray]:
  a, b = check(a, "a"), check(b, "b")
  if a.size != b.size:
    raise ValueError(
      f"a has {a.size} runs and b has {b.size}, but a paired comparison needs "
      "the same seeds in both, in the same order."
    )
  return a, b


def _check_level(level):
  if not 0 < level < 1:
    raise ValueError(f"level is {level}, but must be between 0 and 1.")


def mean(x) -> float:
  # Exact if all values are equal.
  return float(x[0] + np.mean(x - x[0]))


def variance(x) -> float:
  return float(np.var(x - x[0], ddof=1))


def _ratio(x, y) -> float:
  if y == 0:
    return math.copysign(math.inf, x) if x else 0.0
  return float(x / y)


def _welch(a, b):
  """The difference of the means, its standard error, degrees of freedom."""
  by_a, by_b = variance(a) / a.size, variance(b) / b.size
  share = _ratio(by_a, by_a + by_b)
  inverse = share**2 / (a.size - 1) + (1 - share) ** 2 / (b.size - 1)
  return mean(a) - mean(b), math.sqrt(by_a + by_b), 1 / inverse


def _paired(a, b):
  difference = a - b
  error = math.sqrt(variance(difference) / a.size)
  return mean(difference), error, a.size - 1


def _two_sided(difference, error, freedom) -> TestResult:
  t = _ratio(difference, error)
  return TestResult(t, float(2 * special.stdtr(freedom, -abs(t))))


def normal_interval(value, variance, level) -> tuple[float, float]:
  _check_level(level)
  if math.isinf(value):
    return value, value
  reach = float(special.ndtri((1 + level) / 2)) * math.sqrt(variance)
  return value - reach, value + reach
