"""CIFAR's binary records: labels, then red, green and blue, row by row."""

import numpy as np

PIXELS = 3 * 32 * 32


def encode(images: np.ndarray, *labels: np.ndarray) -> bytes:
  """Encodes images (n, 32, 32, 3) and one or more labels of each."""
  planes = np.moveaxis(np.asarray(images, np.uint8), 3, 1)
  columns = [np.asarray(column, np.uint8)[:, None] for column in labels]
  return np.hstack([*columns, planes.reshape(-1, PIXELS)]).tobytes()


def decode(
  records: np.ndarray, labels: int = 1
) -> tuple[np.ndarray, np.ndarray]:
  """Decodes images and the last of each record's labels."""
  records = records.reshape(-1, labels + PIXELS)
  planes = records[:, labels:].reshape(-1, 3, 32, 32)
  images = np.ascontiguousarray(np.moveaxis(planes, 1, 3))
  return images, records[:, labels - 1].astype(np.int32)
