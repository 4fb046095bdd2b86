"""Anyone's images, from an .npz file.

The setting `dataset` names the file. The study then adds the first 16 digits of
its SHA-256 digest, as in `dataset=photos.npz@0123456789abcdef`, so that a file
that changes is refused instead of mixed with earlier results.
"""

import functools
import pathlib

import numpy as np

from experiments.datasets.cache import DataError
from experiments.datasets.dataset import Dataset, Images
from experiments.files import brief, sha256
from orthograd_optax import _files

SAVE = (
  "np.savez(path, train_images=..., train_labels=..., test_images=..., "
  "test_labels=...)"
)
DIGITS = 16  # of the digest
SIDES = (8, 512)  # the smallest and largest image, in pixels


def is_npz(name: str) -> bool:
  return name.partition("@")[0].lower().endswith(".npz")


def pin(name: str) -> str:
  """Returns the name with the file's digest, which is kept if there is one."""
  path, _, digest = name.partition("@")
  return f"{path}@{digest or _digest(pathlib.Path(path))}"


def digest(name: str) -> str:
  """Returns the digest in a pinned name."""
  return name.partition("@")[2]


def _digest(path: pathlib.Path) -> str:
  if not path.is_file():
    raise DataError(
      f"dataset is {str(path)!r}, but there is no such file. Write it with "
      f"{SAVE}"
    )
  return sha256(path)[:DIGITS]


@functools.lru_cache(maxsize=1)
def read(name: str) -> Dataset:
  """Returns the data set in the file of a pinned name.

  Raises:
    DataError: if the file is missing, has changed or is not valid.
  """
  path, expected = pathlib.Path(name.partition("@")[0]), digest(name)
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
  images = Images(*(arrays[name] for name in Images._fields))
  images = images._replace(
    train_images=_pixels(path, "train_images", images.train_images),
    test_images=_pixels(path, "test_images", images.test_images),
  )
  shape = images.train_images.shape[1:]
  _require(
    images.test_images.shape[1:] == shape,
    path,
    "test_images",
    f"have images of the shape of train_images, {shape}",
    f"has {images.test_images.shape[1:]}",
    "Resize or convert them all in the same way.",
  )
  for part in ("train", "test"):
    count = len(getattr(images, f"{part}_images"))
    _check_labels(path, f"{part}_labels", arrays[f"{part}_labels"], count)
  numbers, counts = np.unique(images.train_labels, return_counts=True)
  _require(
    len(counts) > 1 and numbers[-1] == len(counts) - 1,
    path,
    "train_labels",
    "have images of two or more classes, numbered from 0 without a gap",
    f"has the labels {brief(numbers.tolist())}",
    "Number the classes by np.unique(labels, return_inverse=True).",
  )
  _require(
    images.test_labels.max() < len(counts) and len(images.test_labels) > 1,
    path,
    "test_labels",
    f"have two or more labels, from 0 to {len(counts) - 1} as train_labels",
    f"has {len(images.test_labels)}, up to {images.test_labels.max()}",
    "Leave out test images of other classes.",
  )
  classes = arrays.get("classes", np.arange(len(counts)))
  _require(
    classes.shape == counts.shape,
    path,
    "classes",
    f"have a name for each of the {len(counts)} classes",
    f"has shape {classes.shape}",
    "Correct it, or leave it out.",
  )
  levels = images.train_images.astype(np.float32) / 255
  axes = (0, 1, 2)
  data = images._replace(
    train_labels=images.train_labels.astype(np.int32),
    test_labels=images.test_labels.astype(np.int32),
  )
  return Dataset(
    name=name,
    classes=tuple(map(str, classes)),
    per_class=int(counts.min()),
    mean=tuple(levels.mean(axes, dtype=np.float64).tolist()),
    # An image of a single colour must not divide by 0.
    std=tuple(np.maximum(levels.std(axes, dtype=np.float64), 1 / 255).tolist()),
    load=lambda: data,
    shape=shape,
    mirror=bool(np.all(arrays.get("mirror", False))),
  )


def _pixels(path: pathlib.Path, name: str, images: np.ndarray) -> np.ndarray:
  """Returns images (n, rows, columns, channels), if they are valid."""
  _require(
    images.dtype == np.uint8,
    path,
    name,
    "be of dtype uint8, grey levels from 0 to 255",
    f"has {images.dtype}",
    "Convert values from 0 to 1 by np.round(255 * images).astype(np.uint8).",
  )
  images = images[..., None] if images.ndim == 3 else images
  few, most = SIDES
  sides = images.shape[1:3]
  _require(
    images.ndim == 4
    and images.shape[3] in (1, 3)
    and len(images) > 0
    and few <= min(sides) <= max(sides) <= most,
    path,
    name,
    "be of shape (images, rows, columns), or (images, rows, columns, channels) "
    f"with 1 or 3 channels, and have {few} to {most} rows and columns",
    f"has {images.shape}",
    "Resize the images; np.moveaxis(images, 1, 3) puts channels last.",
  )
  return images


def _check_labels(
  path: pathlib.Path, name: str, labels: np.ndarray, count: int
) -> None:
  _require(
    labels.dtype.kind in "iu" and labels.shape == (count,),
    path,
    name,
    f"be whole numbers of shape ({count},), one for each image",
    f"has dtype {labels.dtype} and shape {labels.shape}",
    "Number the classes by np.unique(labels, return_inverse=True).",
  )
  _require(
    labels.min() >= 0,
    path,
    name,
    "number the classes from 0",
    f"has {labels.min()}",
    "Number the classes by np.unique(labels, return_inverse=True).",
  )


def _require(
  holds: bool, path: pathlib.Path, array: str, rule: str, has: str, remedy: str
) -> None:
  if not holds:
    raise DataError(f"{path}: {array} must {rule}, but {has}. {remedy}")
