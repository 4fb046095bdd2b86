"""CIFAR-100, from the official archive or TFDS.

No digests of its two files are published. They are recorded when the files are
stored; the official archive has its digest, and TFDS checks it, too. The form
of the files is checked whatever their source.
"""

from collections.abc import Callable
import os
from typing import Any

import numpy as np

from experiments.datasets.cache import Contents, DataError, Download, Files
from experiments.datasets.dataset import Dataset, Images
from experiments.datasets.records import PIXELS, decode

RECORD = 2 + PIXELS  # a coarse label of 20, and a fine one of 100
IMAGES = {"train.bin": 50_000, "test.bin": 10_000}


def load(folder: str | os.PathLike | None = None) -> Images:
  """Loads CIFAR-100, with its 100 fine classes, from the cache."""
  train, test = (decode(x, labels=2) for x in FILES.load(folder))
  return Images(*train, *test)


def convert(
  members: dict[str, Any], read: Callable[[Any, int], bytes], wanted: list[str]
) -> Contents:
  """Yields the files of the binary version."""
  for name in wanted:
    yield name, read(members[name], RECORD * IMAGES[name])


def check(name: str, content: bytes) -> None:
  """Raises a DataError if a file has not the form of CIFAR-100's."""
  size = RECORD * IMAGES[name]
  if len(content) != size:
    raise DataError(
      f"{name} has {len(content):,} bytes, but must have {size:,}. Get it "
      "again, or from another source."
    )
  labels = np.frombuffer(content, np.uint8).reshape(-1, RECORD)[:, :2]
  pairs = np.unique(labels, axis=0)
  fine = np.bincount(labels[:, 1])
  if len(fine) != 100 or len(set(fine)) > 1 or len(pairs) != 100:
    raise DataError(
      f"{name} must have equally many images of 100 classes, each of one "
      "coarse class, but has other labels. Get it again."
    )


FILES = Files(
  name="cifar100",
  title="CIFAR-100",
  digests=dict.fromkeys(IMAGES),
  size=RECORD * max(IMAGES.values()),
  versions=(tuple(IMAGES),),
  convert=convert,
  largest=RECORD * max(IMAGES.values()),
  inner=("cifar-100-binary",),
  downloads=(
    Download(
      "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
      168_513_733,
      "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    ),
  ),
  tfds=("cifar100", "coarse_label", "label"),
  splits=(("train.bin",), ("test.bin",)),
  images=IMAGES["train.bin"],
  subfolder="cifar100",
  check=check,
)
DATASETS = (
  Dataset(
    "cifar100",
    tuple(map(str, range(100))),
    500,
    (0.5071, 0.4865, 0.4409),
    (0.2673, 0.2564, 0.2762),
    load,
    files=FILES,
  ),
)
