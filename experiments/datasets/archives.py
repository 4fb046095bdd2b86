"""Reads archives, pictures and prepared TFDS datasets.

No more is read than the data set has, whatever sizes a file claims.
"""

import gzip
import io
import os
import pathlib
import tarfile
from typing import Any

import numpy as np

from experiments.datasets.cache import Contents, DataError, Files, Member
from orthograd_optax._files import brief

# The largest are CIFAR-10's, unpacked, and CIFAR-100's, packed. An archive has
# about ten files, each with one or two headers of 512 bytes.
LARGEST_ARCHIVE = 200_000_000
LARGEST_HEADER = 4 * 1024
ALL_HEADERS = 128 * 1024


class _Bounded(io.BufferedReader):
  """An archive. Without its limits, tarfile reads whatever headers claim."""

  at_once, left = LARGEST_HEADER, ALL_HEADERS

  def read(self, size: int | None = -1, /) -> bytes:
    most = min(self.at_once, self.left)
    if size is None or not 0 <= size <= most:
      raise ValueError(f"expected at most {most:,} bytes here, got {size:,}")
    self.left -= size
    return super().read(size)

  def seek(self, target: int, whence: int = io.SEEK_SET, /) -> int:
    if target > LARGEST_ARCHIVE:
      raise ValueError(
        f"expected at most {LARGEST_ARCHIVE:,} bytes in all, got {target:,}"
      )
    return super().seek(target, whence)


def from_archive(files: Files, path: pathlib.Path) -> Contents:
  """Reads a tar archive, which may be gzipped, without extracting files."""
  with path.open("rb") as raw:
    zipped = raw.peek(2).startswith(b"\x1f\x8b")
    whole: Any = gzip.GzipFile(fileobj=raw) if zipped else raw
    file = _Bounded(whole)
    tar: Any = tarfile.open(fileobj=file, mode="r:")
    # Of files with the same name, the first counts. Links are ignored.
    there: dict[str, Member] = {}
    for member in tar:
      if member.isreg():
        name = pathlib.PurePosixPath(member.name).name
        content = lambda member=member: tar.extractfile(member).read()
        there.setdefault(name, (member.size, content))
    # The headers are read; now the files.
    file.at_once, file.left = files.largest, LARGEST_ARCHIVE
    yield from files.convert(there, path)


def read_picture(
  content: bytes, name: str, columns: int, rows: int
) -> np.ndarray:
  """Returns the pixels (rows, columns, 3) of a PNG or JPEG file.

  It may have fewer rows, but no other number of columns. Errors have the name.
  """
  from PIL import Image

  try:
    picture = Image.open(io.BytesIO(content), formats=["PNG", "JPEG"])
    width, height = picture.size
    scans = content.count(b"\xff\xda") if picture.format == "JPEG" else 0
    if scans > 100:  # Each takes time.
      raise ValueError("expected at most 100 scans")
    if width != columns or height > rows:
      raise ValueError(
        f"expected {columns:,} × {rows:,} pixels, got {width:,} × {height:,}"
      )
    return np.asarray(picture.convert("RGB"))
  except Exception as error:
    # A damaged picture can raise anything.
    raise DataError(
      f"{name} is not a complete picture: {brief(error)}. Get it again."
    ) from error


def read_tfds(
  name: str, split: str, most: int, data_dir: str | os.PathLike | None
) -> tuple[np.ndarray, np.ndarray]:
  """Reads what TFDS prepared as array_record, without TensorFlow.

  Returns at most `most` images (n, 32, 32, 3) and labels (n,), in the order of
  the ids, which end in the original number; without ids, in TFDS's own order.
  """
  try:
    import tensorflow_datasets as tfds

    source: Any = tfds.data_source(
      name,
      split=split,
      data_dir=data_dir,
      download=False,
      # TFDS would decode pictures of any size.
      decoders={"image": tfds.decode.SkipDecoding()},
    )
    if len(source) > most:
      raise ValueError(f"expected at most {most:,} images, got {len(source):,}")
    examples = sorted(source, key=lambda example: example.get("id", b""))
    images = [read_picture(x["image"], "an image", 32, 32) for x in examples]
    return np.stack(images), np.array([x["label"] for x in examples], np.int32)
  except Exception as error:
    # A damaged dataset can raise anything.
    where = f" in {data_dir}" if data_dir else ""
    raise DataError(
      f"TFDS can't read {name} as array_record{where}: {brief(error)}"
    ) from error
