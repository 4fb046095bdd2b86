"""Predictions from files: .npz, .npy, .csv and .parquet."""

from collections.abc import Mapping
import csv
import os
import pathlib
import re
from typing import Any
import zipfile

import numpy as np

from orthograd_optax.calibration import _inputs

_SAVE = 'np.savez("predictions.npz", logits=logits, labels=labels)'
# What a key or a column may be called, besides the first of its names.
_NAMES = {
  "labels": ("labels", "label"),
  "groups": ("groups", "group"),
  "seeds": ("seeds", "seed"),
  "split": ("split",),
  "classes": ("classes",),
}


def read(path: str | os.PathLike, labels: str | os.PathLike | None = None):
  """The arguments of :func:`report`, from a file, or from two of NumPy's.

  Args:
    path: of the predictions.
    labels: of the labels, if ``path`` is a .npy file.

  Returns:
    A dictionary of logits, labels and, where the file has them, classes,
    groups, seeds and fit.
  """
  path = pathlib.Path(path)
  readers = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
  suffix = path.suffix.lower()
  for given in (path, *([] if labels is None else [pathlib.Path(labels)])):
    if not given.is_file():
      raise ValueError(f"There is no file {given}. To make one: {_SAVE}")
  if suffix == ".npy":
    if labels is None:
      raise ValueError(
        f"{path} has predictions, but no labels: give a second file, as in "
        f"{path.name} labels.npy."
      )
    columns = {"predictions": _npy(path), "labels": _npy(pathlib.Path(labels))}
  elif suffix in readers:
    if labels is not None:
      raise ValueError(
        f"{path} has labels of its own: leave {labels} out, or give two .npy "
        "files."
      )
    columns = readers[suffix](path)
  else:
    raise ValueError(
      f"{path} ends in {path.suffix!r}, but must end in .npz, .npy, .csv or "
      f".parquet. To make one: {_SAVE}"
    )
  return _arguments(columns, path)


def _npy(path: pathlib.Path) -> np.ndarray:
  try:
    return np.load(path, allow_pickle=False)
  except (ValueError, EOFError) as error:
    raise ValueError(
      f"{path} is no array of numbers or strings that NumPy can read: write it "
      "with np.save. Objects need a dtype, as in labels.astype(str)."
    ) from error


def _npz(path: pathlib.Path) -> dict[str, Any]:
  try:
    with np.load(path, allow_pickle=False) as content:
      columns = {name: content[name] for name in content.files}
  except (ValueError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(
      f"{path} is no .npz file of numbers and strings: write it with {_SAVE}. "
      "Objects need a dtype, as in labels.astype(str)."
    ) from error
  found = [name for name in ("logits", "probabilities") if name in columns]
  if len(found) != 1 or not any(name in columns for name in _NAMES["labels"]):
    raise ValueError(
      f"{path} has the keys {', '.join(columns) or '(none)'}, but must have "
      f"labels, and either logits or probabilities: {_SAVE}"
    )
  return columns


def _csv(path: pathlib.Path) -> dict[str, Any]:
  with open(path, newline="", encoding="utf-8-sig") as file:
    reader = csv.reader(file)
    header = [name.strip() for name in next(reader, [])]
    rows = []
    for row in reader:
      if len(row) != len(header):
        raise ValueError(
          f"{path}, line {reader.line_num}: it has {len(row)} cells, but the "
          f"header has {len(header)}: {','.join(header)}."
        )
      rows.append(row)
  if not rows:
    raise ValueError(
      f"{path} has no rows: there must be a line of names, such as "
      "label,cat,dog, and a line for each example."
    )
  if len(set(header)) != len(header):
    raise ValueError(
      f"{path} has two columns of one name: {','.join(header)}. Rename one."
    )
  cells = zip(*rows, strict=True)
  return _from_columns(path, dict(zip(header, cells, strict=True)))


def _parquet(path: pathlib.Path) -> dict[str, Any]:
  try:
    import pandas
  except ImportError as error:
    raise ImportError(
      f"{path} needs pandas and pyarrow: pip install pandas pyarrow, or write "
      "a .csv file."
    ) from error
  frame = pandas.read_parquet(path)
  columns = {str(name): frame[name].to_numpy() for name in frame.columns}
  return _from_columns(path, columns)


def _from_columns(
  path: pathlib.Path, columns: Mapping[str, Any]
) -> dict[str, Any]:
  """Names of a table: those known, and all others, one for each class."""
  known = {
    name: next((n for n in names if n in columns), None)
    for name, names in _NAMES.items()
    if name != "classes"
  }
  others = [name for name in columns if name not in known.values()]
  if known["labels"] is None or not others:
    raise ValueError(
      f"{path} has the columns {', '.join(columns)}, but must have label, and "
      "one for each class, with its logits or its probabilities."
    )
  table = np.empty((len(columns[others[0]]), len(others)))
  for i, name in enumerate(others):
    table[:, i] = _numbers(path, name, columns[name])
  found: dict[str, Any] = {
    k: np.asarray(columns[v]) for k, v in known.items() if v
  }
  kinds = {_kind(name) for name in others}
  kind = kinds.pop() if len(kinds) == 1 else "predictions"
  found[kind] = table
  prefix = re.compile(r"^(logits?|prob(abilit(y|ies)|s)?|p)[_ ]", re.I)
  names = [prefix.sub("", name) for name in others]
  found["classes"] = names if len(names) > 1 else _two(path, found, names[0])
  return found


def _two(path: pathlib.Path, found: dict[str, Any], column: str) -> Any:
  """The names of two classes, of which the second has the one column."""
  names = sorted({str(y) for y in found["labels"]})
  if all(re.fullmatch(r"[01](\.0*)?", name) for name in names):
    return None
  if column not in names or len(names) != 2:
    raise ValueError(
      f"{path} has one column of predictions, {column}, and the labels "
      f"{', '.join(names[:5])}. Name the column after the label whose "
      "probability or logit it is, or make the labels 0 and 1."
    )
  return [name for name in names if name != column] + [column]


def _kind(column: str) -> str:
  if re.match(r"logit", column, re.IGNORECASE):
    return "logits"
  if re.match(r"(prob|p[_ ])", column, re.IGNORECASE):
    return "probabilities"
  return "predictions"


def _numbers(path: pathlib.Path, name: str, cells: Any) -> np.ndarray:
  try:
    return np.asarray(cells, np.float64)
  except (ValueError, TypeError):
    pass
  for row, cell in enumerate(cells):
    try:
      float(cell)
    except (ValueError, TypeError) as error:
      raise ValueError(
        f"{path}, line {row + 2}, column {name}: {cell!r} is no number, but "
        "every column besides label, group, seed and split has a class's "
        "logits or probabilities. Rename or remove that column, or mend the "
        "cell."
      ) from error
  raise ValueError(f"{path}, column {name}: these are no numbers.")


def _arguments(columns: dict[str, Any], path: pathlib.Path) -> dict[str, Any]:
  found = {
    name: next((columns[n] for n in names if n in columns), None)
    for name, names in _NAMES.items()
  }
  logits = _logits(columns)
  classes = found["classes"]
  labels, classes = _labels(np.asarray(found["labels"]), classes, path)
  return {
    "logits": logits,
    "labels": labels,
    "classes": classes,
    "groups": found["groups"],
    "seeds": found["seeds"],
    "fit": _fit(found["split"], path),
  }


def _logits(columns: dict[str, Any]) -> Any:
  if "logits" in columns:
    return columns["logits"]
  if "probabilities" in columns:
    return _inputs.from_probabilities(columns["probabilities"])
  # Of a table that doesn't say: logits have negative numbers, or large ones.
  values = np.asarray(columns["predictions"])
  numbers = values.dtype.kind in "fiu" and values.size and values.ndim > 0
  if numbers and _inputs.are_probabilities(values):
    return _inputs.from_probabilities(values)
  return values


def _labels(labels, classes, path) -> tuple[Any, Any]:
  """Labels as indices, by the classes' names if these are what they are."""
  if classes is not None:
    classes = [str(c) for c in classes]
    index = {name: i for i, name in enumerate(classes)}
    names = [str(y) for y in labels.ravel()]
    if labels.ndim == 1 and all(name in index for name in names):
      return np.array([index[name] for name in names]), classes
  if labels.ndim != 1 or labels.dtype.kind not in "OUST":
    return labels, classes
  if all(re.fullmatch(r"\s*\d+(\.0*)?\s*", str(y)) for y in labels):
    return np.array([int(float(y)) for y in labels]), classes
  if classes is not None:
    return labels, classes  # for the report's own check to complain of
  raise ValueError(
    f"{path} has labels such as {str(labels[0])!r}. Add the classes' names, in "
    'the order of the columns, as the key classes: np.savez("predictions.npz", '
    "probabilities=probabilities, labels=labels, classes=model.classes_)"
  )


def _fit(split: Any, path: pathlib.Path) -> np.ndarray | None:
  """Which examples to fit on: those of a split that is not test."""
  if split is None:
    return None
  split = np.asarray(split).astype(str)
  names = sorted(set(split.ravel().tolist()))
  if "test" not in names or len(names) > 2:
    raise ValueError(
      f"{path} has the splits {', '.join(names[:5])}, but there must be test, "
      "to describe and judge by, and at most one other, such as validation, to "
      "fit recalibrators on. Leave training examples out."
    )
  return None if len(names) == 1 else split != "test"
