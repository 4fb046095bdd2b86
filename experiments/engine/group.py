"""A group: runs that train together. Trains, evaluates, writes rows."""

from collections.abc import Callable, Iterable, Iterator
import dataclasses
import functools
import hashlib
import json
import pathlib
import reprlib
import time
from typing import Any

import jax
from jax.experimental import multihost_utils
import numpy as np

from experiments import datasets, tuning
from experiments.config import Method, Run, Study, ensemble, load_study
from experiments.engine import evaluate, train
from experiments.engine.checkpoints import Checkpoints, remove_damaged
from experiments.engine.progress import Eta
from experiments.files import UserError, naming, parse_json, replacing
from experiments.rows import Missing, Rows, environment, now


@dataclasses.dataclass(frozen=True)
class Options:
  """How a study is run.

  Results do not depend on it, except for the published images, and for
  ensembles, which need groups of their size.
  """

  # A key of `convolutions.CONVOLUTIONS`, or "auto".
  convolutions: str = "auto"
  batch_devices: int = 1  # that share each batch
  group_size: int | None = None  # None for as many as fit
  # Epochs. None for 10, or a twentieth of all epochs if that is more.
  checkpoint_every: int | None = None
  save_logits: bool = False  # of every set, as .npy files
  corrupted: str | None = None  # folder of the published CIFAR-10-C


def manifest(study: Study, runs: Iterable[Run]) -> dict[str, Any]:
  """Returns what identifies the checkpoints of a group."""
  return {
    "format": 6,  # the first one without Orbax
    "config_hash": study.config.hash,
    "diagnostics": study.diagnostics,
    "runs": [[dataclasses.asdict(run.method), run.seed] for run in runs],
  }


def begun(study: Study, folder: pathlib.Path) -> Iterator[list[Run]]:
  """Yields a folder's groups that have checkpoints of the study's config."""
  for path in sorted(folder.glob("checkpoints/*/runs.json")):
    with naming(path):
      content = path.read_bytes()
    try:
      saved = parse_json(content)
      if not isinstance(saved, dict):
        raise ValueError(f"it is {reprlib.repr(saved)}")
      if saved | {"runs": []} != manifest(study, []):
        continue
      if path.parent.name != _folder_name(content):
        raise ValueError("its folder is not named for its SHA-256 digest")
      yield [Run(Method(**method), seed) for method, seed in saved["runs"]]
    except (KeyError, TypeError, ValueError) as error:
      raise UserError(
        f"{path} is damaged ({error}). Remove {path.parent}; its runs will be "
        "trained again."
      ) from error


def _folder_name(manifest: bytes) -> str:
  return hashlib.sha256(manifest).hexdigest()[:16]


@dataclasses.dataclass
class Group:
  """Runs that train together, as one program, and their checkpoints."""

  runs: list[Run]
  label: str  # in progress
  _: dataclasses.KW_ONLY
  study: Study
  output: pathlib.Path  # folder of the study
  options: Options
  rows: Rows
  data: datasets.Images  # to train on
  sets: evaluate.Sets  # to evaluate on
  engine: train.Engine
  evaluator: evaluate.Evaluator
  say: Callable[[str], object]

  def __post_init__(self):
    self.missing = Missing(self.study, self.rows.keys)
    self.start = time.monotonic()
    self.pending: list[tuple[int, Any]] = []  # epochs without rows yet
    text = json.dumps(manifest(self.study, self.runs))
    name = _folder_name(text.encode())
    self.folder = self.output / "checkpoints" / name
    self.identity = {"group": name, "config_hash": self.study.config.hash}
    if jax.process_index() == 0:
      self.folder.mkdir(parents=True, exist_ok=True)
      with replacing(self.folder / "runs.json") as temporary:
        temporary.write_text(text)
      for problem in remove_damaged(self.folder / "state", self.identity):
        self.say(f"{self.label}: {problem}")
    meet(name)

  def complete(self) -> None:
    """Trains from the last checkpoint, and writes the rows that are missing."""
    engine, epochs = self.engine, self.study.config.epochs
    every = self.options.checkpoint_every or max(10, epochs // 20)
    runs = engine.place(self.runs, self.data.train_labels)
    images = engine.replicate(self.data.train_images)
    labels = engine.replicate(self.data.train_labels)
    own = functools.partial(self._own_temperatures, runs, images, labels)
    with Checkpoints(self.folder / "state", self.identity) as checkpoints:
      done, state = self._restore(checkpoints, runs)
      self._evaluate(done, state, own)
      eta = Eta(epochs - done)
      for epoch in range(done + 1, epochs + 1):
        state, metrics = engine.epoch(state, runs, epoch - 1, images, labels)
        evaluated = epoch in self.study.epochs_evaluated()
        corrupted = len(self.study.datasets(epoch)) > 2
        save = epoch % every == 0 or epoch == epochs or corrupted
        self.pending.append((epoch, metrics))
        if not self._write_finished(eta, wait=evaluated or save):
          return
        if epoch > done + 1:
          self._ask_for_sets()
        if save:
          checkpoints.save(epoch, state)
        self._evaluate(epoch, state, own)
        if evaluated or save:
          eta.restart()

  def _restore(
    self, checkpoints: Checkpoints, runs: train.Runs
  ) -> tuple[int, train.State]:
    """Returns the last epoch and state from which all missing rows follow."""
    usable = (e for e in checkpoints.epochs if not self._lacks_rows_before(e))
    done = next(usable, 0)
    if not done:
      return 0, self.engine.init(runs)
    shapes = jax.tree.map(
      lambda x: x.update(sharding=self.engine.by_run),
      jax.eval_shape(self.engine.init, runs),
    )
    self.say(f"{self.label}: resumes after epoch {done}")
    return done, checkpoints.restore(done, shapes)

  def _lacks_rows_before(self, done: int) -> bool:
    """Returns whether rows are missing of epochs before a checkpoint's.

    This happens if a study is evaluated more often than before.
    """
    for epoch in (e for e in self.study.epochs_evaluated() if e <= done):
      for run in {*self.runs} & {*self.study.runs}:
        missing = self.missing.datasets(run, epoch)
        if "train" in missing or (epoch < done and missing):
          return True
    return False

  def _write_finished(self, eta: Eta, wait: bool) -> bool:
    """Writes the rows of finished epochs; False if every run has diverged.

    While the device trains one epoch, the host writes the rows of the one
    before. With `wait`, the host waits for all epochs.
    """
    # With several processes, gathering would wait for the next epoch.
    ahead = 0 if wait or jax.process_count() > 1 else 1
    while len(self.pending) > ahead:
      epoch, metrics = self.pending.pop(0)
      metrics = train.gather(metrics)
      self.say(f"{self.label}: {self._line(epoch, metrics, eta)}")
      contents = [{"metrics": its} for its in evaluate.by_run(metrics)]
      self._note_diverged(epoch, contents)
      if all(map(self.missing.diverged, self.runs)):
        self.say(f"{self.label}: every run has diverged")
        return False
      if epoch in self.study.epochs_evaluated():
        spent = {"epoch_seconds": eta.epoch}
        contents = [content | spent for content in contents]
        self._write(self._rows(epoch, "train", contents))
    return True

  def _note_diverged(self, epoch: int, contents: list[dict[str, Any]]) -> None:
    measured = lambda row: [row["metrics"][k] for k in ("loss", "weight_norm")]
    new = self._rows(epoch, "diverged", contents)
    self._write(row for row in new if not np.all(np.isfinite(measured(row))))

  def _own_temperatures(
    self, runs: train.Runs, images, labels, weights: train.Weights
  ) -> jax.Array | None:
    """Returns each run's own temperature (runs,), if the study has them."""
    if self.study.temperatures_of:
      known = tuning.temperatures(load_study(self.study.temperatures_of))
      own = [known[int(seed)] for seed in train.gather(runs.seed)]
      return train.put(np.array(own, np.float32), self.engine.by_run)
    if runs.own is None:
      return None
    return self.evaluator.temperatures(weights, runs.own, images, labels)

  def _evaluate(self, epoch: int, state: train.State, own_temperatures) -> None:
    """Makes missing rows. While one set is computed, the one before is sent."""
    if epoch not in self.study.epochs_evaluated():
      return
    lacking = (self.missing.datasets(run, epoch) for run in self.runs)
    wanted = set().union(*lacking) - {"train"}
    if not wanted:
      return
    ensembles = tuple(members for _, members in self._ensembles())
    own = own_temperatures(state.evaluated)
    clean, finish = None, lambda: None
    # Clean images come first: corrupted ones are also scaled by their T.
    for dataset in self.study.datasets(epoch)[1:]:
      if dataset not in wanted | {"clean"}:
        continue
      evaluated = self.evaluator(
        state.evaluated, *self.sets[dataset], clean, ensembles, own
      )
      clean = clean or evaluated
      self._ask_for_sets()
      finish()
      finish = functools.partial(self._finish, epoch, dataset, evaluated)
    finish()

  def _ask_for_sets(self) -> None:
    """Has corrupted images made, in another thread.

    Call it after a program has run once: XLA times kernels while it compiles,
    on an idle machine. Programs that are compiled later wait for the sets.
    """
    self.sets.ask(self.study.datasets(self.study.config.epochs)[2:])

  def _ensembles(self) -> list[tuple[str, tuple[int, ...]]]:
    """Names of the ensembles in rows, and the numbers of their runs."""
    blocks: dict[tuple[str, int], list[int]] = {}
    for i, run in enumerate(self.runs):
      block = run.method.name, self.study.block(run.seed)
      blocks.setdefault(block, []).append(i)
    return [
      (ensemble(name, size), tuple(members[:size]))
      for (name, _), members in blocks.items()
      for size in self.study.ensembles
      if size <= len(members)
    ]

  def _finish(self, epoch: int, dataset: str, evaluated) -> None:
    """Writes the rows of one set of images."""
    contents, pooled = evaluate.rows(evaluated)
    if self.options.save_logits:
      self._save_logits(dataset, epoch, train.gather(evaluated.logits))
    ensembles = [
      self._row(self.runs[members[0]], epoch, dataset, content)
      | {"method": name, "members": [self.runs[i].seed for i in members]}
      for (name, members), content in zip(
        self._ensembles(), pooled, strict=True
      )
      if not any(self.missing.diverged(self.runs[i]) for i in members)
    ]
    # Ensembles come before the runs: a crash then cuts off rows of runs, which
    # makes all of them again.
    self._write([*ensembles, *self._rows(epoch, dataset, contents)])
    self.say(f"{self.label}: evaluated on {dataset}")

  def _save_logits(self, dataset: str, epoch: int, logits: np.ndarray) -> None:
    if jax.process_index() > 0:
      return
    folder = self.output / "logits"
    folder.mkdir(exist_ok=True)
    for run, array in zip(self.runs, logits, strict=False):
      name = dataset.replace("/", "-")
      path = folder / f"{run.method.name}-{run.seed}-{epoch}-{name}.npy"
      with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, array)

  def _rows(self, epoch: int, dataset: str, contents) -> list[dict[str, Any]]:
    """Returns the rows of the runs that have not diverged."""
    return [
      self._row(run, epoch, dataset, content)
      for run, content in zip(self.runs, contents, strict=False)
      if not self.missing.diverged(run)
    ]

  def _row(self, run: Run, epoch: int, dataset: str, content) -> dict[str, Any]:
    config = self.study.config
    return {
      "study": self.study.name,
      "model": config.model,
      "method": run.method.name,
      "seed": run.seed,
      "epoch": epoch,
      "dataset": dataset,
      **content,
      "config": dataclasses.asdict(config),
      "config_hash": config.hash,
      "settings": dataclasses.asdict(run.method),
      "precision": config.precision,
      "convolutions": self.engine.convolutions,
      "corruptions": "published" if self.options.corrupted else "made",
      "runs_at_once": len(self.runs),
      "wall_time": round(time.monotonic() - self.start, 3),
      "time": now(),
      **environment(),
    }

  def _write(self, rows: Iterable[dict[str, Any]]) -> None:
    if jax.process_index() == 0:
      self.rows.append(rows)
    else:  # The other processes only note which rows there are.
      self.rows.note(rows)

  def _line(self, epoch: int, metrics: dict[str, np.ndarray], eta: Eta) -> str:
    config = self.study.config
    words = [f"epoch {epoch}/{config.epochs}"]
    for name in dict.fromkeys(run.method.name for run in self.runs):
      mine = [i for i, run in enumerate(self.runs) if run.method.name == name]
      loss, top1 = (np.mean(metrics[key][mine]) for key in ("loss", "top1"))
      words.append(
        f"{name}: training loss {loss:.3f}, training accuracy {top1:.1f} %"
      )
    eta.tick()
    if eta.epoch is not None:  # The first epoch is compiled, too.
      images = config.images * len(self.runs)
      words.append(f"{images / eta.epoch:,.0f} img/s")
    return " · ".join([*words, str(eta)])


def meet(name: str) -> None:
  """Waits for the other processes."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)
