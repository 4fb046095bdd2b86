"""ResNet-18 after 100 epochs."""

from typing import Any

import numpy as np

from experiments import cifar
from experiments.report import compare, figures, paper
from experiments.report.compare import CORRUPTED, EXTRA, LEVEL, PAIR, SEVERITIES
from experiments.report.formats import METRICS, printed
from experiments.report.page import Drawings
from experiments.report.results import Results
from orthograd_optax import plots, stats

FIRST, FRESH = range(20), range(20, 40)  # seeds of table1 and confirmation
BOTH = range(40)
WAY = range(10, 101, 10)  # epochs that confirmation evaluates
RENORMALIZED = ("orthograd", "orthograd_unnormalized")
PANELS = ("max_logit", "logit_variance", "loss", "ece")


def all_seeds(found: Results) -> range:
  return BOTH if found.has(PAIR, FRESH) else FIRST


def facts(found: Results) -> dict[str, Any]:
  """Parts without rows are None."""
  studies = ("table1", "confirmation", "corruption", "renormalization")
  seeds, best = all_seeds(found), paper.TABLE_1["temperature"]
  return {
    "runs": {name: compare.provenance(found, name) for name in studies},
    "seeds": len(seeds),
    "table_1": compare.beside_the_paper(
      found, FIRST, paper.TABLE_1, paper.TOLERANCE
    ),
    "more_seeds": more_seeds(found),
    "temperature": compare.scaled(found, seeds, best, paper.TEMPERATURE),
    "corruption": corruption(found),
    "renormalization": renormalization(found),
    "has_corrupted": found.has(PAIR, FIRST, CORRUPTED),
  }


def drawings(found: Results) -> Drawings:
  panels = {METRICS[m]: ("clean", m) for m in PANELS}
  return {
    "effects": lambda: plots.forest_plot(compare.paired_table(found, BOTH)),
    "training": lambda: figures.training(found, panels, FRESH, WAY),
    "severity": lambda: figures.severity(found, FIRST),
    "reliability": lambda: figures.reliability(found, all_seeds(found)),
    "reliability_corrupted": lambda: figures.reliability(
      found, FIRST, CORRUPTED
    ),
  }


def more_seeds(found: Results) -> dict[str, Any] | None:
  if not found.has(PAIR, FRESH, epochs=WAY):
    return None
  both = compare.by_metric(found, BOTH)
  return {
    "paper": {m: printed(row) for m, row in paper.TABLE_1.items()},
    "first": compare.by_metric(found, FIRST),
    "fresh": compare.by_metric(found, FRESH),
    "both": both,
    "away": {
      m: distance(paper.TABLE_1[m], both[m].welch)
      for m in ("max_logit", "logit_variance")
    },
    "crossing": crossing(found),
  }


def distance(theirs: paper.Row, ours: stats.Comparison) -> float:
  """From the paper's effect to ours, in standard errors of both."""
  assert theirs.d is not None and theirs.interval is not None
  intervals = np.array([theirs.interval, ours.interval])
  errors = np.diff(intervals) / 3.92
  return abs(ours.d - theirs.d) / float(np.linalg.norm(errors))


def crossing(found: Results) -> dict[str, int] | None:
  """When ⊥Grad's logits are the larger ones, and when the smaller."""
  larger, smaller = [], []
  for epoch in WAY:
    row = compare.compare(found, "max_logit", FRESH, epoch=epoch).paired
    if row.p < LEVEL:
      (larger if row.mean_b > row.mean_a else smaller).append(epoch)
  if not larger or not smaller:
    return None
  return {"larger_until": larger[-1], "smaller_from": smaller[0]}


def corruption(found: Results) -> dict[str, Any] | None:
  if not found.has(PAIR, FIRST, CORRUPTED + EXTRA):
    return None
  metrics, cell = compare.UNDER_CORRUPTION, compare.compare
  return {
    "average": compare.over_sets(found, FIRST, CORRUPTED),
    "metrics": metrics,
    "by_severity": compare.grid(
      {m: [cell(found, m, FIRST, s) for s in SEVERITIES[1:]] for m in metrics}
    ),
    "by_corruption": compare.grid(
      {
        name: [cell(found, m, FIRST, compare.sets([name])) for m in metrics]
        for name in cifar.ALL_CORRUPTIONS
      }
    ),
    "extra": compare.over_sets(found, FIRST, EXTRA),
  }


def renormalization(found: Results) -> dict[str, Any] | None:
  """⊥Grad renormalized beside not, and the p-values of being equal."""
  seeds, tolerance = range(10), paper.TOLERANCE
  if not found.has(RENORMALIZED, seeds, CORRUPTED):
    return None
  on_weights = {"weight_norm"}  # which the images don't change

  def table(datasets, metrics):
    rows = compare.by_metric(found, seeds, datasets, metrics, RENORMALIZED)
    equal = {m: row.p_equal(tolerance[m]) for m, row in rows.items()}
    return {"rows": rows, "within": tolerance, "p_equal": equal}

  theirs = {m: paper.RENORMALIZATION.get(m, ()) for m in tolerance}
  corrupted = [m for m in tolerance if m not in on_weights]
  return {
    "clean": table(["clean"], tolerance) | {"paper": theirs},
    "corrupted": table(CORRUPTED, corrupted) | {"paper": None},
  }
