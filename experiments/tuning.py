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
from typing import Any, NamedTuple

import numpy as np

from experiments.config import METHODS, Config, Method, Study, load_study
from experiments.files import UserError
from experiments.rows import kept


class Criterion(NamedTuple):
  """What settings are chosen by: the loss in a part of a row."""

  part: str
  ending: str  # of the names of chosen methods
  outcome: str  # the same loss, of the test images


CRITERIA = {
  "loss": Criterion("metrics", "", "loss"),
  "scaled_loss": Criterion("scaled_crossed", "_after_t", "crossed_loss"),
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
    >>> grid.at_edge((1.0, 0.1)), grid.beyond((3.0, 0.1))[:2]
    (True, [(3.0, 0), (3.0, 1)])
  """

  ladders: Mapping[str, tuple[float | None, ...]]

  def named(self, setting: Setting) -> dict[str, float]:
    """Returns the setting's values, by name."""
    return dict(zip(self.ladders, setting, strict=True))

  def first(self) -> list[Setting]:
    """Returns the settings of the grid before an extension."""
    inner: Any = (ladder[1:-1] for ladder in self.ladders.values())
    return list(itertools.product(*inner))

  def steps(self, a: Setting, b: Setting) -> int:
    """Returns how many steps of ladders two settings are apart."""
    ladders = zip(self.ladders.values(), a, b, strict=True)
    return sum(abs(its.index(x) - its.index(y)) for its, x, y in ladders)

  def beyond(self, best: Setting) -> list[Setting]:
    """Returns the settings outside of the grid, the nearest to its best first.

    Distances are in steps.
    """
    whole: Any = itertools.product(*self.ladders.values())
    outside = [x for x in whole if None not in x and x not in self.first()]
    return sorted(outside, key=lambda setting: self.steps(setting, best))

  def at_edge(self, best: Setting) -> bool:
    """Returns whether the ladders go beyond this setting of the grid."""
    return any(self.steps(best, other) == 1 for other in self.beyond(best))


def to_try(
  grids: Mapping[str, Grid], losses: Losses, more: int
) -> dict[str, list[Setting]]:
  """Returns the settings to try, by method.

  These are the grids. Once all of their losses are known and a best setting
  lies on an edge, each gets `more` settings, or fewer if a method's ladders
  have fewer.
  """
  tried = {name: grid.first() for name, grid in grids.items()}
  best = choose(tried, losses)
  if any(grids[name].at_edge(setting) for name, setting in best.items()):
    added = {name: grids[name].beyond(best[name]) for name in best}
    count = min(more, *map(len, added.values()))
    return {name: tried[name] + its[:count] for name, its in added.items()}
  return tried


def choose(
  tried: Mapping[str, list[Setting]], losses: Losses
) -> dict[str, Setting]:
  """Returns each method's setting with the lowest loss, the first of equals.

  Returns nothing while a loss is unknown.
  """
  chosen = {}
  for name, settings in tried.items():
    known = [losses(name, setting) for setting in settings]
    if None in known:
      return {}
    # A loss that is not a number counts as infinite.
    lowest = np.argmin(np.nan_to_num(np.array(known, float), nan=math.inf))
    chosen[name] = settings[lowest]
  return chosen


def named(method: Method, **settings: Any) -> Method:
  """Returns the method with other settings, named after them."""
  words = "_".join(f"{value:g}" for value in settings.values())
  return method.replace(name=f"{method.name}_{words}", **settings)


@dataclasses.dataclass(frozen=True)
class Tuning:
  """A tuning study, and what its kept rows choose."""

  name: str
  config: Config  # except for the images to evaluate on
  grids: Mapping[str, Grid]  # by the name of a method in METHODS
  criterion: str  # one of CRITERIA, which decides about an extension
  seeds: int = 2
  more: int = 4  # settings that an extension adds to each method

  @functools.cached_property
  def study(self) -> Study:
    """Returns the study that trains the grids, with cosine."""
    return Study(
      self.name,
      self.config.replace(evaluate_on="held_out"),
      tuple(
        self._at(name, setting)
        for name, settings in self._tried().items()
        for setting in settings
      ),
      seeds=self.seeds,
      first_seed=FIRST_SEED,
    )

  def chosen(self, criterion: str, *names: str) -> tuple[Method, ...]:
    """Returns methods at their best settings, by default all.

    While rows are missing, methods have the first setting, and names that end
    in "_untuned". The names of methods that are chosen by the loss after T end
    in "_after_t".
    """
    tried, end = self._tried(), CRITERIA[criterion].ending
    best = choose(tried, self._losses(criterion))
    if not best:
      best, end = {name: its[0] for name, its in tried.items()}, end + UNTUNED
    return tuple(
      self._at(name, best[name]).replace(name=name + end)
      for name in names or self.grids
    )

  def contest(self, name: str, criterion: str, **fields: Any) -> Study:
    """Returns the study of methods at their best settings, on test images.

    Each method without ⊥Grad is paired with its base optimizer with ⊥Grad, or
    with SGD with ⊥Grad if the study has no such method. Arms are paired with
    the latter, too.

    The primary outcome is the criterion's loss, of the test images.
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
      outcome=CRITERIA[criterion].outcome,
      **fields,
    )

  def _at(self, name: str, setting: Setting) -> Method:
    method = METHODS[name].replace(schedule="cosine")
    return named(method, **self.grids[name].named(setting))

  def _tried(self) -> dict[str, list[Setting]]:
    return to_try(self.grids, self._losses(self.criterion), self.more)

  def _losses(self, criterion: str) -> Losses:
    """Returns the mean loss of each setting whose seeds have all been kept."""
    values: dict[str, dict[int, float]] = collections.defaultdict(dict)
    config = self.config.replace(evaluate_on="held_out")
    part = CRITERIA[criterion].part
    for row in _ended(self.name, config):
      loss = row[part]["loss"] if row["dataset"] == "clean" else None
      values[row["method"]][row["seed"]] = math.inf if loss is None else loss

    def mean(name: str, setting: Setting) -> float | None:
      its, end = values[self._at(name, setting).name], FIRST_SEED + self.seeds
      losses = [its.get(seed) for seed in range(FIRST_SEED, end)]
      return None if None in losses else np.array(losses, float).mean()

    return mean


def _ended(study: str, config: Config) -> Iterator[dict[str, Any]]:
  """Yields how a study's kept runs ended: after the last epoch, or diverged.

  Runs with another recipe are of a trial.
  """
  last = config.hash, "clean", config.epochs
  for row in kept.load([study]):
    its = row["config_hash"], row["dataset"], row["epoch"]
    if its == last or its[:2] == (config.hash, "diverged"):
      yield row


def temperatures(study: Study) -> dict[int, float]:
  """Returns the temperature of each subset of images, from kept rows.

  It is the geometric mean of the temperatures that the seeds of the subset
  fitted on their own images.
  """
  logs: dict[int, dict[int, float]] = collections.defaultdict(dict)
  size = study.config.seeds_per_subset
  for row in _ended(study.name, study.config):
    if row["dataset"] == "clean":
      own = row["metrics"]["temperature_own"]
      logs[row["seed"] // size][row["seed"]] = math.log(own)
  return {
    subset: math.exp(np.mean([*each.values()]))
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
