"""CIFAR-10 in small, in all its versions, and archives that mean no good.

There are 20 images in a file, in place of 10,000.
"""

import gzip
import io
import json
import pathlib
import tarfile

import numpy as np
import PIL.Image
import tensorflow_datasets as tfds

from experiments.datasets import cifar

SIZE = 20


def make_files(seed=0):
  """The six files of the binary version."""
  random = np.random.default_rng(seed)
  files = {}
  for name in cifar.CIFAR10.digests:
    images = random.integers(0, 256, size=(SIZE, 32, 32, 3), dtype=np.uint8)
    files[name] = cifar.encode(images, random.integers(0, 10, size=SIZE))
  return files


def add(archive, name, content):
  info = tarfile.TarInfo(name)
  info.size = len(content)
  archive.addfile(info, io.BytesIO(content))


def binary_archive(path, files, folder="cifar-10-batches-bin"):
  with tarfile.open(path, "w:gz") as archive:
    add(archive, f"{folder}/batches.meta.txt", b"airplane\n")
    for name, content in files.items():
      add(archive, f"{folder}/{name}", content)
  return path


def npm_archive(path, files):
  labels = {"train": [], "test": []}
  with tarfile.open(path, "w:gz") as archive:
    for name, content in files.items():
      images, numbers = cifar.decode(np.frombuffer(content, np.uint8))
      png = io.BytesIO()
      PIL.Image.fromarray(images.reshape(SIZE, 1024, 3)).save(png, "PNG")
      add(archive, f"package/{pathlib.Path(name).stem}.png", png.getvalue())
      part = "test" if name == cifar.FILES[-1] else "train"
      labels[part] += numbers.tolist()
    for part, numbers in labels.items():
      content = json.dumps(numbers).encode()
      add(archive, f"package/{part}_lables.json", content)
  return path


BOMBS = (
  *("member", "header", "sparse", "nested", "backwards", "many"),
  *("digits", "name", "map"),
)


def bomb(path, kind, small):
  """A small archive that says it is, or unpacks to, 1 GB and more."""
  large = 2**40
  with tarfile.open(path, "w:gz") as archive:
    for name, content in small.items():
      add(archive, name, content)
  with gzip.open(path, "rb") as file:
    content = file.read()
  before, million = [], 1_000_000 * b"1"
  if kind == "member":
    header = bytearray(content[:512])
    info = tarfile.TarInfo("data_batch_1.bin")
    info.size = large
    header[:] = info.tobuf(tarfile.GNU_FORMAT)
    content = bytes(header) + content[512:]
  elif kind == "header":
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, large
    content = info.tobuf(tarfile.GNU_FORMAT) + content
  elif kind == "sparse":
    info = tarfile.TarInfo("data_batch_1.bin")
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[386:398] = header[483:495] = b"\x80" + large.to_bytes(11, "big")
    header[398:410] = b"%011o\0" % 0
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content = bytes(header) + content
  elif kind == "nested":
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 512
    content = 3000 * (info.tobuf(tarfile.GNU_FORMAT) + bytes(512)) + content
  elif kind == "backwards":
    info = tarfile.TarInfo("x")
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 10 + b"\xfc\x00"  # a size of -1024
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content = bytes(header) + content
  elif kind == "many":
    content = (
      b"".join(tarfile.TarInfo(f"{i}").tobuf() for i in range(2000)) + content
    )
  elif kind == "digits":  # CVE-2024-6232: quadratic in some versions of Python
    before = [_header(tarfile.XHDTYPE, 300_000), 300_000 * b"1"]
  elif kind == "name":
    before = [_header(tarfile.GNUTYPE_LONGNAME, 190_000_000), *190 * [million]]
  elif kind == "map":  # of a sparse file with many holes
    pax = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"
    before = [_header(tarfile.XHDTYPE, len(pax)), pax.ljust(512, b"\0")]
    before += [_header(tarfile.REGTYPE, 50_000_000), b"99999999\n"]
    before += 50 * [500_000 * b"1\n"]
  size = sum(map(len, before))
  with gzip.open(path, "wb", compresslevel=1) as file:
    for part in [*before, bytes(-size % 512), content]:
      file.write(part)
  return path


def _header(kind, size):
  info = tarfile.TarInfo("x")
  info.type, info.size = kind, size
  return info.tobuf(tarfile.GNU_FORMAT)


def large_picture():
  """Returns a PNG of 10 kB and 9,000 × 9,000 pixels, 243 MB."""
  png = io.BytesIO()
  PIL.Image.new("1", (9_000, 9_000)).save(png, "PNG")
  return png.getvalue()


def prepare_tfds(data_dir, name, splits, config=None):
  """Writes what TFDS would prepare as array_record, without TensorFlow.

  Args:
    data_dir: the TFDS data dir.
    name: the TFDS dataset.
    splits: pairs of a key and an example, with a PNG, for each split.
    config: the dataset's config, if it has any.

  Returns:
    The folder of the files.
  """
  core = tfds.core
  features = {
    "image": tfds.features.Image(shape=(32, 32, 3)),
    "label": tfds.features.ClassLabel(num_classes=10),
  }
  if name == "cifar100":
    features["label"] = tfds.features.ClassLabel(num_classes=100)
    features["coarse_label"] = tfds.features.ClassLabel(num_classes=20)
  if config is None:
    features["id"] = tfds.features.Text()
  configs = [core.BuilderConfig(name=config, description="x")] if config else []
  with core.registered.skip_registration():  # TFDS has datasets of these names.

    class Prepared(core.GeneratorBasedBuilder):
      VERSION = core.Version("3.0.2" if config is None else "1.0.0")
      BUILDER_CONFIGS = configs

      def _info(self):
        known = tfds.features.FeaturesDict(features)
        return core.DatasetInfo(builder=self, features=known)

      def _split_generators(self, dl_manager):
        return splits

      def _generate_examples(self, *_):
        raise NotImplementedError  # _split_generators has the examples

  Prepared.name = name
  builder = Prepared(data_dir=str(data_dir), file_format="array_record")
  builder.download_and_prepare()
  return pathlib.Path(builder.data_path)


def examples(images, labels, split=None):
  """Yields examples for :func:`prepare_tfds`, with ids if a split is named."""
  for i, (image, label) in enumerate(zip(images, labels, strict=True)):
    png = io.BytesIO()
    PIL.Image.fromarray(image).save(png, "PNG")
    png.seek(0)
    name = {"id": f"{split}_{i:05d}"} if split else {}
    yield i, {"image": png, "label": int(label)} | name


def prepare_cifar10(data_dir, files):
  """Writes the files of the binary version as TFDS's cifar10."""
  parts = [cifar.decode(np.frombuffer(x, np.uint8)) for x in files.values()]
  images, labels = (np.concatenate(x) for x in zip(*parts[:5], strict=True))
  splits = {
    "train": examples(images, labels, "train"),
    "test": examples(*parts[5], "test"),
  }
  return prepare_tfds(data_dir, "cifar10", splits)
