"""Reads the published CIFAR-10-C, one set at a time.

It is either a folder of the published `.npy` files, or its parent if that is
named `CIFAR-10-C`, or a TFDS data dir with `cifar10_corrupted` as array_record,
which is read without TensorFlow. Each `.npy` file has 50,000 images, the 10,000
test images in five severities; `labels.npy` has their labels.
"""

from collections.abc import Callable
import functools
import hashlib
import math
import os
import pathlib

import numpy as np

from experiments.datasets import corruptions
from experiments.datasets.archives import read_tfds
from experiments.datasets.cache import DataError
from orthograd_optax._files import brief

IMAGES = 10_000
# Of the test images' labels, as bytes.
LABELS_DIGEST = (
  "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5"
)
FILE_NAMES = {"elastic": "elastic_transform", "jpeg": "jpeg_compression"}
TFDS_NAMES = {"glass_blur": "frosted_glass_blur", "jpeg": "jpeg_compression"}


def load(
  path: str | os.PathLike, name: str, severity: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the published images of one corruption and severity.

  They are images (10000, 32, 32, 3), uint8, and labels (10000,), int32. From
  `.npy` files they are mapped into memory, in the order of the test images.
  From TFDS they are in TFDS's own order.
  """
  corruptions.check_name(name, severity)
  return _reader(path)(name, severity)


def _reader(path: str | os.PathLike) -> Callable:
  """Returns the function that reads a published set by name and severity."""
  path = pathlib.Path(path).expanduser()
  for folder in (path, path / "CIFAR-10-C"):
    if (folder / "labels.npy").is_file():
      return functools.partial(_from_arrays, folder)
  if (path / "cifar10_corrupted").is_dir():
    return functools.partial(_from_tfds, path)
  raise DataError(
    f"{path} has neither a labels.npy beside the .npy files of CIFAR-10-C nor "
    "a cifar10_corrupted prepared by TFDS. Give the folder that has."
  )


def _from_arrays(folder, name, severity):
  images = _array(folder / f"{FILE_NAMES.get(name, name)}.npy", 32, 32, 3)
  labels = _array(folder / "labels.npy")
  rows = slice(IMAGES * (severity - 1), IMAGES * severity)
  digest = hashlib.sha256(labels[rows].astype(np.uint8).tobytes()).hexdigest()
  if digest != LABELS_DIGEST:
    raise DataError(
      f"{folder / 'labels.npy'} has other labels than CIFAR-10's test images, "
      f"in rows {rows.start} to {rows.stop - 1}. Get CIFAR-10-C again."
    )
  return images[rows], np.asarray(labels[rows], np.int32)


def _array(path, *shape):
  shape = 5 * IMAGES, *shape
  try:
    # NumPy reads as long a header as a file claims to have.
    if (size := path.stat().st_size) > (most := math.prod(shape) + 4096):
      raise ValueError(f"expected at most {most:,} bytes, got {size:,}")
    array = np.lib.format.open_memmap(path, mode="r")
    if array.shape != shape or array.dtype != np.uint8:
      raise ValueError(
        f"expected uint8 of shape {shape}, got {array.dtype} of {array.shape}"
      )
    return array
  except Exception as error:
    # A damaged file can raise anything.
    raise DataError(
      f"{path} can't be read: {brief(error)}. Get CIFAR-10-C again."
    ) from error


def _from_tfds(data_dir, name, severity):
  config = f"cifar10_corrupted/{TFDS_NAMES.get(name, name)}_{severity}"
  images, labels = read_tfds(config, "test", IMAGES, data_dir)
  counts = np.bincount(labels, minlength=10).tolist()
  if counts != 10 * [IMAGES // 10]:
    raise DataError(
      f"{config} in {data_dir} has {counts} images of the classes, but must "
      f"have {IMAGES // 10} of each. Prepare it again."
    )
  return images, labels


def verify(path: str | os.PathLike) -> dict[str, str | None]:
  """Returns what is wrong with each corruption of a published set, or None."""
  read = _reader(path)
  problems = dict.fromkeys(corruptions.ALL_CORRUPTIONS)
  for name in problems:
    try:
      for severity in range(1, 6):
        read(name, severity)
    except DataError as error:
      problems[name] = str(error)
  return problems
