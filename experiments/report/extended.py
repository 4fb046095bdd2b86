"""ResNet-18 after 1000 epochs."""

from collections.abc import Sequence
import functools
from typing import Any

import numpy as np

from experiments.report import claims, compare, figures, paper
from experiments.report.compare import (
  CLEAN,
  CORRUPTED,
  PAIR,
  SEVERITIES,
  Compared,
)
from experiments.report.formats import printed
from experiments.report.page import Drawings
from experiments.report.resnet18 import ALL_SEEDS
from experiments.report.results import Results

SEEDS = range(5)
MILESTONES = (100, 200, 400, 700, 1000)
PANELS = {
  "loss in training": ("train", "loss"),
  "accuracy in training, %": ("train", "top1"),
  "test loss": ("clean", "loss"),
  "test accuracy, %": ("clean", "top1"),
  "max logit": ("clean", "max_logit"),
  "norm of the weights": ("clean", "weight_norm"),
}


def facts(found: Results, former: Results, short: Results) -> dict[str, Any]:
  """The facts of the paper's table and claims, and of the appendix.

  Args:
    found: results of the study extended.
    former: results of its first run.
    short: results of the same network after 100 epochs.
  """
  lines = by_severity(found, SEVERITIES)
  clean_theirs = {"top1": paper.EXTENDED_CLEAN}
  once = [CLEAN, *([f"severity {i}"] for i in range(1, 6))]
  return {
    "by_severity": lines,
    "paper": {
      metric: [printed(row) for row in (clean_theirs.get(metric), *rows)]
      for metric, rows in paper.EXTENDED.items()
    },
    "once": by_severity(former, once),
    "verdicts": verdicts(lines),
    "hardest": hardest(found, short),
    "clean": clean(found),
    "scale": scale(found),
    "milestones": milestones(found),
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


def by_severity(
  found: Results, severities: Sequence[Sequence[str]]
) -> dict[str, list[Compared]]:
  """The metrics of the paper's table, from clean images to severity 5."""
  return compare.grid(
    {
      metric: [compare.compare(found, metric, SEEDS, s) for s in severities]
      for metric in paper.EXTENDED
    }
  )


def verdicts(lines: dict[str, list[Compared]]) -> dict[str, str]:
  return {
    "clean": claims.verdict(-1, lines["top1"][:1]),
    "loss": claims.verdict(-1, lines["loss"][2:]),
    "ece": claims.verdict(-1, lines["ece"][2:]),
    "top1": claims.verdict(1, lines["top1"][3:]),
  }


def hardest(found: Results, short: Results) -> dict[str, Any]:
  """Accuracies at severity 5: ⊥Grad's runs, and the best of all short runs."""
  runs = found.values("orthograd", "top1", SEEDS, SEVERITIES[5])
  others = compare.compare(short, "top1", ALL_SEEDS, SEVERITIES[5])
  best = np.maximum(others.a, others.b).max()
  return {"runs": runs, "best": best, "above": int(np.sum(runs > best))}


def clean(found: Results) -> dict[str, Any]:
  """Clean accuracies, to compare with the paper's."""
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
  """What differs between the optimizers: logits, losses, confidence."""
  of = functools.partial(compare.compare, found, seeds=SEEDS)
  images = {"clean": CLEAN, "corrupted": CORRUPTED}
  return {
    "early_logit": of("max_logit", epoch=100),
    "late_logit": of("max_logit"),
    "early_loss": of("loss", datasets=["train"], epoch=200),
    "late_loss": of("loss", datasets=["train"]),
    "trained": of("top1", datasets=["train"]),
    "confidence": {k: of("max_softmax", datasets=s) for k, s in images.items()},
    "accuracy": {k: of("top1", datasets=s) for k, s in images.items()},
  }


def milestones(found: Results) -> dict[str, Any]:
  """Comparisons by images, metric and epoch, with p adjusted over all."""
  parts = {m: (m, "metrics") for m in ("top1", "loss", "ece", "max_softmax")}
  parts["scaled_loss"] = ("loss", "scaled_half")
  lines = {
    (name, where): [
      compare.compare(found, metric, SEEDS, images, epoch, part)
      for epoch in MILESTONES
    ]
    for where, images in (("clean", CLEAN), ("corrupted", CORRUPTED))
    for name, (metric, part) in parts.items()
  }
  return {"epochs": MILESTONES, "lines": compare.grid(lines)}
