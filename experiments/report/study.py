"""From rows to a page: tables, plots and what they say. It never trains."""

from collections.abc import Iterable
import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from experiments import config
from experiments.engine import rows
from experiments.report import page
from orthograd_optax import plots, stats
from orthograd_optax.calibration import Reliability

if TYPE_CHECKING:
  from matplotlib.figure import Figure

NAMES = {
  "sgd": "SGD",
  "orthograd": "⊥Grad",
  "orthograd_unnormalized": "⊥Grad, not renormalized",
}
# What a metric is called, in the order of the paper's tables.
METRICS = {
  "top1": "top-1 accuracy, %",
  "top5": "top-5 accuracy, %",
  "loss": "loss",
  "ece": "ECE",
  "brier": "Brier score",
  "entropy": "entropy",
  "max_softmax": "max softmax",
  "max_logit": "max logit",
  "logit_variance": "logit variance",
  "confidence_correlation": "confidence correlation",
  "temperature": "optimal temperature",
  "weight_norm": "norm of the weights",
}


def load(folder: pathlib.Path) -> tuple[config.Study, list[dict[str, Any]]]:
  """A folder's study, and its rows."""
  study = config.load_settings(folder)
  found = [
    row
    for row in rows.read(folder / "rows.jsonl")
    if row["config_hash"] == study.config.hash
  ]
  if not found:
    raise rows.RowsError(
      f"{folder / 'rows.jsonl'} has no rows of that study: `python -m "
      f"experiments resume {folder}` makes them."
    )
  return study, found


def select(found, study, dataset, epoch=None):
  """For each optimizer, the rows of a set of images by seed."""
  epoch = study.config.epochs if epoch is None else epoch
  return {
    name: {
      row["seed"]: row
      for row in found
      if (row["optimizer"], row["dataset"], row["epoch"])
      == (name, dataset, epoch)
    }
    for name in study.optimizers
  }


def comparison(
  study: config.Study, found: list[dict[str, Any]], dataset: str = "clean"
) -> stats.ComparisonTable | None:
  """The first two optimizers, paired by seed; None if they are not there."""
  sides = list(select(found, study, dataset).values())[:2]
  seeds = sorted(set.intersection(*(set(side) for side in sides)))
  if len(sides) < 2 or len(seeds) < 2:
    return None
  a, b = (
    {
      label: [side[seed]["metrics"][name] for seed in seeds]
      for name, label in METRICS.items()
    }
    for side in sides
  )
  first, second = (NAMES[name] for name in study.optimizers[:2])
  return stats.compare_table(a, b, paired=True, names=(first, second))


def verdict(table: stats.ComparisonTable, level: float = 0.05) -> str:
  """What is significant, after Holm's adjustment, and what is not."""
  first, second = table.names
  higher, lower, same = [], [], []
  for name, row in table.rows.items():
    if table.adjusted[name] >= level or not np.isfinite(table.adjusted[name]):
      same.append(name.removesuffix(", %"))
    else:
      (lower if row.mean_b < row.mean_a else higher).append(
        name.removesuffix(", %")
      )
  n = next(iter(table.rows.values())).n[0]
  parts = []
  if lower:
    parts.append(f"lower {', '.join(lower)}")
  if higher:
    parts.append(f"higher {', '.join(higher)}")
  text = f"Over {n} seeds, {second} has " + (
    " and ".join(parts)
    + f" than {first} (p < {level} after Holm's adjustment)."
    if parts
    else f"no metric that differs from {first}'s at p < {level}."
  )
  if same:
    text += f" Not significantly different: {', '.join(same)}."
  return text


def curves(study: config.Study, found: list[dict[str, Any]]) -> "Figure | None":
  """Loss in training, and loss and ECE on the test set, by epoch."""
  epochs = study.epochs_evaluated()
  if len(epochs) < 2:
    return None
  panels = (
    ("train", "loss", "loss in training"),
    ("clean", "loss", "loss on the test set"),
    ("clean", "ece", "ECE on the test set"),
  )
  values = {}
  for dataset, metric, title in panels:
    values[title] = {}
    for optimizer in study.optimizers:
      lines = [
        [
          row["metrics"][metric]
          for row in select(found, study, dataset, epoch)[optimizer].values()
        ]
        for epoch in epochs
      ]
      if len({len(line) for line in lines}) == 1 and lines[0]:
        values[title][NAMES[optimizer]] = np.array(lines).T
  if not all(values.values()):
    return None
  return plots.curves(values, epochs)


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
  says = verdict(table)
  clean = select(found, study, "clean")
  bins = {
    NAMES[name]: reliability([row] for row in by_seed.values())
    for name, by_seed in clean.items()
    if by_seed
  }
  row = next(iter(next(iter(clean.values())).values()))
  settings = ", ".join(
    f"{k} {v}" for k, v in dataclasses.asdict(study.config).items()
  )
  blocks: list[page.Block] = [
    f"# {' and '.join(table.names)}: the study {study.name}",
    says,
    "## On images that were not trained on",
    page.Table(
      _cells(table),
      "Mean ± standard deviation over seeds. d: Cohen’s effect size of the "
      "first less the second, with its 95 % interval. p: of the paired t-test, "
      "for both get the same start, images and order from a seed.",
    ),
    "## How sure they are, and how right",
    page.Picture(
      plots.reliability_diagram(bins),
      "reliability",
      "Where bars fall short of the diagonal, the network is surer than right.",
    ),
  ]
  if figure := curves(study, found):
    blocks += ["## On the way", page.Picture(figure, "curves", "")]
  blocks += [
    "## How it was made",
    f"`python -m experiments run {study.name}`; {settings}; {row['device']}, "
    f"jax {row['versions']['jax']}, commit {row['commit']}, "
    f"{row['time'][:10]}.",
  ]
  path = folder / "report.html"
  page.write_html(blocks, path)
  return f"{table}\n{says}\n\nThe page: {path}"


def reliability(seeds: Iterable[list[dict[str, Any]]]) -> Reliability:
  """For each seed the bins of its rows, over all of their images together."""

  def pool(found):
    part = {
      k: np.array([r["bins"][k] for r in found]) for k in found[0]["bins"]
    }
    count = part["count"].sum(0)
    mean = lambda k: (part["count"] * part[k]).sum(0) / np.maximum(count, 1)
    return count, mean("confidence"), mean("accuracy")

  arrays = zip(*map(pool, seeds), strict=True)
  return Reliability(*(jnp.array(np.stack(x)) for x in arrays))


def _cells(table: stats.ComparisonTable) -> list[list[str]]:
  """Those of its Markdown."""
  header, _, *lines = table.markdown().splitlines()
  cells = lambda line: [cell.strip() for cell in line.strip("| ").split(" | ")]
  return [["", *cells(header)], *map(cells, lines)]


def show(folder: pathlib.Path) -> str:
  """A table of what is there: means over seeds at the last epoch of each."""
  study, found = load(folder)
  lines = []
  diverged = [row for row in found if row["dataset"] == "diverged"]
  for row in diverged:
    lines.append(
      f"{row['optimizer']}, seed {row['seed']}: diverged in epoch "
      f"{row['epoch']}"
    )
  head = f"{'':24} {'epoch':>5} {'dataset':18} {'runs':>4}"
  names = ("top1", "loss", "ece", "brier", "max_logit", "weight_norm")
  lines.append(head + "".join(f" {name:>11}" for name in names))
  kinds = dict.fromkeys(
    (row["optimizer"], row["epoch"], row["dataset"])
    for row in found
    if row["dataset"] != "diverged"
  )
  for kind in kinds:
    mine = [
      row["metrics"]
      for row in found
      if (row["optimizer"], row["epoch"], row["dataset"]) == kind
    ]
    values = [
      np.mean([m[name] for m in mine]) if name in mine[0] else np.nan
      for name in names
    ]
    optimizer, epoch, dataset = kind
    lines.append(
      f"{optimizer:24} {epoch:>5} {dataset:18} {len(mine):>4}"
      + "".join(f" {v:11.4g}" if np.isfinite(v) else " " * 12 for v in values)
    )
  table = comparison(study, found)
  if table:
    lines += ["", "The test set after the last epoch:", "", str(table)]
  return "\n".join(lines)
