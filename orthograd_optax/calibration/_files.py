"""Reads predictions from .npz, .npy, .csv and .parquet files."""

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
# The names that a key or a column may have.
_NAMES = {
  "labels": ("labels", "label"),
  "groups": ("groups", "group"),
  "seeds": ("seeds", "seed"),
  "split": ("split",),
  "classes": ("classes",),
}


def read(path: str | os.PathLike, labels: str | os.PathLike | None = None):
  """Reads the arguments of :func:`report` from a file, or two .npy files.

  Args:
    path: the file of the predictions.
    labels: the file of the labels, if ``path`` is a .npy file.

  Returns:
    A dictionary of logits and labels, and of classes, groups, seeds and fit,
    which are None if the file does not have them.
  """
  path = pathlib.Path(path)
  readers = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
  suffix = path.suffix.lower()
  for file in (path, *([] if labels is None else [pathlib.Path(labels)])):
    if not file.is_file():
      raise ValueError(f"There is no file {file}. Make one with {_SAVE}")
  if suffix == ".npy":
    if labels is None:
      raise ValueError(
        f"{path} has predictions, but no labels. Give a second file: "
        f"{path.name} labels.npy."
      )
    columns = {"predictions": _npy(path), "labels": _npy(pathlib.Path(labels))}
  elif suffix in readers:
    if labels is not None:
      raise ValueError(
        f"{path} has its own labels, so {labels} is not needed. Leave it out, "
        "or give two .npy files."
      )
    columns = readers[suffix](path)
  else:
    raise ValueError(
      f"{path} ends in {path.suffix!r}, but must end in .npz, .npy, .csv or "
      f".parquet. Make one with {_SAVE}"
    )
  return _arguments(columns, path)


def _npy(path: pathlib.Path) -> np.ndarray:
  try:
    return np.load(path, allow_pickle=False)
  except (ValueError, EOFError) as error:
    raise ValueError(
      f"{path} is not an array of numbers or strings. Write it with np.save. "
      "Convert objects first, as in labels.astype(str)."
    ) from error


def _npz(path: pathlib.Path) -> dict[str, Any]:
  try:
    with np.load(path, allow_pickle=False) as content:
      columns = {name: content[name] for name in content.files}
  except (ValueError, EOFError, zipfile.BadZipFile) as error:
    raise ValueError(
      f"{path} is not an .npz file of numbers and strings. Write it with "
      f"{_SAVE}. Convert objects first, as in labels.astype(str)."
    ) from error
  kinds = [name for name in ("logits", "probabilities") if name in columns]
  if len(kinds) != 1 or not any(name in columns for name in _NAMES["labels"]):
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
          f"{path}, line {reader.line_num} has {len(row)} cells, but must "
          f"have {len(header)}, as the header: {','.join(header)}."
        )
      rows.append(row)
  if not rows:
    raise ValueError(
      f"{path} has no rows, but must have a line of names, such as "
      "label,cat,dog, and a line for each example."
    )
  if len(set(header)) != len(header):
    raise ValueError(
      f"{path} has two columns of the same name: {','.join(header)}. Rename "
      "one."
    )
  cells = zip(*rows, strict=True)
  return _from_columns(path, dict(zip(header, cells, strict=True)))


def _parquet(path: pathlib.Path) -> dict[str, Any]:
  try:
    import pandas
  except ImportError as error:
    raise ImportError(
      f"{path} needs pandas and pyarrow. Run pip install pandas pyarrow, or "
      "write a .csv file."
    ) from error
  frame = pandas.read_parquet(path)
  columns = {str(name): frame[name].to_numpy() for name in frame.columns}
  return _from_columns(path, columns)


def _from_columns(
  path: pathlib.Path, columns: Mapping[str, Any]
) -> dict[str, Any]:
  """Sorts the columns of a table: known names, and one for each class."""
  known = {
    name: next((n for n in names if n in columns), None)
    for name, names in _NAMES.items()
    if name != "classes"
  }
  others = [name for name in columns if name not in known.values()]
  if known["labels"] is None or not others:
    raise ValueError(
      f"{path} has the columns {', '.join(columns)}, but must have a column "
      "label, and one for each class, with its logits or probabilities."
    )
  table = np.empty((len(columns[others[0]]), len(others)))
  for i, name in enumerate(others):
    table[:, i] = _numbers(path, name, columns[name])
  by_kind: dict[str, Any] = {
    k: np.asarray(columns[v]) for k, v in known.items() if v
  }
  kinds = {_kind(name) for name in others}
  kind = kinds.pop() if len(kinds) == 1 else "predictions"
  by_kind[kind] = table
  prefix = re.compile(r"^(logits?|prob(abilit(y|ies)|s)?|p)[_ ]", re.I)
  names = [prefix.sub("", name) for name in others]
  by_kind["classes"] = (
    names if len(names) > 1 else _two_classes(path, by_kind["labels"], names[0])
  )
  return by_kind


def _two_classes(path: pathlib.Path, labels: Any, column: str) -> Any:
  """The names of two classes. The only column belongs to the second."""
  names = sorted({str(y) for y in labels})
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
        f"{path}, line {row + 2}, column {name}: {cell!r} is not a number, but "
        "every column except label, group, seed and split must have the "
        "logits or probabilities of a class. Correct the cell, or rename or "
        "remove the column."
      ) from error
  raise ValueError(f"{path}, column {name}: the cells are not numbers.")


def _arguments(columns: dict[str, Any], path: pathlib.Path) -> dict[str, Any]:
  known = {
    name: next((columns[n] for n in names if n in columns), None)
    for name, names in _NAMES.items()
  }
  logits = _logits(columns)
  classes = known["classes"]
  labels, classes = _labels(np.asarray(known["labels"]), classes, path)
  return {
    "logits": logits,
    "labels": labels,
    "classes": classes,
    "groups": known["groups"],
    "seeds": known["seeds"],
    "fit": _fit(known["split"], path),
  }


def _logits(columns: dict[str, Any]) -> Any:
  if "logits" in columns:
    return columns["logits"]
  if "probabilities" in columns:
    return _inputs.from_probabilities(columns["probabilities"])
  # The column names don't say. Take numbers that sum to 1 for probabilities.
  values = np.asarray(columns["predictions"])
  numbers = values.dtype.kind in "fiu" and values.size and values.ndim > 0
  if numbers and _inputs.look_like_probabilities(values):
    return _inputs.from_probabilities(values)
  return values


def _labels(labels, classes, path) -> tuple[Any, Any]:
  """Labels as indices; names are looked up among the classes."""
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
    return labels, classes  # report() checks them, and raises
  raise ValueError(
    f"{path} has labels such as {str(labels[0])!r}, but no names of classes. "
    "Add them as the key classes, in the order of the columns: "
    'np.savez("predictions.npz", '
    "probabilities=probabilities, labels=labels, classes=model.classes_)"
  )


def _fit(split: Any, path: pathlib.Path) -> np.ndarray | None:
  """The mask of examples to fit on: those whose split is not test."""
  if split is None:
    return None
  split = np.asarray(split).astype(str)
  names = sorted(set(split.ravel().tolist()))
  if "test" not in names or len(names) > 2:
    raise ValueError(
      f"{path} has the splits {', '.join(names[:5])}, but must have test, and "
      "at most one other, such as validation, to fit recalibrators on. Leave "
      "training examples out."
    )
  return None if len(names) == 1 else split != "test"
