"""Results as lines of JSON, which are only ever added to, whole and once."""

import collections
from collections.abc import Iterable, Iterator, Mapping
import dataclasses
import datetime
import functools
import gzip
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import reprlib
import subprocess
from typing import Any
import zlib

import jax

from experiments.config import Run, Study
from experiments.files import UserError, is_name, parse_json
from experiments.settings import unparse

Key = tuple[str, str, int, int, str]
_REMEDY = "Remove it, and give the command that made it again."


def _is_text(value: Any) -> bool:
  return isinstance(value, str)


def _is_count(value: Any) -> bool:
  return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
  return value is None or type(value) in (int, float)


def _is_mapping(value: Any) -> bool:
  return isinstance(value, dict)


def _has_numbers(value: Any) -> bool:
  return _is_mapping(value) and all(map(_is_number, value.values()))


def _has_lists(value: Any) -> bool:
  return _is_mapping(value) and all(
    isinstance(entry, list) and all(map(_is_number, entry))
    for entry in value.values()
  )


# What every row has, and what it may have, besides what is only looked at.
FORM = {
  "study": is_name,
  "config_hash": _is_text,
  "optimizer": _is_text,
  "seed": _is_count,
  "epoch": _is_count,
  "dataset": _is_text,
  "metrics": _has_numbers,
}
MORE = {
  "bins": _has_lists,
  "scaled": _has_numbers,
  "scaled_half": _has_numbers,
  "scaled_clean": _has_numbers,
  "config": _is_mapping,
  "training": _is_mapping,
  "time": _is_text,
  "wall_time": _is_number,
}


class RowsError(UserError):
  """Results that can't be read or written, and what to do."""


def key(row: Mapping[str, Any]) -> Key:
  """What there is one row of: config, optimizer, seed, epoch and dataset."""
  return (
    row["config_hash"],
    row["optimizer"],
    row["seed"],
    row["epoch"],
    row["dataset"],
  )


class Rows:
  """A file of rows.

  A last line that was torn, by a crash while it was written, is cut off when
  the file is opened to be written; it was of a row that will be made again.

  Attributes:
    path: of the file.
    keys: of the rows that are in it.
  """

  def __init__(self, path: pathlib.Path, write: bool = True):
    self.path = path
    if write and path.exists():
      _repair(path)
    self.keys: set[Key] = set()
    self._configs: dict[str, dict[str, Any]] = {}
    self._methods: dict[tuple[str, str], Any] = {}
    for row in read(path):
      self.keys.add(key(row))
      self._configs.setdefault(row["config_hash"], row.get("config", {}))
      if "members" not in row:  # of an ensemble
        name = row["config_hash"], row["optimizer"]
        self._methods[name] = row.get("training")

  def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds those rows that are not there yet.

    Raises:
      RowsError: if they can't be written; the file is as it was.
    """
    new = {key(row): row for row in rows}
    new = {k: row for k, row in new.items() if k not in self.keys}
    text = "".join(json.dumps(finite(row)) + "\n" for row in new.values())
    if not text:
      return
    size = self.path.stat().st_size if self.path.exists() else 0
    try:
      with self.path.open("ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
      if self.path.exists():
        os.truncate(self.path, size)
      raise RowsError(
        f"{self.path} can't be written: {error}. The rows that were there are "
        "still; make room or get permission, and give the same command again."
      ) from error
    self.keys |= set(new)

  def check_methods(self, study: Study) -> None:
    """That a name means the same in the study as in the rows."""
    for method in study.methods:
      known = self._methods.get((study.config.hash, method.name))
      now = dataclasses.asdict(method)
      if known and known != now:
        changed = [name for name in now if now[name] != known.get(name)]
        raise RowsError(
          f"{self.path} has rows of {method.name} with another "
          f"{', '.join(changed)}: give the method another name, or another "
          "folder with --output."
        )

  def left_out(self, study: Study) -> list[str]:
    """Runs that a study's page leaves out, by settings and methods.

    A page shows the runs of one config, with the study's own methods. Here are
    the others, such as "4 runs with epochs=2".
    """
    counts: collections.Counter[str] = collections.Counter()
    for config_hash, method, _ in {key[:3] for key in self.keys}:
      if (config_hash, method) not in self._methods:  # of an ensemble
        continue
      if config_hash != study.config.hash:
        counts[self._changes(config_hash, study)] += 1
      elif method not in study.optimizers:
        counts[f"the method {method}"] += 1
    return [
      f"{count} run{'s' if count > 1 else ''} with {settings}"
      for settings, count in sorted(counts.items())
    ]

  def _changes(self, config_hash: str, study: Study) -> str:
    """The settings of a config that differ from the study's."""
    config = self._configs[config_hash]
    changes = [
      f"{name}={unparse(config[name])}"
      for name, value in dataclasses.asdict(study.config).items()
      if config.get(name, value) != value
    ]
    return ", ".join(changes) or f"another config, {config_hash}"

  def note(self, rows: Iterable[Mapping[str, Any]]) -> None:
    """Takes rows for written, which another process writes."""
    self.keys |= {key(row) for row in rows}


class Missing:
  """Which rows of a study are not there yet."""

  def __init__(self, study: Study, rows: Rows):
    self.study, self.rows = study, rows

  def datasets(self, run: Run, epoch: int) -> list[str]:
    if self.diverged(run):
      return []
    prefix = (*self._prefix(run), epoch)
    return [
      name
      for name in self.study.datasets(epoch)
      if (*prefix, name) not in self.rows.keys
    ]

  def diverged(self, run: Run) -> bool:
    prefix = self._prefix(run)
    return any(
      (*prefix, epoch, "diverged") in self.rows.keys
      for epoch in range(1, self.study.config.epochs + 1)
    )

  def _prefix(self, run: Run) -> tuple[str, str, int]:
    return self.study.config.hash, run.method.name, run.seed

  def __call__(self, run: Run) -> bool:
    """Whether anything of a run is missing."""
    epochs = self.study.epochs_evaluated()
    return any(self.datasets(run, epoch) for epoch in epochs)


def _repair(path: pathlib.Path) -> None:
  content = path.read_bytes()
  whole = content.rfind(b"\n") + 1
  if whole < len(content):
    os.truncate(path, whole)


def read(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """The rows of a file, maybe a .gz, without a last line that was torn.

  Raises:
    RowsError: for a line that is no row, or the second of the same one.
  """
  if not path.exists():
    return
  lines: dict[Key, int] = {}
  for number, line in enumerate(_lines(path), 1):
    try:
      row = parse_json(line)
    except ValueError as error:
      raise RowsError(
        f"Line {number} of {path} is no JSON: {error}. {_REMEDY}"
      ) from error
    if problem := _problem(row):
      raise RowsError(
        f"Line {number} of {path} is no row: {problem}. {_REMEDY}"
      )
    first = lines.setdefault(key(row), number)
    if first != number:
      raise RowsError(
        f"Line {number} of {path} is of the same run, epoch and images as line "
        f"{first}: remove one of them."
      )
    yield row


def _lines(path: pathlib.Path) -> Iterator[bytes]:
  try:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
      for line in file:
        if line.endswith(b"\n"):
          yield line
  except (EOFError, gzip.BadGzipFile, zlib.error) as error:
    raise RowsError(
      f"{path} is damaged ({error}): restore it with git, or make it anew with "
      "`python -m experiments keep`."
    ) from error


def _problem(row: Any) -> str | None:
  """What is wrong with the form of a row, or None."""
  if not isinstance(row, dict):
    return f"it is {reprlib.repr(row)}"
  for name in FORM:
    if name not in row:
      return f"it has no {name}"
  for name, is_right in (FORM | MORE).items():
    if name in row and not is_right(row[name]):
      return f"its {name} is {reprlib.repr(row[name])}"
  return None


def finite(value: Any) -> Any:
  """The same with None for every number that JSON has no word for."""
  if isinstance(value, Mapping):
    return {k: finite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [finite(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


@functools.cache
def environment() -> dict[str, Any]:
  """Where and with what a row was made."""
  names = ("jax", "jaxlib", "optax", "flax", "numpy", "orthograd-optax")
  versions: dict[str, str | None] = {"python": platform.python_version()}
  for name in names:
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      versions[name] = None  # run from a clone
  device = jax.devices()[0]
  return {
    "versions": versions,
    "device": f"{jax.device_count()} × {device.device_kind}",
    "commit": commit(),
  }


def commit() -> str | None:
  """Of the code, with a + if it was changed since; None outside of git."""
  if known := os.environ.get("ORTHOGRAD_COMMIT"):
    return known
  folder = pathlib.Path(__file__).parents[1]
  git = functools.partial(
    subprocess.run, cwd=folder, capture_output=True, text=True
  )
  try:
    head = git(["git", "rev-parse", "--short=12", "HEAD"])
    changed = git(["git", "status", "--porcelain", "--untracked-files=no", "."])
  except OSError:
    return None
  if head.returncode:
    return None
  return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def now() -> str:
  return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
