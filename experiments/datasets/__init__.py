"""The data: what a data set is, which there are, and corrupted images."""

from experiments.datasets import cifar, mnist, npz
from experiments.datasets.cifar import load_cifar10 as load_cifar10
from experiments.datasets.cifar import load_sample as load_sample
from experiments.datasets.corruptions import ALL_CORRUPTIONS as ALL_CORRUPTIONS
from experiments.datasets.corruptions import CORRUPTIONS as CORRUPTIONS
from experiments.datasets.corruptions import (
  EXTRA_CORRUPTIONS as EXTRA_CORRUPTIONS,
)
from experiments.datasets.corruptions import corrupt as corrupt
from experiments.datasets.dataset import Dataset as Dataset
from experiments.datasets.dataset import Images as Images
from experiments.datasets.dataset import (
  class_balanced_subset as class_balanced_subset,
)
from experiments.datasets.dataset import hold_out as hold_out

# A data set is one entry here, from a module that defines it.
DATASETS = {data.name: data for data in (*cifar.DATASETS, *mnist.DATASETS)}


def find(name: str) -> Dataset:
  """Returns a data set by its name, or by the pinned name of an .npz file."""
  return npz.read(name) if npz.is_npz(name) else DATASETS[name]
