"""The rows that a study still lacks."""

from collections.abc import Set

from experiments.config import Run, Study
from experiments.rows.schema import Key


class Missing:
  """The rows that a study still lacks, by the keys of those that exist."""

  def __init__(self, study: Study, keys: Set[Key]):  # `keys` may grow
    self.study, self.keys = study, keys

  def datasets(self, run: Run, epoch: int) -> list[str]:
    """Returns the sets of images for which a run lacks an epoch's rows."""
    if self.diverged(run):
      return []
    prefix = (*self._prefix(run), epoch)
    return [
      name
      for name in self.study.datasets(epoch)
      if (*prefix, name) not in self.keys
    ]

  def diverged(self, run: Run) -> bool:
    prefix = self._prefix(run)
    return any(
      (*prefix, epoch, "diverged") in self.keys
      for epoch in range(1, self.study.config.epochs + 1)
    )

  def _prefix(self, run: Run) -> tuple[str, str, int]:
    return self.study.config.hash, run.method.name, run.seed

  def __call__(self, run: Run) -> bool:
    """Returns whether anything of a run is missing."""
    epochs = self.study.epochs_evaluated()
    return any(self.datasets(run, epoch) for epoch in epochs)
