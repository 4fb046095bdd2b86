"""What was measured: rows that are kept with the code, and what is in them."""

from collections.abc import Iterable, Sequence
import gzip
import itertools
import json
import pathlib
from typing import Any

import numpy as np

from experiments import files
from experiments.config import Config
from experiments.engine.rows import RowsError, finite, key, read

FOLDER = pathlib.Path(__file__).parents[1] / "results"


def keep(
  folders: Iterable[pathlib.Path], into: pathlib.Path = FOLDER
) -> list[pathlib.Path]:
  """Copies the rows of studies' folders to those that are kept.

  Args:
    folders: what `python -m experiments run` made.
    into: where there is, or will be, a file for each study. A row that is there
      already is replaced.

  Returns:
    The files that were written.
  """
  by_study: dict[str, list[dict[str, Any]]] = {}
  for folder in folders:
    found = list(read(folder / "rows.jsonl"))
    if not found:
      raise RowsError(
        f"{folder / 'rows.jsonl'} has no rows: give a folder that `python -m "
        "experiments run` made."
      )
    for row in found:
      by_study.setdefault(row["study"], []).append(row)
  into.mkdir(parents=True, exist_ok=True)
  paths = []
  for study, rows in by_study.items():
    path = into / f"{study}.jsonl.gz"
    merged = {key(row): row for row in [*read(path), *rows]}
    text = "".join(_line(merged[k]) + "\n" for k in sorted(merged))
    with files.replacing(path) as temporary:
      # Without the time: the same rows are the same file.
      temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    paths.append(path)
  return paths


def _line(row: dict[str, Any]) -> str:
  return json.dumps(finite(row), ensure_ascii=False, separators=(",", ":"))


class Results:
  """Rows of one config, to be asked for their numbers."""

  def __init__(self, rows: Iterable[dict[str, Any]], config: Config) -> None:
    self.epochs = config.epochs
    self.rows = {
      (row["optimizer"], row["seed"], row["epoch"], row["dataset"]): row
      for row in rows
      if row["config_hash"] == config.hash
    }

  def of_study(self, study: str) -> list[dict[str, Any]]:
    return [row for row in self.rows.values() if row["study"] == study]

  def has(
    self,
    optimizers: Sequence[str],
    seeds: Sequence[int],
    datasets: Sequence[str] = ("clean",),
    epochs: Sequence[int] | None = None,
  ) -> bool:
    """Whether all of them are there, by default after the last epoch."""
    return all(
      key in self.rows
      for key in itertools.product(
        optimizers, seeds, epochs or (self.epochs,), datasets
      )
    )

  def get(
    self,
    optimizer: str,
    seeds: Iterable[int],
    datasets: Sequence[str] = ("clean",),
    epoch: int | None = None,
  ) -> list[list[dict[str, Any]]]:
    """For each seed, its rows of the sets of images."""
    epoch = self.epochs if epoch is None else epoch
    return [
      [self.rows[optimizer, seed, epoch, name] for name in datasets]
      for seed in seeds
    ]

  def values(
    self,
    optimizer: str,
    metric: str,
    seeds: Iterable[int],
    datasets: Sequence[str] = ("clean",),
    epoch: int | None = None,
    part: str = "metrics",
  ) -> np.ndarray:
    """For each seed, a metric's mean over the sets of images.

    Args:
      optimizer: its name in the rows.
      metric: likewise.
      seeds: which.
      datasets: which sets of images.
      epoch: after which; by default the last.
      part: of the row, such as "scaled" for what temperature scaling leaves.
    """
    found = self.get(optimizer, seeds, datasets, epoch)
    return np.array(
      [np.mean([row[part][metric] for row in rows]) for rows in found]
    )

  def over_epochs(
    self,
    optimizer: str,
    metric: str,
    seeds: Sequence[int],
    epochs: Sequence[int],
    dataset: str = "clean",
  ) -> np.ndarray:
    """A metric of shape (seeds, epochs)."""
    return np.stack(
      [self.values(optimizer, metric, seeds, [dataset], e) for e in epochs],
      axis=1,
    )


def load(folder: pathlib.Path = FOLDER) -> list[dict[str, Any]]:
  """All rows that are kept."""
  return [row for path in sorted(folder.glob("*.gz")) for row in read(path)]
