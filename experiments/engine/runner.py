"""Trains and evaluates what a study lacks, and loses nothing on the way.

A study's folder has `rows.jsonl`, the results; `study.json`, its settings; and
`checkpoints/`, a folder for each group of runs that train together. Whatever
stops it, the same command goes on from the last checkpoint, and makes the rows
that are missing.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
import sys
import time
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from experiments import files
from experiments.cifar import cache
from experiments.config import OPTIMIZERS, Config, Study
from experiments.engine import evaluate, train
from experiments.engine.memory import runs_that_fit
from experiments.engine.rows import Rows, environment, now

Run = tuple[str, int]


@dataclasses.dataclass(frozen=True)
class Options:
  """How a study is run; what is found does not depend on it.

  Attributes:
    method: of :data:`train.METHODS`, or "auto".
    batch_devices: how many devices share each batch.
    group_size: runs that train together; None for what
      :func:`memory.runs_that_fit` says.
    checkpoint_every: epochs between checkpoints; None for 10, or a twentieth of
      all if that is more.
    save_logits: whether to keep the logits of every set, as .npy files.
    corrupted: where the published CIFAR-10-C is, to use it.
  """

  method: str = "auto"
  batch_devices: int = 1
  group_size: int | None = None
  checkpoint_every: int | None = None
  save_logits: bool = False
  corrupted: str | None = None


class Missing:
  """Which rows of a study are not there yet."""

  def __init__(self, study: Study, rows: Rows):
    self.study, self.rows = study, rows

  def datasets(self, run: Run, epoch: int) -> list[str]:
    if self.diverged(run):
      return []
    prefix = (self.study.config.hash, *run, epoch)
    return [
      name
      for name in self.study.datasets(epoch)
      if (*prefix, name) not in self.rows.keys
    ]

  def diverged(self, run: Run) -> bool:
    prefix = (self.study.config.hash, *run)
    return any(
      (*prefix, epoch, "diverged") in self.rows.keys
      for epoch in range(1, self.study.config.epochs + 1)
    )

  def __call__(self, run: Run) -> bool:
    """Whether anything of a run is missing."""
    epochs = self.study.epochs_evaluated()
    return any(self.datasets(run, epoch) for epoch in epochs)


def run_study(
  study: Study,
  folder: pathlib.Path,
  options: Options | None = None,
  say: Callable[[str], object] | None = None,
) -> pathlib.Path:
  """Makes all rows of a study that its folder lacks.

  Args:
    study: what to train and evaluate.
    folder: of the study; it is made, or gone on with.
    options: how.
    say: what is told of progress; by default a line on the terminal.

  Returns:
    The file of rows.
  """
  options = options or Options()
  say = say or Progress()
  folder = folder.absolute()
  writes = jax.process_index() == 0
  if writes:
    folder.mkdir(parents=True, exist_ok=True)
  with _locked(folder) if writes else contextlib.nullcontext():
    if writes:
      settings = folder / "study.json"
      if not (study.models_of and settings.exists()):
        with files.replacing(settings) as temporary:
          temporary.write_text(json.dumps(dataclasses.asdict(study), indent=2))
      _remove_leftovers(folder)
    rows = Rows(folder / "rows.jsonl", write=writes)
    _meet("start")
    missing = Missing(study, rows)
    mesh = train.make_mesh(options.batch_devices)
    groups = list(make_groups(study, folder, missing, mesh, options))
    done = sum(not missing(run) for run in study.runs)
    say(f"{study.name}: {done} of {len(study.runs)} runs are there already")
    if groups:
      _complete(study, groups, folder, rows, mesh, options, say)
  say(f"{study.name}: complete, {rows.path}")
  return rows.path


def _complete(study, groups, folder, rows, mesh, options, say) -> None:
  images = train.load_dataset(study.config)
  programs = functools.cache(
    functools.partial(make_programs, study, mesh, options)
  )
  sets = evaluate.Sets(images, options.corrupted)
  with contextlib.closing(sets):
    for number, runs in enumerate(groups, 1):
      label = f"{study.name} {number}/{len(groups)}"
      group = Group(study, runs, folder, rows, programs, options, images, sets)
      group.complete(label, say)


@contextlib.contextmanager
def _locked(folder: pathlib.Path) -> Iterator[None]:
  """Keeps another process from working on the same study, where it can."""
  try:
    import fcntl
  except ImportError:  # not on Windows
    yield
    return
  with (folder / ".lock").open("w") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise cache.DataError(
        f"Another process is at work in {folder}: wait for it, or give another "
        "folder with --output."
      ) from error
    yield  # and the lock goes with the file, even if the process is killed


def load_settings(folder: pathlib.Path) -> Study:
  """The study that a folder is of."""
  path = folder / "study.json"
  try:
    settings = json.loads(path.read_text())
  except (OSError, ValueError) as error:
    raise cache.DataError(
      f"{folder} is no folder of a study ({error}): give one that `python -m "
      "experiments run` made."
    ) from error
  config = Config(**settings.pop("config"))
  lists = ("optimizers", "corruptions", "corrupted_at")
  settings |= {name: tuple(settings.get(name, ())) for name in lists}
  return Study(config=config, **settings)


def make_groups(
  study: Study,
  folder: pathlib.Path,
  missing: Missing,
  mesh: Any,
  options: Options,
) -> Iterator[list[Run]]:
  """The runs that are to be trained, by those that train together.

  Groups that have been begun stay as they are, for their checkpoints' sake,
  even if it was for another study that shares the folder. The optimizers of a
  seed, as far as they can share a program, are in one group.
  """
  begun = []
  for path in sorted(folder.glob("checkpoints/*/runs.json")):
    manifest = json.loads(path.read_text())
    runs = [(name, seed) for name, seed in manifest["runs"]]
    same = manifest | {"runs": []} == _manifest(study, [])
    wanted = set(runs) & set(study.runs)
    if same and any(map(missing, wanted)):
      begun.append(runs)
  yield from begun
  taken = {run for runs in begun for run in runs}
  left = [run for run in study.runs if missing(run) and run not in taken]
  method = train.choose_method(options.method, study.config)
  most = options.group_size or runs_that_fit(study.config, method, mesh)
  for renormalize in (True, False):
    by_seed: dict[int, list[Run]] = {}
    for name, seed in left:
      if OPTIMIZERS[name].renormalize == renormalize:
        by_seed.setdefault(seed, []).append((name, seed))
    if not by_seed:
      continue
    seeds = max(most // max(map(len, by_seed.values())), 1)  # in a group
    count = math.ceil(len(by_seed) / seeds)
    for part in np.array_split(list(by_seed), count):
      yield [run for seed in part for run in by_seed[int(seed)]]


def make_programs(
  study: Study, mesh: Any, options: Options, renormalize: bool
) -> tuple[train.Engine, evaluate.Evaluator]:
  """What is compiled once for all groups of as many runs."""
  engine = train.Engine(
    study.config,
    renormalize=renormalize,
    diagnostics=study.diagnostics,
    mesh=mesh,
    method=options.method,
  )
  return engine, evaluate.Evaluator(engine)


def _manifest(study: Study, runs: list[Run]) -> dict[str, Any]:
  """What tells a group's checkpoints from those of others."""
  return {
    "config_hash": study.config.hash,
    "diagnostics": study.diagnostics,
    "runs": runs,
  }


class Group:
  """Runs that train together, and their checkpoints."""

  def __init__(
    self, study, runs, folder, rows, programs, options, images, sets
  ):
    self.study, self.runs, self.rows = study, runs, rows
    self.wanted = [run for run in runs if run in study.runs]
    self.options, self.images, self.folder = options, images, folder
    (renormalize,) = {OPTIMIZERS[name].renormalize for name, _ in runs}
    self.engine, self.evaluator = programs(renormalize)
    self.sets = sets
    self.missing = Missing(study, rows)
    self.start = time.monotonic()
    manifest = json.dumps(_manifest(study, runs))
    name = hashlib.sha256(manifest.encode()).hexdigest()[:16]
    self.checkpoints = folder / "checkpoints" / name
    if jax.process_index() == 0:
      self.checkpoints.mkdir(parents=True, exist_ok=True)
      with files.replacing(self.checkpoints / "runs.json") as temporary:
        temporary.write_text(manifest)
    _meet(name)

  def complete(self, label: str, say: Callable[[str], object]) -> None:
    """Trains from the last checkpoint on, and evaluates what is missing."""
    engine, config = self.engine, self.study.config
    runs = engine.place(self.runs, self.images.train_labels)
    images = engine.replicate(self.images.train_images)
    labels = engine.replicate(self.images.train_labels)
    evaluated = self.study.epochs_evaluated()
    with self._manager() as manager:
      done, state = self._restore(manager, runs)
      if done:
        say(f"{label}: goes on after epoch {done}")
        self._evaluate_missing(label, done, state, say)
      every = self.options.checkpoint_every or max(10, config.epochs // 20)
      eta = Eta(config.epochs - done)
      # Processes would gather an epoch's results only after the next one.
      ahead = int(jax.process_count() == 1)
      begun: list[tuple[int, Any]] = []
      for epoch in range(done + 1, config.epochs + 1):
        state, found = engine.epoch(state, runs, epoch - 1, images, labels)
        begun.append((epoch, found))
        corrupted = self.study.datasets(epoch)[2:]
        save = corrupted or epoch % every == 0 or epoch == config.epochs
        stop = save or epoch in evaluated
        # While the device is at one epoch, the host looks at the one before.
        while len(begun) > (0 if stop else ahead):
          of, found = begun.pop(0)
          found = train.gather(found)
          say(f"{label}: {self._line(of, found, eta)}")
          if not self._check(of, found):
            say(f"{label}: every run has diverged")
            return
        if epoch in evaluated:
          self._append("train", epoch, self._training(found))
          self._evaluate("clean", epoch, state)
          self.sets.ask(self.study.datasets(config.epochs)[2:])
        if save:
          self._save(manager, epoch, state)
        if corrupted:
          self._evaluate_missing(label, epoch, state, say)
        if stop:
          eta.restart()

  def _evaluate_missing(self, label, epoch, state, say) -> None:
    """What a checkpoint is early enough for: all but the way to it."""
    if epoch not in self.study.epochs_evaluated():
      return
    missing = {
      dataset
      for run in self.runs
      for dataset in self.missing.datasets(run, epoch)
    }
    datasets = [d for d in self.study.datasets(epoch)[1:] if d in missing]
    for dataset in self._evaluated(datasets, epoch, state):
      say(f"{label}: evaluated on {dataset}")

  @contextlib.contextmanager
  def _manager(self) -> Iterator[Any]:
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(max_to_keep=1, create=True)
    folder = self.checkpoints / "state"
    manager = ocp.CheckpointManager(folder, options=options)
    try:
      yield manager
    finally:
      with self._writing():  # The last one may not be whole yet.
        manager.close()

  def _restore(self, manager: Any, runs: train.Runs) -> tuple[int, Any]:
    import orbax.checkpoint as ocp

    done = manager.latest_step()
    if done is not None and self._lacks_rows_before(done):
      manager.delete(done)
      done = None
    if done is None:
      return 0, self.engine.init(runs)
    shapes = jax.eval_shape(self.engine.init, runs)
    shapes = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=self.engine.by_run
      ),
      shapes,
    )
    leaves, treedef = jax.tree.flatten(shapes)
    restored = manager.restore(done, args=ocp.args.StandardRestore(leaves))
    return done, treedef.unflatten(restored)

  def _lacks_rows_before(self, done: int) -> bool:
    """Whether rows are missing that a checkpoint is too late for.

    So it is when a study is to be evaluated more often than it was.
    """
    return any(
      "train" in missing or (epoch < done and missing)
      for epoch in self.study.epochs_evaluated()
      if epoch <= done
      for run in self.wanted
      for missing in [self.missing.datasets(run, epoch)]
    )

  def _save(self, manager: Any, epoch: int, state: train.State) -> None:
    """Copies the state, and writes the copy while training goes on."""
    import orbax.checkpoint as ocp

    with self._writing():  # which may fail for the one before it, too
      args = ocp.args.StandardSave(jax.tree.leaves(state))
      manager.save(epoch, args=args, force=True)

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    try:
      yield
    except (OSError, ValueError) as error:
      raise cache.DataError(
        f"{self.checkpoints} can't be written: {error}. Rows and the last "
        "checkpoint are still there; make room or get permission, and give the "
        "same command again."
      ) from error

  def _check(self, epoch: int, found: dict[str, np.ndarray]) -> bool:
    """Records the runs that have diverged; whether any has not."""
    finite = np.isfinite(found["loss"]) & np.isfinite(found["weight_norm"])
    lost = [
      (i, run)
      for i, run in enumerate(self.runs)
      if not finite[i] and not self.missing.diverged(run)
    ]
    contents = self._training(found)
    new = [self._row(run, epoch, "diverged", contents[i]) for i, run in lost]
    self._write(new)
    return not all(map(self.missing.diverged, self.runs))

  def _training(self, found: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    return [
      {"metrics": {k: evaluate.shortest(v[i]) for k, v in found.items()}}
      for i in range(len(self.runs))
    ]

  def _evaluated(
    self, datasets: list[str], epoch: int, state: train.State
  ) -> Iterator[str]:
    """Evaluates sets of images; while one is computed, the next is sent."""
    started = None
    for dataset in datasets:
      self.sets.ask([dataset])
      before, started = started, (dataset, *self._start(dataset, state))
      # Not before: the compiler timed programs in there, and undisturbed.
      self.sets.ask(datasets)
      if before is not None:
        yield self._finish(epoch, *before)
    if started is not None:
      yield self._finish(epoch, *started)

  def _evaluate(self, dataset: str, epoch: int, state: train.State) -> None:
    self._finish(epoch, dataset, *self._start(dataset, state))

  def _start(self, dataset: str, state: train.State) -> tuple[Any, Any]:
    return self.evaluator(state, *self.sets[dataset])

  def _finish(self, epoch: int, dataset: str, found: Any, logits: Any) -> str:
    contents = evaluate.rows(found)
    if self.options.save_logits:
      self._save_logits(dataset, epoch, train.gather(logits))
    self._append(dataset, epoch, contents)
    return dataset

  def _save_logits(self, dataset: str, epoch: int, logits: np.ndarray) -> None:
    if jax.process_index() > 0:
      return
    folder = self.folder / "logits"
    folder.mkdir(exist_ok=True)
    for (optimizer, seed), array in zip(self.runs, logits, strict=False):
      name = f"{optimizer}-{seed}-{epoch}-{dataset.replace('/', '-')}.npy"
      with files.replacing(folder / name) as temporary:
        with temporary.open("wb") as file:
          np.save(file, array)

  def _append(self, dataset, epoch, contents) -> None:
    self._write(
      self._row(run, epoch, dataset, content)
      for run, content in zip(self.runs, contents, strict=False)
      if not self.missing.diverged(run)
    )

  def _row(self, run: Run, epoch: int, dataset: str, content) -> dict[str, Any]:
    config = self.study.config
    return {
      "study": self.study.name,
      "model": config.model,
      "optimizer": run[0],
      "seed": run[1],
      "epoch": epoch,
      "dataset": dataset,
      **content,
      "config": dataclasses.asdict(config),
      "config_hash": config.hash,
      "precision": config.precision,
      "method": self.engine.method,
      "corruptions": "published" if self.options.corrupted else "made",
      "runs_at_once": len(self.runs),
      "wall_time": round(time.monotonic() - self.start, 3),
      "time": now(),
      **environment(),
    }

  def _write(self, rows) -> None:
    if jax.process_index() == 0:
      self.rows.append(rows)
    else:  # The others only keep in mind what is there.
      self.rows.note(rows)

  def _line(self, epoch: int, found: dict[str, np.ndarray], eta: "Eta") -> str:
    config = self.study.config
    words = [f"epoch {epoch}/{config.epochs}"]
    names = list(dict.fromkeys(name for name, _ in self.runs))
    for name in names:
      mine = [i for i, run in enumerate(self.runs) if run[0] == name]
      loss, top1 = (
        float(np.mean(found[key][mine])) for key in ("loss", "top1")
      )
      words.append(f"{name} loss {loss:.3f} accuracy {top1:.1f} %")
    images = 10 * config.per_class * len(self.runs)
    words += [f"{images / eta.tick():,.0f} img/s", f"{eta} left"]
    return " · ".join(words)


class Eta:
  """How long an epoch takes, and how long the rest will, without the first."""

  def __init__(self, epochs: int):
    self.left, self.times, self.last = epochs, [], time.monotonic()

  def tick(self) -> float:
    now = time.monotonic()
    spent, self.last = now - self.last, now
    self.times.append(spent)
    self.left -= 1
    return spent

  def restart(self) -> None:
    """After something that is no part of training."""
    self.last = time.monotonic()

  def __str__(self) -> str:
    if len(self.times) < 2:  # the first one was compiled, too
      return "?"
    seconds = round(self.left * float(np.median(self.times[1:])))
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes}:{seconds:02d}"


class Progress:
  """A line on the terminal that is written over; elsewhere a line now and then.

  In CI (where the variable CI is set) it says nothing.
  """

  def __init__(self, stream: Any = None, every: float = 15.0):
    self.stream = stream or sys.stderr
    self.live, self.every = self.stream.isatty(), every
    self.quiet = bool(os.environ.get("CI")) or jax.process_index() > 0
    self.last, self.width = -math.inf, 0

  def __call__(self, text: str) -> None:
    if self.quiet:
      return
    passing = ": epoch " in text or ": evaluated on " in text
    if self.live:
      end = "\r" if passing else "\n"
      self.stream.write(text.ljust(self.width) + end)
      self.width = len(text) if passing else 0
    elif not passing or time.monotonic() - self.last > self.every:
      self.stream.write(text + "\n")
      self.last = time.monotonic()
    self.stream.flush()


def _remove_leftovers(folder: pathlib.Path) -> None:
  for leftover in folder.glob("**/.*.part"):
    leftover.unlink()


def _meet(name: str) -> None:
  """Waits for the other processes, if there are any."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)
