"""Rows in `experiments/results`, which come with the code."""

from collections.abc import Iterable
import functools
import gzip
import json
import pathlib
from typing import Any

from experiments import config, files
from experiments.engine.rows import Missing, RowsError, finite, key, read

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
    text = _lines(merged[k] for k in sorted(merged))
    with files.replacing(path) as temporary:
      # Without the time, the same rows give the same bytes.
      temporary.write_bytes(gzip.compress(text, mtime=0))
    paths.append(path)
  return paths


def _lines(rows: Iterable[dict[str, Any]]) -> bytes:
  form: Any = {"ensure_ascii": False, "separators": (",", ":")}
  return "".join(
    json.dumps(finite(row), **form) + "\n" for row in rows
  ).encode()


def load(
  studies: Iterable[str], folder: pathlib.Path = FOLDER
) -> list[dict[str, Any]]:
  """The kept rows of studies, not to be changed. One without rows adds none."""
  paths = (folder / f"{study}.jsonl.gz" for study in studies)
  return [
    row
    for path in paths
    if path.exists()
    for row in _read(path, path.stat().st_mtime_ns)
  ]


@functools.cache
def _read(path: pathlib.Path, written: int) -> list[dict[str, Any]]:
  """The rows of a file, which many pages use, as written at that time."""
  del written
  return list(read(path))


def sharing(study: config.Study) -> dict[str, config.Study]:
  """The studies that share a study's folder, by name."""
  known = config.studies().items()
  return {name: it for name, it in known if it.folder == study.folder}


def begin(
  study: config.Study, folder: pathlib.Path, results: pathlib.Path = FOLDER
) -> int:
  """Begins a study's folder with the rows that are kept.

  Of a run that lacks rows it takes none: the run will be trained again, and all
  rows of a run must be of the same network.

  Args:
    study: whose rows, and those of the studies that share its folder.
    folder: which. If it has rows already, it is left as it is.
    results: the folder of the kept rows.

  Returns:
    The number of rows that were copied.
  """
  path = folder / "rows.jsonl"
  if path.exists():
    return 0
  studies = sharing(study)
  rows = load(studies, results)
  keys = {key(row) for row in rows}
  unfinished = {
    (it.name, run.method.name, run.seed)
    for it in studies.values()
    for run in filter(Missing(it, keys), it.runs)
  }
  whole = [row for row in rows if not unfinished & _runs(row)]
  folder.mkdir(parents=True, exist_ok=True)
  with files.replacing(path) as temporary:
    temporary.write_bytes(_lines(whole))
  return len(whole)


def _runs(row: dict[str, Any]) -> set[tuple[str, str, int]]:
  """The run that a row is of, or the members of its ensemble."""
  method, _ = config.split_ensemble(row["optimizer"])
  seeds = row.get("members", [row["seed"]])
  return {(row["study"], method, seed) for seed in seeds}
