"""Parts of the report: numbers, tables and pictures of any study's rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import itertools
from typing import Any

import numpy as np

from experiments import cifar
from experiments.report import page, paper
from experiments.report.kept import Results
from experiments.report.study import METRICS, NAMES, reliability
from orthograd_optax import plots, stats

PAIR = ("sgd", "orthograd")
LEVEL = 0.05
DIGITS = {"ece": 4, "brier": 4, "entropy": 4, "max_softmax": 4, "loss": 3}
DIGITS |= {"confidence_correlation": 3}
COMPARED = tuple(METRICS)
UNDER_CORRUPTION = tuple(
  m for m in COMPARED if m not in ("temperature", "weight_norm")
)


def compared(
  found: Results,
  seeds: Iterable[int],
  datasets: Sequence[str] = ("clean",),
  metrics: Iterable[str] = COMPARED,
  pair: tuple[str, str] = PAIR,
) -> tuple[stats.ComparisonTable, stats.ComparisonTable]:
  """The optimizers compared, by Welch's test and by the paired one."""
  seeds = list(seeds)
  a, b = (
    {m: found.values(name, m, seeds, datasets) for m in metrics}
    for name in pair
  )
  names = (NAMES[pair[0]], NAMES[pair[1]])
  return (
    stats.compare_table(a, b, paired=False, names=names),
    stats.compare_table(a, b, paired=True, names=names),
  )


def sets(
  names: Iterable[str], severities: Iterable[int] = range(1, 6)
) -> list[str]:
  severities = list(severities)
  return [f"{name}/{severity}" for name in names for severity in severities]


CORRUPTED = sets(cifar.CORRUPTIONS)
EXTRA = sets(cifar.EXTRA_CORRUPTIONS)
SEVERITIES = [["clean"]]
SEVERITIES += [sets(cifar.CORRUPTIONS, [i]) for i in range(1, 6)]


def of_pair(
  found: Results,
  metric: str,
  seeds: Sequence[int],
  datasets: Sequence[str] = ("clean",),
  epoch: int | None = None,
  part: str = "metrics",
) -> list[np.ndarray]:
  """What :meth:`Results.values` has of SGD and of ⊥Grad."""
  return [
    found.values(name, metric, seeds, datasets, epoch, part) for name in PAIR
  ]


def number(metric: str, value: float) -> str:
  return f"{value:.{DIGITS.get(metric, 2)}f}"


def spread(metric: str, mean: float, std: float) -> str:
  return f"{number(metric, mean)} ± {number(metric, std)}"


def means(metric: str, a: np.ndarray, b: np.ndarray) -> str:
  return " / ".join(number(metric, float(np.mean(x))) for x in (a, b))


def effect(row: stats.Comparison) -> str:
  return f"{row.d:.2f} ({row.interval[0]:.2f}, {row.interval[1]:.2f})"


def p_value(p: float | None) -> str:
  if p is None:
    return ""
  return f"{p:.3f}" if p >= 0.001 else f"{p:.2g}".replace("e-0", "e-")


def printed(row: paper.Row | None) -> tuple[str, str]:
  """A row's two values with as many digits as the paper gives both."""
  if row is None:
    return "", ""
  digits = max(len(f"{x}".partition(".")[2]) for x in (row.sgd, row.orthograd))
  return f"{row.sgd:.{digits}f}", f"{row.orthograd:.{digits}f}"


def made_by(found: Results, study: str) -> str:
  """The command, and if rows are from it, where it ran and how long."""
  order = lambda row: (row["time"], row["wall_time"])
  rows = sorted(found.of_study(study), key=order)
  command = f"`python -m experiments run {study}`"
  if not rows:
    return f"{command}."
  # The clock starts anew with each group of runs, and when a study is resumed.
  clock = [row["wall_time"] for row in rows]
  pairs = zip(clock, [*clock[1:], 0.0], strict=True)
  seconds = round(sum(now for now, then in pairs if then < now))
  row = rows[-1]
  return (
    f"{command}: {row['device'].split(' × ')[-1]}, {seconds // 60}:"
    f"{seconds % 60:02d} minutes, jax {row['versions']['jax']}, "
    f"{row['precision']}, commit {row['commit']}, {row['time'][:10]}."
  )


def beside_the_paper(
  found: Results,
  seeds: range,
  paper_rows: Mapping[str, paper.Row],
  tolerance: Mapping[str, float],
) -> page.Table:
  """A table of the paper that compares both optimizers, and ours."""
  welch, paired = compared(found, seeds)
  header = ["", "SGD, paper", "ours", "⊥Grad, paper", "ours", "d, paper"]
  header += ["d, ours", "p, paper", "p, Welch", "p, paired", "Holm", "match"]
  lines = [header]
  for metric, row in welch.rows.items():
    theirs = paper_rows.get(metric)
    within, match = tolerance.get(metric), ""
    if theirs and within is not None:
      columns = ((theirs.sgd, row.mean_a), (theirs.orthograd, row.mean_b))
      ok = all(abs(x - y) <= within for x, y in columns)
      match = f"{'within' if ok else '**not within**'} {within}"
    lines.append(
      [
        METRICS[metric],
        printed(theirs)[0],
        spread(metric, row.mean_a, row.std_a),
        printed(theirs)[1],
        spread(metric, row.mean_b, row.std_b),
        f"{theirs.d:.2f} {theirs.interval}" if theirs and theirs.d else "",
        effect(row),
        p_value(theirs and theirs.p),
        p_value(row.p),
        p_value(paired.rows[metric].p),
        p_value(paired.adjusted[metric]),
        match,
      ]
    )
  return page.Table(
    lines,
    f"Mean ± standard deviation over seeds {seeds[0]} to {seeds[-1]}. d: "
    "Cohen’s, SGD less ⊥Grad, with its 95 % interval. match: whether both of "
    "our columns are so close to the paper’s.",
  )


def scaled(
  found: Results,
  seeds: range,
  best: paper.Row | None,
  scores: Mapping[str, Mapping[str, paper.Row]],
) -> page.Table:
  """What temperature scaling does, ours beside the paper's if it has it."""
  lines = [["", "SGD, paper", "SGD, ours", "⊥Grad, paper", "⊥Grad, ours"]]
  lines[0] += ["d, ours", "p, paper", "p, Welch", "p, paired"]

  def add(name, metric, part, theirs, scale=1.0):
    a, b = (
      scale * found.values(optimizer, metric, seeds, part=part)
      for optimizer in PAIR
    )
    row, paired = stats.compare(a, b), stats.compare(a, b, paired=True)
    digits = "temperature" if metric.startswith("temp") else "ece"
    lines.append(
      [
        name,
        printed(theirs)[0],
        spread(digits, row.mean_a, row.std_a),
        printed(theirs)[1],
        spread(digits, row.mean_b, row.std_b),
        effect(row),
        p_value(theirs and theirs.p),
        p_value(row.p),
        p_value(paired.p),
      ]
    )

  add("T, fitted on the test set", "temperature", "metrics", best)
  add("T, fitted on half of it", "temperature_half", "metrics", None)
  for metric, scale in (("ece", 1.0), ("brier", 0.1)):
    name = METRICS[metric] + (" / 10" if scale != 1 else "")
    theirs = scores.get(metric, {})
    add(f"{name}, before", metric, "metrics", theirs.get("before"), scale)
    add(f"{name}, after", metric, "scaled", theirs.get("after"), scale)
    add(f"{name}, after, other half", metric, "scaled_half", None, scale)
  return page.Table(
    lines,
    "“Other half”: T fitted on one half of the test set, judged by the other. "
    "Brier scores are divided by the ten classes, as in the paper’s table.",
  )


def over_sets(
  found: Results, seeds: range, datasets: Sequence[str]
) -> page.Table:
  """Both optimizers, by their means over several sets of images."""
  welch, paired = compared(found, seeds, datasets, UNDER_CORRUPTION)
  lines = [["", "SGD", "⊥Grad", "d", "p, Welch", "p, paired", "Holm"]]
  lines += [
    [
      METRICS[metric],
      spread(metric, row.mean_a, row.std_a),
      spread(metric, row.mean_b, row.std_b),
      effect(row),
      p_value(row.p),
      p_value(paired.rows[metric].p),
      p_value(paired.adjusted[metric]),
    ]
    for metric, row in welch.rows.items()
  ]
  note = f"{len(seeds)} seeds; each seed’s mean over {len(datasets)} sets."
  return page.Table(lines, note)


def diagram(
  found: Results, seeds: range, datasets: Sequence[str], name: str
) -> page.Picture:
  bins = {
    NAMES[optimizer]: reliability(found.get(optimizer, seeds, datasets))
    for optimizer in PAIR
  }
  images = "CIFAR-10, "
  if len(datasets) > 1:
    images = "CIFAR-10-C, 15 corruptions, 5 severities, "
  return page.Picture(
    plots.reliability_diagram(bins),
    name,
    f"{images}{len(seeds)} seeds. Where bars fall short of the diagonal, the "
    "network is surer than right.",
  )


def starred(
  found: Results,
  seeds: range,
  rows: Iterable[str],
  columns: Iterable[Any],
  what: Callable[[Any, Any], tuple[str, Sequence[str]]],
) -> list[list[str]]:
  """Lines of both means, with a star where they differ, by Holm's adjustment.

  Args:
    found: where they are from.
    seeds: over which they are.
    rows: metrics or corruptions, by which lines are named.
    columns: what tells the cells of a line apart.
    what: the metric and the sets of images of a row and a column.
  """
  rows, columns = list(rows), list(columns)
  cells, tests = {}, {}
  for cell in itertools.product(rows, columns):
    metric, datasets = what(*cell)
    a, b = of_pair(found, metric, seeds, datasets)
    cells[cell] = means(metric, a, b)
    tests[cell] = stats.paired_t_test(a, b).pvalue
  adjusted = stats.holm(list(tests.values()))
  star = dict(zip(tests, adjusted < LEVEL, strict=True))
  return [
    [METRICS.get(row) or row.replace("_", " ")]
    + [cells[row, i] + (" *" if star[row, i] else "") for i in columns]
    for row in rows
  ]


def by_severity(found: Results, seeds: range, name: str, caption: str):
  """A picture of what severity does; 0 is the clean test set."""
  values = {
    METRICS[metric]: {
      NAMES[optimizer]: np.stack(
        [found.values(optimizer, metric, seeds, s) for s in SEVERITIES], axis=1
      )
      for optimizer in PAIR
    }
    for metric in ("top1", "loss", "ece", "entropy")
  }
  figure = plots.curves(values, range(6), xlabel="severity")
  return page.Picture(figure, name, caption)
