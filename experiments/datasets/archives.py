"""Reads archives, pictures and prepared TFDS datasets.

No more is read than the data set has, whatever sizes a file claims.
"""

import functools
import gzip
import io
import os
import pathlib
import tarfile
from typing import Any

import numpy as np

from experiments.datasets.cache import Contents, DataError, Files, Member
from orthograd_optax._files import brief

# The largest archives are CIFAR-10's, unpacked, and CIFAR-100's, packed. The
# largest file in one has MNIST's training images.
LARGEST_ARCHIVE = 200_000_000
LARGEST_FILE = 48_000_000
LARGEST_HEADER = 4096  # bytes of any other member, which is skipped
MOST_MEMBERS = 250
BLOCK = tarfile.BLOCKSIZE


def from_archive(files: Files, path: pathlib.Path) -> Contents:
  """Reads a tar archive, which may be gzipped, without extracting files."""
  with path.open("rb") as raw:
    zipped = raw.peek(2).startswith(b"\x1f\x8b")
    archive = gzip.GzipFile(fileobj=raw) if zipped else raw

    def read(start: int, size: int) -> bytes:
      archive.seek(start)
      return archive.read(size)

    # Of files with the same name, the first counts. Links are ignored.
    there: dict[str, Member] = {}
    for _ in range(MOST_MEMBERS):
      if not (header := archive.read(BLOCK)).strip(b"\0"):
        break
      # tarfile.open would also read what long headers hold.
      member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
      start, size = archive.tell(), member.size
      most = LARGEST_FILE if member.isreg() else LARGEST_HEADER
      if not 0 <= size <= min(most, LARGEST_ARCHIVE - start):
        raise ValueError(
          f"expected at most {most:,} bytes in {brief(member.name)}, and "
          f"{LARGEST_ARCHIVE:,} in all, got {size:,} from byte {start:,}"
        )
      if member.isreg():
        name = pathlib.PurePosixPath(member.name).name
        content = functools.partial(read, start, size)
        there.setdefault(name, (size, content))
      archive.seek(start + -(-size // BLOCK) * BLOCK)
    else:
      raise ValueError(f"expected at most {MOST_MEMBERS} members, got more")
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
