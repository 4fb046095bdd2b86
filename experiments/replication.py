"""The paper's tables and figures, ours beside the paper's, from kept rows.

It never trains: `python -m experiments report` takes seconds on a CPU.
"""

from collections.abc import Sequence
import pathlib
from typing import Any

from experiments import page, part1, part2, results
from experiments.part1 import FIRST, FRESH, RENORMALIZED
from experiments.results import Results
from experiments.rows import RowsError
from experiments.studies import extended, table1, unaugmented, wide, wide_tf32
from experiments.tables import CORRUPTED, EXTRA, PAIR


def write(output: pathlib.Path | None = None) -> str:
  """Writes `report.html`, `README.md` and pictures.

  Args:
    output: the folder; by default that of the kept rows.

  Returns:
    Where they are.
  """
  output = output or results.FOLDER
  blocks = make(results.load())
  output.mkdir(parents=True, exist_ok=True)
  page.write_markdown(blocks, output / "README.md")
  page.write_html(blocks, output / "report.html")
  return f"Wrote {output / 'report.html'} and {output / 'README.md'}."


def make(rows: Sequence[dict[str, Any]]) -> list[page.Block]:
  """The report, with a section for all that there are rows for."""
  found = Results(rows, table1.STUDY.config)
  if not found.has(PAIR, FIRST):
    raise RowsError(
      f"{results.FOLDER} lacks rows of the study table1: `python -m "
      "experiments run table1`, then `python -m experiments keep runs/table1`."
    )
  sections = [
    (True, part1.table_1),
    (
      found.has(PAIR, FRESH, epochs=range(10, 101, 10)),
      part1.more_seeds,
    ),
    (True, part1.temperature),
    (found.has(PAIR, FIRST, CORRUPTED + EXTRA), part1.corruption),
    (found.has(RENORMALIZED, range(10), CORRUPTED), part1.renormalization),
    (True, part1.reliability_diagrams),
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
    *part1.claims(found),
  ]
  for there, section in sections:
    if there:
      blocks += section(found)
  if part2.has_wide(wider):
    finer = Results(rows, wide_tf32.STUDY.config)
    blocks += part2.wide(wider, finer, longer)
  if part2.has_extended(longer):
    plain = Results(rows, unaugmented.STUDY.config)
    blocks += part2.extended(longer, found, plain)
  return [*blocks, *part1.where_the_paper_is_off(found)]
