"""The textures of CIFAR-10-C's frost, from the package imagecorruptions.

The cache has one file with the bytes of all of them.
"""

import os

import numpy as np

from experiments.datasets.archives import read_picture
from experiments.datasets.cache import Contents, Files, Read

# Columns and rows of the package's pictures. The textures have a fifth of each.
TEXTURES = {
  "frost1.png": (900, 600),
  "frost2.png": (560, 315),
  "frost3.png": (560, 315),
  "frost4.jpg": (527, 350),
  "frost5.jpg": (660, 495),
}


def load_frost(
  folder: str | os.PathLike | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Loads the textures of CIFAR-10-C's frost, at a fifth of their size.

  Returns:
    Textures (5, rows, columns, 3), uint8, padded to the size of the largest,
    their rows and their columns.
  """
  (content,) = FROST.load(folder)
  widths, heights = np.array(list(TEXTURES.values())).T // 5
  textures = np.zeros((len(widths), max(heights), max(widths), 3), np.uint8)
  for texture, rows, columns in zip(textures, heights, widths, strict=True):
    size = 3 * rows * columns
    texture[:rows, :columns] = content[:size].reshape(rows, columns, 3)
    content = content[size:]
  return textures, heights, widths


def _convert(read: Read) -> Contents:
  """Joins the pictures at a fifth of their size."""
  pictures = (read_picture(read(x), x, *size) for x, size in TEXTURES.items())
  # OpenCV's bilinear resize takes the middle of each 5 × 5 pixels.
  yield "frost.bin", b"".join(x[2::5, 2::5].tobytes() for x in pictures)


FROST = Files(
  name="frost",
  title="the textures of frost",
  digests={
    "frost.bin": (
      "148f9d8ac8cb209e8c22d2d6eb19f360a004879531d889ad9634e86e786f2d40"
    )
  },
  largest=2_000_000,
  versions={tuple(TEXTURES): _convert},
  pip=(
    "imagecorruptions==1.1.2",
    "d0e4bf529ba6fbb27d8aba1bde7c5db43bf2b969b2c767c11419e939e3e365b8",
  ),
)
