"""Operations that fail on a real file system: FUSE mounts a folder again."""

import collections
from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import errno
import os
import pathlib
import random
import shlex
import shutil
import subprocess
import tempfile
import time
from typing import Any

import jax.numpy as jnp
import small_cifar
import tiny

from experiments import rows
from experiments.datasets import cifar, sources
from experiments.engine import merging, runner
from experiments.files import UserError
from experiments.rows import kept
from faults import inputs, studies
from faults.figures import Case, Figures, each
from faults.surroundings import NO_LOCKS, refused
from orthograd_optax import calibration

SOURCE = pathlib.Path(__file__).with_name("filesystem.c")
# Operations that are made to fail.
OPERATIONS = (
  *("create", "flush", "fsync", "mkdir", "open", "read", "readdir", "rename"),
  *("rmdir", "stat", "statfs", "truncate", "unlink", "write"),
)
ERRORS = (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT, errno.EACCES)
# One of these says what to do.
REMEDIES = ("repeat the command", "Give a folder", "Use a folder", "Make room")
STUDIES = 4
# Suffixes of files and folders that are half written or half removed.
LEFT = (".part",)


def compiled(folder: pathlib.Path) -> pathlib.Path | str:
  """Compiles the file system. Returns the program, or what is missing."""
  if not os.access("/dev/fuse", os.R_OK | os.W_OK):
    return "skipped: no access to /dev/fuse"
  compiler = shutil.which("cc")
  if compiler is None:
    return "skipped: no C compiler"
  flags = (
    subprocess.run(
      ["pkg-config", "--cflags", "--libs", "fuse3"],
      capture_output=True,
      text=True,
    )
    if shutil.which("pkg-config")
    else None
  )
  if flags is None or flags.returncode:
    return "skipped: no libfuse3 (libfuse3-dev, pkg-config)"
  program = folder / "filesystem"
  command = [compiler, "-std=c11", "-o", str(program), str(SOURCE)]
  subprocess.run([*command, *shlex.split(flags.stdout)], check=True)
  return program


@dataclasses.dataclass
class Mount:
  """A folder on a file system whose operations can be made to fail.

  Attributes:
    path: the folder.
    faults: folder with a file for each operation that fails.
  """

  path: pathlib.Path
  faults: pathlib.Path

  @contextlib.contextmanager
  def failing(
    self, operation: str, code: int, word: str = ""
  ) -> Iterator[None]:
    """Lets an operation fail, on paths that contain a word."""
    fault = self.faults / operation
    fault.write_text(f"{code} {word}")
    try:
      yield
    finally:
      fault.unlink()


@contextlib.contextmanager
def mounted(folder: pathlib.Path) -> Iterator[Mount | str]:
  """Yields a mounted folder, or says why there is none."""
  folder.mkdir(parents=True, exist_ok=True)
  program = compiled(folder)
  if isinstance(program, str):
    yield program
    return
  paths = [folder / name for name in ("behind", "faults", "mount")]
  for path in paths:
    path.mkdir()
  with (folder / "log").open("w") as log:
    # Nothing is cached, so that each operation is asked for.
    options = ["-f", "-o", "attr_timeout=0,entry_timeout=0"]
    command = [program, *paths, *options]
    process = subprocess.Popen(command, stdout=log, stderr=log)
  try:
    while process.poll() is None and not os.path.ismount(paths[2]):
      time.sleep(0.01)
    if process.returncode is not None:
      yield f"skipped: FUSE can't mount ({(folder / 'log').read_text()[:99]})"
    else:
      yield Mount(paths[2], paths[1])
  finally:
    process.terminate()  # which unmounts the folder
    process.wait(timeout=60)


def wait_until_unmounted(folder: pathlib.Path) -> None:
  """Waits, once the process that mounted something below the folder is gone."""
  listed, end = pathlib.Path("/proc/mounts"), time.monotonic() + 10
  while listed.exists() and f" {folder}/" in listed.read_text():
    if time.monotonic() > end:
      return
    time.sleep(0.05)


def _locks(mount: Mount, whole: pathlib.Path) -> Iterator[Case]:
  """A file system without locks: nothing is written to it."""

  def attempt(code: int, name: str, use: Callable[[pathlib.Path], Any]) -> None:
    folder = pathlib.Path(tempfile.mkdtemp(dir=mount.path))
    with mount.failing("flock", code):
      refused(lambda: use(folder), f"{folder}/.lock can't be locked")
      refused(lambda: use(folder), "Use a folder on a local disk")
    assert [path.name for path in folder.iterdir()] == [".lock"]
    del name

  uses: dict[str, Callable[[pathlib.Path], Any]] = {
    "run": lambda folder: runner.run_study(tiny.STUDY, folder),
    "data fetch": lambda folder: sources.fetch(
      cifar.CIFAR10, "auto", folder, lambda _: None
    ),
    "merge": lambda folder: merging.merge([whole], folder),
    "keep": lambda folder: kept.keep([whole], folder),
  }
  for code in NO_LOCKS:
    for name, use in uses.items():
      yield (
        f"{errno.errorcode[code]}: {name}",
        lambda code=code, name=name, use=use: attempt(code, name, use),
      )


Use = tuple[Callable[[pathlib.Path], Any], Callable[[pathlib.Path], set[Any]]]


def _uses(whole: pathlib.Path, archive: pathlib.Path) -> dict[str, Use]:
  """Returns what writes to a folder, and what tells which parts are there."""
  source = list(rows.read(whole / "rows.jsonl"))
  names = {row["study"] for row in source}

  def append(folder: pathlib.Path) -> None:
    for seed in (100, 101, 102):
      rows.Rows(folder / "rows.jsonl").append([source[0] | {"seed": seed}])

  def fetch(folder: pathlib.Path) -> None:
    sources.fetch(cifar.CIFAR10, str(archive), folder, lambda _: None)

  def save(folder: pathlib.Path) -> None:
    fitted = calibration.Temperature(jnp.float32(2), columns=3)
    fitted.save(folder / "temperature.json")

  def saved(folder: pathlib.Path) -> set[Any]:
    return {repr(calibration.load(path)) for path in folder.glob("*.json")}

  keys = lambda folder: {*map(rows.key, rows.read(folder / "rows.jsonl"))}
  return {
    "rows": (append, keys),
    "data fetch": (
      fetch,
      lambda folder: {
        name
        for name in cifar.CIFAR10.digests
        if not cifar.CIFAR10.problem(folder / name)
      },
    ),
    "merge": (lambda folder: merging.merge([whole], folder), keys),
    "keep": (
      lambda folder: kept.keep([whole], folder),
      lambda folder: {*map(rows.key, kept.load(names, folder))},
    ),
    "a recalibrator": (save, saved),
  }


def _operations(
  mount: Mount, whole: pathlib.Path, chance: random.Random
) -> Iterator[Case]:
  """Each operation fails while something is written, and then no more."""

  def attempt(use: Use, operation: str, code: int, expected: set[Any]) -> None:
    write, parts = use
    folder = pathlib.Path(tempfile.mkdtemp(dir=mount.path))
    with mount.failing(operation, code):
      try:
        write(folder)
      except UserError as error:
        assert str(folder) in str(error), error
        assert any(words in str(error) for words in REMEDIES), error
      except OSError as error:  # The command line adds the remedy.
        assert str(folder) in str(error.filename), error
    try:
      assert parts(folder) <= expected
    except UserError as error:  # The list of digests lacks the new file.
      assert "or remove the file" in str(error), error
      for path in folder.glob("*.gz"):
        path.unlink()
    write(folder)
    assert parts(folder) == expected

  with inputs.small() as files:
    archive = small_cifar.binary_archive(
      mount.faults.parent / "x.tar.gz", files
    )
    for name, use in _uses(whole, archive).items():
      healthy = pathlib.Path(tempfile.mkdtemp(dir=mount.path))
      use[0](healthy)
      expected = use[1](healthy)
      for operation in OPERATIONS:
        code = chance.choice(ERRORS)
        yield (
          f"{operation}, {errno.errorcode[code]}: {name}",
          lambda use=use, operation=operation, code=code, expected=expected: (
            attempt(use, operation, code, expected)
          ),
        )


def _studies(
  mount: Mount, whole: pathlib.Path, chance: random.Random
) -> Iterator[Case]:
  """An operation fails after some epoch; then the same command resumes."""
  expected = studies.results(whole)
  (mount.path / "programs").symlink_to(whole.parent / "programs")

  def attempt(operation: str, code: int, epoch: int) -> None:
    folder = mount.path / operation
    process = studies.start(folder)
    while process.poll() is None and not list(
      folder.glob(f"checkpoints/*/state/{epoch}" if epoch else "study.json")
    ):
      time.sleep(0.01)
    with mount.failing(operation, code, operation):
      output, _ = process.communicate(timeout=600)
    assert "Traceback" not in output, output
    if process.returncode:
      last = output.rstrip().rpartition("\n")[2]
      assert last.startswith("Error: ") and str(folder) in last, output
      assert any(words in last for words in REMEDIES), output
    status, output, _ = studies.finish(folder)
    assert not status and "Traceback" not in output, output
    assert studies.results(folder) == expected
    left = [path for path in folder.glob("**/*") if path.suffix in LEFT]
    assert not left, left

  for operation in chance.sample(OPERATIONS, STUDIES):
    code, epoch = chance.choice(ERRORS), chance.randrange(4)
    yield (
      f"{operation}, {errno.errorcode[code]}, after epoch {epoch}",
      lambda operation=operation, code=code, epoch=epoch: attempt(
        operation, code, epoch
      ),
    )


def run(
  folder: pathlib.Path, seed: int, whole: pathlib.Path | None = None
) -> list[Figures]:
  """Runs all cases. Studies need the folder of a complete one."""
  chance = random.Random(f"mounts {seed}")
  kinds = {
    "FUSE without locks (refused, with a remedy)": _locks,
    "FUSE with an operation that fails: rows, data, `merge`, `keep`, `save`": (
      lambda mount, source: _operations(mount, source, chance)
    ),
  }
  if whole is None:
    folder.mkdir(parents=True)
    tiny.write(folder / "small", tiny.STUDY)
  else:
    kinds["… studies, resumed after an operation failed"] = (
      lambda mount, source: _studies(mount, source, chance)
    )
  with mounted(folder / "fuse") as mount:
    if isinstance(mount, str):
      return [Figures(what, collections.Counter([mount])) for what in kinds]
    source = whole or folder / "small"
    return [each(what, make(mount, source)) for what, make in kinds.items()]
