"""The choice of settings, on made-up losses."""

import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from experiments.tuning import Grid, choose, to_try

RATES = 0.01, 0.1, 1.0, 10.0, 100.0
GRIDS = {
  "plain": Grid({"rate": RATES, "decay": (None, 1.0, 2.0, None)}),
  "other": Grid({"rate": RATES, "focus": (0.0, 1.0, 3.0, None)}),
}
NEAR = {"plain": (1.0, 1.0), "other": (1.0, 3.0)}  # no edge that has a beyond


def losses_with_best(best, lowest=0.5):
  return lambda name, setting: lowest if setting == best[name] else 1.0


def test_grids_are_of_equal_size():
  assert [len(grid.first()) for grid in GRIDS.values()] == [6, 6]
  assert GRIDS["plain"].named((0.1, 2.0)) == {"rate": 0.1, "decay": 2.0}


def test_no_extension_within_the_grid():
  losses = losses_with_best(NEAR)
  tried = to_try(GRIDS, losses, more=2)
  assert tried == {name: grid.first() for name, grid in GRIDS.items()}
  assert choose(tried, losses) == NEAR


def test_one_edge_extends_all_grids_once():
  losses = losses_with_best(NEAR | {"plain": (10.0, 1.0)})
  tried = to_try(GRIDS, losses, more=2)
  assert tried["plain"][6:] == [(100.0, 1.0), (100.0, 2.0)]
  # Of the other, the nearest to its best: two steps away, then three.
  assert tried["other"][6:] == [(0.01, 3.0), (1.0, 0.0)]
  # The best may then be outside of the grid; there's no second extension.
  losses = losses_with_best({"plain": (100.0, 1.0), "other": (1.0, 3.0)})
  more = lambda name, setting: (
    0.7 if (name, setting) == ("plain", (10.0, 1.0)) else losses(name, setting)
  )
  assert to_try(GRIDS, more, more=2) == tried
  assert choose(tried, more)["plain"] == (100.0, 1.0)


def test_an_end_without_a_beyond_is_no_edge():
  grid = GRIDS["other"]
  assert grid.at_edge((1.0, 1.0)) and not grid.at_edge((1.0, 3.0))
  assert grid.at_edge((0.1, 3.0)) and grid.at_edge((10.0, 3.0))


def test_unknown_losses_choose_nothing():
  assert choose({"plain": [(1.0, 1.0)]}, lambda *_: None) == {}
  tried = to_try(GRIDS, lambda *_: None, more=2)
  assert {name: len(its) for name, its in tried.items()} == {
    "plain": 6,
    "other": 6,
  }


@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_diverged_settings_are_never_chosen(lost):
  losses = {(1.0,): lost, (2.0,): 9.0, (3.0,): lost}
  assert choose({"a": list(losses)}, lambda _, s: losses[s]) == {"a": (2.0,)}


@given(st.lists(st.floats(0, 1), min_size=12, max_size=12), st.integers(0, 5))
def test_every_method_gets_as_many_settings(values, more):
  known = dict(zip(RATES * 3, values, strict=False))
  losses = lambda name, setting: known[setting[0]] + setting[1] / 100
  tried = to_try(GRIDS, losses, more)
  sizes = {len(settings) for settings in tried.values()}
  assert sizes in ({6}, {6 + min(more, 4)})  # plain has 4 beyond its grid
  for name, settings in tried.items():
    assert len(set(settings)) == len(settings)
    best = choose(tried, losses)[name]
    assert losses(name, best) == min(losses(name, s) for s in settings)
