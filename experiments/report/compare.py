"""Compares methods in pairs that share their seeds: tests and verdicts.

Differences and effect sizes are the second method minus the first: ⊥Grad minus
SGD.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import dataclasses
import datetime
import functools
import itertools
import operator
from typing import Any

import numpy as np
import scipy.stats

from experiments import config
from experiments.config import Study
from experiments.report import query
from experiments.report.query import METRICS, PAIR, Pair, Results, method_name
from experiments.rows import Missing, RowsError, kept
from orthograd_optax import stats

LEVEL = 0.05
# The largest difference that does not matter: a share of the mean loss without
# ⊥Grad, and points of accuracy.
SHARE, POINTS = 0.03, 0.5
# PLAN.md's first margin, in nats, and the studies to which it gave the share.
PLANNED, SHARED = 0.02, query.LABELS["shared_margin"]["studies"]
# PLAN.md's `data_size`: one family, with the 10 % of `schedules`.
SIZES = ("data_1_percent", "data_100_percent", "schedules")
UNDER_CORRUPTION = [
  m for m in METRICS if m not in ("temperature", "weight_norm")
]


@dataclasses.dataclass(eq=False)
class Compared:
  """An outcome of two sets of runs that share their seeds.

  `change` has a 95 % `interval`, and `p` is of the paired t-test. `adjusted` is
  the same p until :func:`adjust` is called.
  """

  outcome: query.Outcome
  a: np.ndarray  # of each seed
  b: np.ndarray
  pair: Pair = PAIR
  planned: float | None = None  # PLAN.md's margin, if it is another

  def __post_init__(self):
    test = stats.compare(self.a, self.b, paired=True)
    self.metric = self.outcome.metric
    self.change, self.interval = test.difference, test.difference_interval
    self.d, self.p = test.d, test.p
    self.adjusted = self.p

  @property
  def differs(self) -> bool:
    """Returns whether tables have a *."""
    return self.adjusted < LEVEL

  @property
  def sign(self) -> int:
    """Returns the sign of a significant change; 0 if there is none."""
    return int(np.sign(self.change)) if self.differs else 0

  @property
  def margin(self) -> float | None:
    """Returns the largest difference that does not matter to a user."""
    if self.metric == "top1":
      return POINTS
    first, second = map(has_orthograd, self.pair)
    without = self.b if first and not second else self.a
    return SHARE * float(np.mean(without)) if self.metric == "loss" else None

  def is_within(self, margin: float | None) -> bool:
    """Returns whether the interval lies within a margin."""
    low, high = self.interval
    return margin is not None and -margin < low and high < margin

  @property
  def verdict(self) -> str:
    return self.judge(self.margin)

  @property
  def old_verdict(self) -> str:
    """Returns the verdict by PLAN.md's margin if it differs; else ""."""
    old = self.judge(self.planned or self.margin)
    return "" if old == self.verdict else old

  def judge(self, margin: float | None) -> str:
    """Returns the verdict by a margin. It is the same in both orders."""
    small = self.is_within(margin)
    if not self.differs:
      return "no difference that matters" if small else "undecided"
    better = self.pair[self.change * self.outcome.sign < 0]
    if adds_orthograd(self.pair):
      word = "helps" if better == self.pair[1] else "harms"
    else:
      word = f"{method_name(better)} is better"
    return f"{word}, but by less than matters" if small else word


@functools.cache
def _method(name: str) -> config.Method | None:
  """Returns a method that a study or the command line can name."""
  known = {m.name: m for it in config.studies().values() for m in it.methods}
  return (known | config.METHODS).get(config.split_ensemble(name)[0])


def has_orthograd(method: str) -> bool:
  """Returns whether a method of this name has ⊥Grad.

  Examples:
    >>> has_orthograd("strength_0.5"), has_orthograd("sam ensemble of 5")
    (True, False)
  """
  known = _method(method)
  if known is None:
    return method.startswith("orthograd")
  return bool(known.strength or known.strength_at_end)


def adds_orthograd(pair: Pair) -> bool:
  """Returns whether the second method is the first with ⊥Grad added.

  Examples:
    >>> adds_orthograd(("cosine", "strength_0.5"))
    True
    >>> adds_orthograd(("sam", "strength_0.5"))
    False
    >>> adds_orthograd(("cross_validated", "orthograd"))  # an arm has its own T
    False
  """
  first, second = map(has_orthograd, pair)
  parts = operator.attrgetter(
    *("base", "schedule", "loss", "augmentation", "wrapper")
  )
  kinds = {it and parts(it) for it in map(_method, pair)}
  return second and not first and len(kinds) < 2


def adjust(cells: Iterable[Compared], planned: int = 0) -> None:
  """Adjusts p in place by Holm's method, over all cells.

  If some tests could not be made, `planned` is the number of all.
  """
  cells = list(cells)
  p = [cell.p for cell in cells] + [1.0] * (planned - len(cells))
  for cell, adjusted in zip(cells, stats.holm(p).tolist(), strict=False):
    cell.adjusted = adjusted


class Comparisons:
  """Answers what templates ask of kept and own studies and pools, by name."""

  def __init__(self, own: Mapping[str, tuple[Study, Results]] | None = None):
    self._own = own or {}
    self._kept: dict[str, Results] = {}
    self._complete: dict[str, bool] = {}
    self._tested: dict[str, dict[str, dict[Pair, Compared]]] = {}

  def study(self, name: str) -> Study:
    """Returns a study, or the one whose recipe a pool has."""
    if name in self._own:
      return self._own[name][0]
    return config.load_study(query.POOLS.get(name, {"study": name})["study"])

  def results(self, name: str) -> Results:
    if name in self._own:
      return self._own[name][1]
    if name not in self._kept:
      study, pool = self.study(name), query.POOLS.get(name)
      rows = kept.load(pool["files"] if pool else kept.sharing(study))
      rows = [*rows, *query.arm_rows(study)]
      self._kept[name] = Results(rows, study.config)
    return self._kept[name]

  def is_planned(self, name: str) -> bool:
    """Returns whether PLAN.md plans the study with just these settings."""
    own = config.own_study(name)
    return name in query.planned() and own == self.study(name)

  def is_complete(self, name: str) -> bool:
    """Returns whether every run has rows of all images, or diverged."""
    if name not in self._complete:
      study, results = self.study(name), self.results(name)
      keys = {(study.config.hash, *key) for key in results.rows}
      runs = not any(map(Missing(study, keys), study.runs))
      self._complete[name] = runs and all(map(self.is_complete, study.arms))
    return self._complete[name]

  def compare(
    self, name: str, a: str, b: str, it: str = "scaled_loss", **where: Any
  ) -> Compared:
    """Returns the comparison of two methods, by default on all shared seeds.

    Its p is adjusted as on the study's page if the pair and the outcome are
    there. `where` has arguments of :meth:`Results.values`.
    """
    if not where and name not in query.POOLS:
      if (a, b) in query.pairs(self.study(name)):
        if known := self.tested(name).get(it, {}).get((a, b)):
          return known
    return self._raw(name, a, b, it, **where)

  def _raw(self, name, a, b, it, seeds=None, epoch=0, **where) -> Compared:
    results, outcome = self.results(name), query.outcome(it, **where)
    if seeds is None:
      seeds = results.seeds([a, b], outcome.images, [epoch])
    of = lambda method: results.values(method, it, seeds, epoch, **where)
    is_planned = (
      it in ("scaled_loss", "corrupted_loss")
      and name not in SHARED
      and (name in query.POOLS or self.is_planned(name))
    )
    margin = PLANNED if is_planned else None
    return Compared(outcome, of(a), of(b), (a, b), margin)

  def tested(self, name: str) -> dict[str, dict[Pair, Compared]]:
    """Returns a study's comparisons by outcome and pair.

    The p of the primary outcome, which is first, is adjusted for all pairs
    that the study lists, and the p of the others for all of their cells. Those
    that the plan does not test have no adjusted p, and differ nowhere. The
    second edition, whose studies reserve images, tests all.

    Raises:
      RowsError: if there is nothing to compare yet.
    """
    if name in self._tested:
      return self._tested[name]
    study, results = self.study(name), self.results(name)
    pairs = [p for p in query.pairs(study) if len(results.seeds(p)) > 1]
    if not pairs or not all(results.measured(p, study.outcome) for p in pairs):
      raise RowsError(
        f"{study.name} needs two seeds of both methods of a pair after epoch "
        f"{study.config.epochs}, each with "
        f"{query.OUTCOMES[study.outcome].label}. Train them: `python -m "
        f"experiments run {study.name}`."
      )
    tested = {
      it: {p: self._raw(name, *p, it) for p in pairs}
      for it in results.outcomes(pairs, first=study.outcome)
    }
    primary, *rest = tested.items()
    family = self._relatives(name)
    count = len(query.pairs(study)) + len(family)
    adjust([*primary[1].values(), *family], count)
    others = [cell for _, column in rest for cell in column.values()]
    is_tested = lambda cell: cell.outcome.tested or study.config.reserve
    adjust(filter(is_tested, others))
    for cell in itertools.filterfalse(is_tested, others):
      cell.adjusted = np.nan
    self._tested[name] = tested
    return tested

  def _relatives(self, name: str) -> list[Compared]:
    """Returns what PLAN.md adjusts together with a study's own comparisons."""
    if name not in SIZES[:-1] or not self.is_planned(name):
      return []
    pairs = {it: query.pairs(self.study(it))[-1] for it in SIZES if it != name}
    return [
      self._raw(other, *pair, "scaled_loss")
      for other, pair in pairs.items()
      if len(self.results(other).seeds(pair)) > 1
    ]

  def table(
    self,
    name: str,
    its: Iterable[str] = METRICS,
    pair: Pair = PAIR,
    **where: Any,
  ) -> dict[str, Compared]:
    """Returns comparisons by outcome, with p adjusted for all of them."""
    rows = {it: self._raw(name, *pair, it, **where) for it in its}
    adjust(rows.values())
    return rows

  def grid(
    self,
    name: str,
    rows: Mapping[Any, Mapping[str, Any]],
    columns: Sequence[Mapping[str, Any]],
    **where: Any,
  ) -> dict[Any, list[Compared]]:
    """Returns lines of comparisons, with p adjusted for all cells.

    `rows` has arguments of :meth:`compare` for each line, and `columns` for
    each of its cells.
    """
    lines = {
      key: [self._raw(name, *PAIR, **{**row, **it, **where}) for it in columns]
      for key, row in rows.items()
    }
    adjust(cell for line in lines.values() for cell in line)
    return lines

  def means(
    self, name: str, methods: Iterable[str], least: int = 2
  ) -> tuple[list[str], dict[query.Outcome, dict[str, np.ndarray]]]:
    """Returns methods with so many seeds, and their values by outcome."""
    results, first = self.results(name), self.study(name).outcome
    methods = [m for m in methods if len(results.seeds([m])) >= least]
    its = results.outcomes([[m] for m in methods], first, least)
    return methods, {
      outcome: {m: results.values(m, it) for m in methods}
      for it, outcome in query.OUTCOMES.items()
      if it in its
    }

  def seconds(self, name: str, method: str) -> float:
    """Returns the time of an epoch of one of the runs that train together."""
    results = self.results(name)
    seeds = results.seeds([method], "train")
    rows = [results.get(method, seed, "train")[0] for seed in seeds]
    each = [row["epoch_seconds"] / row["runs_at_once"] for row in rows]
    return float(np.median(each))

  def provenance(self, name: str, results: str = "") -> dict[str, Any]:
    """Returns the device, versions, commits, days and minutes of a study."""
    rows = self.results(results or name).rows.values()
    rows = [row for row in rows if row["study"] == name]
    if not rows:
      return {}
    # Groups of runs follow each other, or processes train them side by side.
    seconds = end = 0.0
    for row in sorted(rows, key=clock_start):
      start, stop = clock_start(row), clock_start(row) + row["wall_time"]
      seconds += max(stop - max(start, end), 0)
      end = max(stop, end)
    seconds = round(seconds)
    rows.sort(key=lambda row: row["time"])
    brief = lambda commit: commit[:12] + "-dirty" * commit.endswith("-dirty")
    commits = dict.fromkeys(brief(row["commit"]) for row in rows)
    return {
      "study": name,
      "last": rows[-1],
      "commits": ", ".join(commits),
      "days": ", ".join(dict.fromkeys(row["time"][:10] for row in rows)),
      "time": f"{seconds // 60}:{seconds % 60:02d}",
    }

  def temperatures(self, name: str, base: str = "sgd") -> dict[str, np.ndarray]:
    """Returns what T is fitted without and with ⊥Grad, at equal settings.

    Each column has its values by setting: "decay", which is learning rate ×
    weight decay, and "without" and "with", the geometric means of T over seeds.
    Diverged runs are left out.
    """
    study, results = self.study(name), self.results(name)
    lines = []
    for method in study.methods:
      pair = method.name, f"orthograd_{method.name}"
      if method.base == base and (seeds := results.seeds(pair)):
        its = method.resolve(study.config)
        logs = [np.log(results.values(m, "temperature", seeds)) for m in pair]
        decay = its.learning_rate * its.weight_decay
        lines.append((decay, *np.exp(np.mean(logs, axis=1))))
    names = ("decay", "without", "with")
    return dict(zip(names, np.array(lines).reshape(-1, 3).T, strict=True))


def claim(sign: int, rows: Collection[Compared]) -> str:
  """Returns the verdict on a claim of the paper about comparisons.

  Its sign is of ⊥Grad minus SGD; 0 claims no difference.
  """
  signs = [row.sign for row in rows]
  if any(its != sign for its in signs if its):
    return "contradicted"
  if sign == 0:
    confirmed = all(row.is_within(row.margin) for row in rows)
  else:
    confirmed = all(signs)
  return "confirmed" if confirmed else "not confirmed"


def carried(part: Compared, whole: Compared, beside: Compared) -> str:
  """Returns what a part of the parameters does of the whole's effect.

  Both are compared with SGD, and `beside` is the part compared with the whole.
  """
  shares = part.sign == whole.sign != 0
  if shares and beside.is_within(whole.margin):
    return "carries the effect"
  if part.is_within(part.margin):
    return "does nothing"
  return "some of it" if shares else "undecided"


def clock_start(row: Mapping[str, Any]) -> float:
  """Returns when the clock of a row's wall_time was started."""
  time = datetime.datetime.fromisoformat(row["time"])
  return time.timestamp() - row["wall_time"]


def unpaired(a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
  """Returns a − b of runs with different seeds, with its interval and p.

  The variances are pooled: the test of Welch has hardly a degree of freedom
  with two runs.
  """
  test: Any = scipy.stats.ttest_ind(a, b)
  its = {"change": a.mean() - b.mean(), "p": test.pvalue}
  return its | {"interval": tuple(test.confidence_interval())}
