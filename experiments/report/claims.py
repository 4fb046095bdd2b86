"""Verdicts on the paper's claims, by one rule."""

from collections.abc import Collection, Mapping
from typing import Any

from experiments.report import paper
from experiments.report.compare import Compared
from experiments.report.formats import printed
from experiments.report.outcomes import is_small

# The smallest differences that matter, by experiments/PLAN.md, in points of
# accuracy and nats.
MARGINS = {"top1": 0.5, "loss": 0.02}


def verdict(sign: int, rows: Collection[Compared]) -> str:
  """The verdict on a claim, which may be about several comparisons.

  Args:
    sign: of ⊥Grad less SGD in the paper; 0 if the paper claims no difference.
    rows: our comparisons, with adjusted p.

  Returns:
    "confirmed", "not confirmed" or "contradicted".
  """
  signs = [row.sign for row in rows]
  if sign == 0:
    small = (is_small(row, MARGINS.get(row.metric, 0.0)) for row in rows)
    confirmed, contradicted = all(small), any(signs)
  else:
    confirmed = all(s == sign for s in signs)
    contradicted = any(s == -sign for s in signs)
  if contradicted:
    return "contradicted"
  return "confirmed" if confirmed else "not confirmed"


def table(
  rows: Mapping[str, Compared],
  theirs: Mapping[str, paper.Row],
  signs: Mapping[str, int] | None = None,
) -> dict[str, Any]:
  """The facts of a table of the paper's numbers beside ours.

  Args:
    rows: our comparisons, by metric.
    theirs: the paper's rows, of all or some metrics.
    signs: of the paper's claims; by default those of its rows.
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
