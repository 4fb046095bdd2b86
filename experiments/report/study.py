"""The page of one study, from its folder."""

import dataclasses
import pathlib

import numpy as np

from experiments import config
from experiments.engine import rows
from experiments.report import figures
from experiments.report.compare import LEVEL, paired_table
from experiments.report.page import Page, markdown, render
from experiments.report.results import Results
from orthograd_optax import stats

PANELS = {
  "loss in training": ("train", "loss"),
  "loss on the test set": ("clean", "loss"),
  "ECE on the test set": ("clean", "ece"),
}


def load(folder: pathlib.Path) -> tuple[config.Study, Results]:
  """A folder's study, and its rows."""
  study = config.load_settings(folder)
  found = Results(rows.read(folder / "rows.jsonl"), study.config)
  if not found.rows:
    raise rows.RowsError(
      f"{folder / 'rows.jsonl'} has no rows of that study: `python -m "
      f"experiments resume {folder}` makes them."
    )
  return study, found


def comparison(
  study: config.Study, found: Results
) -> stats.ComparisonTable | None:
  """The first two optimizers, paired by seed; None if they are not there."""
  pair = study.optimizers[:2]
  seeds = found.seeds(pair)
  if len(pair) < 2 or len(seeds) < 2:
    return None
  return paired_table(found, seeds, pair)


def verdict(table: stats.ComparisonTable) -> str:
  """What is significant, after Holm's adjustment, and what is not."""
  lists: dict[str, list[str]] = {"higher": [], "lower": [], "same": []}
  for name, row in table.rows.items():
    kind = "lower" if row.mean_b < row.mean_a else "higher"
    kind = kind if table.adjusted[name] < LEVEL else "same"
    lists[kind].append(name.removesuffix(", %"))
  first, second = table.names
  seeds = next(iter(table.rows.values())).n[0]
  facts = {"first": first, "second": second, "seeds": seeds, **lists}
  return markdown("verdict.md", facts)


def make(
  study: config.Study, found: Results, table: stats.ComparisonTable
) -> Page:
  epochs = study.epochs_evaluated()
  ended = [name for name in study.optimizers if found.seeds([name])]
  followed = [
    name
    for name in study.optimizers
    if found.seeds([name], ["train", "clean"], epochs)
  ]
  facts = {
    "names": table.names,
    "verdict": verdict(table),
    "table": table.markdown(),
    "followed": followed and len(epochs) > 1,
    "study": study.name,
    "settings": dataclasses.asdict(study.config),
    "row": list(found.rows.values())[-1],
  }
  drawings = {
    "reliability": lambda: figures.reliability(found, None, optimizers=ended),
    "curves": lambda: figures.training(found, PANELS, None, epochs, followed),
  }
  return Page(markdown("study.md", facts), drawings)


def write(folder: pathlib.Path) -> str:
  """Writes a study's page, `report.html`, into its folder.

  Returns:
    What it says, as plain text.
  """
  study, found = load(folder)
  table = comparison(study, found)
  if table is None:
    raise rows.RowsError(
      f"{folder} has not enough to compare: two optimizers with two seeds each "
      f"after epoch {study.config.epochs}. `python -m experiments resume "
      f"{folder}` goes on."
    )
  path = folder / "report.html"
  make(study, found, table).write_html(path)
  return f"{table}\n{verdict(table)}\n\nThe page: {path}"


def show(folder: pathlib.Path) -> str:
  """What is there: means over seeds, by optimizer, epoch and images."""
  study, found = load(folder)
  kinds: dict[tuple[str, int, str], list[dict[str, float]]] = {}
  diverged = []
  for (optimizer, _, epoch, dataset), row in found.rows.items():
    if dataset == "diverged":
      diverged.append(row)
    else:
      kinds.setdefault((optimizer, epoch, dataset), []).append(row["metrics"])
  names = ("top1", "loss", "ece", "brier", "max_logit", "weight_norm")
  width = max((len(optimizer) for optimizer, _, _ in kinds), default=0)
  head = f"{'':{width}} {'epoch':>5} {'dataset':18} {'runs':>4}"
  lines = [head + "".join(f" {name:>11}" for name in names)]
  for (optimizer, epoch, dataset), runs in kinds.items():
    line = f"{optimizer:{width}} {epoch:>5} {dataset:18} {len(runs):>4}"
    for name in names:
      value = np.mean([run.get(name, np.nan) for run in runs])
      line += f" {value:11.4g}" if np.isfinite(value) else " " * 12
    lines.append(line)
  table = comparison(study, found)
  facts = {"diverged": diverged, "lines": lines, "table": table and str(table)}
  return render("show.txt", facts).rstrip()
