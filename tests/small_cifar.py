"""CIFAR-10 in small, in all its versions, and archives that mean no good.

There are 20 images in a file, in place of 10,000.
"""

import gzip
import io
import json
import pathlib
import tarfile
import zipfile

import numpy as np
import PIL.Image

from experiments.datasets import cifar10, frost, records

SIZE = 20


def make_files(seed=0):
  """The six files of the binary version."""
  random = np.random.default_rng(seed)
  files = {}
  for name in cifar10.DIGESTS:
    images = random.integers(0, 256, size=(SIZE, 32, 32, 3), dtype=np.uint8)
    files[name] = records.encode(images, random.integers(0, 10, size=SIZE))
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


def python_batch(content):
  """As Python 2 pickled them, by hand: protocol 2 with byte strings."""
  table = np.frombuffer(content, np.uint8).reshape(-1, 1 + records.PIXELS)
  out = io.BytesIO()
  text = lambda s: b"U" + bytes([len(s)]) + s
  raw = table[:, 1:].tobytes()
  out.write(b"\x80\x02}(" + text(b"data"))
  out.write(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n")
  out.write(b"K\x00\x85" + text(b"b") + b"tR(K\x01")
  out.write(b"K" + bytes([len(table)]) + b"M" + (3072).to_bytes(2, "little"))
  out.write(b"\x86cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03")
  out.write(text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89")
  out.write(b"T" + len(raw).to_bytes(4, "little") + raw + b"tb")
  out.write(text(b"labels") + b"](")
  out.write(b"".join(b"K" + bytes([label]) for label in table[:, 0]))
  out.write(b"e" + b"u.")
  return out.getvalue()


def python_archive(path, files):
  with tarfile.open(path, "w:gz") as archive:
    for name, content in files.items():
      stem = pathlib.Path(name).stem
      add(archive, f"cifar-10-batches-py/{stem}", python_batch(content))
  return path


def npm_archive(path, files):
  labels = {"train": [], "test": []}
  with tarfile.open(path, "w:gz") as archive:
    for name, content in files.items():
      images, numbers = records.decode(np.frombuffer(content, np.uint8))
      png = io.BytesIO()
      PIL.Image.fromarray(images.reshape(SIZE, 1024, 3)).save(png, "PNG")
      add(archive, f"package/{pathlib.Path(name).stem}.png", png.getvalue())
      part = "test" if name == cifar10.TEST_FILE else "train"
      labels[part] += numbers.tolist()
    for part, numbers in labels.items():
      content = json.dumps(numbers).encode()
      add(archive, f"package/{part}_lables.json", content)
  return path


# Tuples of themselves: 2^60 numbers, if spelled out.
LAUGHS = b"K\x00q\x00" + b"".join(
  b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1])
  for i in range(60)
)
_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n)R"
_BYTES = b"cnumpy\ndtype\n(U\x02u1tR\x89"
PICKLES = {
  "a shape that takes for ever to print": LAUGHS
  + (b"}(U\x06labels]U\x04data" + _ARRAY)
  + (b"(K\x01h\x3c" + _BYTES + b"U\x00tbu."),
  "a name that takes for ever to print": LAUGHS + b"h\x3ch\x3c\x93.",
  "a name of 8 MB": b"c" + 8_000_000 * b"x" + b"\ny\n.",
  "190,000 labels": b"}(U\x06labels]("
  + (190_000 * b"K\x00" + b"eU\x04data" + _ARRAY)
  + (b"(K\x01J" + (190_000).to_bytes(4, "little") + b"M\x00\x0c\x86")
  + (_BYTES + b"U\x00tbu."),
  "a key that takes for ever to hash": b"}" + LAUGHS + b"Ns.",
  "labels that take for ever to count": b"}U\x06labels" + LAUGHS + b"s.",
  "a memo of 16 GB": b"}r" + (2**31 - 1).to_bytes(4, "little") + b".",
  "a string of 4 GB": b"B" + b"\xff\xff\xff\x7fx.",
  "a number of many digits": b"L" + b"9" * 100_000 + b"L\n.",
  "many operations": b"(" * 1_000_000,
  "no end": b"}",
  "nothing": b"",
  "no batch": b"K\x00.",
  "an empty stack": b".",
  "an object without a state": b"}(U\x06labels]U\x04data}u.",
}


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
    content = content[:512] + bytes(header) + content[512:]
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


WHEELS = ("deflated", "bzip2", "LZMA", "claims less", "many files")


def wheel(path, kind):
  """A small wheel as if it had frost's textures, which unpacks to much."""
  methods = {"bzip2": zipfile.ZIP_BZIP2, "LZMA": zipfile.ZIP_LZMA}
  method = methods.get(kind, zipfile.ZIP_DEFLATED)
  first, *_ = frost.TEXTURES
  files = {first: 50}  # MB
  if kind == "many files":
    files = dict.fromkeys([*map(str, range(20_000)), *frost.TEXTURES], 0)
  with zipfile.ZipFile(path, "w", method) as archive:
    for name, size in files.items():
      with archive.open(f"imagecorruptions/frost/{name}", "w") as file:
        for _ in range(size):
          file.write(bytes(1_000_000))
  if kind in ("bzip2", "LZMA", "claims less"):
    # The claimed sizes, here and in the list at the end.
    size = (50_000_000).to_bytes(4, "little")
    content = path.read_bytes()
    path.write_bytes(content.replace(size, (1_000).to_bytes(4, "little")))
  return path


def large_picture():
  """Returns a PNG of 10 kB and 9,000 × 9,000 pixels, 243 MB."""
  png = io.BytesIO()
  PIL.Image.new("1", (9_000, 9_000)).save(png, "PNG")
  return png.getvalue()
