"""Files that are never half written, and errors for the user."""

from collections.abc import Callable, Iterator
import contextlib
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
import subprocess
from typing import Any


class UserError(RuntimeError):
  """An error that the user can mend. Its message says how."""


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary file, which replaces `path` once it is complete."""
  temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}.part")
  try:
    temporary.touch(exist_ok=False)  # with the permissions of the umask
    yield temporary
    with temporary.open("rb") as file:
      os.fsync(file.fileno())
    temporary.replace(path)
  except OSError as error:
    if error.errno and error.filename is None:  # of a full disk, say
      raise OSError(error.errno, error.strerror, str(path)) from error
    raise
  finally:
    temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: pathlib.Path, busy: Callable[[], object]) -> Iterator[None]:
  """Locks a folder against other processes. A killed process unlocks it.

  Args:
    folder: which.
    busy: called if another process has locked it; raises an error, or returns
      to wait for that process.
  """
  import filelock

  lock = filelock.FileLock(folder / ".lock")
  try:
    lock.acquire(timeout=0)
  except filelock.Timeout:
    busy()
    lock.acquire()
  try:
    yield
  finally:
    lock.release()


def sha256(path: pathlib.Path) -> str:
  """The digest of a file."""
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def remove_leftovers(folder: pathlib.Path, *names: str) -> None:
  """Removes temporary files that :func:`replacing` left when it was killed.

  Args:
    folder: of the files that were to be replaced.
    names: patterns of their names, such as ``"study.json"`` or ``"*.npy"``.
  """
  for path in folder.glob(".*.part"):
    match = re.fullmatch(r"\.(.+)-[a-z0-9_]{8}\.part", path.name)
    if match and any(fnmatch.fnmatchcase(match[1], name) for name in names):
      if path.is_file() and not path.is_symlink():
        path.unlink()


def is_name(value: Any) -> bool:
  """Whether a value may be part of a file's name: text, but no path."""
  return (
    isinstance(value, str)
    and bool(value)
    and not value.startswith(".")
    and not set(value) & set("/\\\0")
  )


def parse_json(content: str | bytes) -> Any:
  """Parses JSON. A ValueError if it is none, or is nested too deeply."""
  try:
    return json.loads(content)
  except RecursionError as error:
    raise ValueError("it is nested too deeply") from error


def run_bounded(
  command: list[str], largest: int, **options: Any
) -> subprocess.CompletedProcess[str]:
  """Runs a program. If there is sh, its files are limited to so many bytes."""
  if sh := shutil.which("sh"):
    # In blocks of 512 bytes.
    limit = [sh, "-c", 'ulimit -f "$0" && exec "$@"', str(-(-largest // 512))]
    command = [*limit, *command]
  return subprocess.run(
    command,
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    **options,
  )
