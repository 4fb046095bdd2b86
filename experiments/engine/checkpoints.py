"""Checkpoints of a group of runs: the last two, with digests of their files.

Orbax writes a checkpoint while training goes on, under a name of its own. Once
it is whole, the SHA-256 digests of its files are put beside them, and only then
is it renamed to the number of its epoch: what has that name is whole, and what
was changed since is found out.
"""

from collections.abc import Iterator
import concurrent.futures
import contextlib
import functools
import hashlib
import json
import logging
import pathlib
import re
import shutil
import sys
from typing import Any

import jax

from experiments.files import UserError, parse_json, replacing

KEPT = 2
DIGESTS = "digests.json"


class Checkpoints:
  """The last states of a group.

  Attributes:
    folder: where they are, each in a folder named for its epoch.
  """

  def __init__(self, folder: pathlib.Path):
    import orbax.checkpoint as ocp

    _hush()
    self.folder = folder
    self._orbax = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._finished: concurrent.futures.Future[None] | None = None

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *exception: Any) -> None:
    with self._writing():  # The last one may not be whole yet.
      self._thread.shutdown()
      self._wait()
      self._orbax.close()

  @property
  def epochs(self) -> list[int]:
    """After which there is a state, the last one first."""
    return sorted(_epochs(self.folder), reverse=True)

  def restore(self, epoch: int, like: Any) -> Any:
    """The state after an epoch.

    Args:
      epoch: one of :attr:`epochs`.
      like: its shapes, dtypes and shardings.
    """
    import orbax.checkpoint as ocp

    leaves, treedef = jax.tree.flatten(like)
    path = self.folder / str(epoch)
    args = ocp.args.StandardRestore(leaves)
    try:
      return treedef.unflatten(self._orbax.restore(path, args=args))
    except (KeyError, OSError, TypeError, ValueError) as error:
      raise UserError(
        f"{path} is as it was written, but can't be restored: {error}. Was it "
        "written with other versions of the code? Remove it, to go on from the "
        "one before it."
      ) from error

  def save(self, epoch: int, state: Any) -> None:
    """Copies the state, and writes the copy while training goes on.

    It takes the place of states after the same epoch and later ones.
    """
    import orbax.checkpoint as ocp

    leaves = jax.tree.leaves(state)
    with self._writing():
      self._wait()  # The one before may have failed.
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
    """Before it begins: Orbax fails in many threads, with many words."""
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
        "checkpoint are still there; make room or get permission, and give the "
        "same command again."
      ) from error


def remove_unfinished(folder: pathlib.Path) -> None:
  """Removes what a crash left behind of checkpoints that came or went."""
  for path in folder.glob("*"):
    if re.fullmatch(r"\d+\.(new|old)(\.orbax-checkpoint-tmp.*)?", path.name):
      shutil.rmtree(path)


def remove_damaged(folder: pathlib.Path) -> list[str]:
  """Removes checkpoints that are not what was written.

  Returns:
    What is wrong with each.
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
  """Under another name: half of it is not to be taken for a damaged one."""
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
      with path.open("rb") as file:
        digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
  return digests


@functools.cache
def _hush() -> None:
  """Orbax raises what fails, and we say so; it tells all threads' stories, too.

  A disk that is full would come with hundreds of lines of tracebacks.
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
