"""JPEG on all cores of the host. Pillow compresses one image at a time.

As a program, it compresses and decompresses the images in its input.
"""

import concurrent.futures
import io
import os
import subprocess
import sys

import numpy as np

SHAPE = (32, 32, 3)
IMAGES_PER_PROCESS = 500  # For fewer, a process is not worth its start.


def jpeg(images: np.ndarray, quality: int) -> np.ndarray:
  """Compresses and decompresses images (n, 32, 32, 3), uint8, by Pillow."""
  workers = min(os.cpu_count() or 1, len(images) // IMAGES_PER_PROCESS)
  if workers < 2:
    return _one_by_one(images, quality)

  def work(part: np.ndarray) -> np.ndarray:
    command = [sys.executable, __file__, str(quality)]
    output = subprocess.check_output(command, input=part.tobytes())
    return np.frombuffer(output, np.uint8).reshape(-1, *SHAPE)

  with concurrent.futures.ThreadPoolExecutor(workers) as pool:
    parts = pool.map(work, np.array_split(images, workers))
    return np.concatenate(list(parts))


def _one_by_one(images: np.ndarray, quality: int) -> np.ndarray:
  from PIL import Image

  out = np.empty_like(images)
  for i, image in enumerate(images):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    out[i] = np.asarray(Image.open(buffer))
  return out


if __name__ == "__main__":
  array = np.frombuffer(sys.stdin.buffer.read(), np.uint8).reshape(-1, *SHAPE)
  sys.stdout.buffer.write(_one_by_one(array, int(sys.argv[1])).tobytes())
