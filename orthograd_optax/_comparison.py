"""Comparisons of two sets of runs, by one metric or several."""

from collections.abc import Mapping
import csv
import dataclasses
import io
import math
import re
from typing import Any

import numpy as np

from orthograd_optax import _significance

MIN_RUNS = 5  # in each set, for a verdict


@dataclasses.dataclass(frozen=True)
class Comparison:
  """A comparison of two sets of runs. It prints as one line.

  Attributes:
    mean_a: mean of the first set.
    mean_b: mean of the second set.
    std_a: standard deviation of the first set, unbiased.
    std_b: standard deviation of the second set, unbiased.
    n: number of runs in each set.
    d: Cohen's d.
    interval: confidence interval of d.
    p: p-value of Welch's t-test or, if paired, of the paired t-test.
    paired: whether the i-th runs share a seed.
    level: confidence level of the interval.
  """

  mean_a: float
  mean_b: float
  std_a: float
  std_b: float
  n: tuple[int, int]
  d: float
  interval: tuple[float, float]
  p: float
  paired: bool
  level: float

  @property
  def text(self) -> str:
    """The comparison in one line."""
    low, high = self.interval
    a, b = self.n
    test = f"paired, n = {a}" if self.paired else f"Welch, n = {a} and {b}"
    return (
      f"{_number(self.mean_a, self.std_a)} against "
      f"{_number(self.mean_b, self.std_b)}, d = {self.d:.2f} "
      f"({low:.2f}, {high:.2f}), p = {_p(self.p)} ({test})"
    )

  @property
  def verdict(self) -> str:
    """What p says at ``level``. Empty with fewer than five runs in a set."""
    if min(self.n) < MIN_RUNS:
      return ""
    if self.p >= 1 - self.level:
      return "no difference shown"
    return f"the {'first' if self.mean_a > self.mean_b else 'second'} is higher"

  def __str__(self) -> str:
    return self.text


def compare(
  a: _significance.Runs,
  b: _significance.Runs,
  paired: bool = False,
  *,
  level: float = 0.95,
) -> Comparison:
  r"""Compares two sets of runs.

  Set ``paired`` if the i-th runs share a seed (initial weights, order of the
  data). Noise that both share then cancels in the difference. Unpaired, p is
  that of :func:`welch_t_test` and the interval is :func:`cohens_d_interval`.
  Paired, p is that of :func:`paired_t_test`. The interval is of the same d:
  with the variances :math:`s_a^2, s_b^2` and the covariance :math:`c`,

  .. math::

    d \pm z \, \sqrt{\frac{1}{n - 1} \left(
      \frac{s_a^2 + s_b^2 - 2 c}{v}
      + d^2 \, \frac{s_a^4 + s_b^4 + 2 c^2}{8 v^2} \right)},
    \qquad v = \frac{s_a^2 + s_b^2}{2} .

  Args:
    a: one number for each run.
    b: one number for each run of the other set.
    paired: whether the i-th runs share a seed.
    level: confidence level of the interval.

  Returns:
    A :class:`Comparison`. With fewer than five runs in a set, it has numbers
    but no verdict.

  Examples:
    >>> from orthograd_optax import stats
    >>> sgd = [1.24, 1.31, 1.22, 1.27, 1.30]
    >>> orthograd = [1.18, 1.26, 1.15, 1.22, 1.21]
    >>> result = stats.compare(sgd, orthograd)
    >>> print(f"d = {result.d:.2f}, p = {result.p:.3f}")
    d = 1.60, p = 0.035
    >>> result = stats.compare(sgd, orthograd, paired=True)
    >>> print(f"d = {result.d:.2f}, p = {result.p:.3f}")
    d = 1.60, p = 0.001
    >>> print(result.verdict)
    the first is higher

  References:
    Bonett, Interval estimation of standardized mean differences in
    paired-samples designs, 2015
  """
  d = _significance.cohens_d(a, b)
  if paired:
    a, b = _significance.check_pairs(a, b)
    (v_a, c), (_, v_b) = np.cov(a - a[0], b - b[0])
    v = (v_a + v_b) / 2
    noise, scale = v_a + v_b - 2 * c, v_a**2 + v_b**2 + 2 * c**2
    variance = noise / v + d**2 * scale / (8 * v**2) if v > 0 else 2.0
    interval = _significance.normal_interval(d, variance / (a.size - 1), level)
    p = _significance.paired_t_test(a, b).pvalue
  else:
    a, b = _significance.check(a, "a"), _significance.check(b, "b")
    interval = _significance.cohens_d_interval(d, a.size, b.size, level)
    p = _significance.welch_t_test(a, b).pvalue
  return Comparison(
    mean_a=_significance.mean(a),
    mean_b=_significance.mean(b),
    std_a=math.sqrt(_significance.variance(a)),
    std_b=math.sqrt(_significance.variance(b)),
    n=(a.size, b.size),
    d=d,
    interval=interval,
    p=p,
    paired=paired,
    level=level,
  )


@dataclasses.dataclass(frozen=True)
class ComparisonTable:
  """Comparisons of several metrics, with adjusted p-values.

  It prints as a table in Markdown.

  Attributes:
    names: names of the two sets.
    rows: a :class:`Comparison` for each metric.
    adjusted: the Holm-adjusted p-value of each metric.
  """

  names: tuple[str, str]
  rows: dict[str, Comparison]
  adjusted: dict[str, float]

  def markdown(self) -> str:
    """The table in Markdown, with aligned columns."""
    cells = [[c.replace("|", "\\|") for c in row] for row in self._cells()]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * max(widths[0], 3)] + ["-" * (w - 1) + ":" for w in widths[1:]]
    lines = []
    for first, *others in [cells[0], rule, *cells[1:]]:
      padded = [first.ljust(widths[0])]
      padded += [c.rjust(w) for c, w in zip(others, widths[1:], strict=True)]
      lines.append(f"| {' | '.join(padded)} |\n")
    return "".join(lines)

  def latex(self) -> str:
    """The table as a LaTeX ``tabular``. It needs no packages."""
    header, *rows = self._cells()
    lines = [" & ".join(map(_latex, header)) + r" \\"]
    for name, *numbers in rows:
      # Without {}, LaTeX takes a [ or * after \\ for an option of \\.
      cells = ["{}" + _latex(name), *map(_latex_number, numbers)]
      lines.append(" & ".join(cells) + r" \\")
    columns = "l" + "r" * (len(header) - 1)
    body = [r"\hline", lines[0], r"\hline", *lines[1:], r"\hline"]
    return "\n".join(
      [rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}", ""]
    )

  def csv(self) -> str:
    """The table as comma-separated values, with all digits."""
    records = [{"metric": k, **v} for k, v in self.to_dict().items()]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()

  def to_dict(self) -> dict[str, dict[str, Any]]:
    """A dictionary for each metric, of Python numbers."""
    return {
      name: {
        "mean_a": row.mean_a,
        "mean_b": row.mean_b,
        "std_a": row.std_a,
        "std_b": row.std_b,
        "n_a": row.n[0],
        "n_b": row.n[1],
        "d": row.d,
        "d_low": row.interval[0],
        "d_high": row.interval[1],
        "level": row.level,
        "p": row.p,
        "p_holm": self.adjusted[name],
        "paired": row.paired,
      }
      for name, row in self.rows.items()
    }

  def __str__(self) -> str:
    return self.markdown()

  def _cells(self) -> list[list[str]]:
    level = 100 * next(iter(self.rows.values())).level
    one_line = lambda text: " ".join(str(text).split())
    names = map(one_line, self.names)
    header = ["", *names, "d", f"{level:g} % interval", "p", "p (Holm)"]
    return [header] + [
      [
        one_line(name),
        _number(row.mean_a, row.std_a),
        _number(row.mean_b, row.std_b),
        f"{row.d:.2f}",
        f"({row.interval[0]:.2f}, {row.interval[1]:.2f})",
        _p(row.p),
        _p(self.adjusted[name]),
      ]
      for name, row in self.rows.items()
    ]


def compare_table(
  a: Mapping[str, _significance.Runs],
  b: Mapping[str, _significance.Runs],
  paired: bool = False,
  *,
  names: tuple[str, str] = ("A", "B"),
  level: float = 0.95,
) -> ComparisonTable:
  """Compares two sets of runs by several metrics.

  Args:
    a: one number for each run, by metric, such as the result of
      :func:`orthograd_optax.calibration.evaluate` under ``jax.vmap``.
    b: the same metrics of the other set.
    paired: whether the i-th runs share a seed.
    names: names of the two sets.
    level: confidence level of the intervals.

  Returns:
    A :class:`ComparisonTable`. Print it, or convert it to Markdown, LaTeX, CSV
    or a dictionary.

  Examples:
    >>> from orthograd_optax import stats
    >>> sgd = {"loss": [1.24, 1.31, 1.22], "ece": [0.17, 0.16, 0.17]}
    >>> orthograd = {"loss": [1.18, 1.16, 1.15], "ece": [0.16, 0.17, 0.16]}
    >>> table = stats.compare_table(sgd, orthograd, names=("SGD", "⊥Grad"))
    >>> for name, row in table.rows.items():
    ...   print(f"{name}: d = {row.d:.2f}, p = {table.adjusted[name]:.2f}")
    loss: d = 2.66, p = 0.13
    ece: d = 0.58, p = 0.52
    >>> print(table.latex().splitlines()[2])
     & SGD & $\\perp$Grad & d & 95 \\% interval & p & p (Holm) \\\\
  """
  if not a or a.keys() != b.keys():
    raise ValueError(
      f"a has the metrics {sorted(a)} and b has {sorted(b)}, but both must "
      "have the same metrics, at least one."
    )
  if len(names) != 2:
    raise ValueError(f"names is {names}, but must have two names.")
  rows = {}
  for name in a:
    try:
      rows[name] = compare(a[name], b[name], paired, level=level)
    except ValueError as error:
      raise ValueError(f"{name}: {error}") from error
  adjusted = _significance.holm([row.p for row in rows.values()])
  return ComparisonTable(
    names=(names[0], names[1]),
    rows=rows,
    adjusted=dict(zip(rows, adjusted.tolist(), strict=True)),
  )


def _number(mean, std) -> str:
  """Mean ± standard deviation, to two digits of the latter."""
  if std == 0:
    return f"{mean:.4g} ± 0"
  digits = 1 - math.floor(math.log10(std))
  if not -4 <= digits <= 8:
    return f"{mean:.3g} ± {std:.2g}"
  digits = max(digits, 0)
  return f"{mean:.{digits}f} ± {std:.{digits}f}"


def _p(p) -> str:
  if p == 0:
    return "0"
  return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def _latex(text: str) -> str:
  replacements: dict[str, str] = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "⊥": r"$\perp$",
    "±": r"$\pm$",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{c: f"${c}$" for c in "<>|"},
  }
  return "".join(replacements.get(c, c) for c in text)


def _latex_number(text: str) -> str:
  text = text.replace("±", r"$\pm$").replace("inf", r"$\infty$")
  text = re.sub(
    r"e([+-])0*(\d+)",
    lambda m: rf"$\times 10^{{{m[1].strip('+')}{m[2]}}}$",
    text,
  )
  return re.sub(r"(?<![{\w])-", "$-$", text)
