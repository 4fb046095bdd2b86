"""Joins files of rows, such as shares of a study that several machines ran."""

from collections.abc import Iterable
import pathlib
from typing import Any

from experiments.rows.schema import Key, key
from experiments.rows.storing import RowsError, read, write


def join(paths: Iterable[pathlib.Path], output: pathlib.Path) -> int:
  """Writes the rows of several files to one, sorted by their keys.

  Args:
    paths: the files to join.
    output: the file to write. If it exists, it is replaced.

  Returns:
    The number of rows.

  Raises:
    RowsError: if a check is wrong, two files have a row of the same run, epoch
      and images, or different settings of a method.
  """
  rows: dict[Key, dict[str, Any]] = {}
  sources: dict[Key, pathlib.Path] = {}
  settings: dict[tuple[str, str], tuple[Any, pathlib.Path]] = {}
  for path in paths:
    for row in read(path):
      its, method = key(row), row["method"]
      if its in rows:
        _, _, seed, epoch, dataset = its
        raise RowsError(
          f"{sources[its]} and {path} both have a row of {method}, seed "
          f"{seed}, after epoch {epoch} on {dataset}. Join files of different "
          "runs only, and each file once."
        )
      rows[its], sources[its] = row, path
      given = row.get("settings")
      known, where = settings.setdefault(its[:2], (given, path))
      if given != known:
        raise RowsError(
          f"{where} and {path} have different settings of {method}: {known} "
          f"and {given}. Join files of one study with one --set only."
        )
  if not rows:
    raise RowsError("The files to join have no rows. Give folders of a study.")
  write(output, (rows[its] for its in sorted(rows)))
  return len(rows)
