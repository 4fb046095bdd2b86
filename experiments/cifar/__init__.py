"""CIFAR-10 and CIFAR-10-C: loads them, and corrupts images."""

from experiments.cifar.cache import CLASSES as CLASSES
from experiments.cifar.cache import Cifar10 as Cifar10
from experiments.cifar.cache import DataError as DataError
from experiments.cifar.cache import (
  class_balanced_subset as class_balanced_subset,
)
from experiments.cifar.cache import load_cifar10 as load_cifar10
from experiments.cifar.cache import load_sample as load_sample
from experiments.cifar.corruptions import ALL_CORRUPTIONS as ALL_CORRUPTIONS
from experiments.cifar.corruptions import CORRUPTIONS as CORRUPTIONS
from experiments.cifar.corruptions import (
  EXTRA_CORRUPTIONS as EXTRA_CORRUPTIONS,
)
from experiments.cifar.corruptions import corrupt as corrupt
