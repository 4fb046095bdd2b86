"""Which protocol gives the paper's accuracies after 1000 epochs?

One seed of each candidate, so no page of pairs: see PLAN.md.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from experiments.config import Study
from experiments.report import paper, plan, study
from experiments.report.compare import SEVERITIES, provenance
from experiments.report.page import Page, markdown
from experiments.report.results import Results
from experiments.rows import kept
from experiments.studies import (
  extended,
  extended_screen,
  extended_screen_batch,
)

STUDIES = (extended_screen.STUDY, extended_screen_batch.STUDY)
# What differs from the paper's recipe, by the method without ⊥Grad.
NAMES = {
  "decay_0": "no weight decay",
  "rate_0.001": "learning rate 0.001",
  "sgd": "batches of 512",
}
ACCURACY = paper.EXTENDED_CLEAN[:2]
ECE = float(np.mean([row.orthograd for row in paper.EXTENDED["ece"]]))


class Candidate(NamedTuple):
  """A protocol, with SGD and with ⊥Grad.

  Attributes:
    name: what differs from the paper's recipe.
    accuracy: of SGD and of ⊥Grad, clean.
    ece: ⊥Grad's, the mean of the severities.
  """

  name: str
  accuracy: tuple[float, float]
  ece: float

  @property
  def distances(self) -> np.ndarray:
    """Of both accuracies from the paper's."""
    return np.abs(np.subtract(self.accuracy, ACCURACY))

  @property
  def matches(self) -> bool:
    return bool(np.all(self.distances <= 3.0) and abs(self.ece - ECE) <= 0.05)


def candidates(it: Study, found: Results) -> Iterator[Candidate]:
  """Those of one study that did not diverge."""
  for pair in it.pairs:
    if found.seeds(pair):
      yield candidate(NAMES[pair[0]], pair, found)


def candidate(name: str, pair: study.Pair, found: Results) -> Candidate:
  """A protocol, by the mean of its seeds."""
  seeds = found.seeds(pair)
  first, second = (
    float(np.mean(found.values(method, "top1", seeds))) for method in pair
  )
  by_severity = [
    found.values(pair[1], "ece", seeds, severity) for severity in SEVERITIES[1:]
  ]
  return Candidate(name, (first, second), float(np.mean(by_severity)))


def above(it: Study, found: Results) -> Iterator[np.ndarray]:
  """By how much SGD's accuracy is above ⊥Grad's, by epoch."""
  for pair in it.pairs:
    if seeds := found.seeds(pair):
      epochs = found.evaluated(pair, seeds)
      a, b = (found.over_epochs(name, "top1", seeds, epochs) for name in pair)
      yield np.mean(a - b, axis=0)


def our_recipe() -> Candidate:
  """What the candidates differ from: the replication's 1000 epochs."""
  its = extended.STUDY
  found = Results(kept.load([its.name]), its.config)
  (pair,) = study.pairs(its)
  return candidate("our recipe", pair, found)


def make_kept(loaded: study.Loaded) -> Iterator[tuple[str, Page]]:
  """The page, if all candidates are among the rows that are kept."""
  results = [loaded[it.name] for it in STUDIES]
  if all(study.is_complete(it, of) for it, of in results):
    yield extended_screen.STUDY.name, make(results)


def make(results: Iterable[tuple[Study, Results]]) -> Page:
  """The page."""
  results = list(results)
  lines = [line for it, found in results for line in candidates(it, found)]
  facts = {
    "paper": {"accuracy": ACCURACY, "ece": ECE},
    "ours": our_recipe(),
    "candidates": lines,
    "nearest": min(lines, key=lambda it: np.sum(it.distances), default=None),
    "above": [gaps for it, found in results for gaps in above(it, found)],
    "matches": [line.name for line in lines if line.matches],
    "diverged": sorted({*NAMES.values()} - {line.name for line in lines}),
    "plan": plan.section(extended_screen.STUDY.name),
    "runs": [provenance(found, it.name) for it, found in results],
  }
  return Page(markdown("extended_screen.md", facts), {})
