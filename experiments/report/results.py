"""Results: the rows of one config, and their metrics as arrays."""

from collections.abc import Iterable, Sequence
import itertools
from typing import Any

import numpy as np

from experiments.config import Config


class Results:
  """Rows of one config.

  Attributes:
    epochs: of training. Methods use the last epoch by default.
    rows: by optimizer, seed, epoch and set of images.
  """

  def __init__(self, rows: Iterable[dict[str, Any]], config: Config) -> None:
    self.epochs, its = config.epochs, config.hash
    self.rows = {
      (row["method"], row["seed"], row["epoch"], row["dataset"]): row
      for row in rows
      if row["config_hash"] == its
    }
    self._seeds = sorted({seed for _, seed, _, _ in self.rows})

  def of_study(self, study: str) -> list[dict[str, Any]]:
    return [row for row in self.rows.values() if row["study"] == study]

  def has(
    self,
    optimizers: Sequence[str],
    seeds: Sequence[int],
    datasets: Sequence[str] = ("clean",),
    epochs: Sequence[int] | None = None,
  ) -> bool:
    """Whether there are rows of all these, by default after the last epoch."""
    return all(
      key in self.rows
      for key in itertools.product(
        optimizers, seeds, epochs or (self.epochs,), datasets
      )
    )

  def seeds(
    self,
    optimizers: Sequence[str],
    datasets: Sequence[str] = ("clean",),
    epochs: Sequence[int] | None = None,
  ) -> list[int]:
    """Seeds that have rows of all these."""
    return [
      seed
      for seed in self._seeds
      if self.has(optimizers, [seed], datasets, epochs)
    ]

  def evaluated(
    self,
    optimizers: Sequence[str],
    seeds: Sequence[int],
    dataset: str = "clean",
  ) -> list[int]:
    """Epochs after which all of these runs were evaluated, in order."""
    found = sorted({epoch for _, _, epoch, _ in self.rows})
    return [e for e in found if self.has(optimizers, seeds, [dataset], [e])]

  def get(
    self,
    optimizer: str,
    seeds: Iterable[int],
    datasets: Sequence[str] = ("clean",),
    epoch: int | None = None,
  ) -> list[list[dict[str, Any]]]:
    """The rows of each seed, one for each set of images."""
    epoch = self.epochs if epoch is None else epoch
    return [
      [self.rows[optimizer, seed, epoch, name] for name in datasets]
      for seed in seeds
    ]

  def values(
    self,
    optimizer: str,
    metric: str,
    seeds: Sequence[int],
    datasets: Sequence[str] = ("clean",),
    epoch: int | Sequence[int] | None = None,
    part: str = "metrics",
  ) -> np.ndarray:
    """For each seed, a metric's mean over the sets of images and the epochs.

    Args:
      optimizer: the method's name in the rows.
      metric: its name in the rows.
      seeds: of the runs.
      datasets: sets of images to average over.
      epoch: one epoch, or several to average over; by default the last.
      part: of the row: "metrics", or "scaled" and the like after temperature
        scaling.
    """
    if isinstance(epoch, Sequence):
      each = [
        self.values(optimizer, metric, seeds, datasets, e, part) for e in epoch
      ]
      return np.mean(each, axis=0)
    found = self.get(optimizer, seeds, datasets, epoch)
    numbers = [[row[part][metric] for row in rows] for rows in found]
    return np.array(numbers, float).mean(axis=1)

  def over_epochs(
    self,
    optimizer: str,
    metric: str,
    seeds: Sequence[int],
    epochs: Sequence[int],
    dataset: str = "clean",
    part: str = "metrics",
  ) -> np.ndarray:
    """A metric of shape (seeds, epochs)."""
    columns = [
      self.values(optimizer, metric, seeds, [dataset], epoch, part)
      for epoch in epochs
    ]
    return np.stack(columns, axis=1)
