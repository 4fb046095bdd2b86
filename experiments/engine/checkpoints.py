"""Checkpoints of a group of runs, written while training goes on."""

from collections.abc import Iterator
import contextlib
import pathlib
from typing import Any

import jax

from experiments.files import UserError


class Checkpoints:
  """The last state of a group, in a folder.

  Attributes:
    folder: where it is.
  """

  def __init__(self, folder: pathlib.Path):
    import orbax.checkpoint as ocp

    self.folder = folder
    options = ocp.CheckpointManagerOptions(max_to_keep=1, create=True)
    self._manager = ocp.CheckpointManager(folder / "state", options=options)

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *exception: Any) -> None:
    with self._writing():  # The last one may not be whole yet.
      self._manager.close()

  @property
  def epoch(self) -> int:
    """After which the state is; 0 if there is none."""
    return self._manager.latest_step() or 0

  def restore(self, like: Any) -> Any:
    """The state.

    Args:
      like: its shapes, dtypes and shardings.
    """
    import orbax.checkpoint as ocp

    leaves, treedef = jax.tree.flatten(like)
    args = ocp.args.StandardRestore(leaves)
    return treedef.unflatten(self._manager.restore(self.epoch, args=args))

  def delete(self) -> None:
    """Drops the state, for training to start anew."""
    self._manager.delete(self.epoch)

  def save(self, epoch: int, state: Any) -> None:
    """Copies the state, and writes the copy while training goes on."""
    import orbax.checkpoint as ocp

    with self._writing():  # which may fail for the one before it, too
      args = ocp.args.StandardSave(jax.tree.leaves(state))
      self._manager.save(epoch, args=args, force=True)

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
