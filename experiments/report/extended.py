"""ResNet-18 after 1000 epochs."""

from collections.abc import Iterable
import functools
from typing import Any

import numpy as np

from experiments.report import compare, figures, paper
from experiments.report.compare import CORRUPTED, LEVEL, PAIR, SEVERITIES
from experiments.report.formats import printed
from experiments.report.page import Drawings
from experiments.report.results import Results

SEEDS = range(5)
FEW = range(2)  # of unaugmented
SHORT = range(20)  # of table1
MILESTONES = (100, 200, 400, 700, 1000)
PANELS = {
  "loss in training": ("train", "loss"),
  "accuracy in training, %": ("train", "top1"),
  "test loss": ("clean", "loss"),
  "test accuracy, %": ("clean", "top1"),
  "max logit": ("clean", "max_logit"),
  "norm of the weights": ("clean", "weight_norm"),
}


def is_complete(found: Results) -> bool:
  return found.has(PAIR, SEEDS, ["clean", *CORRUPTED], MILESTONES)


def facts(found: Results, short: Results, plain: Results) -> dict[str, Any]:
  """Parts without rows are None.

  Args:
    found: of the study extended.
    short: of the same network after 100 epochs.
    plain: of the study unaugmented.
  """
  unaugmented = None
  if plain.has(PAIR, FEW, ["clean", *CORRUPTED]):
    unaugmented = {
      "run": compare.provenance(plain, "unaugmented"),
      "by_severity": by_severity(plain, FEW),
    }
  return {
    "run": compare.provenance(found, "extended"),
    "by_severity": by_severity(found, SEEDS),
    "claims": claims(found, short),
    "clean": clean(found),
    "scale": scale(found),
    "milestones": milestones(found),
    "unaugmented": unaugmented,
  }


def drawings(found: Results) -> Drawings:
  return {
    "extended": lambda: figures.severity(found, SEEDS),
    "trajectories": lambda: figures.training(
      found, PANELS, SEEDS, evaluated(found)
    ),
  }


def evaluated(found: Results) -> list[int]:
  return found.evaluated(PAIR, SEEDS, "train")


def by_severity(found: Results, seeds: range) -> dict[str, Any]:
  """The paper's table of one seed, and ours."""
  lines = {
    metric: [compare.compare(found, metric, seeds, s) for s in SEVERITIES]
    for metric in paper.EXTENDED
  }
  clean = {"top1": paper.EXTENDED_CLEAN}
  theirs = {
    metric: [printed(row) for row in (clean.get(metric), *rows)]
    for metric, rows in paper.EXTENDED.items()
  }
  return compare.grid(lines) | {"seeds": len(seeds), "paper": theirs}


def claims(found: Results, short: Results) -> dict[str, Any]:
  """What the paper says, and of how much of that it is so."""

  def all_or_some(sign, rows):
    return share(row.paired.p < LEVEL and sign * row.change > 0 for row in rows)

  def from_severity(first, metric, sign):
    rows = {
      i: compare.compare(found, metric, SEEDS, SEVERITIES[i])
      for i in range(first, 6)
    }
    return {"rows": rows, "holds": all_or_some(sign, rows.values())}

  def accuracy(datasets, sign):
    row = compare.compare(found, "top1", SEEDS, datasets)
    return {"row": row, "holds": all_or_some(sign, [row])}

  return {
    "clean": accuracy(["clean"], -1),
    "loss": from_severity(2, "loss", -1),
    "ece": from_severity(2, "ece", -1),
    "top1": from_severity(3, "top1", 1),
    "corrupted": accuracy(CORRUPTED, 1),
    "hardest": hardest(found, short),
  }


def hardest(found: Results, short: Results) -> dict[str, Any] | None:
  """⊥Grad's runs at severity 5, and the best of all short runs there."""
  if not short.has(PAIR, SHORT, CORRUPTED):
    return None
  runs = found.values("orthograd", "top1", SEEDS, SEVERITIES[5])
  others = compare.compare(short, "top1", SHORT, SEVERITIES[5])
  best = np.maximum(others.a, others.b).max()
  above = runs > best
  return {"runs": runs, "best": best, "above": above, "holds": share(above)}


def share(wins: Iterable[bool]) -> str:
  wins = list(wins)
  return "all" if all(wins) else "some" if any(wins) else "none"


def clean(found: Results) -> dict[str, Any]:
  """That the paper's accuracies can't be the luck of one seed or epoch."""
  late = [e for e in evaluated(found) if e >= 800]
  every = [found.over_epochs(name, "top1", SEEDS, late) for name in PAIR]
  return {
    "paper": printed(paper.EXTENDED_CLEAN),
    "early": compare.compare(found, "top1", SEEDS, epoch=100),
    "last": compare.compare(found, "top1", SEEDS),
    "count": np.size(every),
    "lowest": np.min(every),
  }


def scale(found: Results) -> dict[str, Any]:
  """What parts the optimizers."""
  of = functools.partial(compare.compare, found, seeds=SEEDS)
  images = {"clean": ["clean"], "corrupted": CORRUPTED}
  return {
    "early_logit": of("max_logit", epoch=100),
    "late_logit": of("max_logit"),
    "early_loss": of("loss", datasets=["train"], epoch=200),
    "late_loss": of("loss", datasets=["train"]),
    "trained": of("top1", datasets=["train"]),
    "confidence": {k: of("max_softmax", datasets=s) for k, s in images.items()},
    "accuracy": {k: of("top1", datasets=s) for k, s in images.items()},
    "at_best": {
      k: of("loss", datasets=s, part="scaled") for k, s in images.items()
    },
  }


def milestones(found: Results) -> dict[str, Any]:
  """By images and metric, at each epoch."""
  parts = {m: (m, "metrics") for m in ("top1", "loss", "ece", "max_softmax")}
  parts["scaled_loss"] = ("loss", "scaled")
  return {
    "epochs": MILESTONES,
    "lines": {
      (name, where): [
        compare.compare(found, metric, SEEDS, images, epoch, part)
        for epoch in MILESTONES
      ]
      for where, images in (("clean", ["clean"]), ("corrupted", CORRUPTED))
      for name, (metric, part) in parts.items()
    },
  }
