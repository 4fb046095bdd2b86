"""What the paper claims, and whether it is confirmed: one rule for all."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from experiments.report import paper
from experiments.report.compare import Compared
from experiments.report.formats import printed

# What matters to a user, by experiments/PLAN.md: points, and nats.
MARGINS = {"top1": 0.5, "loss": 0.02}


def verdict(sign: int, rows: Collection[Compared]) -> str:
  """Of a claim that may be about several cells.

  Args:
    sign: of ⊥Grad less SGD in the paper; 0 if it says that they are the same.
    rows: ours, with adjusted p.

  Returns:
    "confirmed", "not confirmed" or "contradicted".
  """
  signs = [int(np.sign(row.change)) if row.differs else 0 for row in rows]
  if sign == 0:
    confirmed, contradicted = all(map(matters_not, rows)), any(signs)
  else:
    confirmed = all(s == sign for s in signs)
    contradicted = any(s == -sign for s in signs)
  if contradicted:
    return "contradicted"
  return "confirmed" if confirmed else "not confirmed"


def matters_not(row: Compared) -> bool:
  """Whether the interval is within the margin, if there is one."""
  return max(map(abs, row.interval)) <= MARGINS.get(row.metric, 0.0)


def table(
  rows: Mapping[str, Compared],
  theirs: Mapping[str, paper.Row],
  signs: Mapping[str, int] | None = None,
) -> dict[str, Any]:
  """A table of the paper beside ours.

  Args:
    rows: ours, by metric.
    theirs: the paper's, of all or some metrics.
    signs: what it claims; by default what its table says.
  """
  if signs is None:
    signs = {metric: paper.sign(metric, row) for metric, row in theirs.items()}
  return {
    "rows": rows,
    "paper": {metric: printed(theirs.get(metric)) for metric in rows},
    "verdicts": {
      metric: verdict(signs[metric], [row]) if metric in signs else ""
      for metric, row in rows.items()
    },
  }
