"""What studies in one file share: rows, and which runs a folder lacks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import hashlib
import json
import os
import pathlib
import time
from typing import Any, NamedTuple

from experiments.engine.progress import Progress
from experiments.rows import Rows, environment, key, now, read
from experiments.tuning import Grid, Setting, choose, to_try


class Run(NamedTuple):
  """One network to train.

  Its arm, which is its method, is a NamedTuple of settings with a property
  `key`: the method's name in rows.
  """

  arm: Any
  seed: int


# Trains runs together. Yields a run, a step, and what the run's row has.
Train = Callable[
  [Sequence[Run], Progress], Iterable[tuple[Run, int, dict[str, Any]]]
]


def digest(settings: Mapping[str, Any]) -> str:
  """Returns what identifies settings in rows."""
  content = json.dumps(settings, sort_keys=True)
  return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Task:
  """What the rows of a study have in common."""

  study: str
  dataset: str  # the examples that metrics are of
  config: Mapping[str, Any]  # settings that all runs share, such as `steps`
  train: Train
  at_once: int  # runs that train together, and are lost if it is stopped

  def rows(
    self, folder: pathlib.Path, runs: Iterable[Run]
  ) -> list[dict[str, Any]]:
    """Trains the runs that a folder lacks. Returns all rows of this task."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, say = Rows(folder / "rows.jsonl"), Progress()
    its, end = digest(self.config), (self.config["steps"], self.dataset)
    missing = [
      run for run in runs if (its, run.arm.key, run.seed, *end) not in rows.keys
    ]
    for first in range(0, len(missing), self.at_once):
      group = missing[first : first + self.at_once]
      start, new = time.monotonic(), []
      for run, step, content in self.train(group, say):
        row = {"study": self.study, "method": run.arm.key}
        row |= {"settings": run.arm._asdict(), "seed": run.seed, "epoch": step}
        row |= {"dataset": self.dataset, **content, "config": self.config}
        row |= {"config_hash": its, "runs_at_once": len(group)}
        row |= {"wall_time": round(time.monotonic() - start, 1), "time": now()}
        new.append(row | environment() | {"cores": os.cpu_count()})
      # Sorted, so that a run whose last row is written is complete.
      rows.append(sorted(new, key=key))
      say(f"{self.study}: {len(group)} runs in {new[-1]['wall_time']:.0f} s")
    return [
      row
      for row in read(rows.path)
      if (row["study"], row["config_hash"]) == (self.study, its)
    ]

  def tune(
    self,
    folder: pathlib.Path,
    grids: Mapping[Any, Grid],
    arm: Callable[[Any, Setting], Any],
    seeds: Sequence[int],
    mean_losses: Callable[[list[dict[str, Any]]], Mapping[str, float]],
  ) -> list[Any]:
    """Trains the settings of grids, and returns each method's best arm.

    Args:
      folder: folder of the rows.
      grids: by method. They are extended by one setting at most.
      arm: returns the arm of a method at a setting.
      seeds: seeds to train each arm with.
      mean_losses: returns the losses of arms by their keys, from rows.
    """
    known, tried = {}, {}
    losses = lambda method, setting: known.get(arm(method, setting).key)
    for _ in range(2):  # the grids, then their extension
      tried = to_try(grids, losses, more=1)
      arms = [arm(method, it) for method, its in tried.items() for it in its]
      runs = [Run(arm, seed) for arm in arms for seed in seeds]
      known = mean_losses(self.rows(folder, runs))
    chosen = choose(tried, losses)
    return [arm(method, setting) for method, setting in chosen.items()]
