"""Rows in `experiments/results`, which come with the code.

`SHA256SUMS` has the digest of each file. `sha256sum --check SHA256SUMS` checks
them, and so does whatever reads a file here.
"""

from collections.abc import Iterable
import functools
import pathlib
from typing import Any

from experiments import config, files
from experiments.rows.schema import key
from experiments.rows.storing import Missing, RowsError, read, write

FOLDER = pathlib.Path(__file__).parents[1] / "results"
SUMS = "SHA256SUMS"


def keep(
  folders: Iterable[pathlib.Path], into: pathlib.Path = FOLDER
) -> list[pathlib.Path]:
  """Copies rows from studies' folders to the results, a file for each study.

  A row that is there already is replaced. Returns the files that were written.
  """
  by_study: dict[str, list[dict[str, Any]]] = {}
  for folder in folders:
    rows = list(read(folder / "rows.jsonl"))
    if not rows:
      raise RowsError(
        f"{folder / 'rows.jsonl'} has no rows. Give a folder that `python -m "
        "experiments run` made."
      )
    for row in rows:
      by_study.setdefault(row["study"], []).append(row)
  into.mkdir(parents=True, exist_ok=True)
  paths = []
  for study, rows in by_study.items():
    path = into / f"{study}.jsonl.gz"
    with files.locked(into, busy=lambda: None):
      merged = {key(row): row for row in [*load([study], into), *rows]}
      write(path, (merged[k] for k in sorted(merged)))
      digests = _digests(into) | {path.name: files.sha256(path)}
      with files.replacing(into / SUMS) as temporary:
        temporary.write_text(
          "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
        )
    paths.append(path)
  return paths


def _digests(folder: pathlib.Path) -> dict[str, str]:
  path = folder / SUMS
  with files.naming(path):
    text = path.read_text("utf-8", "replace") if path.exists() else ""
  pairs = (line.partition("  ") for line in text.splitlines())
  return {name: digest for digest, _, name in pairs}


def load(
  studies: Iterable[str], folder: pathlib.Path = FOLDER
) -> list[dict[str, Any]]:
  """Returns the kept rows of studies, if there are any. Don't change them."""
  digests, rows = _digests(folder), []
  for path in (folder / f"{study}.jsonl.gz" for study in studies):
    if path.name not in digests and not path.exists():
      continue
    expected = digests.get(path.name, "no digest")
    given = files.sha256(path) if path.exists() else "no such file"
    if given != expected:
      raise RowsError(
        f"{path} was changed: expected {expected} as in {SUMS}, got {given}. "
        "Restore both with git, or remove the file if git does not have it, "
        "and change rows by `python -m experiments keep` only."
      )
    rows += _read(path, given)
  return rows


@functools.cache
def _read(path: pathlib.Path, digest: str) -> list[dict[str, Any]]:
  """Reads the rows of a file with this digest, which many pages use."""
  del digest
  return list(read(path))


def sharing(study: config.Study) -> dict[str, config.Study]:
  """Returns the studies that share a study's folder, by name."""
  known = config.studies().items()
  return {name: it for name, it in known if it.folder == study.folder}


def begin(
  study: config.Study, folder: pathlib.Path, results: pathlib.Path = FOLDER
) -> int:
  """Copies kept rows to a study's folder without rows. Returns their number.

  Studies that share the folder are included. Of a run that lacks rows it takes
  none: the run will be trained again, and all rows of a run must be of the same
  network.
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
  write(path, whole)
  return len(whole)


def _runs(row: dict[str, Any]) -> set[tuple[str, str, int]]:
  """Returns the run of a row, or the members of its ensemble."""
  method, _ = config.split_ensemble(row["method"])
  seeds = row.get("members", [row["seed"]])
  return {(row["study"], method, seed) for seed in seeds}
