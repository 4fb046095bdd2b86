"""Comparisons of two sets of runs, by one metric or several."""

from collections.abc import Mapping
import csv
import dataclasses
import io
import math
import re
from typing import Any

import numpy as np

from ._effects import cohens_d, cohens_d_interval, normal_interval
from ._runs import Runs, check_two, expect, mean, variance
from ._tests import holm, t_test

MIN_RUNS = 5  # in each set, for a verdict


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A comparison of two sets of runs. It prints as one line.

  Attributes:
    mean_old: mean of the old set.
    mean_new: mean of the new set.
    std_old: unbiased standard deviation of the old set.
    std_new: unbiased standard deviation of the new set.
    n: number of runs in the old and in the new set.
    difference: ``mean_new - mean_old``, in the units of the metric.
    difference_interval: confidence interval of the difference.
    d: Cohen's d of new − old.
    d_interval: confidence interval of d.
    p: p-value of Welch's t-test or, if paired, of the paired t-test.
    paired: whether the i-th runs share a seed.
    level: confidence level of both intervals.
  """

  mean_old: float
  mean_new: float
  std_old: float
  std_new: float
  n: tuple[int, int]
  difference: float
  difference_interval: tuple[float, float]
  d: float
  d_interval: tuple[float, float]
  p: float
  paired: bool
  level: float

  @property
  def verdict(self) -> str:
    """Says what p shows at ``level``; empty with fewer than five runs."""
    if min(self.n) < MIN_RUNS:
      return ""
    if self.p >= 1 - self.level:
      return "no difference shown"
    return f"the new one is {'higher' if self.difference > 0 else 'lower'}"

  def _cells(self) -> list[str]:
    """Formats both sets, the difference, d (both with intervals) and p."""
    low, high = self.difference_interval
    difference = _format((self.difference, low, high), (high - low) / 2)
    d = [f"{x:.2f}" for x in (self.d, *self.d_interval)]
    return [
      " ± ".join(_format((self.mean_old, self.std_old), self.std_old)),
      " ± ".join(_format((self.mean_new, self.std_new), self.std_new)),
      *("{} ({}, {})".format(*numbers) for numbers in (difference, d)),
      _p(self.p),
    ]

  def __str__(self) -> str:
    test = "paired, n = {}" if self.paired else "Welch, n = {} and {}"
    template = "old {}, new {}, new − old = {}, d = {}, p = {} "
    return f"{template}({test})".format(*self._cells(), *self.n)


def compare(
  old: Runs, new: Runs, paired: bool = False, *, level: float = 0.95
) -> Comparison:
  r"""Compares a new set of runs with an old one.

  All differences are new − old. Set ``paired`` if the i-th runs share a seed
  (initial weights, order of the data): shared noise then cancels in the
  difference.

  The test is :func:`welch_t_test` or, if paired, :func:`paired_t_test`, and the
  interval of the difference belongs to it. The interval of d is
  :func:`cohens_d_interval` or, if paired, with the variances
  :math:`s_a^2, s_b^2` and the covariance :math:`c`,

  .. math::
    d \pm z \, \sqrt{\frac{1}{n - 1} \left( \frac{s_a^2 + s_b^2 - 2 c}{v}
      + d^2 \, \frac{s_a^4 + s_b^4 + 2 c^2}{8 v^2} \right)},
    \qquad v = \frac{s_a^2 + s_b^2}{2} .

  Args:
    old, new: one number for each run of each method.
    paired: whether the i-th runs share a seed.
    level: confidence level of the intervals.

  Returns:
    A :class:`Comparison`. With fewer than five runs in a set, it has numbers
    but no verdict.

  Examples:
    >>> from orthograd_optax import stats
    >>> sgd = [1.24, 1.31, 1.22, 1.27, 1.30]
    >>> orthograd = [1.18, 1.26, 1.15, 1.22, 1.21]
    >>> result = stats.compare(sgd, orthograd, paired=True)
    >>> print(f"d = {result.d:.2f}, p = {result.p:.3f}: {result.verdict}")
    d = -1.60, p = 0.001: the new one is lower

  References:
    Bonett, Interval estimation of standardized mean differences in
    paired-samples designs, 2015
  """
  old, new = check_two(old, new, paired, ("old", "new"))
  d = cohens_d(new, old)
  d_interval = cohens_d_interval(d, new.size, old.size, level)
  if paired:
    (v_old, c), (_, v_new) = np.cov(old - old[0], new - new[0])
    v = (v_old + v_new) / 2
    noise, scale = v_old + v_new - 2 * c, v_old**2 + v_new**2 + 2 * c**2
    spread = noise / v + d**2 * scale / (8 * v**2) if v > 0 else 2.0
    d_interval = normal_interval(d, spread / (old.size - 1), level)
  test, difference_interval = t_test(new, old, paired, level)
  return Comparison(
    mean_old=mean(old),
    mean_new=mean(new),
    std_old=math.sqrt(variance(old)),
    std_new=math.sqrt(variance(new)),
    n=(old.size, new.size),
    difference=mean(new) - mean(old),
    difference_interval=difference_interval,
    d=d,
    d_interval=d_interval,
    p=test.pvalue,
    paired=paired,
    level=level,
  )


@dataclasses.dataclass(frozen=True)
class ComparisonTable:
  """Comparisons of several metrics. It prints as a table in Markdown.

  Attributes:
    names: names of the old and of the new set.
    rows: a :class:`Comparison` for each metric.
    adjusted: the Holm-adjusted p-value of each metric.
  """

  names: tuple[str, str]
  rows: dict[str, Comparison]
  adjusted: dict[str, float]

  def markdown(self) -> str:
    """Returns the table in Markdown, with aligned columns."""
    cells = [[c.replace("|", "\\|") for c in row] for row in self._cells()]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * max(widths[0], 3)] + ["-" * (w - 1) + ":" for w in widths[1:]]
    lines = (
      [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
      for row in (cells[0], rule, *cells[1:])
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)

  __str__ = markdown

  def latex(self) -> str:
    """Returns the table as a LaTeX ``tabular``. It needs no packages."""
    header, *rows = self._cells()
    begin = rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}"
    titles = " & ".join(map(_latex, header)) + r" \\"
    lines = [begin, r"\hline", titles, r"\hline"]
    for name, *numbers in rows:
      # Without {}, LaTeX takes a [ or * after \\ for an option of \\.
      cells = ["{}" + _latex(name), *map(_latex_number, numbers)]
      lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])

  def csv(self) -> str:
    """Returns the table as comma-separated values, with all digits."""
    records = [{"metric": k, **v} for k, v in self.to_dict().items()]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()

  def to_dict(self) -> dict[str, dict[str, Any]]:
    """Returns a dictionary of Python numbers for each metric."""
    records = {}
    for name, row in self.rows.items():
      record: dict[str, Any] = dataclasses.asdict(row)
      record["p_holm"] = self.adjusted[name]
      record["n_old"], record["n_new"] = record.pop("n")
      for key in ("difference", "d"):
        low, high = record.pop(f"{key}_interval")
        record |= {f"{key}_low": low, f"{key}_high": high}
      records[name] = record
    return records

  def _cells(self) -> list[list[str]]:
    level = 100 * next(iter(self.rows.values())).level
    one_line = lambda text: " ".join(str(text).split())
    old, new = map(one_line, self.names)
    change = f"{new} − {old}"
    intervals = [f"{change} ({level:g} % interval)", f"d ({change})"]
    return [["", old, new, *intervals, "p", "p (Holm)"]] + [
      [one_line(name), *row._cells(), _p(self.adjusted[name])]
      for name, row in self.rows.items()
    ]


def compare_table(
  old: Mapping[str, Runs],
  new: Mapping[str, Runs],
  paired: bool = False,
  *,
  names: tuple[str, str] = ("old", "new"),
  level: float = 0.95,
) -> ComparisonTable:
  """Compares a new set of runs with an old one by several metrics.

  Args:
    old, new: one number for each run of each method, by metric, such as the
      result of :func:`orthograd_optax.calibration.evaluate` under ``jax.vmap``,
      or a pandas data frame.
    paired, level: as for :func:`compare`.
    names: names of the old and of the new method.

  Returns:
    A :class:`ComparisonTable`. Print it, or convert it to Markdown, LaTeX, CSV
    or a dictionary. Differences are new − old, as the header says.

  Examples:
    >>> from orthograd_optax import stats
    >>> sgd = {"loss": [1.24, 1.31, 1.22], "ece": [0.17, 0.16, 0.17]}
    >>> orthograd = {"loss": [1.18, 1.16, 1.15], "ece": [0.16, 0.17, 0.16]}
    >>> table = stats.compare_table(sgd, orthograd, names=("SGD", "⊥Grad"))
    >>> for name, row in table.rows.items():
    ...   print(f"{name}: d = {row.d:.2f}, p = {table.adjusted[name]:.2f}")
    loss: d = -2.66, p = 0.13
    ece: d = -0.58, p = 0.52
  """
  old, new = dict(old), dict(new)  # A data frame has no truth value.
  expected = "the same metrics in both sets, at least one"
  got = f"{sorted(old)} in old and {sorted(new)} in new"
  expect(old and old.keys() == new.keys(), expected, got)
  expect(len(names) == 2, "two names", names)
  rows = {}
  for name in old:
    try:
      rows[name] = compare(old[name], new[name], paired, level=level)
    except ValueError as error:
      raise ValueError(f"{name}: {error}") from error
  adjusted = holm([row.p for row in rows.values()]).tolist()
  adjusted = dict(zip(rows, adjusted, strict=True))
  return ComparisonTable((names[0], names[1]), rows, adjusted)


def _format(values, scale) -> list[str]:
  """Formats numbers to two significant digits of their scale."""
  if not 0 < scale < math.inf:
    return [f"{x:.4g}" for x in values]
  digits = 1 - math.floor(math.log10(scale))
  if not -4 <= digits <= 8:
    return [f"{x:.3g}" for x in values]
  return [f"{x:.{max(digits, 0)}f}" for x in values]


def _p(p) -> str:
  if p == 0:
    return "0"
  return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def _latex(text: str) -> str:
  replacements = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "⊥": r"$\perp$",
    "±": r"$\pm$",
    "−": "$-$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{c: f"${c}$" for c in "<>|"},
  }
  return text.translate(str.maketrans(replacements))


def _latex_number(text: str) -> str:
  text = text.replace("±", r"$\pm$").replace("inf", r"$\infty$")
  text = re.sub(r"e\+?(-?)0*(\d+)", r"$\\times 10^{\1\2}$", text)
  return re.sub(r"(?<![{\w])-", "$-$", text)
