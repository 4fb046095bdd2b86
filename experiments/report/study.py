"""The page of one study: by what its pairs of methods differ, and verdicts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import itertools
import pathlib
import re
from typing import Any

import numpy as np

from experiments import config, rows
from experiments.report import conclusions, figures, outcomes, plan
from experiments.report.compare import Compared, adjust, provenance
from experiments.report.formats import method_name
from experiments.report.page import Page, markdown, render
from experiments.report.results import Results
from experiments.rows import kept

PANELS = {
  "loss in training": ("train", "loss"),
  "loss on the test set": ("clean", "loss"),
  "ECE on the test set": ("clean", "ece"),
}
MOST_DIAGRAMS = 4
# PLAN.md's `data_size`: one family, of which `schedules` has the 10 %.
SIZES = ("data_1_percent", "data_100_percent")
# Where the loss is larger or smaller than elsewhere, and so is what matters.
MATTERS_SHARE = {"data_1_percent": 0.03, "ensembles": 0.03}
# The number that a part of a method has.
KNOBS = {
  "cosine": "warm_up",
  "label_smoothing": "smoothing",
  "focal": "focus",
  "logit_norm": "temperature",
  "mixup": "mixing",
  "sam": "radius",
  "average": "averaging",
}
PROGRAM = "python -m experiments"
Pair = tuple[str, str]
# Studies by name, with their rows.
Loaded = Mapping[str, tuple[config.Study, Results]]


def load(folder: pathlib.Path) -> tuple[config.Study, Results]:
  """A folder's study, and its rows."""
  study = config.load_settings(folder)
  found = Results(rows.read(folder / "rows.jsonl"), study.config)
  if not found.rows:
    raise rows.RowsError(
      f"{folder / 'rows.jsonl'} has no rows of that study: `python -m "
      f"experiments resume {folder}` makes them."
    )
  return study, found


def load_planned() -> Loaded:
  """PLAN.md's studies with their kept rows. It reads each folder's once."""
  planned = plan.studies()
  by_folder = {study.folder: study for study in planned.values()}
  kept_rows = {
    folder: kept.load(kept.sharing(study))
    for folder, study in by_folder.items()
  }
  return {
    name: (study, Results(kept_rows[study.folder], study.config))
    for name, study in planned.items()
  }


def pairs(study: config.Study) -> list[Pair]:
  """What the study compares: what it lists, or its first two methods."""
  return list(study.pairs or itertools.pairwise(study.method_names[:2]))


def has(found: Results, pair: Pair) -> bool:
  """Whether at least two seeds of both are there."""
  return len(found.seeds(pair)) > 1


@dataclasses.dataclass(frozen=True)
class Answer:
  """What a study's primary outcome says of its pairs.

  Attributes:
    outcome: the primary one.
    rows: the comparisons, with p adjusted for all pairs.
  """

  outcome: outcomes.Outcome
  rows: Mapping[Pair, Compared]

  @property
  def verdicts(self) -> dict[Pair, str]:
    return {
      pair: outcomes.verdict(row, self.outcome)
      for pair, row in self.rows.items()
    }


def answer(
  study: config.Study, found: Results, family: Sequence[Compared] = ()
) -> Answer:
  """Of the study's primary outcome.

  Args:
    study: which.
    found: its rows.
    family: comparisons of other studies that p is adjusted for, too.
  """
  outcome = outcomes.OUTCOMES[study.outcome]
  its = [pair for pair in pairs(study) if has(found, pair)]
  if not its or not all(outcome.is_in(found, pair) for pair in its):
    raise rows.RowsError(
      f"{study.name} needs two seeds of both methods of a pair after epoch "
      f"{study.config.epochs}, each with {outcome.label}. Train them: `python "
      f"-m experiments run {study.name}`."
    )
  rows_of = outcomes.compare(found, outcome, its)
  adjust([*rows_of.values(), *family], len(pairs(study)) + len(family))
  if share := MATTERS_SHARE.get(study.name):
    first = next(iter(rows_of.values()))
    outcome = outcome._replace(matters=float(share * np.mean(first.a)))
  return Answer(outcome, rows_of)


def family(name: str, loaded: Loaded) -> list[Compared]:
  """What PLAN.md adjusts together with a study's own, of the rows kept."""
  if name not in SIZES:
    return []
  outcome, relatives = outcomes.OUTCOMES["scaled_loss"], []
  for other in ("schedules", *SIZES):
    study, found = loaded[other]
    pair = study.pairs[-1]
    if other != name and has(found, pair):
      relatives.append(outcomes.compare_pair(found, outcome, pair))
  return relatives


def others(
  study: config.Study, found: Results, its: Sequence[Pair]
) -> dict[str, dict[Pair, Compared]]:
  """By the outcomes that decide nothing, with p adjusted for all cells.

  Those that the plan does not test have no adjusted p, and differ nowhere.
  """
  made = {
    outcome: outcomes.compare(found, outcome, its)
    for name, outcome in outcomes.OUTCOMES.items()
    if name != study.outcome and all(outcome.is_in(found, pair) for pair in its)
  }
  tested = []
  for outcome, column in made.items():
    if outcome.tested:
      tested += column.values()
    else:
      for cell in column.values():
        cell.adjusted = np.nan
  adjust(tested)
  return {outcome.label: column for outcome, column in made.items()}


def means(
  names: Iterable[str], found: Results, least: int = 2
) -> dict[str, Any]:
  """Methods with so many seeds, by every outcome that all of them have."""
  methods = [m for m in names if len(found.seeds([m])) >= least]
  columns = {
    outcome: {m: outcome.values(found, m) for m in methods}
    for outcome in outcomes.OUTCOMES.values()
    if all(outcome.is_in(found, [m], least) for m in methods)
  }
  return {"methods": methods, "columns": columns}


def is_complete(study: config.Study, found: Results) -> bool:
  """Whether every run has ended: with rows of all images, or diverged."""
  keys = {(study.config.hash, *key) for key in found.rows}
  return not any(map(rows.Missing(study, keys), study.runs))


def diverged(study: config.Study, found: Results) -> dict[str, list[int]]:
  """Seeds of each method that diverged."""
  seeds: dict[str, list[int]] = {}
  for name, seed, _, dataset in sorted(found.rows):
    if dataset == "diverged" and name in study.method_names:
      seeds.setdefault(name, []).append(seed)
  return seeds


def command(study: config.Study, **changes: str) -> str:
  """The command that runs a study, with settings besides its own."""
  known = config.own_study(study.name)
  settings = config.differences(study, known) if known else {}
  overrides = (f"--set {k}={v}" for k, v in (settings | changes).items())
  return " ".join([f"{PROGRAM} run {study.name}", *overrides])


def title(name: str) -> str:
  """What a study is about, in a line."""
  text = config.describe(name)[1] if config.own_study(name) else name
  return text.splitlines()[0].rstrip(".")


def differences(
  its: Answer, others: Mapping[str, Mapping[Pair, Compared]]
) -> Any:
  """Draws the primary outcome and, where that is after T, the loss without."""
  shown = {its.outcome: its.rows}
  loss = outcomes.OUTCOMES["loss"]
  if its.outcome.part == "scaled_half" and loss.label in others:
    shown[loss._replace(label="loss without T")] = others[loss.label]
  return figures.differences(
    {
      outcome: {
        f"{method_name(b)} − {method_name(a)}": (row.change, *row.interval)
        for (a, b), row in rows_of.items()
      }
      for outcome, rows_of in shown.items()
    }
  )


def settings_of(methods: Iterable[config.Method]) -> dict[str, dict[str, Any]]:
  """For each method, what differs from SGD and the recipe, and its knob."""
  plain = dataclasses.asdict(config.SGD)
  found = {}
  for method in methods:
    its = dataclasses.asdict(method)
    parts = (method.schedule, method.loss, method.augmentation, method.wrapper)
    knobs = {KNOBS.get(part) for part in parts}
    changes = {
      k: v
      for k, v in its.items()
      if k in knobs or (k != "name" and v != plain[k])
    }
    if changes:
      found[method.name] = changes
  return found


def runs_of(study: config.Study, found: Results) -> list[str]:
  """The other studies whose runs it compares."""
  names = {
    row["study"]
    for key, row in found.rows.items()
    if key[0] in study.method_names
  }
  return sorted(names - {study.name})


def make(
  study: config.Study, found: Results, family: Sequence[Compared] = ()
) -> Page:
  """The study's page.

  Args:
    study: which.
    found: its rows.
    family: as for :func:`answer`.

  Raises:
    RowsError: if there is nothing to compare yet.
  """
  its = answer(study, found, family)
  planned = bool(plan.section(study.name))
  planned = planned and config.own_study(study.name) == study
  concluded = planned and is_complete(study, found)
  conclude = conclusions.CONCLUSIONS.get(study.name) if concluded else None
  by_others = others(study, found, list(its.rows))
  epochs = study.epochs_evaluated()
  pooled = any(set(pair) & set(study.pooled) for pair in its.rows)
  ended = [
    name
    for name in (study.pooled if pooled else study.method_names)
    if found.seeds([name])
  ]
  followed = [
    name
    for name in study.method_names
    if found.seeds([name], ["train", "clean"], epochs)
  ]
  # A picture's name is part of a link, which Markdown would escape.
  picture = re.sub(r"\W", "_", study.name, flags=re.ASCII)
  facts = {
    "study": picture,
    "title": title(study.name),
    "answer": its,
    "planned": planned,
    "several_schedules": len({it.schedule for it in study.methods}) > 1,
    "conclusion": conclude and conclude(found),
    "diverged": diverged(study, found),
    "others": by_others,
    "means": means(study.method_names, found),
    "ensembles": means(study.pooled, found, least=1),
    "pooled": pooled,
    "share": study.config.share,
    "plan": planned and plan.section(study.name),
    "command": command(study),
    "diagrams": len(ended) <= MOST_DIAGRAMS,
    "followed": followed and len(epochs) > 1,
    "family": bool(family),
    "settings": dataclasses.asdict(study.config),
    "methods": settings_of(study.methods),
    "made": found.of_study(study.name) and provenance(found, study.name),
    "runs_of": runs_of(study, found),
  }
  drawings = {
    f"{picture}_differences": lambda: differences(its, by_others),
    f"{picture}_reliability": lambda: figures.reliability(
      found, None, optimizers=ended
    ),
    f"{picture}_curves": lambda: figures.training(
      found, PANELS, None, epochs, followed
    ),
  }
  return Page(markdown("study.md", facts), drawings)


def write(folder: pathlib.Path) -> str:
  """Writes a study's page, `report.html`, into its folder.

  Returns:
    What it says, as plain text.
  """
  study, found = load(folder)
  path = folder / "report.html"
  make(study, found).write_html(path)
  facts = {
    "answer": answer(study, found),
    "means": means(study.method_names, found),
  }
  said = (markdown(name, facts) for name in ("summary.md", "methods.md"))
  return "\n\n".join([*said, f"The page: {path}"])


def make_kept(loaded: Loaded) -> Iterator[tuple[str, Page]]:
  """A page for each planned study that is complete and has pairs."""
  for name, (study, found) in loaded.items():
    if is_complete(study, found) and any(has(found, p) for p in pairs(study)):
      yield name, make(study, found, family(name, loaded))


def show(folder: pathlib.Path) -> str:
  """What is there: means over seeds, by optimizer, epoch and images."""
  study, found = load(folder)
  kinds: dict[tuple[str, int, str], list[dict[str, float]]] = {}
  diverged = []
  for (optimizer, _, epoch, dataset), row in found.rows.items():
    if dataset == "diverged":
      diverged.append(row)
    else:
      kinds.setdefault((optimizer, epoch, dataset), []).append(row["metrics"])
  names = ("top1", "loss", "ece", "brier", "max_logit", "weight_norm")
  width = max((len(optimizer) for optimizer, _, _ in kinds), default=0)
  head = f"{'':{width}} {'epoch':>5} {'dataset':18} {'runs':>4}"
  lines = [head + "".join(f" {name:>11}" for name in names)]
  for (optimizer, epoch, dataset), runs in kinds.items():
    line = f"{optimizer:{width}} {epoch:>5} {dataset:18} {len(runs):>4}"
    for name in names:
      value = np.array([run.get(name) for run in runs], float).mean()
      line += f" {value:11.4g}" if np.isfinite(value) else " " * 12
    lines.append(line)
  try:
    summary = markdown("summary.md", {"answer": answer(study, found)})
  except rows.RowsError:  # if there is nothing to compare yet
    summary = None
  facts = {"diverged": diverged, "lines": lines, "summary": summary}
  return render("show.txt", facts).rstrip()
