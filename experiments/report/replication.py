"""The paper's tables and figures, ours beside the paper's, from kept rows.

It never trains: `python -m experiments report` takes seconds on a CPU.
"""

from collections.abc import Sequence
import pathlib
from typing import Any

from experiments.engine.rows import RowsError
from experiments.report import claims, extended, kept, resnet18, wrn28_10
from experiments.report.compare import PAIR
from experiments.report.page import Page, markdown
from experiments.report.results import Results
from experiments.studies import extended as long
from experiments.studies import table1, unaugmented, wide, wide_tf32

STUDIES = (
  "table1",
  "confirmation",
  "corruption",
  "renormalization",
  "extended",
  "unaugmented",
  "wide",
  "wide_confirmation",
  "wide_tf32",
)


def write(output: pathlib.Path | None = None) -> str:
  """Writes `report.html`, `README.md` and pictures.

  Args:
    output: the folder; by default that of the kept rows.

  Returns:
    Where they are.
  """
  output = output or kept.FOLDER
  page = make(kept.load(STUDIES))
  output.mkdir(parents=True, exist_ok=True)
  page.write_markdown(output / "README.md")
  page.write_html(output / "report.html")
  return f"Wrote {output / 'report.html'} and {output / 'README.md'}."


def make(rows: Sequence[dict[str, Any]]) -> Page:
  """The report, with a section for all that there are rows for."""
  found, wider, finer, longer, plain = (
    Results(rows, study.STUDY.config)
    for study in (table1, wide, wide_tf32, long, unaugmented)
  )
  if not found.has(PAIR, resnet18.FIRST):
    raise RowsError(
      f"{kept.FOLDER} lacks rows of the study table1: `python -m "
      "experiments run table1`, then `python -m experiments keep runs/table1`."
    )
  has_long = extended.is_complete(longer)
  parts = [
    markdown("claims.md", claims.facts(found)),
    markdown("resnet18.md", resnet18.facts(found)),
  ]
  if wrn28_10.is_complete(wider):
    facts = wrn28_10.facts(wider, finer, longer if has_long else None)
    parts.append(markdown("wrn28_10.md", facts))
  if has_long:
    facts = extended.facts(longer, found, plain)
    parts.append(markdown("extended.md", facts))
  parts.append(markdown("paper_errors.md", claims.paper_errors(found)))
  return Page(
    markdown("replication.md", {"parts": parts}),
    resnet18.drawings(found)
    | wrn28_10.drawings(wider, longer)
    | extended.drawings(longer),
  )
