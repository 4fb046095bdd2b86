"""Reads archives and folders of a data set's files, and pictures in them.

No more is read than the data set has, whatever sizes a file claims.
"""

from collections.abc import Iterator
import contextlib
import gzip
import io
import pathlib
import tarfile
from typing import Any

import numpy as np

from experiments.datasets.cache import Contents, DataError, Files
from experiments.files import Bounded, brief, read_bounded

# The largest are CIFAR-10's and CIFAR-100's, unpacked. An archive has about ten
# files, each with one or two headers of 512 bytes.
LARGEST_ARCHIVE = 200_000_000
LARGEST_HEADER = 4 * 1024
ALL_HEADERS = 128 * 1024


def from_folder(
  files: Files, path: pathlib.Path, wanted: list[str]
) -> Contents | None:
  """Returns the wanted files in a folder, or None if it has no version."""
  for folder in (path, *(path / name for name in files.inner)):
    entries = folder.iterdir() if folder.is_dir() else ()
    members = _recognize(files, {p.name: p for p in entries if p.is_file()})
    if members:
      return files.convert(members, read_bounded, wanted)
  return None


def from_archive(
  files: Files, path: pathlib.Path, wanted: list[str]
) -> Contents:
  """Reads a tar archive, which may be gzipped, without extracting files."""
  try:
    with _unpacked(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
      # Of files with the same name, the first counts. Links are ignored.
      there: dict[str, tarfile.TarInfo] = {}
      for member in tar:
        if member.isreg():
          there.setdefault(pathlib.PurePosixPath(member.name).name, member)
      while file.read(LARGEST_HEADER):  # At the end, gzip checks its checksum.
        pass
      members = _recognize(files, there)
      if not members:
        raise DataError(f"{path} has no files of {files.title} in it.")
      # The headers are read; now the files.
      file.at_once, file.left = files.largest, LARGEST_ARCHIVE

      def read(member: tarfile.TarInfo, most: int) -> bytes:
        if member.size > most:
          raise ValueError(
            f"expected at most {most:,} bytes in {brief(member.name)}, got "
            f"{member.size:,}"
          )
        content = tar.extractfile(member)
        assert content is not None  # of a regular file
        return content.read()

      yield from files.convert(members, read, wanted)
  except (DataError, FileNotFoundError, PermissionError):
    raise
  except Exception as error:
    # A damaged archive can raise anything.
    raise DataError(
      f"{path} is not a complete tar archive of {files.title}: {brief(error)}. "
      "Get it again."
    ) from error


@contextlib.contextmanager
def _unpacked(path: pathlib.Path) -> Iterator[Bounded]:
  """Opens an archive whose headers are to be read."""
  with path.open("rb") as raw:
    zipped = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    file = gzip.GzipFile(fileobj=raw) if zipped else raw
    yield Bounded(file, LARGEST_ARCHIVE, LARGEST_HEADER, ALL_HEADERS)


def _recognize(files: Files, there: dict[str, Any]) -> dict[str, Any]:
  """Returns the files of the first version that is complete."""
  for names in files.versions:
    if all(name in there for name in names):
      return {name: there[name] for name in names}
  return {}


def read_picture(
  content: bytes, name: str, columns: int = 1024, rows: int = 10_000
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
