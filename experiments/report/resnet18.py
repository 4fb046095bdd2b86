"""ResNet-18 after 100 epochs."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from experiments import cifar
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

FIRST, FRESH = range(20), range(20, 40)  # seeds of table1 and confirmation
BOTH = range(40)
EPOCHS = range(20, 101, 20)  # that both studies evaluate
RENORMALIZED = ("orthograd", "orthograd_unnormalized")
FEW = range(10)  # seeds of renormalization


def facts(found: Results, former: Results) -> dict[str, Any]:
  """Tables of the paper, and what the appendix has.

  Args:
    found: of table1, confirmation, corruption and renormalization.
    former: of the first run of seeds 0 to 19.
  """
  table_1 = claims.table(compare.by_metric(found, BOTH), paper.TABLE_1)
  return {
    "table_1": table_1,
    "off": off(table_1["rows"]),
    "corruption": claims.table(
      compare.by_metric(found, FIRST, CORRUPTED, UNDER_CORRUPTION),
      {},
      paper.UNDER_CORRUPTION,
    ),
    "epochs": compare.by_epoch(found, BOTH, EPOCHS),
    "by_severity": by_severity(found),
    "by_corruption": by_corruption(found),
    "extra": compare.by_metric(found, FIRST, EXTRA, UNDER_CORRUPTION),
    "renormalization": renormalization(found, former),
  }


def drawings(found: Results) -> Drawings:
  return {
    "severity": lambda: figures.severity(found, FIRST),
    "reliability": lambda: figures.reliability(found, BOTH),
    "reliability_corrupted": lambda: figures.reliability(
      found, FIRST, CORRUPTED
    ),
  }


def off(rows: dict[str, Compared]) -> list[str]:
  """Metrics with a mean not within a standard deviation of the paper's."""

  def is_off(metric: str, row: Compared) -> bool:
    theirs = paper.TABLE_1[metric]
    pairs = (row.a, theirs.sgd), (row.b, theirs.orthograd)
    return any(abs(x.mean() - y) > np.std(x, ddof=1) for x, y in pairs)

  return [metric for metric, row in rows.items() if is_off(metric, row)]


def by_severity(found: Results) -> dict[str, list[Compared]]:
  return compare.grid(
    {
      m: [compare.compare(found, m, FIRST, s) for s in SEVERITIES[1:]]
      for m in UNDER_CORRUPTION
    }
  )


def by_corruption(found: Results) -> dict[str, list[Compared]]:
  return compare.grid(
    {
      name: [
        compare.compare(found, m, FIRST, compare.sets([name]))
        for m in UNDER_CORRUPTION
      ]
      for name in cifar.ALL_CORRUPTIONS
    }
  )


def renormalized(
  found: Results, datasets: Sequence[str], metrics: Iterable[str] = METRICS
) -> dict[str, Compared]:
  """⊥Grad not renormalized less renormalized."""
  return compare.by_metric(found, FEW, datasets, metrics, RENORMALIZED)


def renormalization(found: Results, former: Results) -> dict[str, Any]:
  """The paper's table, and all metrics of this and of the first run."""
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
