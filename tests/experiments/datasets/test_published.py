"""The published CIFAR-10-C in small: 20 images in place of 10,000."""

import hashlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import small_cifar
import tensorflow_datasets as tfds

from experiments.datasets import cache, corruptions, published

SIZE = 20
ALL = corruptions.ALL_CORRUPTIONS
LABELS = np.arange(SIZE, dtype=np.uint8) % 10


@pytest.fixture(autouse=True)
def small(monkeypatch):
  digest = hashlib.sha256(LABELS.tobytes()).hexdigest()
  monkeypatch.setattr(published, "IMAGES", SIZE)
  monkeypatch.setattr(published, "LABELS_DIGEST", digest)


@pytest.fixture
def arrays(tmp_path):
  """The published files, whose images are of one number each."""
  folder = tmp_path / "CIFAR-10-C"
  folder.mkdir()
  names = {"elastic": "elastic_transform", "jpeg": "jpeg_compression"}
  for i, name in enumerate(ALL):
    images = np.zeros((5 * SIZE, 32, 32, 3), np.uint8)
    images += (i + 19 * (np.arange(5).repeat(SIZE))).astype(np.uint8)[
      :, None, None, None
    ]
    np.save(folder / f"{names.get(name, name)}.npy", images)
  np.save(folder / "labels.npy", np.tile(LABELS, 5))
  return folder


def test_arrays(arrays):
  for path in (arrays, arrays.parent, str(arrays)):
    for i, name in enumerate(ALL):
      for severity in range(1, 6):
        images, labels = published.load(path, name, severity)
        assert isinstance(images, np.memmap)
        assert images.shape == (SIZE, 32, 32, 3) and labels.dtype == np.int32
        assert np.all(images == i + 19 * (severity - 1))
        np.testing.assert_array_equal(labels, LABELS)
  assert not any(published.verify(arrays).values())


def test_arrays_that_are_not_the_published_ones(arrays):
  def load():
    return published.load(arrays, "fog", 2)

  whole = np.load(arrays / "fog.npy")
  for wrong in (whole[:-1], whole[:, :16], whole.astype(np.float32)):
    np.save(arrays / "fog.npy", wrong)
    with pytest.raises(
      cache.DataError, match="fog.npy (has shape|can.t be read)"
    ):
      load()
  (arrays / "fog.npy").write_bytes(b"\x93NUMPY hello")
  with pytest.raises(cache.DataError, match="fog.npy can't be read"):
    load()
  np.savez(arrays / "zip", fog=whole)
  (arrays / "zip.npz").replace(arrays / "fog.npy")
  with pytest.raises(cache.DataError, match="fog.npy can't be read"):
    load()
  np.save(arrays / "fog.npy", np.array([{}]), allow_pickle=True)
  with pytest.raises(cache.DataError, match="fog.npy can't be read"):
    load()
  (arrays / "fog.npy").unlink()
  with pytest.raises(cache.DataError, match="fog.npy can't be read: .*No such"):
    load()
  problems = published.verify(arrays)
  assert [name for name, what in problems.items() if what] == ["fog"]
  np.save(arrays / "fog.npy", whole)
  np.save(arrays / "labels.npy", np.tile(LABELS[::-1], 5))
  with pytest.raises(cache.DataError, match="other labels .* rows 20 to 39"):
    load()
  (arrays / "labels.npy").unlink()
  with pytest.raises(cache.DataError, match="neither a labels.npy"):
    load()
  with pytest.raises(ValueError, match="'rain'"):
    published.load(arrays, "rain", 2)
  with pytest.raises(ValueError, match="severity is 6"):
    published.load(arrays, "fog", 6)


def prepare(data_dir, config, images, labels=LABELS):
  """A config of TFDS's own cifar10_corrupted, written without TensorFlow."""
  splits = {"test": small_cifar.examples(images, labels)}
  small_cifar.prepare_tfds(data_dir, "cifar10_corrupted", splits, config)


@pytest.mark.parametrize(
  ("name", "theirs"),
  [
    ("fog", "fog"),
    ("glass_blur", "frosted_glass_blur"),
    ("elastic", "elastic"),
    ("jpeg", "jpeg_compression"),
  ],
)
def test_tfds(tmp_path, name, theirs):
  random = np.random.default_rng(0)
  images = random.integers(0, 256, (SIZE, 32, 32, 3), np.uint8)
  prepare(tmp_path, f"{theirs}_3", images)
  actual, labels = published.load(tmp_path, name, 3)
  key = lambda pairs: sorted((x.tobytes(), int(y)) for x, y in pairs)
  assert key(zip(actual, labels, strict=True)) == key(
    zip(images, LABELS, strict=True)
  )
  with pytest.raises(cache.DataError, match=f"can't read .*{theirs}_4"):
    published.load(tmp_path, name, 4)


def test_tfds_with_other_labels(tmp_path):
  images = np.zeros((SIZE, 32, 32, 3), np.uint8)
  prepare(tmp_path, "fog_1", images, LABELS // 2)
  with pytest.raises(cache.DataError, match=r"\[4, 4, 4, 4, 4, 0.*2 of each"):
    published.load(tmp_path, "fog", 1)


def test_all_names_are_tfdss():
  builder: Any = tfds.builder_cls("cifar10_corrupted")
  known = set(builder.builder_configs)
  names = [published.TFDS_NAMES.get(name, name) for name in ALL]
  assert {f"{name}_{i}" for name in names for i in range(1, 6)} == known


@pytest.mark.slow
def test_command(arrays):
  command = [sys.executable, "-m", "experiments", "data", "published"]
  done = subprocess.run([*command, arrays], capture_output=True, text=True)
  assert done.returncode != 0  # the files are 20 images each
  assert "(50000, 32, 32, 3)" in done.stdout
  assert "not the published CIFAR-10-C" in done.stderr
