"""Files that are whole or not there, and errors that a user can mend."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Any


class UserError(RuntimeError):
  """What its message says, and the user can do something about."""


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """A temporary file that takes the place of another once it is complete."""
  handle, name = tempfile.mkstemp(".part", f".{path.name}-", path.parent)
  os.close(handle)
  temporary = pathlib.Path(name)
  try:
    yield temporary
    with temporary.open("rb") as file:
      os.fsync(file.fileno())
    temporary.chmod(0o644)
    temporary.replace(path)
  finally:
    temporary.unlink(missing_ok=True)


def is_name(value: Any) -> bool:
  """Whether it may be part of a file's name: text that is no path."""
  return (
    isinstance(value, str)
    and bool(value)
    and not value.startswith(".")
    and not set(value) & set("/\\\0")
  )


def parse_json(content: str | bytes) -> Any:
  """What JSON says; a ValueError if it is none, or nested without end."""
  try:
    return json.loads(content)
  except RecursionError as error:
    raise ValueError("it is nested too deeply") from error


def run_bounded(
  command: list[str], largest: int, **options: Any
) -> subprocess.CompletedProcess[str]:
  """Runs a program, which can write no file of more bytes, where sh is."""
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
