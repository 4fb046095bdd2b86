"""Builds every page: which there are, and what each may ask besides rows.

The words are in `templates/`. The answer, the replication, and marked blocks of
other files are kept with the code. Pages of studies are built for the site, and
for a folder of runs.
"""

from collections.abc import Iterable, Iterator
import dataclasses
import functools
import os
import pathlib
import re
from typing import Any

import jax
import numpy as np
import scipy.stats

from experiments import config, datasets, files, registry
from experiments.engine import models
from experiments.grokking import RATES_STUDY, STUDY
from experiments.language import STUDY as LANGUAGE
from experiments.report import (
  compare,
  figures,
  grokking,
  language,
  query,
  render,
)
from experiments.report.compare import Comparisons
from experiments.report.query import OUTCOMES, PAIR
from experiments.report.render import Page, markdown
from experiments.rows import RowsError, kept
from orthograd_optax import plots, stats

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = "python -m experiments"
SCREENS = ("extended_screen", "extended_screen_batch")
# Files besides pages that have blocks from rows.
WITH_BLOCKS = ("README.md", "experiments/README.md", "experiments/PLAN.md")
_BLOCK = re.compile(
  r"(<!-- from rows: (\w+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL
)
MOST_DIAGRAMS = 4
AFTER_T = ("loss", "ece", "brier")  # what the replication tests
HEADLINE = ("accuracy", "ece", "loss", "scaled_loss", "crossed_loss")
EPOCHS = range(20, 101, 20)  # that the replication's studies share


def context(
  ask: Comparisons, folder: pathlib.Path, in_site: bool
) -> dict[str, Any]:
  """Returns what a template may use, for a page in a folder.

  If the pages of studies are not beside it, links to them lead to the plan.
  """
  plan = query.planned()

  def values(name: str, *args: Any, **where: Any) -> np.ndarray:
    return ask.results(name).values(*args, **where)

  def mean(name: str, method: str, it="scaled_loss", **where: Any) -> str:
    metric = query.outcome(it).metric
    return render.mean(values(name, method, it, **where), metric)

  def link(path: str) -> str:
    return pathlib.Path(os.path.relpath(ROOT / path, folder)).as_posix()

  def page(name: str, plan_only: bool = False) -> str:
    name = query.POOLS.get(name, {"study": name})["study"]
    if name not in plan:
      return link("experiments/results/replication.md")
    in_plan = link("experiments/PLAN.md") + plan[name]
    return in_plan if plan_only or not in_site else f"{name}.md"

  return {
    "CORRUPTIONS": datasets.CORRUPTIONS,
    "EXTRA_CORRUPTIONS": datasets.EXTRA_CORRUPTIONS,
    "METRICS": query.METRICS,
    "OUTCOMES": OUTCOMES,
    "UNDER_CORRUPTION": compare.UNDER_CORRUPTION,
    "adjust": compare.adjust,
    "ask": ask,
    "carried": compare.carried,
    "change": lambda *args, **where: render.by(ask.compare(*args, **where)),
    "claim": compare.claim,
    "mean": mean,
    "paper": render.PAPER,
    "values": values,
    "kinds_of_parameters": kinds_of_parameters,
    "radial_shares": lambda method: radial_shares(ask, method),
    "unpaired": compare.unpaired,
    "holm": stats.holm,
    "link": link,
    "page": page,
    "spearman": lambda pairs: scipy.stats.spearmanr(pairs)[0],
    "situations": functools.cache(lambda: situations(ask)),
    "title": title,
    "studies": config.studies,
    "plan": plan,
    "grokking_rates": lambda: grokking.rates_facts(kept.load([RATES_STUDY])),
  }


def make_kept(
  ask: Comparisons, folder: pathlib.Path
) -> Iterator[tuple[str, Page]]:
  """Yields the answer and the pages of the replication, by name."""
  facts = context(ask, folder, False)
  short, harder, wide, longer = map(
    ask.results, ("resnet18", "resnet18_corrupted", "wrn28_10", "extended")
  )
  both = {"ResNet-18": short, "WRN-28-10": wide}
  replicated = {
    "ResNet-18": situation(ask, "resnet18", *PAIR),
    "WRN-28-10": situation(ask, "wrn28_10", *PAIR),
    "1000 epochs": situation(ask, "extended", *PAIR),
  }
  every = longer.evaluated(PAIR, range(5), "train")
  draw, panels = figures.reliability, query.LABELS["panels"]
  drawings = {
    "answer": lambda: figures.effects(facts["situations"](), relative=True),
    "scaling": lambda: figures.effects(replicated),
    "epochs": lambda: figures.training(both, panels["epochs"], EPOCHS),
    "epochs_1000": lambda: figures.training(
      {"1000 epochs": longer}, panels["epochs"], every
    ),
    "severity": lambda: figures.severity(harder),
    "extended": lambda: figures.severity(longer),
    "trajectories": lambda: figures.training(
      {"": longer}, panels["trajectories"], every
    ),
    "radial": lambda: figures.radial(radial_shares(ask, "orthograd"), EPOCHS),
    "reliability": lambda: draw(short),
    "reliability_corrupted": lambda: draw(harder, PAIR, "corrupted"),
    "wide_reliability": lambda: draw(wide),
    "wide_reliability_corrupted": lambda: draw(wide, PAIR, "corrupted"),
  }
  yield "README", Page(markdown("answer.md", facts), drawings)
  for name in ("replication", "replication_appendix"):
    yield name, Page(markdown(f"{name}.md", facts), drawings)


def situation(ask: Comparisons, name: str, a: str, b: str) -> dict[str, Any]:
  """Returns what a line of the answer says of a pair, with and without T."""
  results = ask.results(name)
  is_crossed = results.measured((a, b), "crossed_loss")
  after = "crossed" if is_crossed else "scaled"
  its = {it: ask.compare(name, a, b, it) for it in ("loss", "ece")}
  its["scaled_loss"] = ask.compare(name, a, b, f"{after}_loss")
  if not ask.is_planned(ask.study(name).name):
    its |= ask.table(name)  # as the replication adjusts them
    its["scaled_loss"] = ask.table(name, AFTER_T, part="scaled_half")["loss"]
  # Plans of the first edition do not test it: its p is not adjusted.
  where = {} if is_crossed else {"seeds": results.seeds([a, b])}
  its["scaled_ece"] = ask.compare(name, a, b, f"{after}_ece", **where)
  return its | {"study": name}


def situations(ask: Comparisons) -> dict[str, dict[str, Any]]:
  """Returns the lines of the answer, of the studies that are complete."""
  lines = query.LABELS["situations"].items()
  its = {
    label: situation(ask, *of) for label, of in lines if ask.is_complete(of[0])
  }
  rows = language.planned(kept.load([LANGUAGE]))
  return its | (language.situations(rows) if rows else {})


def radial_shares(ask: Comparisons, method: str) -> dict[str, dict[str, Any]]:
  """Returns the share of ‖g‖² along the weights in %, by network and kind."""
  shares = {}
  for network, name in (("ResNet-18", "extended"), ("WRN-28-10", "wrn28_10")):
    results = ask.results(name)
    (first,) = results.get(method, 0, "train", 100)
    over = lambda it, results=results: results.over_epochs(
      method, it, range(5), EPOCHS, "train"
    )
    shares[network] = {
      it.removeprefix("radial: "): 100 * over(it)
      for it in first["metrics"]
      if it.startswith("radial: ")
    }
  return shares


def kinds_of_parameters(model: str) -> list[str]:
  built = registry.MODELS[model]()
  shapes = jax.eval_shape(lambda: models.init(built, jax.random.key(0)))
  return jax.tree.leaves(models.kinds(built, shapes["params"]))


def fill(path: pathlib.Path, ask: Comparisons) -> str:
  """Returns the text of a file, with its blocks made again from the rows."""
  facts = context(ask, path.parent, False)
  return _BLOCK.sub(
    lambda it: f"{it[1]}\n{markdown(f'{it[2]}.md', facts)}\n\n{it[3]}",
    path.read_text("utf-8"),
  )


def settings_of(methods: Iterable[config.Method]) -> dict[str, dict[str, Any]]:
  """Returns what differs from SGD and the recipe, by method, and its knob."""
  plain = dataclasses.asdict(config.SGD)
  changed = {}
  for method in methods:
    parts = (method.schedule, method.loss, method.augmentation, method.wrapper)
    knobs = {query.LABELS["knobs"].get(part) for part in parts}
    changes = {
      k: v
      for k, v in dataclasses.asdict(method).items()
      if k in knobs or (k != "name" and v != plain[k])
    }
    if changes:
      changed[method.name] = changes
  return changed


def command(study: config.Study, **changes: str) -> str:
  """Returns the command that runs a study, with settings besides its own."""
  known = config.own_study(study.name)
  settings = config.differences(study, known) if known else {}
  overrides = (f"--set {k}={v}" for k, v in (settings | changes).items())
  return " ".join([f"{PROGRAM} run {study.name}", *overrides])


def title(name: str) -> str:
  """Returns what a study is about, in a line."""
  text = config.describe(name)[1] if config.own_study(name) else name
  return text.splitlines()[0].rstrip(".")


def make_study(
  ask: Comparisons, name: str, folder: pathlib.Path
) -> tuple[Page, dict[str, Any]]:
  """Returns the page of a study, in a folder, and what its templates use."""
  study, results = ask.study(name), ask.results(name)
  tested = ask.tested(name)
  primary, answer = next(iter(tested.items()))
  pairs = list(answer)
  is_planned = ask.is_planned(name)
  conclusion = f"conclusions/{name}.md"
  is_concluded = is_planned and ask.is_complete(name)
  if not is_concluded or not (render.FOLDER / conclusion).exists():
    conclusion = ""
  epochs = study.epochs_evaluated()
  pooled = any(set(pair) & set(study.pooled) for pair in pairs)
  ended = [
    method
    for method in (study.pooled if pooled else study.method_names)
    if results.seeds([method])
  ]
  followed = [
    method
    for method in study.method_names
    if all(results.seeds([method], it, epochs) for it in ("train", "clean"))
  ][: len(plots.style.COLORS)]
  headlines = {
    pair: {it: tested[it][pair] for it in HEADLINE if it in tested}
    for pair in pairs[:3]
  }
  # A picture's name is part of a link, which Markdown would escape.
  picture = re.sub(r"\W", "_", name, flags=re.ASCII)
  effects = {
    query.pair_name(pair): {it: rows[pair] for it, rows in tested.items()}
    for pair in pairs
  }
  shown = [primary]
  if OUTCOMES[primary].part != "metrics" and "loss" in tested:
    shown.append("loss")
  drawings = {
    f"{picture}_differences": lambda: figures.effects(effects, shown),
    f"{picture}_reliability": lambda: figures.reliability(results, ended),
    f"{picture}_curves": lambda: figures.training(
      {"": results}, query.LABELS["panels"]["study"], epochs, followed
    ),
    "map_temperatures": lambda: figures.temperatures(
      {
        "SGD": ask.temperatures("map"),
        "AdamW (pilots)": ask.temperatures("pilot_optimizers", "adamw"),
      }
    ),
  }
  runs_of = {
    row["study"]
    for key, row in results.rows.items()
    if key[0] in study.method_names
  }
  facts = context(ask, folder, True) | {
    "study": name,
    "picture": picture,
    "title": title(name),
    "conclusion": conclusion,
    "headlines": headlines,
    "headline": headlines[pairs[0]] if len(pairs) == 1 else {},
    "pair": pairs[0],
    "pairs": pairs,
    "answer": answer,
    "tested": tested,
    "untested": [
      it for it, row in tested.items() if np.isnan(row[pairs[0]].adjusted)
    ],
    "planned": is_planned,
    "family": is_planned and name in compare.SIZES[:-1],
    "several_schedules": len({it.schedule for it in study.methods}) > 1,
    "diverged": query.diverged(study, results),
    "means": ask.means(name, study.method_names + study.arms),
    "ensembles": ask.means(name, study.pooled, least=1),
    "pooled": pooled,
    "config": study.config,
    "seeds": results.seeds(study.method_names),
    "command": command(study),
    "diagrams": len(ended) <= MOST_DIAGRAMS,
    "followed": followed and len(epochs) > 1,
    "settings": study.config.settings(),
    "methods": settings_of(study.methods),
    "made": ask.provenance(name),
    "runs_of": sorted(runs_of - {name}),
  }
  return Page(markdown("study.md", facts), drawings), facts


def make_all(
  ask: Comparisons, folder: pathlib.Path
) -> Iterator[tuple[str, Page]]:
  """Yields the page of each planned study whose rows suffice, by name."""
  facts = context(ask, folder, True)
  for name in query.planned():
    if name == STUDY:
      if kept.load([name]):
        rows = kept.load([name, grokking.PILOT])
        yield name, grokking.make(rows, grokking.Recipe(), facts)
    elif name == RATES_STUDY:
      if kept.load([name]):
        yield name, Page(markdown(f"{name}.md", facts), {})
    elif name == LANGUAGE:
      if rows := language.planned(kept.load([name])):
        its = facts | language.facts(rows)
        yield name, Page(markdown(f"{name}.md", its), {})
    elif name in SCREENS:
      if name == SCREENS[0] and all(map(ask.is_complete, SCREENS)):
        runs = [ask.provenance(it) for it in SCREENS]
        text = markdown("extended_screen.md", facts | {"runs": runs})
        yield name, Page(text, {})
    elif ask.is_complete(name):
      study, results = ask.study(name), ask.results(name)
      if any(len(results.seeds(pair)) > 1 for pair in query.pairs(study)):
        yield name, make_study(ask, name, folder)[0]


def write_pages(output: pathlib.Path | None = None) -> Iterator[pathlib.Path]:
  """Writes pages with their pictures, and yields the paths.

  The pages of the studies are written to `output`. Without it, the answer and
  the replication are written beside the rows that are kept, and blocks of other
  files are made again.
  """
  for name in config.study_names():
    config.load_study(name)  # Pages would leave a broken one out.
  ask = Comparisons()
  folder = output or kept.FOLDER
  folder.mkdir(parents=True, exist_ok=True)
  make = make_all if output else make_kept
  for name, page in make(ask, folder.resolve()):
    page.write_markdown(folder / f"{name}.md")
    yield folder / f"{name}.md"
  for name in () if output else WITH_BLOCKS:
    text = fill(ROOT / name, ask)
    if text != (ROOT / name).read_text("utf-8"):
      with files.replacing(ROOT / name) as temporary:
        temporary.write_text(text, encoding="utf-8")
      yield ROOT / name


def write_study(folder: pathlib.Path) -> str:
  """Writes a study's page, `report.html`, and returns what it says as text."""
  study, results = query.load(folder)
  ask = Comparisons({study.name: (study, results)})
  page, facts = make_study(ask, study.name, folder.resolve())
  path = folder / "report.html"
  with files.replacing(path) as temporary:
    temporary.write_text(page.html(), encoding="utf-8")
  parts = ("headline.md", "summary.md", "methods.md")
  said = (markdown(name, facts) for name in parts)
  return "\n\n".join([*said, f"The page: {path}"])


def show(folder: pathlib.Path) -> str:
  """Returns a table of means over seeds, by method, epoch and images."""
  study, results = query.load(folder)
  ask = Comparisons({study.name: (study, results)})
  kinds: dict[tuple[str, int, str], list[dict[str, float]]] = {}
  lines = []
  for (method, seed, epoch, images), row in results.rows.items():
    if images == "diverged":
      lines.append(f"{method}, seed {seed}: diverged in epoch {epoch}")
    else:
      kinds.setdefault((method, epoch, images), []).append(row["metrics"])
  names = ("top1", "loss", "ece", "brier", "max_logit", "weight_norm")
  width = max((len(method) for method, _, _ in kinds), default=0)
  head = f"{'':{width}} {'epoch':>5} {'dataset':18} {'runs':>4}"
  lines.append(head + "".join(f" {name:>11}" for name in names))
  for (method, epoch, images), runs in kinds.items():
    line = f"{method:{width}} {epoch:>5} {images:18} {len(runs):>4}"
    for name in names:
      value = np.array([run.get(name) for run in runs], float).mean()
      line += f" {value:11.4g}" if np.isfinite(value) else " " * 12
    lines.append(line)
  try:
    facts = context(ask, folder, True) | {"tested": ask.tested(study.name)}
    lines += ["", "The test set after the last epoch:", ""]
    lines.append(markdown("summary.md", facts))
  except RowsError:  # if there is nothing to compare yet
    pass
  return "\n".join(lines)
