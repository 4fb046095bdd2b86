"""Checkpoints of a group of runs: the last two.

A checkpoint is a file named for its epoch. It has the state's arrays, the epoch
and the group with its settings, as `numpy.savez` writes them, and then the
SHA-256 digest of all that. It is written under a temporary name while training
continues. So a file of that name is complete, and one that was changed, or
copied from another epoch or group, is noticed.
"""

from collections.abc import Mapping
import concurrent.futures
import errno
import hashlib
import json
import pathlib
import re
import reprlib
from typing import Any
import zipfile

import jax
import numpy as np

from experiments.engine.train import gather, put
from experiments.files import UserError, naming, remove, replacing, sha256

KEPT = 2
# Errors of reading, if a file was removed or replaced.
_DAMAGED = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP)
# What reading a damaged file raises.
_PROBLEMS = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile)
DIGEST_SIZE = hashlib.sha256().digest_size


class Checkpoints:
  """The last states of a group, which the texts in `group` identify."""

  def __init__(self, folder: pathlib.Path, group: Mapping[str, str]):
    self.folder, self.group = folder, group
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._finished: concurrent.futures.Future[None] | None = None

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *exception: Any) -> None:
    self._thread.shutdown()  # waits for the last one
    self._wait()

  @property
  def epochs(self) -> list[int]:
    """Returns the epochs that have a checkpoint, the last one first."""
    return _epochs(self.folder)

  def restore(self, epoch: int, like: Any) -> Any:
    """Returns the state after an epoch, with the shardings of `like`."""
    path = self.folder / str(epoch)
    try:
      _verify(path, self.group)
      with naming(path), path.open("rb") as file, np.load(file) as saved:
        arrays = [saved[name] for name in saved if name != "identity"]
    except _PROBLEMS as error:
      raise UserError(
        f"{path} can't be restored: {error}. Repeat the command: it removes "
        "what is damaged, and resumes from the checkpoint before it."
      ) from error
    leaves, treedef = jax.tree.flatten(like)
    form = lambda x: (x.shape, x.dtype)
    if [*map(form, arrays)] != [*map(form, leaves)]:
      raise UserError(
        f"{path} is undamaged, but can't be restored: its arrays have other "
        "shapes or dtypes than the state. Other versions of the code may have "
        "written it. Remove it, to resume from the one before it."
      )
    pairs = zip(arrays, leaves, strict=True)
    return treedef.unflatten([put(x, its.sharding) for x, its in pairs])

  def save(self, epoch: int, state: Any) -> None:
    """Writes a copy while training continues; removes later checkpoints."""
    self._wait()  # raises if the one before failed
    arrays = gather(jax.tree.leaves(state))
    if jax.default_backend() == "cpu":  # views of what the next epoch reuses
      arrays = [x.copy() for x in arrays]
    if jax.process_index() == 0:
      self._finished = self._thread.submit(self._write, epoch, arrays)

  def _write(self, epoch: int, arrays: list[np.ndarray]) -> None:
    self.folder.mkdir(exist_ok=True)
    with replacing(self.folder / str(epoch)) as temporary:
      with temporary.open("wb") as file:
        identity = json.dumps({**self.group, "epoch": epoch})
        np.savez(file, *arrays, identity=identity)
      digest = bytes.fromhex(sha256(temporary))
      with temporary.open("ab") as file:
        file.write(digest)
    earlier = [e for e in self.epochs if e < epoch]
    for other in {*self.epochs} - {epoch, *earlier[: KEPT - 1]}:
      remove(self.folder / str(other))

  def _wait(self) -> None:
    finished, self._finished = self._finished, None
    if finished is not None:
      try:
        finished.result()
      except OSError as error:
        raise UserError(
          f"{self.folder} can't be written: {error}. Rows and the last "
          "checkpoint are kept. Make room or get permission, and repeat the "
          "command."
        ) from error


def remove_damaged(folder: pathlib.Path, group: Mapping[str, str]) -> list[str]:
  """Removes checkpoints that are damaged or of others. Returns the problems."""
  problems = []
  for epoch in reversed(_epochs(folder)):
    path = folder / str(epoch)
    try:
      _verify(path, group)
    except _PROBLEMS as error:
      if isinstance(error, OSError) and error.errno not in _DAMAGED:
        # The same file may be readable tomorrow.
        raise UserError(
          f"{path} can't be read: {error}. Get permission or mend the disk, "
          "and repeat the command; or remove it, to resume from the one before."
        ) from error
      problems.append(f"removed the damaged checkpoint {path}: {error}")
      remove(path)
  return problems


def _epochs(folder: pathlib.Path) -> list[int]:
  names = (path.name for path in folder.glob("*"))
  epochs = (int(name) for name in names if re.fullmatch("[1-9][0-9]*", name))
  return sorted(epochs, reverse=True)


def _verify(path: pathlib.Path, group: Mapping[str, str]) -> None:
  """Raises an error if a checkpoint is damaged, or not of the group."""
  if not path.is_file():
    raise ValueError("it is not a file")
  digest = hashlib.sha256()
  with naming(path), path.open("rb") as file:
    left = path.stat().st_size - DIGEST_SIZE
    while left > 0 and (part := file.read(min(left, 2**20))):
      digest.update(part)
      left -= len(part)
    written = file.read()
  if written != digest.digest():
    raise ValueError("it is not what was written, by its SHA-256 digest")
  with naming(path), path.open("rb") as file, np.load(file) as saved:
    identity = json.loads(str(saved["identity"]))
  for name, value in {**group, "epoch": int(path.name)}.items():
    if identity.get(name) != value:
      given = reprlib.repr(identity.get(name))
      raise ValueError(f"expected {name} {value!r}, got {given}")
