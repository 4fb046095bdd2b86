"""Says what `language`, study 18, measured: bits per byte and ECE."""

import collections
import dataclasses
import math
from typing import Any

import numpy as np

from experiments.grokking import Rows
from experiments.language import DECAYS, PAIRS, SEEDS, STUDY, Arm, Recipe
from experiments.report import query, render
from experiments.report.compare import Compared, adjust
from experiments.rows import RowsError

# The first two are the plan's; the others are described.
OUTCOMES = {
  "loss": "bits per byte",
  "crossed_loss": "bits per byte after T",
  "ece": "token ECE",
  "crossed_ece": "token ECE after T",
}


def planned(rows: Rows) -> Rows:
  """Returns the rows of the plan's recipe, or none while a run is missing."""
  recipe = dataclasses.asdict(Recipe())
  of_plan = lambda its: its["config"] | recipe == its["config"]
  rows = [row for row in rows if of_plan(row) and row["seed"] in SEEDS]
  if len(texts := {row["config_hash"] for row in rows}) > 1:
    raise RowsError(
      "language has rows of several texts, with the config_hash "
      f"{', '.join(sorted(texts))}, but all must have the same text. Keep the "
      "rows of one."
    )
  return rows if len(rows) == 2 * len(PAIRS) * len(SEEDS) else []


def facts(rows: Rows, unit: float = 1 / math.log(2)) -> dict[str, Any]:
  """Returns the comparisons of each weight decay, and what was trained.

  Losses are multiplied by the unit: by default, they are in bits. A run that
  diverged has no loss, and is left out.
  """
  runs: dict[str, dict[int, Any]] = collections.defaultdict(dict)
  diverged = []
  for row in rows:
    if row["metrics"]["loss"] is None:
      diverged.append((row["method"], row["seed"]))
    else:
      runs[row["method"]][row["seed"]] = row
  compared: dict[str, dict[str, Compared]] = {}
  for decay, pair in zip(DECAYS, PAIRS, strict=True):
    a, b = (arm.key for arm in pair)
    seeds = sorted(runs[a].keys() & runs[b].keys())
    for name, label in OUTCOMES.items() if len(seeds) > 1 else ():
      it = query.outcome(name)._replace(label=label)
      scale = unit if it.metric == "loss" else 1.0
      old, new = (
        scale * np.array([runs[key][s][it.part][it.metric] for s in seeds])
        for key in (a, b)
      )
      cell = Compared(it, old, new, (a, b))
      compared.setdefault(decay, {})[name] = cell
  for its in [*OUTCOMES][:2], [*OUTCOMES][2:]:
    cells = [each[it] for each in compared.values() for it in its]
    adjust(cells, planned=len(its) * len(PAIRS))
  return {
    "compared": compared,
    "decays": DECAYS,
    "lacking": [decay for decay in DECAYS if decay not in compared],
    "diverged": sorted(diverged),
    "arms": sorted({Arm(**row["settings"]) for row in rows}),
    "row": rows[-1],
  }


def situations(rows: Rows) -> dict[str, dict[str, Any]]:
  """Returns the lines of the answer, with losses in nats."""
  return {
    f"text, AdamW, weight decay {DECAYS[decay]:g}": {
      "study": STUDY,
      "loss": cells["loss"],
      "ece": cells["ece"],
      "scaled_loss": cells["crossed_loss"],
      "scaled_ece": cells["crossed_ece"],
    }
    for decay, cells in facts(rows, 1.0)["compared"].items()
  }


def text(rows: Rows) -> str:
  """Returns the result without the page, for the command."""
  return render.markdown("language_result.md", facts(rows))
