"""The data: loads images and labels, and corrupts images."""

from experiments.datasets.cache import CLASSES as CLASSES
from experiments.datasets.cache import DataError as DataError
from experiments.datasets.cache import Images as Images
from experiments.datasets.cache import (
  class_balanced_subset as class_balanced_subset,
)
from experiments.datasets.cache import load_cifar10 as load_cifar10
from experiments.datasets.cache import load_sample as load_sample
from experiments.datasets.corruptions import ALL_CORRUPTIONS as ALL_CORRUPTIONS
from experiments.datasets.corruptions import CORRUPTIONS as CORRUPTIONS
from experiments.datasets.corruptions import (
  EXTRA_CORRUPTIONS as EXTRA_CORRUPTIONS,
)
from experiments.datasets.corruptions import corrupt as corrupt
