"""ResNet-18 after 100 epochs."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from experiments import datasets
from experiments.report import claims, compare, figures, paper
from experiments.report.compare import (
  AVERAGE,
  CLEAN,
  CORRUPTED,
  EXTRA,
  SEVERITIES,
  UNDER_CORRUPTION,
  Compared,
)
from experiments.report.formats import METRICS
from experiments.report.page import Drawings
from experiments.report.results import Results

TABLE1_SEEDS = range(20)
CONFIRMATION_SEEDS = range(20, 40)
ALL_SEEDS = range(40)
EPOCHS = range(20, 101, 20)  # evaluated by table1 and confirmation
RENORMALIZED = ("orthograd", "orthograd_unnormalized")
RENORMALIZATION_SEEDS = range(10)


def facts(found: Results, harder: Results, former: Results) -> dict[str, Any]:
  """The facts of the paper's tables and of the appendix.

  Args:
    found: results of table1, confirmation, corruption and renormalization.
    harder: results of all seeds on CIFAR-10-C.
    former: results of the first run of seeds 0 to 19.
  """
  table_1 = claims.table(compare.by_metric(found, ALL_SEEDS), paper.TABLE_1)
  return {
    "table_1": table_1,
    "off": off(table_1["rows"]),
    "corruption": claims.table(
      compare.by_metric(harder, ALL_SEEDS, CORRUPTED, UNDER_CORRUPTION),
      {},
      paper.UNDER_CORRUPTION,
    ),
    "epochs": compare.by_epoch(found, ALL_SEEDS, EPOCHS),
    "by_severity": by_severity(harder),
    "by_corruption": by_corruption(harder),
    "extra": compare.by_metric(found, TABLE1_SEEDS, EXTRA, UNDER_CORRUPTION),
    "renormalization": renormalization(found, former),
  }


def drawings(found: Results, harder: Results) -> Drawings:
  return {
    "severity": lambda: figures.severity(harder, ALL_SEEDS),
    "reliability": lambda: figures.reliability(found, ALL_SEEDS),
    "reliability_corrupted": lambda: figures.reliability(
      harder, ALL_SEEDS, CORRUPTED
    ),
  }


def off(rows: dict[str, Compared]) -> list[str]:
  """Metrics whose mean is more than a standard deviation from the paper's."""

  def is_off(metric: str, row: Compared) -> bool:
    theirs = paper.TABLE_1[metric]
    pairs = (row.a, theirs.sgd), (row.b, theirs.orthograd)
    return any(abs(x.mean() - y) > np.std(x, ddof=1) for x, y in pairs)

  return [metric for metric, row in rows.items() if is_off(metric, row)]


def by_severity(found: Results) -> dict[str, list[Compared]]:
  return compare.grid(
    {
      m: [compare.compare(found, m, ALL_SEEDS, s) for s in SEVERITIES[1:]]
      for m in UNDER_CORRUPTION
    }
  )


def by_corruption(found: Results) -> dict[str, list[Compared]]:
  """Of all seeds; the extra corruptions of seeds 0 to 19."""
  seeds = dict.fromkeys(datasets.ALL_CORRUPTIONS, TABLE1_SEEDS)
  seeds |= dict.fromkeys(datasets.CORRUPTIONS, ALL_SEEDS)
  return compare.grid(
    {
      name: [
        compare.compare(found, m, its, compare.sets([name]))
        for m in UNDER_CORRUPTION
      ]
      for name, its in seeds.items()
    }
  )


def renormalized(
  found: Results, datasets: Sequence[str], metrics: Iterable[str] = METRICS
) -> dict[str, Compared]:
  """⊥Grad not renormalized less renormalized."""
  return compare.by_metric(
    found, RENORMALIZATION_SEEDS, datasets, metrics, RENORMALIZED
  )


def renormalization(found: Results, former: Results) -> dict[str, Any]:
  """The facts of the paper's table, and of all metrics in both runs."""
  clean, theirs = renormalized(found, CLEAN), paper.RENORMALIZATION
  return {
    "table": claims.table(
      {metric: clean[metric] for metric in theirs},
      theirs,
      dict.fromkeys(theirs, 0),
    ),
    "doubtful": [m for m, row in clean.items() if row.p < compare.LEVEL],
    "alone": renormalized(found, CLEAN, theirs),
    "clean": clean,
    "corrupted": renormalized(found, CORRUPTED, UNDER_CORRUPTION),
    "clean_once": renormalized(former, CLEAN),
    "corrupted_once": renormalized(former, AVERAGE, UNDER_CORRUPTION),
  }
