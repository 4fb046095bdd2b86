"""The paper's tables and figures, ours beside the paper's, from kept rows.

It never trains: `python -m experiments report` takes seconds on a CPU.
"""

from collections.abc import Sequence
import pathlib
from typing import Any

from experiments.engine.rows import RowsError
from experiments.report import kept, page, resnet18, wrn28_10
from experiments.report.kept import Results
from experiments.report.resnet18 import FIRST, FRESH, RENORMALIZED
from experiments.report.tables import CORRUPTED, EXTRA, PAIR
from experiments.studies import extended, table1, unaugmented, wide, wide_tf32


def write(output: pathlib.Path | None = None) -> str:
  """Writes `report.html`, `README.md` and pictures.

  Args:
    output: the folder; by default that of the kept rows.

  Returns:
    Where they are.
  """
  output = output or kept.FOLDER
  blocks = make(kept.load())
  output.mkdir(parents=True, exist_ok=True)
  page.write_markdown(blocks, output / "README.md")
  page.write_html(blocks, output / "report.html")
  return f"Wrote {output / 'report.html'} and {output / 'README.md'}."


def make(rows: Sequence[dict[str, Any]]) -> list[page.Block]:
  """The report, with a section for all that there are rows for."""
  found = Results(rows, table1.STUDY.config)
  if not found.has(PAIR, FIRST):
    raise RowsError(
      f"{kept.FOLDER} lacks rows of the study table1: `python -m "
      "experiments run table1`, then `python -m experiments keep runs/table1`."
    )
  sections = [
    (True, resnet18.table_1),
    (
      found.has(PAIR, FRESH, epochs=range(10, 101, 10)),
      resnet18.more_seeds,
    ),
    (True, resnet18.temperature),
    (found.has(PAIR, FIRST, CORRUPTED + EXTRA), resnet18.corruption),
    (found.has(RENORMALIZED, range(10), CORRUPTED), resnet18.renormalization),
    (True, resnet18.reliability_diagrams),
  ]
  wider = Results(rows, wide.STUDY.config)
  longer = Results(rows, extended.STUDY.config)
  blocks: list[page.Block] = [
    "# OrthoGrad Improves Neural Calibration: a replication",
    "ResNet-18 on 10 % of CIFAR-10, 100 epochs, SGD with momentum and weight "
    "decay beside the same with ⊥Grad. Every number is computed from the rows "
    "in this folder by `python -m experiments report`. For a seed, both "
    "optimizers get the same initial weights, images, order and augmentation, "
    "so beside the paper’s test (Welch’s) there is the paired one; “Holm” is "
    "the paired p adjusted for all metrics of its table.",
    *resnet18.claims(found),
  ]
  for there, section in sections:
    if there:
      blocks += section(found)
  if wrn28_10.has_wide(wider):
    finer = Results(rows, wide_tf32.STUDY.config)
    blocks += wrn28_10.wide(wider, finer, longer)
  if wrn28_10.has_extended(longer):
    plain = Results(rows, unaugmented.STUDY.config)
    blocks += wrn28_10.extended(longer, found, plain)
  return [*blocks, *resnet18.where_the_paper_is_off(found)]
