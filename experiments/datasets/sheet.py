"""Draws an image in CIFAR-10-C's 19 corruptions and 5 severities."""

import functools
import pathlib

import jax
import numpy as np

from experiments import files
from experiments.datasets import cache, cifar, corruptions

SCALE = 2  # screen pixels of a pixel, in each direction
GAP, LEFT, TOP = 4, 130, 44


def draw(number: int, path: pathlib.Path, seed: int = 0) -> None:
  """Draws the contact sheet of one of the sample's test images, as PNG."""
  from PIL import Image, ImageDraw, ImageFont
  from tqdm import tqdm

  images = cifar.load_sample().test_images
  if not 0 <= number < len(images):
    raise cache.DataError(
      f"--image is {number}, but must be from 0 to {len(images) - 1}, the "
      "number of one of the sample's test images."
    )
  image, names = images[number], corruptions.ALL_CORRUPTIONS
  keys = iter(jax.random.split(jax.random.key(seed), 5 * len(names)))
  cell = 32 * SCALE + GAP
  size = (LEFT + 6 * cell, TOP + len(names) * cell)
  sheet = Image.new("RGB", size, "white")
  pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
  write = functools.partial(pen.text, fill="black", font=font)
  write((LEFT + 3.5 * cell, TOP / 2 - GAP), "severity", anchor="mb")
  for column in range(6):
    text = f"{column}" if column else "clean"
    write((LEFT + (column + 0.5) * cell, TOP - GAP), text, anchor="mb")
  for row, name in enumerate(tqdm(names, leave=False, disable=None)):
    top = TOP + row * cell
    place = (LEFT - 2 * GAP, top + cell / 2)
    write(place, name.replace("_", " "), anchor="rm")
    for column in range(6):
      tile = image
      if column:
        out = corruptions.corrupt(image[None], name, column, next(keys))
        tile = np.asarray(out)[0]
      large = tile.repeat(SCALE, axis=0).repeat(SCALE, axis=1)
      sheet.paste(Image.fromarray(large), (LEFT + column * cell, top))
  path.parent.mkdir(parents=True, exist_ok=True)
  with files.replacing(path) as temporary:
    sheet.save(temporary, "PNG", optimize=True)
