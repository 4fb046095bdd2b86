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
    names = self.study.datasets(epoch)
    return [name for name in names if not self._has(run, epoch, name)]

  def diverged(self, run: Run) -> bool:
    epochs = range(1, self.study.config.epochs + 1)
    return any(self._has(run, epoch, "diverged") for epoch in epochs)

  def _has(self, run: Run, epoch: int, dataset: str) -> bool:
    config_hash, method = self.study.config.hash, run.method.name
    return (config_hash, method, run.seed, epoch, dataset) in self.keys

  def __call__(self, run: Run) -> bool:
    """Returns whether anything of a run is missing."""
    epochs = self.study.epochs_evaluated()
    return any(self.datasets(run, epoch) for epoch in epochs)
