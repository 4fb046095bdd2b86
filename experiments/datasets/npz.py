"""Anyone's images, from an .npz file.

The setting `dataset` names the file. The study then adds the first 16 digits of
its SHA-256 digest, as in `dataset=photos.npz@0123456789abcdef`, so that a file
that changes is refused instead of mixed with earlier results.
"""

import functools
import pathlib
import re

import numpy as np

from experiments.datasets.cache import DataError
from experiments.datasets.dataset import Dataset, Images
from experiments.files import sha256
from orthograd_optax import _files

SAVE = (
  "np.savez(path, train_images=..., train_labels=..., test_images=..., "
  "test_labels=...)"
)
NUMBER = (
  "Number the classes by np.unique(labels, return_inverse=True)[1]; if labels "
  "are one-hot, use labels.argmax(1)."
)
DIGITS = 16  # of the digest
# The path, which may have an @ too, and the digest.
NAME = re.compile(rf"(.+\.npz)(?:@([0-9a-f]{{{DIGITS}}}))?", re.I | re.S)


def is_npz(name: str) -> bool:
  return NAME.fullmatch(name) is not None


def pin(name: str) -> str:
  """Returns the name with the file's digest, which is kept if there is one."""
  path, digest = _parse(name)
  return f"{path}@{digest or _digest(path)}"


def digest(name: str) -> str:
  """Returns the digest in a pinned name."""
  return _parse(name)[1]


def _parse(name: str) -> tuple[pathlib.Path, str]:
  match = NAME.fullmatch(name)
  assert match, name
  return pathlib.Path(match[1]), match[2] or ""


def _digest(path: pathlib.Path) -> str:
  if not path.is_file():
    raise DataError(
      f"dataset is {str(path)!r}, but there is no such file. Write it with "
      f"{SAVE}"
    )
  return sha256(path)[:DIGITS]


@functools.lru_cache(maxsize=1)
def read(name: str) -> Dataset:
  """Returns the data set in the file of a pinned name."""
  path, expected = _parse(name)
  if (actual := _digest(path)) != expected:
    raise DataError(
      f"{path} must have a SHA-256 digest that starts with {expected}, as when "
      f"the study began, but it starts with {actual}. Restore the file, or "
      "start a study in another folder with --output."
    )
  names = {*Images._fields, "classes", "mirror"}
  try:
    _, arrays = _files.read_npz(path, names, SAVE)
  except ValueError as error:
    raise DataError(str(error)) from error
  if missing := set(Images._fields) - set(arrays):
    raise DataError(
      f"{path} must have {', '.join(Images._fields)}, but lacks "
      f"{', '.join(sorted(missing))}. Write it with {SAVE}"
    )

  for array in ("train_images", "test_images"):
    if arrays[array].ndim == 3:  # of grey images
      arrays[array] = arrays[array][..., None]
  _check(path, arrays)
  parts = (arrays[array] for array in Images._fields)
  data = Images(*(x.astype(np.int32) if x.ndim == 1 else x for x in parts))
  counts = np.bincount(data.train_labels)
  # Sums of integers are exact, and take less memory than floats would.
  mean = data.train_images.mean((0, 1, 2), np.float64)
  squares = np.square(data.train_images, dtype=np.uint16)
  variance = squares.mean((0, 1, 2), np.float64) - mean**2
  return Dataset(
    name=name,
    classes=tuple(map(str, arrays.get("classes", range(len(counts))))),
    per_class=int(counts.min()),
    mean=tuple((mean / 255).tolist()),
    # An image of a single colour must not divide by 0.
    std=tuple((np.sqrt(np.maximum(variance, 1)) / 255).tolist()),
    load=lambda: data,
    shape=data.train_images.shape[1:],
    mirror=bool(arrays.get("mirror", False)),
  )


def _check(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
  """Raises a DataError if an array breaks a rule."""

  def check(name: str, holds: bool, rule: str) -> None:
    if not holds:
      raise DataError(f"{path}: {name} must {rule}")

  shape = arrays["train_images"].shape[1:]
  for part in ("train", "test"):
    images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
    check(
      f"{part}_images",
      images.dtype == np.uint8,
      f"be of dtype uint8, grey levels from 0 to 255, but has {images.dtype}. "
      "Convert values from 0 to 1 by np.round(255 * images).astype(np.uint8).",
    )
    check(
      f"{part}_images",
      images.ndim == 4
      and images.shape[3] in (1, 3)
      and len(images) > 0
      and 8 <= min(images.shape[1:3]) <= max(images.shape[1:3]) <= 512
      and images.shape[1:] == shape,
      "be of shape (images, rows, columns), or (images, rows, columns, "
      "channels) with 1 or 3 channels, have 8 to 512 rows and columns, and "
      f"images of one shape, in train_images {shape}, but has {images.shape}. "
      "Resize the images; np.moveaxis(images, 1, 3) puts channels last.",
    )
    check(
      f"{part}_labels",
      labels.dtype.kind in "iu" and labels.shape == (len(images),),
      f"be whole numbers of shape ({len(images)},), one for each image, but "
      f"has dtype {labels.dtype} and shape {labels.shape}. {NUMBER}",
    )
  numbers, labels = np.unique(arrays["train_labels"]), arrays["test_labels"]
  count = len(numbers)
  check(
    "train_labels",
    count > 1 and np.array_equal(numbers, np.arange(count)),
    "have images of two or more classes, numbered from 0 without a gap, but "
    f"has the labels {_files.brief(numbers.tolist())}. {NUMBER}",
  )
  check(
    "test_labels",
    0 <= labels.min() and labels.max() < count and len(labels) > 1,
    f"have two or more labels, from 0 to {count - 1} as train_labels, but has "
    f"{len(labels)}, from {labels.min()} to {labels.max()}. Leave out test "
    "images of other classes.",
  )
  classes = arrays.get("classes", numbers)
  check(
    "classes",
    classes.shape == numbers.shape,
    f"have a name for each of the {count} classes, but has shape "
    f"{classes.shape}. Correct it, or leave it out.",
  )
  mirror = arrays.get("mirror", np.array(False))
  check(
    "mirror",
    mirror.shape == () and mirror.dtype == bool,
    f"be true or false, but has dtype {mirror.dtype} and shape {mirror.shape}. "
    "Write mirror=True, or leave it out.",
  )
