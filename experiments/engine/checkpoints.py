"""Checkpoints of a group of runs: the last two, with digests of their files.

Orbax writes a checkpoint while training continues, under a temporary name. Then
the SHA-256 digests of its files are written beside them. Only then is the
checkpoint renamed to the number of its epoch. So a checkpoint of that name is
whole, and a later change of its files is noticed.
"""

from collections.abc import Iterator
import concurrent.futures
import contextlib
import functools
import json
import logging
import pathlib
import re
import shutil
import sys
from typing import Any

import jax

from experiments.files import UserError, parse_json, replacing, sha256

KEPT = 2
DIGESTS = "digests.json"


class Checkpoints:
  """The last states of a group.

  Attributes:
    folder: where they are, each in a folder named for its epoch.
  """

  def __init__(self, folder: pathlib.Path):
    import orbax.checkpoint as ocp

    _silence_orbax()
    self.folder = folder
    self._orbax = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._finished: concurrent.futures.Future[None] | None = None

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *exception: Any) -> None:
    with self._writing():  # waits for the last one
      self._thread.shutdown()
      self._wait()
      self._orbax.close()

  @property
  def epochs(self) -> list[int]:
    """Epochs that have a checkpoint, the last one first."""
    return sorted(_epochs(self.folder), reverse=True)

  def restore(self, epoch: int, like: Any) -> Any:
    """The state after an epoch.

    Args:
      epoch: one of :attr:`epochs`.
      like: the state's shapes, dtypes and shardings.
    """
    import orbax.checkpoint as ocp

    leaves, treedef = jax.tree.flatten(like)
    path = self.folder / str(epoch)
    args = ocp.args.StandardRestore(leaves)
    try:
      return treedef.unflatten(self._orbax.restore(path, args=args))
    except (KeyError, OSError, TypeError, ValueError) as error:
      raise UserError(
        f"{path} is undamaged, but can't be restored: {error}. Other versions "
        "of the code may have written it. Remove it, to resume from the one "
        "before it."
      ) from error

  def save(self, epoch: int, state: Any) -> None:
    """Copies the state, and writes the copy while training continues.

    It replaces the checkpoints of this epoch and of later ones.
    """
    import orbax.checkpoint as ocp

    leaves = jax.tree.leaves(state)
    with self._writing():
      self._wait()  # raises if the one before failed
      self._check_space(sum(leaf.nbytes for leaf in leaves))
      args = ocp.args.StandardSave(leaves)
      self._orbax.save(self.folder / f"{epoch}.new", args=args)
      self._finished = self._thread.submit(self._finish, epoch)

  def _finish(self, epoch: int) -> None:
    self._orbax.wait_until_finished()
    if jax.process_index() > 0:
      return
    new = self.folder / f"{epoch}.new"
    with replacing(new / DIGESTS) as temporary:
      temporary.write_text(json.dumps(_digests(new, {temporary.name})))
    earlier = sorted(e for e in _epochs(self.folder) if e < epoch)
    for old in _epochs(self.folder) - set(earlier):
      _remove(self.folder / str(old))
    new.rename(self.folder / str(epoch))
    for old in earlier[: -(KEPT - 1)]:
      _remove(self.folder / str(old))

  def _wait(self) -> None:
    if self._finished is not None:
      finished, self._finished = self._finished, None
      finished.result()

  def _check_space(self, size: int) -> None:
    """Checks before writing: on a full disk, Orbax fails in many threads."""
    self.folder.mkdir(exist_ok=True)
    free, needed = shutil.disk_usage(self.folder).free, size + 2**20
    if free < needed:
      raise OSError(
        f"a checkpoint takes {needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB "
        "are free"
      )

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    try:
      yield
    except (OSError, ValueError) as error:
      raise UserError(
        f"{self.folder} can't be written: {error}. Rows and the last "
        "checkpoint are kept. Make room or get permission, and repeat the "
        "command."
      ) from error


def remove_unfinished(folder: pathlib.Path) -> None:
  """Removes checkpoints that a crash left half written or half removed."""
  for path in folder.glob("*"):
    if re.fullmatch(r"\d+\.(new|old)(\.orbax-checkpoint-tmp.*)?", path.name):
      shutil.rmtree(path)


def remove_damaged(folder: pathlib.Path) -> list[str]:
  """Removes checkpoints whose files do not have their digests.

  Returns:
    The problem of each.
  """
  problems = []
  for epoch in sorted(_epochs(folder)):
    path = folder / str(epoch)
    if what := _problem(path):
      problems.append(f"the checkpoint {path} is damaged and removed: {what}")
      _remove(path)
  return problems


def _epochs(folder: pathlib.Path) -> set[int]:
  return {
    int(path.name)
    for path in folder.glob("*")
    if re.fullmatch("[1-9][0-9]*", path.name) and path.is_dir()
  }


def _remove(path: pathlib.Path) -> None:
  """Renames a checkpoint before removing it: a crash leaves no half of it."""
  shutil.rmtree(path.rename(path.with_suffix(".old")))


def _problem(path: pathlib.Path) -> str | None:
  """What is wrong with a checkpoint, or None."""
  try:
    expected = parse_json((path / DIGESTS).read_bytes())
    found = _digests(path, {DIGESTS})
  except PermissionError as error:
    raise UserError(f"{error}: get permission to read it.") from error
  except (OSError, ValueError) as error:
    return f"{DIGESTS} can't be read ({error})"
  if found == expected:
    return None
  if not isinstance(expected, dict):
    return f"{DIGESTS} has no digests"
  for name in sorted(expected.keys() | found.keys()):
    if name not in found:
      return f"{name} is missing"
    if name not in expected:
      return f"{name} is not one of its files"
    if found[name] != expected[name]:
      return f"{name} is not what was written, by its SHA-256 digest"
  return None


def _digests(folder: pathlib.Path, without: set[str]) -> dict[str, str]:
  """The SHA-256 digest of each file, by its path in the folder."""
  digests = {}
  for path in sorted(folder.glob("**/*")):
    name = path.relative_to(folder).as_posix()
    if path.is_file() and name not in without:
      digests[name] = sha256(path)
  return digests


@functools.cache
def _silence_orbax() -> None:
  """Silences Orbax's logs: its errors are raised, and reported once.

  On a full disk it would also log hundreds of lines of tracebacks.
  """
  before = sys.unraisablehook

  def hook(unraisable: Any) -> None:
    if str(unraisable.exc_value) != "Event loop is closed":
      before(unraisable)

  sys.unraisablehook = hook
  for name in ("absl", "asyncio"):
    logging.getLogger(name).addFilter(
      lambda record: "orbax" not in record.pathname + record.getMessage()
    )
