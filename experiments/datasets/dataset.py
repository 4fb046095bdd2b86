"""What a data set is: what training and evaluation need to know of it."""

from collections.abc import Callable
import dataclasses
from typing import NamedTuple

import numpy as np

from experiments.datasets.cache import Files


class Images(NamedTuple):
  """Images (n, rows, columns, channels), uint8, and labels (n,), int32."""

  train_images: np.ndarray
  train_labels: np.ndarray
  test_images: np.ndarray
  test_labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class Dataset:
  """A data set.

  Attributes:
    name: its name on the command line and in rows.
    classes: names of its classes.
    per_class: training images of its smallest class.
    mean: mean of the pixel values, from 0 to 1, of each channel.
    std: standard deviation of the pixel values.
    load: returns its images.
    shape: rows, columns and channels of an image.
    mirror: whether a mirrored image has the same class. Training images are
      then mirrored at random.
    files: its files in the cache, and where to get them; None if it has none.
  """

  name: str
  classes: tuple[str, ...]
  per_class: int
  mean: tuple[float, ...]
  std: tuple[float, ...]
  load: Callable[[], Images]
  shape: tuple[int, int, int] = (32, 32, 3)
  mirror: bool = True
  files: Files | None = None

  @property
  def held_out(self) -> int:
    """Images of a class that can be held out: a tenth."""
    return self.per_class // 10

  @property
  def border(self) -> int:
    """Pixels by which training images are shifted at most: an eighth."""
    return min(self.shape[:2]) // 8


def class_balanced_subset(
  labels: np.ndarray, per_class: int, seed: int
) -> np.ndarray:
  """Draws the same number of images of each class, without replacement.

  500 of each class of CIFAR-10 are the paper's 10 %. A seed gives the same
  indices, in ascending order, on every platform and in every version.

  Examples:
    >>> import numpy as np
    >>> from experiments import datasets
    >>> labels = np.arange(1000) % 10
    >>> chosen = datasets.class_balanced_subset(labels, 50, seed=0)
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


def hold_out(images: Images, per_class: int) -> Images:
  """Replaces the test images by training images, which leave the others.

  The choice is balanced and fixed: it is the same for all runs. No run's seed
  is as large as its seed.
  """
  chosen = class_balanced_subset(images.train_labels, per_class, 2**32 - 1)
  rest = np.delete(np.arange(len(images.train_labels)), chosen)
  train = images.train_images, images.train_labels
  return Images(*(x[rest] for x in train), *(x[chosen] for x in train))
