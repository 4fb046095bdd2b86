"""Files of rows: lines of JSON, each with a check of all lines up to it.

A line is one of two:

    {"context":0,"fields":{"study":"quick", …},"check":"0123456789abcdef"}
    {"context":0,"seed":0,"epoch":12,"dataset":"clean", …,"check":"…"}

The first one is a context: fields that many rows share, such as settings,
versions and device. The second one is a row: its fields, and the number of the
context that has its other fields. A study that is resumed on another machine
adds contexts.

The check of a line is the first 16 hex digits of the SHA-256 digest of the
check of the line before it (of nothing, in the first line) and the line without
its check. So if a line is changed, removed, added or moved, reading names the
first line whose check is wrong. Only lines that are cut off at the end leave no
trace.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Set
import contextlib
import copy
import dataclasses
import gzip
import hashlib
import io
import json
import math
import os
import pathlib
import reprlib
from typing import Any
import zlib

from experiments.config import Method, Run, Study, split_ensemble
from experiments.fields import unparse
from experiments.files import UserError, naming, parse_json, replacing
from experiments.rows import schema
from experiments.rows.schema import MEASURED, SHARED, Key, key

_CHECK = b',"check":"%s"}'
_END = len(_CHECK % bytes(16))


class RowsError(UserError):
  """Rows can't be read or written. The message says what to do."""


class Chain:
  """Encodes rows as lines, and decodes lines, in the order of a file."""

  def __init__(self):
    self.check = b""  # of the last line
    self.contexts: list[dict[str, Any]] = []
    self._numbers: dict[str, int] = {}  # of contexts, by their fields

  def encode(self, row: Mapping[str, Any]) -> bytes:
    """Returns the line of a row, after its context's if that is new."""
    if wrong := schema.problem(row):
      raise RowsError(f"A row can't be stored: {wrong}.")
    shared = {name: row[name] for name in row if name in SHARED}
    measured = {name: row[name] for name in row if name not in SHARED}
    identity, lines = json.dumps(shared, sort_keys=True), b""
    if identity not in self._numbers:
      lines = self._line({"context": len(self.contexts), "fields": shared})
      self._add_context(shared)
    return lines + self._line({"context": self._numbers[identity]} | measured)

  def decode(self, line: bytes) -> dict[str, Any] | None:
    """Returns the row of a line without its newline, or None for a context.

    Raises:
      ValueError: if it is not valid. The message says why.
    """
    try:
      content = parse_json(line)
    except ValueError as error:
      raise ValueError(f"is not valid JSON: {error}") from error
    start = line[:-_END] + b"}"
    check = _digest(self.check, start)
    if not isinstance(content, dict) or "check" not in content:
      raise ValueError("has no check: perhaps a former version wrote it")
    if line[-_END:] != _CHECK % check:
      raise ValueError(
        f"was changed, or lines before it are missing: expected the check "
        f"{check.decode()}, got {reprlib.repr(line[-18:-2].decode('latin-1'))}"
      )
    self.check = check
    del content["check"]
    number = content.pop("context", None)
    if number == len(self.contexts) and content.keys() == {"fields"}:
      fields = content["fields"]
      if wrong := schema.problem(fields, SHARED):
        raise ValueError(f"is not a valid context: {wrong}")
      self._add_context(fields)
      return None
    if type(number) is not int or not 0 <= number < len(self.contexts):
      raise ValueError(f"has an unknown context, {reprlib.repr(number)}")
    if wrong := schema.problem(content, MEASURED):
      raise ValueError(f"is not a valid row: {wrong}")
    return self.contexts[number] | content

  def _add_context(self, fields: dict[str, Any]) -> None:
    self._numbers[json.dumps(fields, sort_keys=True)] = len(self.contexts)
    self.contexts.append(fields)

  def _line(self, content: Mapping[str, Any]) -> bytes:
    start = json.dumps(
      finite(content), ensure_ascii=False, separators=(",", ":")
    ).encode()
    self.check = _digest(self.check, start)
    return start[:-1] + _CHECK % self.check + b"\n"


def _digest(check: bytes, content: bytes) -> bytes:
  return hashlib.sha256(check + content).hexdigest()[:16].encode()


class Rows:
  """A file of rows. Rows are only added, each of them once."""

  def __init__(self, path: pathlib.Path, write: bool = True):
    self.path = path
    if write and path.exists():
      content = _content(path)
      whole = content.rfind(b"\n") + 1
      if whole < len(content):  # A crash has left a torn last line.
        os.truncate(path, whole)
    self._chain = Chain()
    self.keys = {key(row) for row in read(path, self._chain)}

  def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
    """Adds rows, except those that are there already.

    Raises:
      RowsError: if they can't be written. The rows before them are unchanged.
    """
    new = {key(row): row for row in rows}
    new = {k: row for k, row in new.items() if k not in self.keys}
    chain = copy.deepcopy(self._chain)
    lines = b"".join(map(chain.encode, new.values()))
    if not lines:
      return
    size = self.path.stat().st_size if self.path.exists() else 0
    try:
      with self.path.open("ab") as file:
        file.write(lines)
        file.flush()
        os.fsync(file.fileno())
    except OSError as error:
      # What stays of the new lines is repaired when the file is opened again.
      with contextlib.suppress(OSError):
        os.truncate(self.path, size)
      raise RowsError(
        f"{self.path} can't be written: {error}. The rows that it had are "
        "unchanged. Make room or get permission, and repeat the command."
      ) from error
    self._chain = chain
    self.keys |= set(new)

  def check_methods(self, study: Study) -> None:
    """Checks that each method has the settings that it has in the rows."""
    known = {
      its["method"]: its.get("settings")
      for its in self._chain.contexts
      if its["config_hash"] == study.config.hash
    }
    for method in study.methods:
      its = dataclasses.asdict(method)
      # Older rows lack newer settings, and have some that are gone.
      settings = dataclasses.asdict(Method()) | (known.get(method.name) or its)
      changed = [name for name, value in its.items() if value != settings[name]]
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
    changes: dict[str, str] = {}
    for its in self._chain.contexts:
      config, config_hash = its.get("config", {}), its["config_hash"]
      changed = [
        f"{name}={unparse(config[name])}"
        for name, value in dataclasses.asdict(study.config).items()
        if config.get(name, value) != value
      ]
      other = f"another config, {config_hash}"
      changes[config_hash] = ", ".join(changed) or other
    runs = {key[:3] for key in self.keys if not split_ensemble(key[1])[1]}
    counts = collections.Counter(
      changes[its] for its, _, _ in runs if its != study.config.hash
    )
    here = [method for its, method, _ in runs if its == study.config.hash]
    if others := sorted(set(here) - set(study.method_names)):
      words = f"other methods ({', '.join(others)})"
      counts[words] = sum(method in others for method in here)
    return [
      f"{count} run{'s' if count > 1 else ''} with {settings}"
      for settings, count in sorted(counts.items())
    ]

  def note(self, rows: Iterable[Mapping[str, Any]]) -> None:
    """Notes rows that another process writes."""
    self.keys |= {key(row) for row in rows}


class Missing:
  """The rows that a study still lacks, by the keys of those that exist."""

  def __init__(self, study: Study, keys: Set[Key]):  # `keys` may grow
    self.study, self.keys = study, keys

  def datasets(self, run: Run, epoch: int) -> list[str]:
    """Returns the sets of images for which a run lacks an epoch's rows."""
    if self.diverged(run):
      return []
    names = self.study.datasets(epoch)
    return [name for name in names if not self._has(run, epoch, name)]

  def diverged(self, run: Run) -> bool:
    epochs = range(1, self.study.config.epochs + 1)
    return any(self._has(run, epoch, "diverged") for epoch in epochs)

  def _has(self, run: Run, epoch: int, dataset: str) -> bool:
    config_hash, method = self.study.config.hash, run.method.name
    return (config_hash, method, run.seed, epoch, dataset) in self.keys

  def __call__(self, run: Run) -> bool:
    """Returns whether anything of a run is missing."""
    epochs = self.study.epochs_evaluated()
    return any(self.datasets(run, epoch) for epoch in epochs)


def write(path: pathlib.Path, rows: Iterable[Mapping[str, Any]]) -> None:
  """Writes a file of these rows, which replaces one that is there.

  The same rows give the same bytes, also gzipped.
  """
  content = b"".join(map(Chain().encode, rows))
  if path.suffix == ".gz":
    zipped = io.BytesIO()
    # Unlike `gzip.compress`, this writes one header in all versions of Python.
    with gzip.GzipFile("", "wb", 9, zipped, mtime=0) as file:
      file.write(content)
    content = zipped.getvalue()
  with replacing(path) as temporary:
    temporary.write_bytes(content)


def read(
  path: pathlib.Path, chain: Chain | None = None
) -> Iterator[dict[str, Any]]:
  """Yields the rows of a file, which may be gzipped, without a torn last line.

  Rows of a context share its values: don't change them.

  Raises:
    RowsError: if a line is not valid, its check is wrong, or a row is there
      twice.
  """
  chain = chain or Chain()
  numbers: dict[Key, int] = {}
  for number, line in enumerate(_lines(path), 1):
    try:
      row = chain.decode(line)
      first = numbers.setdefault(key(row), number) if row else number
      if first != number:
        raise ValueError(
          f"is of the same run, epoch and images as line {first}"
        )
    except (KeyError, TypeError, ValueError) as error:
      raise RowsError(
        f"Line {number} of {path} {error}. {_remedy(path)}"
      ) from error
    if row:
      yield row


def join(paths: Iterable[pathlib.Path], output: pathlib.Path) -> None:
  """Writes the rows of a study's shares to one file, sorted by their keys.

  Raises:
    RowsError: if a check is wrong, or two files have a row of the same run,
      epoch and images.
  """
  rows: dict[Key, tuple[pathlib.Path, dict[str, Any]]] = {}
  for path in paths:
    for row in read(path):
      if (its := key(row)) in rows:
        _, method, seed, epoch, dataset = its
        raise RowsError(
          f"{rows[its][0]} and {path} both have a row of {method}, seed "
          f"{seed}, after epoch {epoch} on {dataset}. Join files of different "
          "runs only, and each file once."
        )
      rows[its] = path, row
  if not rows:
    raise RowsError("The files to join have no rows. Give folders of a study.")
  write(output, (rows[its][1] for its in sorted(rows)))


def _content(path: pathlib.Path) -> bytes:
  with naming(path):
    return path.read_bytes()


def _lines(path: pathlib.Path) -> list[bytes]:
  """Returns the lines of a file, without a torn last one."""
  if not path.exists():
    return []
  content = _content(path)
  if path.suffix == ".gz":
    try:
      content = gzip.decompress(content)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
      raise RowsError(
        f"{path} is damaged ({error}). {_remedy(path)}"
      ) from error
  return content.split(b"\n")[:-1]


def _remedy(path: pathlib.Path) -> str:
  if path.suffix == ".gz":
    return "Restore it with git, or `python -m experiments keep` it again."
  return "Remove it and all later lines, and repeat the command that made them."


def finite(value: Any) -> Any:
  """Returns the same value, with None for NaN and infinities, for JSON."""
  if isinstance(value, Mapping):
    return {k: finite(v) for k, v in value.items()}
  if isinstance(value, list | tuple):
    return [finite(v) for v in value]
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value
