"""Trains and evaluates the runs that a study's folder lacks.

The folder has `rows.jsonl`, the results; `study.json`, the settings; and
`checkpoints/`, a folder for each group of runs that train together. The same
command resumes an interrupted study from the last checkpoint, and makes the
rows that are missing.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import itertools
import json
import math
import pathlib

import jax
import numpy as np

from experiments.config import Run, Study, load_settings
from experiments.engine import evaluate, train
from experiments.engine.checkpoints import remove_unfinished
from experiments.engine.group import Group, Options, Workshop, begun, meet
from experiments.engine.memory import runs_that_fit
from experiments.engine.progress import Progress
from experiments.engine.rows import Missing, Rows
from experiments.files import UserError, locked, remove_leftovers, replacing


def run_study(
  study: Study,
  folder: pathlib.Path,
  options: Options | None = None,
  say: Callable[[str], object] | None = None,
) -> pathlib.Path:
  """Makes all rows of a study that its folder lacks.

  Args:
    study: what to train and evaluate.
    folder: folder of the study, created if missing.
    options: how to run it.
    say: prints progress; by default a line on the terminal.

  Returns:
    The file of rows.
  """
  options, say = options or Options(), say or Progress()
  folder = folder.absolute()
  writes = jax.process_index() == 0
  if writes:
    folder.mkdir(parents=True, exist_ok=True)

  def busy():
    raise UserError(
      f"Another process is at work in {folder}. Wait for it, or give another "
      "folder with --output."
    )

  mesh = train.make_mesh(options.batch_devices)
  with locked(folder, busy) if writes else contextlib.nullcontext():
    if writes:
      _prepare(study, folder)
    rows = Rows(folder / "rows.jsonl", write=writes)
    meet("start")
    rows.check_methods(study)
    missing = Missing(study, rows.keys)
    groups = list(make_groups(study, folder, missing, mesh, options))
    done = sum(not missing(run) for run in study.runs)
    say(f"{study.name}: {done} of {len(study.runs)} runs are there already")
    for others in rows.left_out(load_settings(folder)) if writes else ():
      say(f"{study.name}: also there: {others}; `report` leaves them out")
    if groups:
      with _workshop(study, folder, rows, mesh, options, say) as shop:
        for number, runs in enumerate(groups, 1):
          Group(shop, runs, f"{study.name} {number}/{len(groups)}").complete()
  say(f"{study.name}: complete, {rows.path}")
  return rows.path


def _prepare(study: Study, folder: pathlib.Path) -> None:
  """Writes the settings, and removes files that a crash left behind."""
  settings = folder / "study.json"
  if not (study.models_of and settings.exists()):
    with replacing(settings) as temporary:
      temporary.write_text(json.dumps(dataclasses.asdict(study), indent=2))
  remove_leftovers(folder, "study.json")
  remove_leftovers(folder / "logits", "*.npy")
  for group in folder.glob("checkpoints/*"):
    remove_leftovers(group, "runs.json")
    remove_unfinished(group / "state")


@contextlib.contextmanager
def _workshop(study, folder, rows, mesh, options, say) -> Iterator[Workshop]:
  data = train.load_dataset(study.config)
  engine = train.Engine(
    study.config,
    diagnostics=study.diagnostics,
    mesh=mesh,
    convolutions=options.convolutions,
  )
  evaluator = evaluate.Evaluator(engine)
  with contextlib.closing(evaluate.Sets(data, options.corrupted)) as sets:
    yield Workshop(
      study, folder, options, rows, data, sets, engine, evaluator, say
    )


def make_groups(
  study: Study,
  folder: pathlib.Path,
  missing: Missing,
  mesh: jax.sharding.Mesh,
  options: Options,
) -> Iterator[list[Run]]:
  """Yields the runs that lack rows, in groups that train together.

  A group that has checkpoints is left unchanged, even if another study that
  shares the folder began it. Methods of a seed that share a program are in one
  group, if they fit.
  """
  taken: set[Run] = set()
  for runs in begun(study, folder):
    if any(map(missing, set(runs) & set(study.runs))):
      yield runs
      taken |= set(runs)
  config = study.config
  convolutions = train.choose_convolutions(options.convolutions, config)
  by_program: dict[object, dict[int, list[Run]]] = {}
  for run in study.runs:
    if missing(run) and run not in taken:
      program = jax.tree.structure(run.method.resolve(config))
      by_seed = by_program.setdefault(program, {})
      by_seed.setdefault(run.seed, []).append(run)
  for by_seed in by_program.values():
    runs = [run for same_seed in by_seed.values() for run in same_seed]
    most = options.group_size or runs_that_fit(
      config, runs[0].method, convolutions, mesh
    )
    seeds = max(most // max(map(len, by_seed.values())), 1)  # in a group
    for part in split_seeds(study, list(by_seed), seeds):
      runs = [run for seed in part for run in by_seed[seed]]
      yield from (runs[i : i + most] for i in range(0, len(runs), most))


def split_seeds(study: Study, seeds: list[int], most: int) -> list[list[int]]:
  """Seeds in even parts of at most so many, which keep ensembles whole."""
  size = max(study.ensembles, default=1)
  if most < size and any(set(pair) & set(study.pooled) for pair in study.pairs):
    raise UserError(
      f"{study.name} compares ensembles of {size} seeds, which must train "
      f"together, but only {most} do. Set --group-size to {size} times the "
      f"number of methods, {len(study.methods)}, or use a larger device."
    )
  # Where ensembles don't fit, each seed is a block of its own.
  unit, most = (study.block, most // size) if size <= most else (None, most)
  blocks = [list(block) for _, block in itertools.groupby(seeds, unit)]
  count = math.ceil(len(blocks) / most)
  return [
    [seed for i in part for seed in blocks[i]]
    for part in np.array_split(np.arange(len(blocks)), count)
  ]
