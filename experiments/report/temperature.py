"""The differences that remain after temperature scaling, in every setting."""

from collections.abc import Sequence
from typing import Any

from experiments.report import (
  claims,
  compare,
  extended,
  paper,
  resnet18,
  wrn28_10,
)
from experiments.report.compare import CLEAN, CORRUPTED
from experiments.report.formats import printed
from experiments.report.results import Results

METRICS = ("loss", "ece", "brier")
# Of each network on clean images.
SEEDS = {
  "ResNet-18": resnet18.ALL_SEEDS,
  "WRN-28-10": wrn28_10.ALL_SEEDS,
  "1000 epochs": extended.SEEDS,
}


def facts(
  short: Results, harder: Results, wide: Results, long: Results
) -> dict[str, Any]:
  """Comparisons with T fitted on one half of the images, and on all.

  Args:
    short: results of ResNet-18 after 100 epochs.
    harder: likewise, of all seeds on CIFAR-10-C.
    wide: results of WRN-28-10.
    long: results of ResNet-18 after 1000 epochs.
  """
  settings: dict[str, tuple[Results, range, Sequence[str]]] = {
    "ResNet-18": (short, SEEDS["ResNet-18"], CLEAN),
    "ResNet-18, corrupted": (harder, resnet18.ALL_SEEDS, CORRUPTED),
    "WRN-28-10": (wide, SEEDS["WRN-28-10"], CLEAN),
    "WRN-28-10, corrupted": (wide, wrn28_10.WIDE_SEEDS, CORRUPTED),
    "1000 epochs": (long, SEEDS["1000 epochs"], CLEAN),
    "1000 epochs, corrupted": (long, extended.SEEDS, CORRUPTED),
  }
  half, whole = (
    {name: line(*of, part) for name, of in settings.items()}
    for part in ("scaled_half", "scaled")
  )
  theirs = {m: printed(row) for m, row in paper.TEMPERATURE.items()}
  return {
    "half": half,
    "whole": whole,
    "paper": theirs | {"temperature": printed(paper.TABLE_1["temperature"])},
    "verdicts": {
      m: claims.verdict(0, [half["ResNet-18"]["rows"][m]])
      for m in paper.TEMPERATURE
    },
  }


def line(
  found: Results, seeds: range, datasets: Sequence[str], part: str
) -> dict[str, Any]:
  """The comparisons of one setting, with p adjusted over its metrics."""
  fitted = "temperature_half" if part == "scaled_half" else "temperature"
  return {
    "seeds": len(seeds),
    "temperature": compare.compare(found, fitted, seeds, datasets),
    "rows": compare.by_metric(found, seeds, datasets, METRICS, part=part),
  }
