"""Writes CIFAR-10 as a TFDS dataset, without TensorFlow."""

from collections.abc import Callable, Iterator
import io
import os
import pathlib
from typing import Any

import numpy as np

from experiments.datasets.cache import DataError
from experiments.datasets.cifar10 import CLASSES
from experiments.datasets.dataset import Images

VERSION = "3.0.2"


def export_tfds(
  data_dir: str | os.PathLike,
  cifar10: Images,
  say: Callable[[str], object] = print,
) -> pathlib.Path:
  """Writes the dataset `cifar10` as array_record.

  ``tfds.data_source("cifar10", data_dir=...)`` reads it, offline. Only the
  compression of the PNGs differs from what TFDS itself writes.

  Args:
    data_dir: the TFDS data dir.
    cifar10: the images and labels.
    say: prints progress.

  Returns:
    The dataset's folder. An existing one is left unchanged; a new one gets its
    name when it is complete.
  """
  try:
    import tensorflow_datasets as tfds
  except ImportError as error:
    raise DataError(
      "Exporting needs TFDS: pip install tensorflow-datasets array_record"
    ) from error
  features = tfds.features.FeaturesDict(
    {
      "id": tfds.features.Text(),
      "image": tfds.features.Image(shape=(32, 32, 3)),
      "label": tfds.features.ClassLabel(names=CLASSES),
    }
  )

  # Not registered: TFDS has a dataset of this name.
  core: Any = tfds.core
  with core.registered.skip_registration():

    class Cifar10(tfds.core.GeneratorBasedBuilder):
      VERSION = tfds.core.Version(VERSION)

      def _info(self):
        return self.dataset_info_from_configs(
          features=features,
          supervised_keys=("image", "label"),
          homepage="https://www.cs.toronto.edu/~kriz/cifar.html",
          description=(
            "CIFAR-10: 60,000 colour images of 32 × 32 pixels in 10 classes."
          ),
        )

      def _split_generators(self, dl_manager):
        del dl_manager
        return {
          "train": _examples(
            "train", cifar10.train_images, cifar10.train_labels
          ),
          "test": _examples("test", cifar10.test_images, cifar10.test_labels),
        }

      def _generate_examples(self, *_):
        raise NotImplementedError  # _split_generators makes examples

  # The default would be the module's name.
  Cifar10.name = "cifar10"
  builder = Cifar10(data_dir=os.fspath(data_dir), file_format="array_record")
  if builder.is_prepared():
    say(f"{builder.data_path} is there already.")
  else:
    builder.download_and_prepare()
    say(f"Wrote {builder.data_path}.")
  return pathlib.Path(builder.data_path)


def _examples(
  split: str, images: np.ndarray, labels: np.ndarray
) -> Iterator[tuple[int, dict[str, Any]]]:
  from PIL import Image

  for index, (image, label) in enumerate(zip(images, labels, strict=True)):
    png = io.BytesIO()
    Image.fromarray(image).save(png, "PNG", compress_level=1)
    png.seek(0)
    example = {"id": f"{split}_{index:05d}", "image": png, "label": int(label)}
    yield index, example
