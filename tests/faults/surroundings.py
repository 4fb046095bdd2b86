"""Surroundings that are unusual: file systems, clocks, clones and names."""

from collections.abc import Callable, Iterator
import dataclasses
import errno
import fcntl
import json
import os
import pathlib
import random
import subprocess
import time
from typing import Any
import unittest.mock

import jax
import numpy as np
import tiny

from experiments import config, files, rows
from experiments.datasets import cifar, sources
from experiments.engine import checkpoints, runner
from experiments.report import build as page
from experiments.rows import provenance
from faults import inputs
from faults.figures import Case, Figures, each

# What flock raises without locks, or with a lock server that fails.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO)
NO_LOCKS += (errno.ESTALE, errno.EINVAL)
YEARS = (-100, -50, -1, 1, 50, 100)


def refused(read: Callable[[], Any], words: str) -> None:
  """Checks that something is refused, in words."""
  outcome, why = inputs.attempt(read)
  assert outcome == "refused" and words in why, (outcome, why)


def locks(folder: pathlib.Path) -> Iterator[Case]:
  """File systems whose locks fail, for a study and for data."""

  def attempt(code: int, read: Callable[[], Any]) -> None:
    error = OSError(code, os.strerror(code))
    with unittest.mock.patch.object(fcntl, "flock", side_effect=error):
      refused(read, "on a local disk")

  for code in NO_LOCKS:
    study = lambda: runner.run_study(tiny.STUDY, folder / "study")
    data = lambda: sources.fetch(
      cifar.CIFAR10, "auto", folder / "cache", lambda _: None
    )
    for what, read in (("study", study), ("data", data)):
      name = f"{errno.errorcode[code]}: {what}"
      yield name, lambda code=code, read=read: attempt(code, read)


def clocks(folder: pathlib.Path) -> Iterator[Case]:
  """Clocks that jump while a checkpoint is written."""

  def attempt(years: int) -> None:
    now, jumps = time.time, [0.0]
    with (
      unittest.mock.patch.object(time, "time", lambda: now() + jumps[-1]),
      checkpoints.Checkpoints(folder / f"{years}", {"group": "x"}) as saved,
    ):
      for epoch in (1, 2, 3):
        saved.save(epoch, jax.device_put({"x": np.arange(epoch)}))
        jumps.append(years * 365.25 * 86400 * (epoch == 1))
    assert saved.epochs == [3, 2]

  for years in YEARS:
    yield f"{years} years", lambda years=years: attempt(years)


def clones(folder: pathlib.Path) -> Iterator[Case]:
  """A clone whose index git would refresh, or which another process locks."""
  git = lambda *words: subprocess.run(
    ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *words],
    cwd=folder,
    check=True,
    capture_output=True,
  )
  module = folder / "experiments" / "rows.py"
  module.parent.mkdir(parents=True)
  module.write_text("1")
  git("init", "--quiet")
  git("add", ".")
  git("commit", "--quiet", "--message", "x")
  index = folder / ".git" / "index"

  def attempt(lock: bool) -> None:
    os.utime(module)  # so that its entry in the index is out of date
    if lock:
      index.with_suffix(".lock").touch()
    before = index.stat()
    with unittest.mock.patch.object(provenance, "EXPERIMENTS", module.parent):
      assert len(provenance.commit()) == 12
    after = index.stat()
    assert (before.st_ino, before.st_mtime_ns) == (
      after.st_ino,
      after.st_mtime_ns,
    )

  yield "a stale index", lambda: attempt(False)
  yield "a locked index", lambda: attempt(True)


def study_files(folder: pathlib.Path) -> Iterator[Case]:
  """Study files that `run` is to name, in one short line."""
  head = "from experiments.config import Config, Study\n"
  for name, text in {
    "no Python": "\0",
    "binary": "\x80" * 100,
    "half a file": "STUDY = Study(",
    "nothing": "",
    "no study": "STUDY = 3",
    "a long error": f"raise ValueError({10**6} * 'x' + '\\x1b[2J')",
    "an exit": "raise SystemExit(0)",
    "endless recursion": "def f(): f()\nf()",
    "a name that is a path": "STUDY = Study(name='../x')",
    "a name that is a number": "STUDY = Study(name=3)",
    "no config": "STUDY = Study(name='x', config=None)",
    "no methods": "STUDY = Study(name='x', methods=())",
    "text for a number": "STUDY = Study(name='x', seeds='3')",
  }.items():
    path = folder / f"{name}.py"
    path.write_text(head + text, "latin-1")

    def attempt(path: pathlib.Path = path) -> None:
      outcome, why = inputs.attempt(lambda: config.load_study(str(path)))
      assert outcome == "refused" and str(path) in why, (outcome, why)
      assert len(why) < 1000 and why.isprintable(), why

    yield name, attempt


def names(folder: pathlib.Path, whole: pathlib.Path) -> Iterator[Case]:
  """Studies of any name, and null losses, on pages and in `show`.

  Args:
    folder: folder to write to.
    whole: folder of a complete study with one seed.
  """
  study = config.load_settings(whole)
  kept = list(rows.read(whole / "rows.jsonl"))

  chance = random.Random(0)

  def write(name: str, null: bool) -> pathlib.Path:
    path = folder / f"{len(list(folder.iterdir()))}"
    path.mkdir()
    settings = dataclasses.replace(study, name=name, seeds=3)
    (path / "study.json").write_text(json.dumps(dataclasses.asdict(settings)))
    made = []
    for row in kept:
      for seed in range(3):
        one = row | {"study": name, "seed": seed}
        factor = 1 + chance.random() / 10
        for part in {"metrics", "scaled_half"} & row.keys():
          one[part] = {k: v and v * factor for k, v in row[part].items()}
        if null and seed == 1:
          one["metrics"]["loss"] = None
        made.append(one)
    rows.write(path / "rows.jsonl", made)
    return path

  def attempt(name: str, null: bool) -> None:
    path = write(name, null)
    assert "sgd" in page.show(path)
    page.write_study(path)
    assert (path / "report.html").read_text("utf-8").count("<svg") == 3

  for name in filter(files.is_name, inputs.NAMES):
    yield f"study {name!r}", lambda name=name: attempt(name, False)
  yield "a null loss", lambda: attempt("nulls", True)


def run(
  folder: pathlib.Path, whole: pathlib.Path | None = None
) -> list[Figures]:
  """Runs all cases. Names need the folder of a complete study."""
  kinds = {
    "file systems without locks (refused, with a remedy)": locks,
    "clocks that jump by years": clocks,
    "clones whose index is stale or locked": clones,
    "broken study files": study_files,
  }
  figures = []
  for number, (what, make) in enumerate(kinds.items()):
    path = folder / f"{number}"
    path.mkdir(parents=True)
    figures.append(each(what, make(path)))
  if whole is not None:
    path = folder / "names"
    path.mkdir()
    figures.append(
      each("studies with odd names or null losses", names(path, whole))
    )
  return figures
