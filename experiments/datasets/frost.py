"""The textures of CIFAR-10-C's frost, from the package imagecorruptions."""

from collections.abc import Callable
import hashlib
import importlib.util
import io
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import IO, cast
import zipfile

import numpy as np

from experiments.datasets.cache import DataError, cache_folder, size_line
from experiments.files import (
  Bounded,
  brief,
  read_bounded,
  replacing,
  run_bounded,
)

FROST_PACKAGE = "imagecorruptions==1.1.2"
# Shapes of the textures, by file name. The cache has one file with the bytes of
# all of them in this order.
TEXTURES = {
  "frost1.png": (120, 180, 3),
  "frost2.png": (63, 112, 3),
  "frost3.png": (63, 112, 3),
  "frost4.jpg": (70, 105, 3),
  "frost5.jpg": (99, 132, 3),
}
FROST_FILE = "frost.bin"
FROST_DIGEST = (
  "148f9d8ac8cb209e8c22d2d6eb19f360a004879531d889ad9634e86e786f2d40"
)
# A picture in the package has at most 1.2 MB, its wheel 2.1 MB, and the wheel's
# list of files 2 kB. zipfile looks for the list's end in the last 64 kB.
LARGEST_PICTURE = 2_000_000
LARGEST_WHEEL = 10_000_000
LARGEST_LIST = 70_000
PATIENCE = 10 * 60  # seconds that pip may take


def load_frost(folder: str | os.PathLike | None = None) -> list[np.ndarray]:
  """Loads the textures of CIFAR-10-C's frost, at a fifth of their size.

  Args:
    folder: the cache; by default :func:`cache_folder`.

  Returns:
    Five uint8 arrays of shape (rows, columns, 3).

  Raises:
    DataError: if they are missing or damaged.
  """
  path = cache_folder(folder) / FROST_FILE
  sizes = [math.prod(shape) for shape in TEXTURES.values()]
  try:
    with path.open("rb") as file:
      content = file.read(sum(sizes) + 1)
  except FileNotFoundError as error:
    raise DataError(
      f"{path}, the textures of frost, is missing. Run `python -m experiments "
      "data frost`: it takes them from the package imagecorruptions."
    ) from error
  if not _is_frost(content):
    raise DataError(
      f"{path} is damaged, by its SHA-256 digest. Run `python -m experiments "
      "data frost` to make it again."
    )
  parts = np.split(np.frombuffer(content, np.uint8), np.cumsum(sizes)[:-1])
  shapes = TEXTURES.values()
  return [a.reshape(shape) for a, shape in zip(parts, shapes, strict=True)]


def status(folder: str | os.PathLike | None = None) -> str:
  """Says which file has the textures, its size and contents, or how to get it.

  Args:
    folder: the cache; by default :func:`cache_folder`.
  """
  path = cache_folder(folder) / FROST_FILE
  if not path.is_file():
    remedy = "  `python -m experiments data frost` gets frost's textures."
    return f"{size_line(path)}\n{remedy}"
  try:
    load_frost(folder)
  except DataError as error:
    return f"{size_line(path)}\n  {error}"
  return f"{size_line(path)}, frost's textures: {', '.join(TEXTURES)}"


def _is_frost(content: bytes) -> bool:
  return hashlib.sha256(content).hexdigest() == FROST_DIGEST


def prepare_frost(
  folder: str | os.PathLike | None = None,
  say: Callable[[str], object] = print,
) -> pathlib.Path:
  """Puts the textures of frost into the cache.

  The textures are files of the package imagecorruptions: the installed one, or
  else its wheel, by `pip download`. None of its code is run.

  Args:
    folder: the cache; by default :func:`cache_folder`.
    say: prints progress.

  Returns:
    The file in the cache.
  """
  folder = cache_folder(folder)
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / FROST_FILE
  files = _frost_files(say)
  content = b"".join(_texture(files[name], name) for name in TEXTURES)
  if not _is_frost(content):
    raise DataError(
      f"The installed imagecorruptions has other textures than "
      f"{FROST_PACKAGE}. Uninstall it; the right one is then downloaded."
    )
  with replacing(path) as temporary:
    temporary.write_bytes(content)
  say(f"Wrote {path}.")
  return path


def _texture(content: bytes, name: str) -> bytes:
  """Returns the bytes of a picture at a fifth of its size."""
  from PIL import Image

  try:
    with Image.open(io.BytesIO(content), formats=["PNG", "JPEG"]) as picture:
      size = tuple(round(n / 5) for n in (picture.height, picture.width))
      if (*size, 3) != TEXTURES[name]:
        raise ValueError(f"{picture.width} × {picture.height} pixels")
      image = np.asarray(picture.convert("RGB"))
  except Exception as error:
    # A damaged picture can raise anything.
    raise DataError(
      f"{name} is not a picture of {FROST_PACKAGE}: {brief(error)}. Uninstall "
      "imagecorruptions; the right one is then downloaded."
    ) from error
  # OpenCV's bilinear resize takes the middle of each 5 × 5 pixels.
  rows, columns = (
    np.minimum(np.arange(n) * 5 + 2, most - 1)
    for n, most in zip(size, image.shape, strict=False)
  )
  return image[rows][:, columns].tobytes()


def _frost_files(say) -> dict[str, bytes]:
  package = importlib.util.find_spec("imagecorruptions")
  if package and package.origin:
    say("Taking the textures from the imagecorruptions that is installed.")
    source = pathlib.Path(package.origin).parent / "frost"
    return {
      name: read_bounded(source / name, LARGEST_PICTURE) for name in TEXTURES
    }
  say(f"Downloading {FROST_PACKAGE} for its textures …")
  with tempfile.TemporaryDirectory() as temporary:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    # Wheels only: building a source distribution would run its code.
    command += ["--only-binary=:all:", "--dest", temporary, FROST_PACKAGE]
    try:
      done = run_bounded(command, LARGEST_WHEEL, PATIENCE)
    except subprocess.TimeoutExpired as error:
      raise DataError(
        f"`pip download {FROST_PACKAGE}` took more than {PATIENCE / 60:g} "
        "minutes. Check which index pip is set to use."
      ) from error
    wheels = list(pathlib.Path(temporary).glob("*.whl"))
    if done.returncode or not wheels:
      reason = " ".join(done.stdout.splitlines()[-3:])
      raise DataError(
        f"`pip download {FROST_PACKAGE}` failed: {brief(reason)}\n"
        "Install it (pip install --no-deps imagecorruptions) and try again."
      )
    return _from_wheel(wheels[0])


def _from_wheel(path: pathlib.Path) -> dict[str, bytes]:
  files = {}
  try:
    with path.open("rb") as raw:
      file = Bounded(raw, LARGEST_WHEEL, LARGEST_LIST, 3 * LARGEST_LIST)
      wheel = zipfile.ZipFile(cast(IO[bytes], file))
      # The list of its files is read; now the files.
      file.at_once, file.left = LARGEST_PICTURE, LARGEST_WHEEL
      for name in TEXTURES:
        info = wheel.getinfo(f"imagecorruptions/frost/{name}")
        # zipfile unpacks other compressions as a whole.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
          raise ValueError(f"{name} is neither stored nor deflated")
        if info.file_size > LARGEST_PICTURE:
          raise ValueError(
            f"expected at most {LARGEST_PICTURE:,} bytes of {name}, got "
            f"{info.file_size:,}"
          )
        with wheel.open(info) as picture:
          files[name] = picture.read(LARGEST_PICTURE)
  except Exception as error:
    # A damaged archive can raise anything.
    raise DataError(
      f"{path.name} is not the wheel of {FROST_PACKAGE}: {brief(error)}. Check "
      "which index pip is set to use."
    ) from error
  return files
