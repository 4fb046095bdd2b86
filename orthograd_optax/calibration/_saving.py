"""Writes files completely, or not at all."""

import contextlib
import os
import pathlib
import secrets


@contextlib.contextmanager
def replacing(path: str | os.PathLike):
  """Yields a temporary path, and renames that file to ``path`` at the end."""
  path = pathlib.Path(path)
  if not path.parent.is_dir():
    raise FileNotFoundError(
      f"{path.name} must be in a folder that exists, but {path.parent} does "
      "not. Make it first."
    )
  # Keep the suffix: matplotlib chooses the format by it.
  name = f".{path.stem}-{secrets.token_hex(4)}{path.suffix}"
  temporary = path.with_name(name)
  try:
    temporary.touch(exist_ok=False)  # with the permissions of the umask
    yield temporary
    temporary.replace(path)
  except OSError as error:
    if error.errno and error.filename is None:  # of a full disk, say
      raise OSError(error.errno, error.strerror, str(path)) from error
    raise
  finally:
    temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike, text: str) -> pathlib.Path:
  with replacing(path) as temporary:
    temporary.write_text(text, encoding="utf-8")
  return pathlib.Path(path)
