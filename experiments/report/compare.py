"""SGD beside ⊥Grad: the facts of tables that several parts of a report have."""

from collections.abc import Collection, Iterable, Mapping, Sequence
import functools
from typing import Any

import numpy as np
import scipy.stats

from experiments import cifar
from experiments.report import paper
from experiments.report.formats import METRICS, method_name, printed
from experiments.report.results import Results
from orthograd_optax import stats

PAIR = ("sgd", "orthograd")
LEVEL = 0.05
UNDER_CORRUPTION = tuple(
  m for m in METRICS if m not in ("temperature", "weight_norm")
)


def sets(
  names: Iterable[str], severities: Sequence[int] = range(1, 6)
) -> list[str]:
  return [f"{name}/{severity}" for name in names for severity in severities]


CORRUPTED = sets(cifar.CORRUPTIONS)
EXTRA = sets(cifar.EXTRA_CORRUPTIONS)
# The clean test set, and CIFAR-10-C by severity.
SEVERITIES = [["clean"]]
SEVERITIES += [sets(cifar.CORRUPTIONS, [i]) for i in range(1, 6)]


class Compared:
  """A metric of two sets of runs that share their seeds.

  Attributes:
    metric: its name in the rows.
    a: of the first set, for each seed.
    b: of the second.
    holm: the paired p, adjusted for all metrics or cells of its table.
  """

  def __init__(self, metric: str, a: np.ndarray, b: np.ndarray) -> None:
    self.metric, self.a, self.b = metric, a, b
    self.holm = self.paired.p

  @functools.cached_property
  def paired(self) -> stats.Comparison:
    return stats.compare(self.a, self.b, paired=True)

  @functools.cached_property
  def welch(self) -> stats.Comparison:
    return stats.compare(self.a, self.b)

  @property
  def differs(self) -> bool:
    return self.holm < LEVEL

  @property
  def change(self) -> float:
    """From the first set's mean to the second's."""
    return float(np.mean(self.b - self.a))

  @property
  def change_interval(self) -> tuple[float, float]:
    """Of 95 %, by the paired test."""
    low, high = scipy.stats.ttest_rel(self.b, self.a).confidence_interval()
    return float(low), float(high)

  def p_equal(self, within: float) -> float:
    """Of two one-sided paired tests."""
    return stats.tost(self.a, self.b, within, paired=True).pvalue


def compare(
  found: Results,
  metric: str,
  seeds: Sequence[int],
  datasets: Sequence[str] = ("clean",),
  epoch: int | Sequence[int] | None = None,
  part: str = "metrics",
  pair: Sequence[str] = PAIR,
) -> Compared:
  """Two optimizers by what :meth:`Results.values` has of them."""
  a, b = (
    found.values(name, metric, seeds, datasets, epoch, part) for name in pair
  )
  return Compared(metric, a, b)


def adjust(cells: Collection[Compared]) -> None:
  """Holm's adjustment for all of them."""
  adjusted = stats.holm([cell.paired.p for cell in cells])
  for cell, p in zip(cells, adjusted.tolist(), strict=True):
    cell.holm = p


def by_metric(
  found: Results,
  seeds: Sequence[int],
  datasets: Sequence[str] = ("clean",),
  metrics: Iterable[str] = METRICS,
  pair: Sequence[str] = PAIR,
) -> dict[str, Compared]:
  """Two optimizers, with p adjusted for all metrics."""
  rows = {m: compare(found, m, seeds, datasets, pair=pair) for m in metrics}
  adjust(rows.values())
  return rows


def paired_table(
  found: Results, seeds: Sequence[int], pair: Sequence[str] = PAIR
) -> stats.ComparisonTable:
  """Two optimizers on the clean test set, with labels for names."""
  a, b = (
    {METRICS[m]: found.values(name, m, seeds) for m in METRICS} for name in pair
  )
  names = method_name(pair[0]), method_name(pair[1])
  return stats.compare_table(a, b, paired=True, names=names)


def provenance(found: Results, study: str) -> dict[str, Any]:
  """Where a study ran and how long, if rows are from it."""
  order = lambda row: (row["time"], row["wall_time"])
  rows = sorted(found.of_study(study), key=order)
  if not rows:
    return {"study": study, "last": None}
  # The clock starts anew with each group of runs, and when a study is resumed.
  clock = [row["wall_time"] for row in rows]
  pairs = zip(clock, [*clock[1:], 0.0], strict=True)
  seconds = round(sum(now for now, then in pairs if then < now))
  return {
    "study": study,
    "last": rows[-1],
    "time": f"{seconds // 60}:{seconds % 60:02d}",
  }


def beside_the_paper(
  found: Results,
  seeds: range,
  paper_rows: Mapping[str, paper.Row],
  tolerance: Mapping[str, float],
) -> dict[str, Any]:
  """A table of the paper that compares both optimizers, and ours."""
  rows = by_metric(found, seeds)

  def matches(metric: str) -> bool:
    theirs, ours = paper_rows[metric], rows[metric].paired
    away = ours.mean_a - theirs.sgd, ours.mean_b - theirs.orthograd
    return all(abs(x) <= tolerance[metric] for x in away)

  return {
    "seeds": seeds,
    "rows": rows,
    "paper": {m: printed(paper_rows.get(m)) for m in rows},
    "within": tolerance,
    "matches": {m: matches(m) for m in tolerance},
  }


def scaled(
  found: Results,
  seeds: range,
  best: paper.Row | None = None,
  scores: Mapping[str, Mapping[str, paper.Row]] | None = None,
) -> dict[str, Any]:
  """What temperature scaling does, ours beside the paper's if it has it."""

  def row(metric, part="metrics", theirs=None):
    it = compare(found, metric, seeds, part=part)
    if metric == "brier":  # which the paper divides by the number of classes
      it = Compared(metric, it.a / 10, it.b / 10)
    return {"ours": it, "paper": printed(theirs)}

  def score(metric):
    theirs = (scores or {}).get(metric, {})
    return {
      "before": row(metric, "metrics", theirs.get("before")),
      "after": row(metric, "scaled", theirs.get("after")),
      "half": row(metric, "scaled_half"),
    }

  return {
    "whole": row("temperature", theirs=best),
    "half": row("temperature_half"),
    "ece": score("ece"),
    "brier": score("brier"),
  }


def over_sets(
  found: Results, seeds: range, datasets: Sequence[str]
) -> dict[str, Any]:
  """Both optimizers, by their means over several sets of images."""
  rows = by_metric(found, seeds, datasets, UNDER_CORRUPTION)
  return {"seeds": len(seeds), "sets": len(datasets), "rows": rows}


def grid(lines: dict[str, list[Compared]]) -> dict[str, Any]:
  """Lines of cells, with p adjusted for all cells."""
  cells = [cell for line in lines.values() for cell in line]
  adjust(cells)
  return {"lines": lines, "cells": len(cells)}
