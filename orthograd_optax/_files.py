"""Reads predictions from files. It needs NumPy only, and no JAX."""

from collections.abc import Mapping, Set
import contextlib
import csv
import functools
import io
import itertools
import logging
import math
import os
import pathlib
import re
import reprlib
import tokenize
from typing import IO, Any
import zipfile
import zlib

import numpy as np

_HEADER = 10_100  # bytes; NumPy reads headers of at most 10,000 characters
_LIST = 2**20  # bytes of an .npz file's list of arrays
_LINE = 2**22  # characters of a line of a .csv file
MAX_BYTES = 4 * 2**30  # of all arrays of a file
_SAVE = 'np.savez("predictions.npz", logits=logits, labels=labels)'
# The names that a key or a column may have.
_NAMES = {
  "labels": ("labels", "label"),
  "groups": ("groups", "group"),
  "seeds": ("seeds", "seed"),
  "split": ("split",),
  "classes": ("classes", "class_names"),
}
_KINDS = ("logits", "probabilities")
_PREFIX = re.compile(r"(?:(logits?)|prob(?:abilit(?:y|ies)|s)?|p)[_ ]", re.I)
# Names of columns that count the rows, as pandas writes its index.
_INDEX = re.compile(
  r"|id|idx|index|level_\d+|__index_level_\d+__|unnamed: ?\d+", re.I
)
# How missing entries of pandas print.
_MISSING = ("nan", "None", "<NA>", "NaT")
# What damaged and hostile files raise.
_DAMAGE = (ValueError, EOFError, OSError, RuntimeError, NotImplementedError)
_DAMAGE += (zipfile.BadZipFile, zlib.error, MemoryError, SyntaxError, TypeError)
_DAMAGE += (tokenize.TokenError, LookupError, ArithmeticError)


def read(path: str | os.PathLike, labels: str | os.PathLike | None = None):
  """Reads the arguments of :func:`report` from a file, or two .npy files.

  Instead of logits, there are predictions and their kind: "logits",
  "probabilities", or "predictions" if the file does not say.
  """
  logging.getLogger("orthograd_optax").info("Reading %s", path)
  path = pathlib.Path(path)
  readers = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
  suffix = path.suffix.lower()
  for file in (path, *([] if labels is None else [pathlib.Path(labels)])):
    if not file.is_file():
      raise ValueError(f"There is no file {file}. Make one with {_SAVE}")
    if suffix != ".npz":
      _check_size(file, file.stat().st_size)
  if suffix == ".npy":
    if labels is None:
      raise ValueError(
        f"{path} has predictions, but no labels. Add --labels labels.npy."
      )
    columns = {"predictions": _npy(path), "labels": _npy(pathlib.Path(labels))}
  elif suffix in readers:
    if labels is not None:
      raise ValueError(
        f"{path} has its own labels, so {labels} is not needed. Leave out "
        "--labels."
      )
    columns = readers[suffix](path)
  else:
    raise ValueError(
      f"{path} ends in {path.suffix!r}, but must end in .npz, .npy, .csv or "
      f".parquet. Make one with {_SAVE}"
    )
  return _arguments(path, columns)


def _check_size(path: pathlib.Path, size: int) -> None:
  if size > MAX_BYTES:
    raise ValueError(
      f"{path} must have at most {MAX_BYTES:,} bytes of arrays (MAX_BYTES in "
      f"orthograd_optax/_files.py), but has {size:,}. Leave out examples, or "
      "save them as float32."
    )


def _read_array(file: IO[bytes], size: int) -> np.ndarray:
  """Reads an array of a .npy file, once its header fits its size."""
  form = np.lib.format
  readers = {(1, 0): form.read_array_header_1_0}
  readers[2, 0] = form.read_array_header_2_0
  start = io.BytesIO(file.read(_HEADER))  # A header may claim to have 4 GB.
  version = form.read_magic(start)
  if version not in readers:
    raise ValueError(f"it has version {version} of the .npy format")
  shape, _, dtype = readers[version](start)
  if dtype.hasobject:
    raise ValueError("it has objects")
  # Entries of no size, such as empty strings, cost time, too.
  least = math.prod(shape) * max(dtype.itemsize, 1)
  if min(shape, default=0) < 0 or least > size:
    raise ValueError(f"it is damaged: {size:,} bytes can't have shape {shape}")
  file.seek(0)
  return form.read_array(file, allow_pickle=False)


def brief(text: object) -> str:
  """Returns a text to print: at most 300 characters, no control characters."""
  characters = (c if c.isprintable() else " " for c in str(text)[:301])
  line = "".join(characters)
  return line if len(line) <= 300 else f"{line[:300]}…"


@contextlib.contextmanager
def _reading(path: pathlib.Path, expected: str, remedy: str):
  try:
    yield
  except _DAMAGE as error:
    raise ValueError(
      f"{path} is not {expected}: {brief(error)}. Write it with {remedy}. "
      "Convert objects to numbers or strings first, as in labels.astype(str)."
    ) from error


def _npy(path: pathlib.Path) -> np.ndarray:
  with _reading(path, "an array of numbers or strings", "np.save"):
    with open(path, "rb") as file:
      return _read_array(file, path.stat().st_size)


class _Zip(io.BufferedReader):
  """A zip file whose list of members is read only if it is not too long."""

  most = _LIST

  def read(self, size: int | None = -1, /) -> bytes:
    if (size or 0) > self.most:
      raise ValueError(f"its list of arrays has {size:,} bytes")
    return super().read(size)


def _npz(path: pathlib.Path) -> dict[str, Any]:
  known = {*_KINDS, *itertools.chain(*_NAMES.values())}
  keys, columns = read_npz(path, known, _SAVE)
  kinds = [name for name in _KINDS if name in columns]
  if len(kinds) == 2:
    raise ValueError(f"{path} must have logits or probabilities, not both.")
  if len(kinds) != 1 or "labels" not in _known(columns):
    raise ValueError(
      f"{path} must have the key labels, and either logits or probabilities, "
      f"but has {reprlib.repr(keys)}: {_SAVE}"
    )
  return columns


def read_npz(
  path: pathlib.Path, names: Set[str], remedy: str
) -> tuple[list[str], dict[str, np.ndarray]]:
  """Returns all keys of an .npz file, and the arrays of some names.

  No more is read than the arrays have, and at most :data:`MAX_BYTES`.
  """
  expected = "an .npz file of numbers and strings"
  with _Zip(io.FileIO(path)) as file:
    with _reading(path, expected, remedy):
      archive = zipfile.ZipFile(file)
    file.most = MAX_BYTES  # Its list is read; now the arrays.
    keys = [name.removesuffix(".npy") for name in archive.namelist()]
    files = [f"{name}.npy" for name in names & set(keys)]
    members = [archive.getinfo(x) for x in files if x in archive.NameToInfo]
    _check_size(path, sum(member.file_size for member in members))
    arrays = {}
    for member in members:
      name = member.filename[:-4]
      with _reading(path, f"{expected}, by its array {name}", remedy):
        arrays[name] = _member(archive, member)
    return keys, arrays


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
  if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    raise ValueError(f"{member.filename} must be stored or deflated")
  with archive.open(member) as file:
    return _read_array(file, member.file_size)


def _csv(path: pathlib.Path) -> dict[str, Any]:
  with open(path, newline="", encoding="utf-8-sig") as file:
    # A line may be as long as the file.
    reader = csv.reader(iter(functools.partial(file.readline, _LINE), ""))
    try:
      header = [name.strip() for name in next(reader, [])]
      lines = ((reader.line_num, row) for row in reader)
      rows = [(n, row) for n, row in lines if row and row != [""]]
    except csv.Error as error:
      raise ValueError(
        f"{path}, line {reader.line_num} is not valid CSV: {error}. Correct "
        "or remove it."
      ) from error
    except UnicodeDecodeError as error:
      raise ValueError(f"{path} must be UTF-8 text, but: {error}.") from error
  for line, row in rows:
    if len(row) != len(header):
      raise ValueError(
        f"{path}, line {line} must have {len(header)} cells, as the header "
        f"{','.join(header)}, but has {len(row)}."
      )
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
  cells = zip(*(row for _, row in rows), strict=True)
  return _from_columns(path, dict(zip(header, cells, strict=True)))


def _parquet(path: pathlib.Path) -> dict[str, Any]:
  try:
    import pandas
    import pyarrow.parquet
  except ImportError as error:
    raise ImportError(
      f"{path} needs pandas and pyarrow. Run pip install pandas pyarrow, or "
      "write a .csv file."
    ) from error
  expected = f"{path} is not a .parquet file"
  try:
    form = pyarrow.parquet.read_metadata(path)
    sizes = [
      form.row_group(i).total_byte_size for i in range(form.num_row_groups)
    ]
    names = form.schema.to_arrow_schema().names
  except Exception as error:  # A damaged file can raise anything.
    raise ValueError(f"{expected}: {brief(error)}") from error
  # A few bytes can stand for many equal numbers, or for one text in many rows.
  _check_size(path, max(8 * form.num_rows * form.num_columns, sum(sizes)))
  try:
    frame = pandas.read_parquet(path, engine="pyarrow", read_dictionary=names)
  except Exception as error:  # A damaged file can raise anything.
    raise ValueError(f"{expected}: {brief(error)}") from error
  columns = {str(name): _entries(frame[name]) for name in frame.columns}
  return _from_columns(path, columns)


def _entries(column: Any) -> np.ndarray:
  """Returns the entries of a pandas column. Equal texts are one object."""
  if column.dtype != "category" or column.cat.categories.dtype.kind in "biuf":
    return column.to_numpy()
  texts = [*column.cat.categories, None]  # Code -1 is None.
  return np.array(texts, object)[column.cat.codes]


def _known(columns: Mapping[str, Any]) -> dict[str, str]:
  """Returns the names in use, such as {"labels": "label"}."""
  used = {k: [n for n in names if n in columns] for k, names in _NAMES.items()}
  return {k: names[0] for k, names in used.items() if names}


def _from_columns(path: pathlib.Path, columns: Mapping[str, Any]):
  """Sorts the columns of a table: known names, and one for each class."""
  known = {k: v for k, v in _known(columns).items() if k != "classes"}
  others = [name for name in columns if name not in known.values()]
  if "labels" not in known or not others:
    raise ValueError(
      f"{path} has the columns {', '.join(columns)}, but must have a column "
      "label, and one for each class, with its logits or probabilities."
      f"{' Separate columns by commas.' if len(columns) == 1 else ''}"
    )
  arrays = {k: np.asarray(columns[v]) for k, v in known.items()}
  labels = arrays["labels"]
  for row, label in enumerate(labels):
    if not isinstance(label, str) and str(label) in _MISSING or label == "":
      raise ValueError(
        f"{path}, line {row + 2} has no label. Add it, or leave the line out."
      )
  _check_columns(path, others, labels)
  table = np.empty((len(labels), len(others)))
  kinds, classes = set(), []
  for i, name in enumerate(others):
    table[:, i] = _numbers(path, name, columns[name])
    prefix = _PREFIX.match(name)
    classes.append(name[prefix.end() :] if prefix else name)
    kinds.add(_KINDS[0 if prefix[1] else 1] if prefix else "predictions")
  kind = kinds.pop() if len(kinds) == 1 else "predictions"
  if len(classes) == 1:
    classes = _two_classes(path, labels, classes[0])
  return arrays | {kind: table, "classes": classes}


def _check_columns(path: pathlib.Path, names: list[str], labels: Any) -> None:
  """Refuses columns that are not the predictions for a class."""
  occurring = {str(label) for label in labels}
  numbered = names == [str(i) for i in range(len(names))]
  for name in names:
    if name in occurring or _PREFIX.match(name) or numbered:
      continue
    if _INDEX.fullmatch(name):
      raise ValueError(
        f"{path} must have predictions for classes only, but {name!r} looks "
        "like an index of the rows. Leave it out; with pandas, write "
        "df.to_csv(path, index=False). If it is a class, rename it to "
        f"p_{name} or logit_{name}."
      )
    if len(names) > 1 and path.suffix.lower() != ".npz":
      raise ValueError(
        f"{path} has a column {name!r}, but no label of this name. If it has "
        f"the logits or probabilities of a class, rename it to logit_{name} or "
        f"p_{name}. Otherwise, leave it out."
      )


def _two_classes(path: pathlib.Path, labels: Any, column: str) -> Any:
  """Returns two class names. The only column belongs to the second."""
  names = sorted({str(y) for y in labels})
  if all(re.fullmatch(r"[01](\.0*)?", name) for name in names):
    return None
  if column not in names or len(names) != 2:
    raise ValueError(
      f"{path} has one column of predictions, {column[:100]}, and the labels "
      f"{', '.join(name[:100] for name in names[:5])}. Name the "
      "column after the label whose probability or logit it is, or make the "
      "labels 0 and 1."
    )
  return [name for name in names if name != column] + [column]


def _numbers(path: pathlib.Path, name: str, cells: Any) -> np.ndarray:
  if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
    return cells.astype(np.float64)
  for row, cell in enumerate(cells):
    try:
      float(cell)
    except (ValueError, TypeError) as error:
      raise ValueError(
        f"{path}, line {row + 2}, column {name}: {reprlib.repr(cell)} is not a "
        "number, but every column except label, group, seed and split must "
        "have the logits or probabilities of a class. Correct the cell, or "
        "rename or remove the column."
      ) from error
  return np.asarray(cells, np.float64)


def _arguments(path: pathlib.Path, columns: dict[str, Any]) -> dict[str, Any]:
  known = {k: columns[name] for k, name in _known(columns).items()}
  kind = next(k for k in (*_KINDS, "predictions") if k in columns)
  entries = np.size(columns[kind]) + 1  # Two classes may have one column.
  for name, values in known.items():
    if np.size(values) > entries:
      raise ValueError(
        f"{path} must have an entry of {name} for each example or class, but "
        f"has {np.size(values):,}, and {np.size(columns[kind]):,} predictions. "
        "Leave out the others."
      )
  classes, labels = known.get("classes"), np.asarray(known["labels"])
  if path.suffix.lower() == ".npz" and classes is not None:
    _check_columns(path, [str(c) for c in np.ravel(classes)], np.ravel(labels))
  examples = len(labels) if labels.ndim else 0
  fit = _fit(known.get("split"), examples, path)
  labels, classes = _labels(labels, classes, path)
  return {
    "predictions": columns[kind],
    "kind": kind,
    "labels": labels,
    "classes": classes,
    "groups": known.get("groups"),
    "seeds": known.get("seeds"),
    "fit": fit,
  }


def _labels(labels, classes, path) -> tuple[Any, Any]:
  """Returns labels as indices. Names are looked up among the classes."""
  if classes is not None:
    classes = [str(c) for c in classes]
    index = {name: i for i, name in enumerate(classes)}
    if len(index) < len(classes):
      return labels, classes  # report() refuses two classes of the same name
    names = [str(y) for y in labels.ravel()]
    if labels.ndim == 1 and all(name in index for name in names):
      return np.array([index[name] for name in names]), classes
  if labels.ndim != 1 or labels.dtype.kind not in "OUST":
    return labels, classes
  if all(re.fullmatch(r"\s*\d{1,9}(\.0*)?\s*", str(y)) for y in labels):
    return np.array([int(float(y)) for y in labels]), classes
  if classes is not None:
    return labels, classes  # report() checks them, and raises
  raise ValueError(
    f"{path} has labels such as {reprlib.repr(str(labels[0]))}, but no names "
    "of classes. Add them as the key classes, in the order of the columns: "
    'np.savez("predictions.npz", '
    "probabilities=probabilities, labels=labels, classes=model.classes_)"
  )


def _fit(split: Any, examples: int, path: pathlib.Path) -> np.ndarray | None:
  """Returns the mask of examples to fit on: all whose split is not test."""
  if split is None:
    return None
  split = np.asarray(split)
  if split.shape != (examples,):
    raise ValueError(
      f"{path} must have a split for each of its {examples} labels, but the "
      f"split has shape {split.shape}."
    )
  split = np.char.lower(split.astype(str))
  names = sorted(set(split.tolist()))
  if "test" not in names or len(names) > 2:
    raise ValueError(
      f"{path} must have the split test, and at most one other, such as "
      "validation, to fit recalibrators on, but has "
      f"{', '.join(names[:5])}. Leave training examples out."
    )
  return None if len(names) == 1 else split != "test"
