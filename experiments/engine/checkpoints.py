"""Checkpoints of a group of runs: the last two, with digests of their files.

Orbax writes a checkpoint while training continues, under a temporary name. Then
`digests.json` is written beside its files: their SHA-256 digests, the epoch,
and the group with its settings. Only then is the checkpoint renamed to the
number of its epoch. So a checkpoint of that name is complete, and one that was
changed, or copied from another epoch or group, is noticed.
"""

from collections.abc import Iterator, Mapping
import concurrent.futures
import contextlib
import functools
import json
import logging
import pathlib
import re
import reprlib
import shutil
import sys
import threading
from typing import Any

import jax

from experiments.files import (
  UserError,
  parse_json,
  remove,
  replacing,
  sha256,
)

KEPT = 2
DIGESTS = "digests.json"
# Orbax measures its timeouts by the wall clock, so one of minutes would end a
# study if the clock is set. This one allows for 146 years in both directions.
TIMEOUT = int(threading.TIMEOUT_MAX) // 2
# What identifies a group: texts such as the digest of its settings.
Group = Mapping[str, str]


class Checkpoints:
  """The last states of a group.

  Attributes:
    folder: where they are, each in a folder named for its epoch.
    group: identifies the group that they belong to.
  """

  def __init__(self, folder: pathlib.Path, group: Group):
    import orbax.checkpoint as ocp

    _silence_orbax()
    self.folder, self.group = folder, group
    self._orbax = ocp.AsyncCheckpointer(
      ocp.StandardCheckpointHandler(), timeout_secs=TIMEOUT
    )
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
    """Returns the epochs that have a checkpoint, the last one first."""
    return sorted(_epochs(self.folder), reverse=True)

  def restore(self, epoch: int, like: Any) -> Any:
    """Returns the state after an epoch.

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
      content = _content(new, self.group, epoch, {temporary.name})
      temporary.write_text(json.dumps(content))
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
      remove(path)


def remove_damaged(folder: pathlib.Path, group: Group) -> list[str]:
  """Removes checkpoints that are damaged, or of another epoch or group.

  Returns:
    The problem of each.
  """
  problems = []
  for epoch in sorted(_epochs(folder)):
    path = folder / str(epoch)
    if what := _problem(path, group):
      problems.append(f"removed the damaged checkpoint {path}: {what}")
      _remove(path)
  return problems


def _epochs(folder: pathlib.Path) -> set[int]:
  return {
    int(path.name)
    for path in folder.glob("*")
    if re.fullmatch("[1-9][0-9]*", path.name)
  }


def _remove(path: pathlib.Path) -> None:
  """Renames a checkpoint before removing it: a crash leaves no half of it."""
  remove(path.rename(path.with_suffix(".old")))


def _problem(path: pathlib.Path, group: Group) -> str | None:
  """Returns what is wrong with a checkpoint, or None."""
  try:
    written = parse_json((path / DIGESTS).read_bytes())
    expected = _content(path, group, int(path.name), {DIGESTS})
  except PermissionError as error:
    raise UserError(f"{error}: get permission to read it.") from error
  except (OSError, ValueError) as error:
    return f"{DIGESTS} can't be read ({error})"
  if written == expected:
    return None
  if not isinstance(written, dict) or written.keys() != expected.keys():
    return f"{DIGESTS} is not of this form: {', '.join(expected)}"
  present, files = expected.pop("files"), written.pop("files")
  for name, value in expected.items():
    if written[name] != value:
      given = reprlib.repr(written[name])
      return f"expected one of {name} {value!r}, got one of {name} {given}"
  if not isinstance(files, dict):
    return f"{DIGESTS} has no digests"
  for name in sorted(files.keys() | present.keys()):
    if name not in present:
      return f"{name} is missing"
    if name not in files:
      return f"{name} is not one of its files"
    if present[name] != files[name]:
      return f"{name} is not what was written, by its SHA-256 digest"
  return None


def _content(
  folder: pathlib.Path, group: Group, epoch: int, without: set[str]
) -> dict[str, Any]:
  """Returns what `digests.json` has: group, epoch, and digests by path."""
  return {**group, "epoch": epoch, "files": _digests(folder, without)}


def _digests(folder: pathlib.Path, without: set[str]) -> dict[str, str]:
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
