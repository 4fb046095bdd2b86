"""Rows in `experiments/results`, which come with the code."""

from collections.abc import Iterable
import gzip
import json
import pathlib
from typing import Any

from experiments import files
from experiments.engine.rows import RowsError, finite, key, read

FOLDER = pathlib.Path(__file__).parents[1] / "results"


def keep(
  folders: Iterable[pathlib.Path], into: pathlib.Path = FOLDER
) -> list[pathlib.Path]:
  """Copies rows from studies' folders to the results, a file for each study.

  Args:
    folders: made by `python -m experiments run`.
    into: the folder of the results. A row that is there already is replaced.

  Returns:
    The files that were written.
  """
  by_study: dict[str, list[dict[str, Any]]] = {}
  for folder in folders:
    found = list(read(folder / "rows.jsonl"))
    if not found:
      raise RowsError(
        f"{folder / 'rows.jsonl'} has no rows. Give a folder that `python -m "
        "experiments run` made."
      )
    for row in found:
      by_study.setdefault(row["study"], []).append(row)
  into.mkdir(parents=True, exist_ok=True)
  paths = []
  for study, rows in by_study.items():
    path = into / f"{study}.jsonl.gz"
    merged = {key(row): row for row in [*read(path), *rows]}
    text = "".join(_line(merged[k]) + "\n" for k in sorted(merged))
    with files.replacing(path) as temporary:
      # Without the time, the same rows give the same bytes.
      temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    paths.append(path)
  return paths


def _line(row: dict[str, Any]) -> str:
  return json.dumps(finite(row), ensure_ascii=False, separators=(",", ":"))


def load(
  studies: Iterable[str], folder: pathlib.Path = FOLDER
) -> list[dict[str, Any]]:
  """The kept rows of studies. A study without rows adds none."""
  paths = (folder / f"{study}.jsonl.gz" for study in studies)
  return [row for path in paths for row in read(path)]
