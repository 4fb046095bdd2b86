"""Compares two methods: facts that several parts of a report use.

Differences and effect sizes are the second method less the first: ⊥Grad less
SGD.
"""

from collections.abc import Collection, Iterable, Sequence
import datetime
import functools
import math
from typing import Any

import numpy as np
import scipy.stats

from experiments import datasets
from experiments.report.formats import METRICS
from experiments.report.results import Results
from orthograd_optax import stats

PAIR = ("sgd", "orthograd")
LEVEL = 0.05
SAME_CLOCK = 5  # seconds, since a row's time is rounded
UNDER_CORRUPTION = tuple(
  m for m in METRICS if m not in ("temperature", "weight_norm")
)


def sets(
  names: Iterable[str], severities: Sequence[int] = range(1, 6)
) -> list[str]:
  return [f"{name}/{severity}" for name in names for severity in severities]


CLEAN = ["clean"]
AVERAGE = ["CIFAR-10-C"]  # in former_runs: the mean of all sets
CORRUPTED = sets(datasets.CORRUPTIONS)
EXTRA = sets(datasets.EXTRA_CORRUPTIONS)
# The clean test set, and CIFAR-10-C by severity.
SEVERITIES = [CLEAN]
SEVERITIES += [sets(datasets.CORRUPTIONS, [i]) for i in range(1, 6)]


class Compared:
  """A metric of two sets of runs that share their seeds.

  Attributes:
    metric: its name in the rows.
    a: the metric of the first set, for each seed.
    b: the metric of the second set.
    adjusted: the paired t-test's p, adjusted once :func:`adjust` was called.
  """

  def __init__(self, metric: str, a: np.ndarray, b: np.ndarray) -> None:
    self.metric, self.a, self.b = metric, a, b
    self.adjusted = self.p

  @functools.cached_property
  def _test(self) -> Any:
    return scipy.stats.ttest_rel(self.b, self.a)

  @property
  def p(self) -> float:
    """The paired t-test's; 1 if all pairs are equal."""
    p = float(self._test.pvalue)
    return 1.0 if math.isnan(p) else p

  @property
  def sign(self) -> int:
    """Of a significant change; 0 if there is none."""
    return int(np.sign(self.change)) if self.differs else 0

  @property
  def differs(self) -> bool:
    """Whether tables have a *."""
    return self.adjusted < LEVEL

  @property
  def change(self) -> float:
    """The mean difference, the second set less the first."""
    return float(np.mean(self.b - self.a))

  @property
  def interval(self) -> tuple[float, float]:
    """The 95 % interval of the change, by the paired t."""
    low, high = self._test.confidence_interval()
    return float(low), float(high)

  @property
  def d(self) -> float:
    return stats.cohens_d(self.b, self.a)


def compare(
  found: Results,
  metric: str,
  seeds: Sequence[int],
  datasets: Sequence[str] = CLEAN,
  epoch: int | Sequence[int] | None = None,
  part: str = "metrics",
  pair: Sequence[str] = PAIR,
) -> Compared:
  """Compares two methods by a metric of :meth:`Results.values`."""
  a, b = (
    found.values(name, metric, seeds, datasets, epoch, part) for name in pair
  )
  return Compared(metric, a, b)


def adjust(cells: Collection[Compared], planned: int = 0) -> None:
  """Adjusts p by Holm's method, over all cells.

  Args:
    cells: whose p.
    planned: the number of tests, if some of them could not be made.
  """
  found = [cell.p for cell in cells]
  adjusted = stats.holm(found + [1.0] * (planned - len(found)))
  for cell, p in zip(cells, adjusted.tolist(), strict=False):
    cell.adjusted = p


def by_metric(
  found: Results,
  seeds: Sequence[int],
  datasets: Sequence[str] = CLEAN,
  metrics: Iterable[str] = METRICS,
  pair: Sequence[str] = PAIR,
  part: str = "metrics",
) -> dict[str, Compared]:
  """Compares two methods by each metric, with p adjusted over metrics."""
  rows = {
    m: compare(found, m, seeds, datasets, part=part, pair=pair) for m in metrics
  }
  adjust(rows.values())
  return rows


def grid(lines: dict[Any, list[Compared]]) -> dict[Any, list[Compared]]:
  """Adjusts p over all cells of a table, and returns its lines."""
  adjust([cell for line in lines.values() for cell in line])
  return lines


def by_epoch(
  found: Results, seeds: Sequence[int], epochs: Sequence[int]
) -> dict[str, Any]:
  """All metrics, and the loss after T, on the test set after each epoch."""
  parts = {m: (m, "metrics") for m in METRICS}
  parts["scaled_loss"] = ("loss", "scaled_half")
  lines = {
    name: [
      compare(found, metric, seeds, epoch=epoch, part=part) for epoch in epochs
    ]
    for name, (metric, part) in parts.items()
  }
  return {"epochs": epochs, "lines": grid(lines)}


def began(row: dict[str, Any]) -> float:
  """When the clock of a row's wall_time was started."""
  time = datetime.datetime.fromisoformat(row["time"])
  return time.timestamp() - row["wall_time"]


def seconds_per_run(found: Results, name: str) -> float:
  """An epoch's, of one of the runs that train together; the median of all."""
  rows = found.get(name, found.seeds([name], ["train"]), ["train"])
  return float(
    np.median([row["epoch_seconds"] / row["runs_at_once"] for (row,) in rows])
  )


def provenance(found: Results, study: str) -> dict[str, Any]:
  """The device, versions, commits, days and minutes of a study."""
  rows = sorted(found.of_study(study), key=lambda row: row["time"])
  # wall_time restarts with each group of runs, and when a study is resumed.
  clocks: list[tuple[float, float]] = []  # when each began, and what it shows
  for row in sorted(rows, key=began):
    if not clocks or began(row) - clocks[-1][0] > SAME_CLOCK:
      clocks.append((began(row), 0.0))
    start, most = clocks[-1]
    clocks[-1] = start, max(most, row["wall_time"])
  seconds = round(sum(most for _, most in clocks))
  brief = lambda commit: commit[:12] + "-dirty" * commit.endswith("-dirty")
  commits = dict.fromkeys(brief(row["commit"]) for row in rows)
  return {
    "study": study,
    "last": rows[-1],
    "commits": ", ".join(commits),
    "days": ", ".join(dict.fromkeys(row["time"][:10] for row in rows)),
    "time": f"{seconds // 60}:{seconds % 60:02d}",
  }
