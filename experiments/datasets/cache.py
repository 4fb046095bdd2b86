"""The cache of CIFAR-10: folder, digests, loading, subsets.

The cache has the six files of CIFAR-10's binary version, 10,000 images each.
Its folder is `$ORTHOGRAD_DATA`, or `orthograd-optax` in the platform's folder
for caches. A file's SHA-256 digest is checked before the file is read.
`sources.py` fills the cache; `python -m experiments data` is the command.
"""

import hashlib
import os
import pathlib
import sys
from typing import NamedTuple

import numpy as np

from experiments.files import UserError, replacing, sha256

RECORD = 1 + 3 * 32 * 32  # a label, then red, green and blue, row by row
IMAGES = 10_000  # in a file
CLASSES = (
  "airplane",
  "automobile",
  "bird",
  "cat",
  "deer",
  "dog",
  "frog",
  "horse",
  "ship",
  "truck",
)
FILES = {
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
TEST_FILE = "test_batch.bin"
SAMPLE = pathlib.Path(__file__).parents[1] / "cifar" / "sample"
MISSING = "missing"
SAMPLE_FILES = {
  "train.png": (
    "5ee29b3fc6943481d0a6309758af11a68af28224a027fdc693edcb2f2c25bf1f"
  ),
  "test.png": (
    "1c353578c87ea8789f1e85a2c23319fd0f0c76989dd0b9848c68b38db3a7e035"
  ),
}


class DataError(UserError):
  """Data is missing or damaged. The message says what to do."""


class Images(NamedTuple):
  """Images and labels.

  Attributes:
    train_images: uint8 array of shape (images, 32, 32, 3).
    train_labels: int32 array of shape (images,), from 0 to 9.
    test_images: like the training images.
    test_labels: like the training labels.
  """

  train_images: np.ndarray
  train_labels: np.ndarray
  test_images: np.ndarray
  test_labels: np.ndarray


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


def load_cifar10(folder: str | os.PathLike | None = None) -> Images:
  """Loads CIFAR-10 from the cache.

  Args:
    folder: the cache; by default :func:`cache_folder`.

  Returns:
    50,000 training and 10,000 test images with their labels.

  Raises:
    DataError: if a file is missing or damaged.
  """
  folder = cache_folder(folder)
  arrays = {name: decode(_intact(folder / name)) for name in FILES}
  test_images, test_labels = arrays.pop(TEST_FILE)
  images, labels = zip(*arrays.values(), strict=True)
  return Images(
    np.concatenate(images), np.concatenate(labels), test_images, test_labels
  )


def load_sample() -> Images:
  """Loads 1,000 training and 1,000 test images that come with the code.

  They are the first 100 of each class in CIFAR-10's order. Image i is of class
  i mod 10.

  Returns:
    Like :func:`load_cifar10`.

  Examples:
    >>> from experiments.datasets import cache
    >>> sample = cache.load_sample()
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


def class_balanced_subset(
  labels: np.ndarray, per_class: int, seed: int
) -> np.ndarray:
  """Draws the same number of images of each class, without replacement.

  Args:
    labels: integer array of shape (images,).
    per_class: images of each class. 500 of CIFAR-10's training images are the
      paper's 10 %.
    seed: seed of the draw. It gives the same subset on every platform and in
      every version.

  Returns:
    Indices in ascending order.

  Examples:
    >>> import numpy as np
    >>> from experiments.datasets import cache
    >>> labels = np.arange(1000) % 10
    >>> chosen = cache.class_balanced_subset(labels, 50, seed=0)
    >>> print(len(chosen), np.bincount(labels[chosen]))
    500 [50 50 50 50 50 50 50 50 50 50]
  """
  labels = np.asarray(labels)
  if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
    raise ValueError(
      f"labels has shape {labels.shape} and dtype {labels.dtype}, but must be "
      "integers of shape (images,)."
    )
  classes, counts = np.unique(labels, return_counts=True)
  most = min(counts, default=0)
  if not 1 <= per_class <= most:
    raise ValueError(
      f"per_class is {per_class}, but must be from 1 to {most}, the size of "
      "the smallest class."
    )
  # NumPy promises that the stream of this generator never changes.
  random = np.random.RandomState(seed)
  chosen = [
    random.permutation(np.flatnonzero(labels == c))[:per_class] for c in classes
  ]
  return np.sort(np.concatenate(chosen))


def encode(images: np.ndarray, labels: np.ndarray) -> bytes:
  """Encodes images (n, 32, 32, 3) and labels as binary records."""
  records = np.empty((len(labels), RECORD), np.uint8)
  records[:, 0] = labels
  planes = np.moveaxis(np.asarray(images, np.uint8), 3, 1)
  records[:, 1:] = planes.reshape(len(labels), -1)
  return records.tobytes()


def decode(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Decodes binary records to images and labels."""
  records = records.reshape(-1, RECORD)
  planes = records[:, 1:].reshape(-1, 3, 32, 32)
  images = np.ascontiguousarray(np.moveaxis(planes, 1, 3))
  return images, records[:, 0].astype(np.int32)


def problem(path: pathlib.Path) -> str | None:
  """Returns what is wrong with a file of the cache, or None."""
  if not path.is_file():
    return MISSING
  try:
    digest = sha256(path)
  except OSError as error:
    return f"unreadable ({error.strerror})"
  expected = FILES[path.name]
  if digest == expected:
    return None
  size = path.stat().st_size
  return (
    f"damaged: {size:,} bytes, SHA-256 {digest[:16]}…, not {expected[:16]}…"
  )


def status() -> str:
  """Returns the cache's folder, its files and sizes, and how to get others."""
  lines = [size_line(cache_folder() / name) for name in FILES]
  if any(line.endswith(MISSING) for line in lines):
    lines.append("  `python -m experiments data fetch` gets what is missing.")
  return "\n".join([str(cache_folder()), *lines])


def size_line(path: pathlib.Path) -> str:
  """Returns a file's name and size, or that it is missing."""
  size = f"{path.stat().st_size:>11,} bytes" if path.is_file() else MISSING
  return f"  {path.name:18} {size}"


def verify() -> dict[pathlib.Path, str | None]:
  """Returns what is wrong with each file of the cache, or None."""
  paths = [cache_folder() / name for name in FILES]
  return {path: problem(path) for path in paths}


def _intact(path: pathlib.Path) -> np.ndarray:
  """Maps an undamaged file of the cache into memory."""
  if what := problem(path):
    raise DataError(
      f"{path} is {what}. Run `python -m experiments data fetch`: it gets "
      "missing files and replaces damaged ones."
    )
  return np.memmap(path, np.uint8, mode="r")


def store(folder: pathlib.Path, name: str, content: bytes, origin: str) -> None:
  """Writes a file of the cache, if it has the right digest."""
  digest = hashlib.sha256(content).hexdigest()
  if digest != FILES[name]:
    raise DataError(
      f"{name} from {origin} is not CIFAR-10's: its {len(content):,} bytes "
      f"have the SHA-256 digest {digest}, but must have {FILES[name]}. Get it "
      "again, or from another source."
    )
  with replacing(folder / name) as temporary:
    temporary.write_bytes(content)
