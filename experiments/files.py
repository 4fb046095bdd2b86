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
import tempfile
from typing import Any

MOST_MEMORY = 2 * 2**30  # bytes, for npm and pip


class UserError(RuntimeError):
  """An error that the user can mend. Its message says how."""


@contextlib.contextmanager
def naming(path: pathlib.Path) -> Iterator[None]:
  """Adds a path to errors that lack it, such as errors of reading."""
  try:
    yield
  except OSError as error:
    if error.errno and error.filename is None:
      raise OSError(error.errno, error.strerror, str(path)) from error
    raise


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary file, which replaces `path` once it is complete."""
  temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}.part")
  try:
    with naming(path):
      temporary.touch(exist_ok=False)  # with the permissions of the umask
      yield temporary
      with temporary.open("rb") as file:
        os.fsync(file.fileno())
      temporary.replace(path)
  finally:
    temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: pathlib.Path, busy: Callable[[], object]) -> Iterator[None]:
  """Locks a folder against other processes. A killed process unlocks it.

  If another process has locked it, `busy` is called. It raises an error, or
  returns to wait for that process.
  """
  import filelock

  path = folder / ".lock"
  # Without flock, filelock would fall back to a file that a kill leaves behind.
  lock = filelock.FileLock(path, fallback_to_soft=False)
  try:
    try:
      lock.acquire(timeout=0)
    except filelock.Timeout:
      busy()
      lock.acquire()
  except OSError as error:
    if error.filename is not None:  # It is of opening the file, not of flock.
      raise
    raise UserError(
      f"Expected a file system with working file locks, but {path} can't be "
      f"locked: {error}. Use a folder on a local disk: --output for a study, "
      "ORTHOGRAD_DATA for the data."
    ) from error
  try:
    yield
  finally:
    with contextlib.suppress(OSError):  # The process's end unlocks it, too.
      lock.release()


def remove(path: pathlib.Path) -> None:
  """Removes a folder, a file or a link, but not what a link points to."""
  if path.is_dir() and not path.is_symlink():
    shutil.rmtree(path)
  else:
    path.unlink()


def sha256(path: pathlib.Path) -> str:
  """Returns the SHA-256 digest of a file."""
  with naming(path), path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def remove_leftovers(folder: pathlib.Path, *names: str) -> None:
  """Removes temporary files that :func:`replacing` left when it was killed.

  Names of the files to be replaced may be patterns, such as ``"*.npy"``.
  """
  for path in folder.glob(".*.part"):
    match = re.fullmatch(r"\.(.+)-[a-z0-9_]{8}\.part", path.name)
    if match and any(fnmatch.fnmatchcase(match[1], name) for name in names):
      if path.is_file() and not path.is_symlink():
        path.unlink()


def is_name(value: Any) -> bool:
  """Returns whether a value may be in a file's name: printable, and no path."""
  return (
    isinstance(value, str)
    and bool(value.strip())
    and value.isprintable()
    and not value.startswith(".")
    and not set(value) & set("/\\\0")
  )


def parse_json(content: str | bytes) -> Any:
  """Parses JSON. Raises a ValueError if it is invalid or nested too deeply."""
  try:
    return json.loads(content)
  except RecursionError as error:
    raise ValueError("it is nested too deeply") from error


def run_bounded(
  command: list[str], folder: str, largest: int, seconds: float
) -> tuple[int, str]:
  """Runs a program in a folder, with limits on its time, memory and files.

  Without `sh`, only the time is limited. Returns the exit status, and the last
  2,000 bytes of the output. Raises subprocess.TimeoutExpired if it takes
  longer.
  """
  if sh := shutil.which("sh"):
    # In blocks of 512 bytes, and in kB of memory.
    script = f'ulimit -f "$0" && ulimit -d {MOST_MEMORY // 1024} && exec "$@"'
    command = [sh, "-c", script, str(-(-largest // 512)), *command]
  with tempfile.TemporaryFile() as output:
    done = subprocess.run(
      command,
      cwd=folder,
      stdin=subprocess.DEVNULL,
      stdout=output,
      stderr=subprocess.STDOUT,
      timeout=seconds,
    )
    output.seek(max(output.tell() - 2000, 0))
    return done.returncode, output.read(2000).decode(errors="replace")
