"""What a study is judged by, and the one rule for its verdicts: PLAN.md."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from experiments.report.compare import CORRUPTED, LEVEL, Compared, adjust
from experiments.report.compare import compare as compare_metric
from experiments.report.results import Results

MATTERS = 0.02  # nats


class Outcome(NamedTuple):
  """A number of each run.

  Attributes:
    label: what it is called.
    metric: its name in rows.
    part: of the rows, likewise.
    datasets: the sets of images over which it is the mean.
    sign: 1 if less is better, and -1 if more is.
    matters: the smallest difference that matters to a user, if one is planned.
    tested: whether the plan tests it in every study.
  """

  label: str
  metric: str
  part: str = "metrics"
  datasets: tuple[str, ...] = ("clean",)
  sign: int = 1
  matters: float | None = None
  tested: bool = True

  def is_in(
    self, found: Results, methods: Iterable[str], least: int = 2
  ) -> bool:
    """Whether at least so many seeds have it for all methods."""
    methods = list(methods)
    seeds = found.seeds(methods, self.datasets)
    return len(seeds) >= least and all(
      row.get(self.part, {}).get(self.metric) is not None
      for method in methods
      for rows in found.get(method, seeds, self.datasets)
      for row in rows
    )

  def values(self, found: Results, method: str) -> np.ndarray:
    """The outcome of each seed of a method."""
    seeds = found.seeds([method], self.datasets)
    return found.values(
      method, self.metric, seeds, self.datasets, part=self.part
    )


# The first is the primary outcome, unless a study has another.
OUTCOMES = {
  "scaled_loss": Outcome(
    "loss after T", "loss", "scaled_half", matters=MATTERS
  ),
  "corrupted_loss": Outcome(
    "corrupted loss at the clean T",
    "loss",
    "scaled_clean",
    tuple(CORRUPTED),
    matters=MATTERS,
  ),
  "accuracy": Outcome("accuracy, %", "top1", sign=-1, matters=0.5),
  "corrupted_accuracy": Outcome(
    "corrupted accuracy, %",
    "top1",
    "metrics",
    tuple(CORRUPTED),
    -1,
    matters=0.5,
    tested=False,
  ),
  "loss": Outcome("loss", "loss"),
  "ece": Outcome("ECE", "ece"),
  "brier": Outcome("Brier score", "brier"),
  "wrong_confidence": Outcome(
    "confidence of wrong answers", "wrong_confidence"
  ),
}

# Outcomes that the plan does not have. They are described, and test nothing.
DESCRIBED = {
  "scaled_ece": Outcome("ECE after T", "ece", "scaled_half"),
  "scaled_wrong_confidence": Outcome(
    "confidence of wrong answers after T", "wrong_confidence", "scaled_half"
  ),
  "raw_corrupted_loss": Outcome(
    "corrupted loss without T", "loss", "metrics", tuple(CORRUPTED)
  ),
}


def mean(found: Results, method: str, outcome: str = "scaled_loss") -> float:
  """An outcome's mean over the seeds of a method."""
  return float(np.mean(OUTCOMES[outcome].values(found, method)))


def compare(
  found: Results, outcome: Outcome, pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Compared]:
  """Pairs of methods by an outcome, with p adjusted for all pairs.

  A pair with fewer than two seeds, since others diverged, is left out.
  """
  rows = {}
  for pair in pairs:
    if not outcome.is_in(found, pair):
      continue
    seeds = found.seeds(pair, outcome.datasets)
    rows[pair] = compare_metric(
      found,
      outcome.metric,
      seeds,
      outcome.datasets,
      part=outcome.part,
      pair=pair,
    )
  adjust(rows.values(), len(pairs))
  return rows


def compare_pair(
  found: Results, outcome: Outcome, pair: tuple[str, str]
) -> Compared:
  """One pair of methods by an outcome."""
  return compare(found, outcome, [pair])[pair]


def is_small(row: Compared, matters: float) -> bool:
  """Whether the interval has no difference that matters."""
  low, high = row.interval
  return -matters < low and high < matters


def verdict(row: Compared, outcome: Outcome) -> str:
  """By the plan's rule, of the second method beside the first."""
  small = outcome.matters is not None and is_small(row, outcome.matters)
  if row.adjusted >= LEVEL:
    return "no difference that matters" if small else "undecided"
  word = "helps" if row.change * outcome.sign < 0 else "harms"
  return f"{word}, by less than matters" if small else word
