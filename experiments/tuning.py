"""Chooses settings from the rows of tuning runs, by the rule of PLAN.md.

Each method has a :class:`Grid`. All grids have the same number of settings. If
a method's best setting lies on the edge of its grid, the grids of all methods
are extended once, each by the same number of settings.
"""

from collections.abc import Callable, Mapping
import dataclasses
import itertools
import math

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
    """The setting's values, by name."""
    return dict(zip(self.ladders, setting, strict=True))

  def first(self) -> list[Setting]:
    """The settings of the grid before an extension."""
    return _product(ladder[1:-1] for ladder in self.ladders.values())

  def at_edge(self, setting: Setting) -> bool:
    """Whether the ladders have a step beyond this setting of the grid."""
    ladders = zip(self.ladders.values(), setting, strict=True)
    return any(
      (value == ladder[1] and ladder[0] is not None)
      or (value == ladder[-2] and ladder[-1] is not None)
      for ladder, value in ladders
    )

  def beyond(self, best: Setting, count: int) -> list[Setting]:
    """The settings outside of the grid that are nearest to its best.

    Args:
      best: a setting of the grid.
      count: how many settings to return. Distances are in steps of ladders.
    """
    first = set(self.first())
    outside = [s for s in _product(self.ladders.values()) if s not in first]

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
  """The settings to try, by method.

  Args:
    grids: of all methods.
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
  """The setting with the lowest loss of each method, the first of equals.

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
