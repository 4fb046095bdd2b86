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
from experiments.studies import extended_screen, extended_screen_batch

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
  def matches(self) -> bool:
    off = np.abs(np.subtract(self.accuracy, ACCURACY))
    return bool(np.all(off <= 3.0) and abs(self.ece - ECE) <= 0.05)


def candidates(it: Study, found: Results) -> Iterable[Candidate]:
  """Those of one study that did not diverge."""
  seeds = [it.first_seed]
  for plain, projected in it.pairs:
    if not found.has((plain, projected), seeds):
      continue
    first, second = (
      found.values(name, "top1", seeds).item() for name in (plain, projected)
    )
    by_severity = [
      found.values(projected, "ece", seeds, severity)
      for severity in SEVERITIES[1:]
    ]
    yield Candidate(
      NAMES[plain],
      (first, second),
      float(np.mean(by_severity)),
    )


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
    "candidates": lines,
    "matches": [line.name for line in lines if line.matches],
    "diverged": sorted({*NAMES.values()} - {line.name for line in lines}),
    "plan": plan.section(extended_screen.STUDY.name),
    "runs": [provenance(found, it.name) for it, found in results],
  }
  return Page(markdown("extended_screen.md", facts), {})
