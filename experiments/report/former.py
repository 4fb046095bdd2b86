"""All runs ever made of seeds 0 to 19, for all metrics that are known.

`results/former_runs.jsonl.gz` has those that are not kept otherwise: rows of
commit 0fd5fef of this repository (the first run of seeds 0 to 19) and of
dae3c79 (the first run of 1000 epochs), means over sets of corrupted images.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.report import compare, temperature
from experiments.report.compare import AVERAGE, CLEAN, CORRUPTED, Compared
from experiments.report.formats import METRICS
from experiments.report.resnet18 import BOTH, FIRST, FRESH
from experiments.report.results import Results

STUDY = "former_runs"
# Of the second run, by commit 644df04, all that was written down: Cohen's d.
SECOND = {"max_logit": -1.80, "logit_variance": -1.76}


def facts(found: Results, first: Results, mixed: Results) -> dict[str, Any]:
  """Differences by metric and part of the rows, for each set of runs.

  Args:
    found: with the third run, which is kept, and seeds 20 to 39.
    first: the first run.
    mixed: the first run, and seeds 20 to 39.
  """
  clean = {
    "first": (first, FIRST, CLEAN),
    "third": (found, FIRST, CLEAN),
    "fresh": (found, FRESH, CLEAN),
    "mixed": (mixed, BOTH, CLEAN),
  }
  corrupted = {
    "first, corrupted": (first, FIRST, AVERAGE),
    "third, corrupted": (found, FIRST, CORRUPTED),
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
