"""The replication: the paper's tables and figures beside ours, from kept rows.

`python -m experiments report` writes it in seconds on a CPU, without training.
"""

from collections.abc import Sequence
from typing import Any

from experiments.config import Study
from experiments.report import (
  compare,
  extended,
  figures,
  former,
  resnet18,
  temperature,
  wrn28_10,
)
from experiments.report.page import Drawings, Page, markdown
from experiments.report.results import Results
from experiments.rows import RowsError, kept
from experiments.studies import (
  confirmation,
  corruption,
  corruption_confirmation,
  renormalization,
  table1,
  wide,
  wide_confirmation,
  wide_tf32,
)
from experiments.studies import extended as long

# In the order of the table "How each study was run".
STUDIES: tuple[Study, ...] = tuple(
  module.STUDY
  for module in (
    table1,
    confirmation,
    corruption,
    renormalization,
    wide,
    wide_confirmation,
    wide_tf32,
    long,
  )
)
PAGES = ("replication", "replication_appendix")

Rows = Sequence[dict[str, Any]]


def load() -> tuple[Rows, Rows, Rows]:
  """Loads the rows of the studies, of former runs, and of later ones.

  The later ones are of seeds 20 to 39, trained again for CIFAR-10-C.
  """
  return (
    kept.load(study.name for study in STUDIES),
    kept.load([former.STUDY]),
    kept.load([corruption_confirmation.STUDY.name]),
  )


def make(rows: Rows, former_rows: Rows, later_rows: Rows) -> dict[str, Page]:
  """The pages, by name, from what :func:`load` returns."""
  by_config = {s.config: Results(rows, s.config) for s in STUDIES}
  for study in STUDIES:
    check(study, by_config[study.config])
  short, wider, finer, longer = (
    by_config[study.config]
    for study in (table1.STUDY, wide.STUDY, wide_tf32.STUDY, long.STUDY)
  )
  first, longer_once = (
    Results(former_rows, study.config) for study in (table1.STUDY, long.STUDY)
  )
  fresh = [row for row in rows if row["study"] == "confirmation"]
  mixed = Results([*former_rows, *fresh], table1.STUDY.config)
  older = [row for row in rows if row["study"] != "confirmation"]
  # Seeds 0 to 39, all on CIFAR-10-C; no run is of two trainings.
  harder = Results([*older, *later_rows], table1.STUDY.config)
  check(corruption_confirmation.STUDY, harder)
  facts = {
    "resnet18": resnet18.facts(short, harder, first),
    "temperature": temperature.facts(short, harder, wider, longer),
    "wide": wrn28_10.facts(wider, finer, longer),
    "extended": extended.facts(longer, longer_once, harder),
    "former": former.facts(short, first, mixed, harder),
    "runs": [
      compare.provenance(by_config[study.config], study.name)
      for study in STUDIES
    ]
    + [compare.provenance(harder, corruption_confirmation.STUDY.name)],
  }
  drawings = (
    resnet18.drawings(short, harder)
    | wrn28_10.drawings(wider, longer)
    | extended.drawings(longer)
    | on_the_way(short, wider, longer)
  )
  return {name: Page(markdown(f"{name}.md", facts), drawings) for name in PAGES}


def on_the_way(short: Results, wider: Results, longer: Results) -> Drawings:
  both = {
    "ResNet-18": (short, resnet18.ALL_SEEDS),
    "WRN-28-10": (wider, wrn28_10.ALL_SEEDS),
  }
  long_one = {"1000 epochs": (longer, extended.SEEDS)}
  every = extended.evaluated(longer)
  return {
    "epochs": lambda: figures.on_the_way(both, resnet18.EPOCHS),
    "epochs_1000": lambda: figures.on_the_way(long_one, every),
    "scaling": lambda: figures.before_and_after_scaling(both | long_one),
  }


def check(study: Study, found: Results) -> None:
  """Checks that there are all rows of a study."""
  seeds = range(study.first_seed, study.first_seed + study.seeds)
  for epoch in study.epochs_evaluated():
    if not found.has(study.method_names, seeds, study.datasets(epoch), [epoch]):
      raise RowsError(
        f"{kept.FOLDER} lacks rows of the study {study.name} after epoch "
        f"{epoch}. Run `python -m experiments run {study.name}`, then "
        f"`python -m experiments keep {study.folder}`."
      )
