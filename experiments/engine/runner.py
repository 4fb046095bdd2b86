"""Trains and evaluates the runs that a study's folder lacks.

The folder has `rows.jsonl`, the results; `study.json`, the settings; and
`checkpoints/`, a folder for each group of runs that train together. The same
command resumes an interrupted study from the last checkpoint, and makes the
rows that are missing.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import json
import pathlib

import jax

from experiments.config import Run, Study, load_settings
from experiments.datasets import frost
from experiments.engine import evaluate, train
from experiments.engine.group import Group, Options, begun, meet
from experiments.engine.memory import runs_that_fit
from experiments.engine.progress import Progress
from experiments.files import UserError, locked, remove_leftovers, replacing
from experiments.rows import Missing, Rows, environment
from experiments.shares import divide


def run_study(
  study: Study,
  folder: pathlib.Path,
  options: Options | None = None,
  say: Callable[[str], object] | None = None,
) -> pathlib.Path:
  """Makes all rows of a study that its folder lacks.

  Returns the file of rows. Progress goes to `say`, by default the terminal.
  """
  options, say = options or Options(), say or Progress()
  study.check_images()
  config = study.config
  if options.corrupted and (
    config.dataset not in ("cifar10", "sample") or config.evaluate_on != "test"
  ):
    raise UserError(
      "--corrupted has the test images of CIFAR-10, but the study has "
      f"dataset={config.dataset}, evaluate_on={config.evaluate_on}. Leave it "
      "out: corrupted images are then made."
    )
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
  environment()  # now, because the sources may be edited while it trains
  with locked(folder, busy) if writes else contextlib.nullcontext():
    if writes:
      _prepare(study, folder)
    else:
      meet("start")  # reads rows after process 0 has begun the folder
    rows = Rows(folder / "rows.jsonl", write=writes)
    if writes:
      meet("start")
    rows.check_methods(study)
    missing = Missing(study, rows.keys)
    groups = list(make_groups(study, folder, missing, mesh, options))
    done = sum(not missing(run) for run in study.runs)
    say(f"{study.name}: {done} of {len(study.runs)} runs are there already")
    for others in rows.left_out(load_settings(folder)) if writes else ():
      say(f"{study.name}: also there: {others}; `report` leaves them out")
    if groups:
      _complete(study, folder, options, rows, mesh, groups, say)
  say(f"{study.name}: complete, {rows.path}")
  return rows.path


def _prepare(study: Study, folder: pathlib.Path) -> None:
  """Writes the settings, and removes files that a crash left behind."""
  if not (study.models_of and (folder / "study.json").exists()):
    write_settings(study, folder)
  remove_leftovers(folder, "study.json")
  remove_leftovers(folder / "logits", "*.npy")
  for group in folder.glob("checkpoints/*"):
    remove_leftovers(group, "runs.json")
    remove_leftovers(group / "state", "*")


def write_settings(study: Study, folder: pathlib.Path) -> None:
  """Writes the settings that `load_settings` reads."""
  with replacing(folder / "study.json") as temporary:
    temporary.write_text(json.dumps(dataclasses.asdict(study), indent=2))


def _complete(study, folder, options, rows, mesh, groups, say) -> None:
  data = train.load_dataset(study.config)
  if "frost" in study.corruptions and not options.corrupted:
    frost.load_frost()  # If it is missing, say so before training.
  engine = train.Engine(
    study.config,
    diagnostics=study.diagnostics,
    mesh=mesh,
    convolutions=options.convolutions,
  )
  evaluator = evaluate.Evaluator(engine)
  with contextlib.closing(evaluate.Sets(data, options.corrupted)) as sets:
    for number, runs in enumerate(groups, 1):
      Group(
        runs,
        f"{study.name} {number}/{len(groups)}",
        study=study,
        output=folder,
        options=options,
        rows=rows,
        data=data,
        sets=sets,
        engine=engine,
        evaluator=evaluator,
        say=say,
      ).complete()


def make_groups(
  study: Study,
  folder: pathlib.Path,
  missing: Missing,
  mesh: jax.sharding.Mesh,
  options: Options,
) -> Iterator[list[Run]]:
  """Yields the runs that lack rows, in groups that train together.

  A group with checkpoints stays the same, even if another study began it.
  """
  taken: set[Run] = set()
  for runs in begun(study, folder):
    if any(map(missing, set(runs) & set(study.runs))):
      yield runs
      taken |= set(runs)
  config = study.config
  convolutions = train.choose_convolutions(options.convolutions, config)
  left = [run for run in study.runs if missing(run) and run not in taken]
  yield from divide(
    study,
    left,
    lambda method: (
      options.group_size or runs_that_fit(config, method, convolutions, mesh)
    ),
  )
