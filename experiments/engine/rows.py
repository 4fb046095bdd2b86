"""Results as lines of JSON. Lines are only added, each of them once."""

import collections
from collections.abc import Iterable, Iterator, Mapping, Set
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
from experiments.fields import unparse
from experiments.files import UserError, is_name, parse_json

Key = tuple[str, str, int, int, str]
_REMEDY = "Remove it, and repeat the command that made it."


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


# Fields that every row has, and fields that a row may have, with checks.
REQUIRED = {
  "study": is_name,
  "config_hash": _is_text,
  "optimizer": _is_text,
  "seed": _is_count,
  "epoch": _is_count,
  "dataset": _is_text,
  "metrics": _has_numbers,
}
OPTIONAL = {
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
  """Results can't be read or written. The message says what to do."""


def key(row: Mapping[str, Any]) -> Key:
  """Returns what identifies a row: config, optimizer, seed, epoch, dataset."""
  return (
    row["config_hash"],
    row["optimizer"],
    row["seed"],
    row["epoch"],
    row["dataset"],
  )


class Rows:
  """A file of rows.

  A crash may leave a torn last line. It is cut off when the file is opened for
  writing, and its row is made again.

  Attributes:
    path: the file.
    keys: the keys of its rows.
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
    """Adds rows, except those that are there already.

    Raises:
      RowsError: if they can't be written. The file is then unchanged.
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
        f"{self.path} can't be written: {error}. Its rows are unchanged. Make "
        "room or get permission, and repeat the command."
      ) from error
    self.keys |= set(new)

  def check_methods(self, study: Study) -> None:
    """Checks that each method has the settings that it has in the rows."""
    for method in study.methods:
      known = self._methods.get((study.config.hash, method.name))
      now = dataclasses.asdict(method)
      # Older rows have settings that no method has any more.
      changed = [name for name in now if known and now[name] != known.get(name)]
      if changed:
        raise RowsError(
          f"{self.path} has rows of {method.name} with another "
          f"{', '.join(changed)}. Give the method another name, or give "
          "--output another folder."
        )

  def left_out(self, study: Study) -> list[str]:
    """Runs that a study's page leaves out, such as "4 runs with epochs=2".

    A page shows the study's methods, with the study's config.
    """
    runs = {key[:3] for key in self.keys if key[:2] in self._methods}
    here = [method for its, method, _ in runs if its == study.config.hash]
    others = set(here) - set(study.optimizers)
    counts = collections.Counter(
      self._changes(its, study)
      for its, _, _ in runs
      if its != study.config.hash
    )
    if others:
      counts[f"other methods ({', '.join(sorted(others))})"] = sum(
        method in others for method in here
      )
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
    """Notes rows that another process writes."""
    self.keys |= {key(row) for row in rows}


class Missing:
  """The rows that a study still lacks.

  Attributes:
    study: the study to check.
    keys: the keys of the rows that exist. They may grow.
  """

  def __init__(self, study: Study, keys: Set[Key]):
    self.study, self.keys = study, keys

  def datasets(self, run: Run, epoch: int) -> list[str]:
    if self.diverged(run):
      return []
    prefix = (*self._prefix(run), epoch)
    return [
      name
      for name in self.study.datasets(epoch)
      if (*prefix, name) not in self.keys
    ]

  def diverged(self, run: Run) -> bool:
    prefix = self._prefix(run)
    return any(
      (*prefix, epoch, "diverged") in self.keys
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
  """Yields the rows of a file, which may be gzipped, without a torn last line.

  Raises:
    RowsError: if a line is not a valid row, or a row is there twice.
  """
  if not path.exists():
    return
  lines: dict[Key, int] = {}
  for number, line in enumerate(_lines(path), 1):
    try:
      row = parse_json(line)
    except ValueError as error:
      raise RowsError(
        f"Line {number} of {path} is not valid JSON: {error}. {_REMEDY}"
      ) from error
    if problem := _problem(row):
      raise RowsError(
        f"Line {number} of {path} is not a valid row: {problem}. {_REMEDY}"
      )
    first = lines.setdefault(key(row), number)
    if first != number:
      raise RowsError(
        f"Line {number} of {path} is of the same run, epoch and images as line "
        f"{first}. Remove one of them."
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
      f"{path} is damaged ({error}). Restore it with git, or make it again "
      "with `python -m experiments keep`."
    ) from error


def _problem(row: Any) -> str | None:
  """Returns what is wrong with the form of a row, or None."""
  if not isinstance(row, dict):
    return f"it is {reprlib.repr(row)}"
  for name in REQUIRED:
    if name not in row:
      return f"it has no {name}"
  for name, is_right in (REQUIRED | OPTIONAL).items():
    if name in row and not is_right(row[name]):
      return f"its {name} is {reprlib.repr(row[name])}"
  return None


def finite(value: Any) -> Any:
  """Returns the same value, with None for NaN and infinities, for JSON."""
  if isinstance(value, Mapping):
    return {k: finite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [finite(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


@functools.cache
def environment() -> dict[str, Any]:
  """Returns the versions, device and commit that a row is made with."""
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
  """Returns the commit of the code, with a + if changed; None without git."""
  if known := os.environ.get("ORTHOGRAD_COMMIT"):
    return known
  folder = pathlib.Path(__file__).parents[1]
  git = functools.partial(
    subprocess.run,
    cwd=folder,
    # So that `git status` does not lock and rewrite the clone's index.
    env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
    capture_output=True,
    text=True,
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
