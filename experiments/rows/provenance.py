"""Where a row comes from: sources, commit, versions, device and time."""

import datetime
import functools
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import subprocess
from typing import Any

import jax

import orthograd_optax

EXPERIMENTS = pathlib.Path(__file__).parents[1]
PACKAGES = EXPERIMENTS, pathlib.Path(orthograd_optax.__file__).parent
# Pages are made of rows, not rows of pages.
SOURCES = ("experiments/*.py", "orthograd_optax/*.py", ":!experiments/report")


@functools.cache
def environment() -> dict[str, Any]:
  """Returns the versions, device and sources that rows are made with."""
  names = ("jax", "jaxlib", "optax", "flax", "numpy")
  versions: dict[str, str | None] = {"python": platform.python_version()}
  versions |= {name: importlib.metadata.version(name) for name in names}
  try:
    own = importlib.metadata.version("orthograd-optax")
  except importlib.metadata.PackageNotFoundError:
    own = None  # run from a clone
  device = jax.devices()[0]
  return {
    "versions": versions | {"orthograd-optax": own},
    "device": f"{jax.device_count()} × {device.device_kind}",
    "sources": sources(),
    "commit": commit(),
  }


def sources() -> str:
  """Returns a hash of the source files, all except the report's.

  In a clone without changes, this prints it, too:

      git ls-files 'experiments/*.py' 'orthograd_optax/*.py' \
        ':!experiments/report' | LC_ALL=C sort | xargs sha256sum | sha256sum |
        cut -c -16
  """
  paths = {
    path.relative_to(package.parent).as_posix(): path
    for package in PACKAGES
    for path in package.glob("**/*.py")
    if EXPERIMENTS / "report" not in path.parents
  }
  digest = hashlib.sha256()
  for name, path in sorted(paths.items()):
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    digest.update(f"{content}  {name}\n".encode())
  return digest.hexdigest()[:16]


def commit() -> str:
  """Returns the commit of the source files, with -dirty if they differ.

  Without git, it is "unknown".
  """
  git = functools.partial(
    subprocess.run,
    cwd=EXPERIMENTS.parent,
    # So that `git status` does not lock and rewrite the clone's index.
    env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
    capture_output=True,
    text=True,
  )
  status = ["git", "status", "--porcelain", "--untracked-files=all", "--"]
  try:
    head = git(["git", "rev-parse", "--short=12", "HEAD"])
    changed = git([*status, *SOURCES])
  except OSError:
    return "unknown"
  if head.returncode or changed.returncode:
    return "unknown"
  return head.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")


def now() -> str:
  """Returns the date and time, in UTC."""
  return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
