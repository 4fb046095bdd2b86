"""All runs of seeds 0 to 39, also the former ones.

`results/former_runs.jsonl.gz` has rows of the former runs, with means over sets
of corrupted images: of commit 0fd5fef, the first run of seeds 0 to 19, and of
commit dae3c79, the first run of 1000 epochs.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.report import compare, temperature
from experiments.report.compare import AVERAGE, CLEAN, CORRUPTED, Compared
from experiments.report.formats import METRICS
from experiments.report.resnet18 import (
  ALL_SEEDS,
  CONFIRMATION_SEEDS,
  TABLE1_SEEDS,
)
from experiments.report.results import Results

STUDY = "former_runs"
# Cohen's d of the second run, by commit 644df04, of which no rows were kept.
SECOND = {"max_logit": -1.80, "logit_variance": -1.76}


def facts(
  found: Results, first: Results, mixed: Results, later: Results
) -> dict[str, Any]:
  """Differences by metric and part of the rows, for each set of runs.

  Args:
    found: the third run of seeds 0 to 19, and the first of 20 to 39.
    first: the first run of seeds 0 to 19.
    mixed: that, and the first run of 20 to 39.
    later: the third run of seeds 0 to 19, and the second of 20 to 39.
  """
  clean = {
    "0–19 first": (first, TABLE1_SEEDS, CLEAN),
    "0–19 third": (found, TABLE1_SEEDS, CLEAN),
    "20–39 first": (found, CONFIRMATION_SEEDS, CLEAN),
    "20–39 second": (later, CONFIRMATION_SEEDS, CLEAN),
    "first + first": (mixed, ALL_SEEDS, CLEAN),
    "third + second": (later, ALL_SEEDS, CLEAN),
  }
  corrupted = {
    "0–19 first, corrupted": (first, TABLE1_SEEDS, AVERAGE),
    "0–19 third, corrupted": (found, TABLE1_SEEDS, CORRUPTED),
    "20–39 second, corrupted": (later, CONFIRMATION_SEEDS, CORRUPTED),
  }
  runs = {name: differences(*of, METRICS) for name, of in clean.items()} | {
    name: differences(*of, compare.UNDER_CORRUPTION)
    for name, of in corrupted.items()
  }
  return {"runs": runs, "second": SECOND}


def differences(
  found: Results,
  seeds: Sequence[int],
  datasets: Sequence[str],
  metrics: Iterable[str],
) -> dict[tuple[str, str], Compared]:
  blocks = {"metrics": metrics, "scaled_half": temperature.METRICS}
  return {
    (metric, part): row
    for part, its in blocks.items()
    for metric, row in compare.by_metric(
      found, seeds, datasets, its, part=part
    ).items()
  }
