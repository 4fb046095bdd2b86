"""Chooses settings from the rows of tuning runs, by the rule of PLAN.md.

Each method has a :class:`Grid`. All grids have the same number of settings. If
a method's best setting lies on the edge of its grid, the grids of all methods
are extended once, each by the same number of settings.

The study of a :class:`Tuning` trains the grids. A contest then has the methods
at the settings that the study's kept rows choose.
"""

import collections
from collections.abc import Callable, Iterator, Mapping
import dataclasses
import functools
import itertools
import math
from typing import Any

import numpy as np

from experiments.config import METHODS, Config, Method, Study, load_study
from experiments.files import UserError
from experiments.rows import kept

# What settings are chosen by: a part of a row, and a metric.
CRITERIA = {
  "loss": ("metrics", "loss"),
  "scaled_loss": ("scaled_crossed", "loss"),
}
UNTUNED = "_untuned"
FIRST_SEED = 906  # of tuning studies
Setting = tuple[float, ...]
# The loss of a method's setting: infinite if it diverged, None if unknown.
Losses = Callable[[str, Setting], float | None]


@dataclasses.dataclass(frozen=True)
class Grid:
  """The settings of one method.

  Attributes:
    ladders: for each setting, its values in order. All but the first and the
      last value are the grid. These two are a step beyond it, for an extension;
      None if there is no such step.

  Examples:
    >>> grid = Grid({"focus": (None, 1.0, 3.0, 5.0), "smoothing": (0, 0.1, 1)})
    >>> grid.first()
    [(1.0, 0.1), (3.0, 0.1)]
    >>> grid.at_edge((1.0, 0.1)), grid.beyond((3.0, 0.1), 2)
    (True, [(3.0, 0), (3.0, 1)])
  """

  ladders: Mapping[str, tuple[float | None, ...]]

  def named(self, setting: Setting) -> dict[str, float]:
    """Returns the setting's values, by name."""
    return dict(zip(self.ladders, setting, strict=True))

  def first(self) -> list[Setting]:
    """Returns the settings of the grid before an extension."""
    return _product(ladder[1:-1] for ladder in self.ladders.values())

  def all(self) -> list[Setting]:
    """Returns all settings of the ladders, with the steps beyond the grid."""
    return _product(self.ladders.values())

  def at_edge(self, setting: Setting) -> bool:
    """Returns whether the ladders go beyond this setting of the grid."""
    ladders = zip(self.ladders.values(), setting, strict=True)
    return any(
      (value == ladder[1] and ladder[0] is not None)
      or (value == ladder[-2] and ladder[-1] is not None)
      for ladder, value in ladders
    )

  def beyond(self, best: Setting, count: int) -> list[Setting]:
    """Returns the settings outside of the grid that are nearest to its best.

    Args:
      best: a setting of the grid.
      count: how many settings to return. Distances are in steps of ladders.
    """
    first = set(self.first())
    outside = [setting for setting in self.all() if setting not in first]

    def steps(setting: Setting) -> int:
      ladders = zip(self.ladders.values(), setting, best, strict=True)
      return sum(abs(its.index(a) - its.index(b)) for its, a, b in ladders)

    return sorted(outside, key=steps)[:count]


def _product(ladders) -> list[Setting]:
  known = ([x for x in ladder if x is not None] for ladder in ladders)
  return list(itertools.product(*known))


def to_try(
  grids: Mapping[str, Grid], losses: Losses, more: int
) -> dict[str, list[Setting]]:
  """Returns the settings to try, by method.

  Args:
    grids: grids of all methods.
    losses: what is known so far.
    more: how many settings an extension adds to each method; fewer if a
      method's ladders have fewer.

  Returns:
    The grids; once all of their losses are known and a best setting lies on an
    edge, the extended grids.
  """
  tried = {name: grid.first() for name, grid in grids.items()}
  best = choose(tried, losses)
  if best and any(grids[name].at_edge(best[name]) for name in grids):
    added = {n: grid.beyond(best[n], more) for n, grid in grids.items()}
    count = min(map(len, added.values()))
    return {name: tried[name] + its[:count] for name, its in added.items()}
  return tried


def choose(
  tried: Mapping[str, list[Setting]], losses: Losses
) -> dict[str, Setting]:
  """Returns each method's setting with the lowest loss, the first of equals.

  Returns:
    The settings by method; nothing while a loss is unknown.
  """
  known = {
    name: {setting: losses(name, setting) for setting in settings}
    for name, settings in tried.items()
  }
  if any(None in its.values() for its in known.values()):
    return {}
  # A loss that is not a number compares as infinite.
  rank = lambda x: math.inf if x is None or math.isnan(x) else x
  return {
    name: min(its, key=lambda s, its=its: rank(its[s]))
    for name, its in known.items()
  }


def named(method: Method, **settings: Any) -> Method:
  """Returns the method with other settings, named after them."""
  words = "_".join(f"{value:g}" for value in settings.values())
  return method.replace(name=f"{method.name}_{words}", **settings)


@dataclasses.dataclass(frozen=True)
class Tuning:
  """A tuning study, and what its kept rows choose.

  Attributes:
    name: name of the study.
    config: the recipe, except for the images to evaluate on.
    grids: by the name of a method in METHODS.
    criterion: one of :data:`CRITERIA`, which decides about an extension.
    seeds: number of seeds.
    more: settings that an extension adds to each method.
  """

  name: str
  config: Config
  grids: Mapping[str, Grid]
  criterion: str
  seeds: int = 2
  more: int = 4

  @functools.cached_property
  def study(self) -> Study:
    """Returns the study that trains the grids, with cosine."""
    known = self._losses(self.criterion)
    losses = lambda name, setting: known.get(self._at(name, setting).name)
    methods = tuple(
      self._at(name, setting)
      for name, settings in to_try(self.grids, losses, self.more).items()
      for setting in settings
    )
    return Study(
      self.name,
      self.config.replace(evaluate_on="held_out"),
      methods,
      seeds=self.seeds,
      first_seed=FIRST_SEED,
    )

  def chosen(self, criterion: str, *names: str) -> tuple[Method, ...]:
    """Returns methods at their best settings, by default all.

    While rows are missing, methods have the first setting, and names that end
    in "_untuned". The names of methods that are chosen by the loss after T end
    in "_after_t".
    """
    known = self._losses(criterion)
    complete = known.keys() >= set(self.study.method_names)
    end = {"loss": "", "scaled_loss": "_after_t"}[criterion]
    end += "" if complete else UNTUNED
    methods = []
    for name in names or self.grids:
      settings = (self._at(name, it) for it in self.grids[name].all())
      tried = [method for method in settings if method in self.study.methods]
      best = min(tried, key=lambda m: known[m.name]) if complete else tried[0]
      methods.append(best.replace(name=name + end))
    return tuple(methods)

  def contest(self, name: str, criterion: str, **fields: Any) -> Study:
    """Returns the study of methods at their best settings, on test images.

    Each method without ⊥Grad is paired with its base optimizer with ⊥Grad, or
    with SGD with ⊥Grad if the study has no such method. Arms are paired with
    the latter, too.

    Args:
      name: name of the study.
      criterion: one of :data:`CRITERIA`. The primary outcome is the same loss,
        of the test images.
      **fields: further fields of the study.
    """
    methods = self.chosen(criterion)
    own = {m.base: m.name for m in methods if m.strength}
    plain = [(m.name, m.base) for m in methods if not m.strength]
    plain += [(arm, "sgd") for arm in fields.get("arms", ())]
    return Study(
      name,
      self.config.replace(reserve=True),
      methods,
      tuple((name, own.get(base, own["sgd"])) for name, base in plain),
      outcome={"loss": "loss", "scaled_loss": "crossed_loss"}[criterion],
      **fields,
    )

  def _at(self, name: str, setting: Setting) -> Method:
    method = METHODS[name].replace(schedule="cosine")
    return named(method, **self.grids[name].named(setting))

  def _losses(self, criterion: str) -> dict[str, float]:
    """Returns the mean loss of each method whose seeds have all been kept.

    A run that diverged has an infinite loss.
    """
    part, metric = CRITERIA[criterion]
    values: dict[str, dict[int, float]] = collections.defaultdict(dict)
    for row in _kept_rows(
      self.name, self.config.replace(evaluate_on="held_out")
    ):
      value = row[part][metric] if row["dataset"] == "clean" else None
      if row["dataset"] in ("clean", "diverged"):
        value = math.inf if value is None else value
        values[row["method"]][row["seed"]] = value
    return {
      name: float(np.mean(list(its.values())))
      for name, its in values.items()
      if len(its) == self.seeds
    }


def _kept_rows(study: str, config: Config) -> Iterator[dict[str, Any]]:
  """Returns a study's kept rows with its recipe: others are of a trial."""
  rows = kept.load([study])
  return (row for row in rows if row["config_hash"] == config.hash)


def temperatures(study: Study) -> dict[int, float]:
  """Returns the temperature of each subset of images, from kept rows.

  It is the geometric mean of the temperatures that the seeds of the subset
  fitted on their own images.
  """
  logs: dict[int, list[float]] = collections.defaultdict(list)
  size = study.config.seeds_per_subset
  for row in _kept_rows(study.name, study.config):
    if row["dataset"] == "clean":
      own = row["metrics"]["temperature_own"]
      logs[row["seed"] // size].append(math.log(own))
  return {
    subset: math.exp(np.mean(each))
    for subset, each in logs.items()
    if len(each) == size
  }


def check_chosen(study: Study) -> None:
  """Raises a UserError if a study's settings or temperatures aren't known."""
  waiting = [name for name in study.method_names if name.endswith(UNTUNED)]
  if waiting and study.config.dataset != "sample":
    raise UserError(
      f"{study.name} has methods without chosen settings: "
      f"{', '.join(waiting)}. Run its tuning study and `keep` the rows first: "
      "PLAN.md has the order. To try the study out, add --set dataset=sample."
    )
  if source := study.temperatures_of:
    known = temperatures(load_study(source))
    if seeds := {run.seed for run in study.runs} - known.keys():
      raise UserError(
        f"{study.name} needs temperatures of seeds "
        f"{', '.join(map(str, sorted(seeds)))} from {source}. Run {source} and "
        "`keep` its rows first."
      )
