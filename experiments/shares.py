"""Divides the runs of a study: into groups that train together, and shares."""

from collections.abc import Callable, Iterator, Sequence
import itertools
import math
from typing import Any

import jax
import numpy as np

from experiments.files import UserError

# More runs at once are no faster (10 of ResNet-18 keep an H200 as busy as 40),
# and take longer to compile.
MOST_RUNS = 10


def divide(
  study: Any, runs: Sequence[Any], most: Callable[[Any], int]
) -> Iterator[list[Any]]:
  """Yields a study's runs in groups that train together as one program.

  Methods of a seed that share a program are in one group, if they fit. `most`
  returns how many runs with a method do.
  """
  by_program: dict[object, dict[int, list[Any]]] = {}
  for run in runs:
    program = jax.tree.structure(run.method.resolve(study.config))
    by_seed = by_program.setdefault(program, {})
    by_seed.setdefault(run.seed, []).append(run)
  for by_seed in by_program.values():
    same = [run for same_seed in by_seed.values() for run in same_seed]
    size = most(same[0].method)
    seeds = max(size // max(map(len, by_seed.values())), 1)  # in a group
    for part in split_seeds(study, list(by_seed), seeds):
      same = [run for seed in part for run in by_seed[seed]]
      yield from (same[i : i + size] for i in range(0, len(same), size))


def split_seeds(study: Any, seeds: list[int], most: int) -> list[list[int]]:
  """Returns seeds in even parts of at most so many. Keeps ensembles whole."""
  size = max(study.ensembles, default=1)
  if most < size and any(set(pair) & set(study.pooled) for pair in study.pairs):
    raise UserError(
      f"{study.name} compares ensembles of {size} seeds, which must train "
      f"together, but only {most} do. Set --group-size to {size} times the "
      f"number of methods, {len(study.methods)}, or use a larger device. With "
      "--share or --jobs, use fewer shares."
    )
  # Where ensembles don't fit, each seed is a block of its own.
  unit, most = (study.block, most // size) if size <= most else (None, most)
  blocks = [list(block) for _, block in itertools.groupby(seeds, unit)]
  count = math.ceil(len(blocks) / most)
  return [
    [seed for i in part for seed in blocks[i]]
    for part in np.array_split(np.arange(len(blocks)), count)
  ]


def take(study: Any, runs: Sequence[Any]) -> list[Any]:
  """Returns the runs of a study's share: every nth group of at most ten runs.

  The groups are smaller if there are more shares than such groups. They do not
  depend on devices or options.
  """
  number, count = study.share
  size = max(min(MOST_RUNS, len(runs) // count), 1)
  groups = list(divide(study, runs, lambda _: size))
  if not 1 <= number <= count <= len(groups):
    raise UserError(
      f"Expected a share such as 1/{len(groups)}, of at most {len(groups)} "
      f"shares of {study.name}, got {number}/{count}."
    )
  return [run for group in groups[number - 1 :: count] for run in group]
