"""Data sets besides CIFAR-10 in small, and anyone's images."""

import dataclasses
import gzip
import hashlib
import json
import pathlib
import shutil
import struct
import tarfile
from typing import Any
import unittest.mock

import numpy as np
import small_cifar

from experiments.datasets import cache, cifar, mnist, npz, sources
from faults.inputs import Reader


def small() -> Any:
  """Makes Fashion-MNIST smaller."""
  return unittest.mock.patch.object(mnist, "TEST_IMAGES", 2)


def readers(folder: pathlib.Path) -> list[Reader]:
  """Returns a reader of each data set's sources."""
  folder.mkdir()
  chance = np.random.default_rng(0)
  return [
    *_mnist(folder, chance),
    clothes(folder, chance),
    _cifar100(folder),
    _npz(folder, chance),
  ]


def _pack(path: pathlib.Path, inner: str, files: dict[str, bytes]) -> None:
  with tarfile.open(path, "w:gz") as archive:
    for name, content in files.items():
      small_cifar.add(archive, f"{inner}/{name}", content)


def _reader(
  name: str, path: pathlib.Path, files: cache.Files, source: pathlib.Path
) -> Reader:
  """Returns a reader of a file, by a fetch from a path."""
  folder = path.parents[1] / f"cache of {files.name}"

  def read() -> list[bytes]:
    shutil.rmtree(folder, ignore_errors=True)
    sources.fetch(files, str(source), folder, lambda _: None)
    return [array.tobytes() for array in files.load(folder)]

  return Reader(name, path, path.read_bytes(), read, same=True)


def _known(files: cache.Files, contents: dict[str, bytes]) -> cache.Files:
  digests = {k: hashlib.sha256(v).hexdigest() for k, v in contents.items()}
  return dataclasses.replace(files, digests=digests)


def _idx(images: np.ndarray, labels: np.ndarray) -> tuple[bytes, bytes]:
  head = struct.pack(">4i", 2051, len(images), 28, 28)
  other = struct.pack(">2i", 2049, len(labels))
  return head + images.tobytes(), other + labels.tobytes()


def _mnist(folder: pathlib.Path, chance: np.random.Generator) -> list[Reader]:
  """As an archive of IDX files, and as a folder of gzipped ones."""
  contents: dict[str, bytes] = {}
  for i, count in enumerate((30, 20)):
    images = chance.integers(0, 256, (count, 784), np.uint8)
    labels = chance.integers(0, 10, count, np.uint8)
    names = mnist.NAMES[2 * i : 2 * i + 2]
    contents |= zip(names, _idx(images, labels), strict=True)
  files = _known(mnist.MNIST, contents)
  archive = folder / "mnist.tgz"
  _pack(archive, "package/data", contents)
  zipped = folder / "mnist"
  zipped.mkdir()
  for name, content in contents.items():
    (zipped / f"{name}.gz").write_bytes(gzip.compress(content))
  path = zipped / f"{mnist.NAMES[2]}.gz"
  return [
    _reader("MNIST's archive", archive, files, archive),
    _reader("MNIST's gzipped IDX file", path, files, zipped),
  ]


def clothes(folder: pathlib.Path, chance: np.random.Generator) -> Reader:
  """Returns a reader of one of Fashion-MNIST's lists."""
  images = chance.integers(0, 256, (10, 14, 784), np.uint8)
  source = folder / "fashion"
  source.mkdir()
  for path, lists in zip(mnist.CLOTHES, images.tolist(), strict=True):
    (source / path).write_text(json.dumps({"data": [*lists, []]}))
  contents: dict[str, bytes] = {}
  for i, part in enumerate((images[:, 2:], images[:, :2])):
    labels = np.arange(10, dtype=np.uint8).repeat(part.shape[1])
    names = mnist.NAMES[2 * i : 2 * i + 2]
    contents |= zip(names, _idx(part.reshape(-1, 784), labels), strict=True)
  files = _known(mnist.FASHION_MNIST, contents)
  return _reader("Fashion-MNIST's JSON", source / "3.json", files, source)


def _cifar100(folder: pathlib.Path) -> Reader:
  """Returns a reader of the archive."""
  archive = folder / cifar.CIFAR100_FILE
  _pack(archive, "cifar-100-binary", {"train.bin": bytes(3074)})
  files = _known(cifar.CIFAR100, {archive.name: archive.read_bytes()})
  return _reader("CIFAR-100's archive", archive, files, archive)


def _npz(folder: pathlib.Path, chance: np.random.Generator) -> Reader:
  """Returns a reader of anyone's images."""
  path = folder / "own.npz"
  arrays = {}
  for part, count in (("train", 40), ("test", 20)):
    images = chance.integers(0, 256, (count, 8, 8), np.uint8)
    arrays[f"{part}_images"] = images
    arrays[f"{part}_labels"] = np.arange(count) % 4
  np.savez(path, **arrays)

  def read() -> tuple[Any, ...]:
    data = npz.read(npz.pin(str(path)))
    images = [array.tolist() for array in data.load()]
    return images, data.classes, data.mean, data.std, data.shape, data.mirror

  return Reader("own images", path, path.read_bytes(), read, same=True)
