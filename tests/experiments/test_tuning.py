"""The choice of settings, on made-up losses."""

import dataclasses
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from experiments import tuning
from experiments.config import Config, Study, load_study
from experiments.files import UserError
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


SMALL = {
  "sgd": Grid({"learning_rate": (0.1, 1.0, 2.0, None)}),
  "orthograd": Grid({"learning_rate": (0.1, 1.0, 2.0, None)}),
}


def row(method, number, loss, scaled=0.0, dataset="clean"):
  config, seed = Config(evaluate_on="held_out"), tuning.FIRST_SEED + number
  its = {"metrics": {"loss": loss}, "scaled_crossed": {"loss": scaled}}
  its |= {"config_hash": config.hash, "epoch": config.epochs}
  return {"method": method, "seed": seed, "dataset": dataset} | its


@pytest.fixture
def rows(monkeypatch):
  kept = []
  monkeypatch.setattr(tuning.kept, "load", lambda names: kept)
  return kept


def tuned():
  return tuning.Tuning("tuning", Config(), SMALL, "loss", more=1)


def test_study_with_chosen_settings(rows):
  its = tuned()
  names = ("sgd_1", "sgd_2", "orthograd_1", "orthograd_2")
  assert its.study.method_names == names
  untuned = its.chosen("loss")
  assert [m.name for m in untuned] == ["sgd_untuned", "orthograd_untuned"]
  # The means decide: 2.0 is better for SGD without T, 1.0 after T.
  rows += [row("sgd_1", 0, 1.0, 0.5), row("sgd_1", 1, 3.0, 0.5)]
  rows += [row("sgd_2", 0, 1.9, 0.6), row("sgd_2", 1, 1.9, 0.6)]
  rows += [row("orthograd_1", s, 5.0, 5.0) for s in (0, 1)]
  rows += [row("orthograd_2", 0, 0.0, 0.0)]
  assert its.chosen("loss") == untuned  # a seed is missing
  # Neither an earlier epoch nor another seed counts.
  rows += [row("orthograd_2", 1, 0.0) | {"epoch": 10}]
  rows += [row("orthograd_2", 2, 0.0)]
  assert its.chosen("loss") == untuned
  rows += [row("orthograd_2", 1, 0.0, dataset="diverged")]
  # ⊥Grad's best is now 1.0, on an edge: every method gets one more setting.
  its = tuned()
  assert its.study.method_names[2:] == (
    "sgd_0.1",
    "orthograd_1",
    "orthograd_2",
    "orthograd_0.1",
  )
  assert its.chosen("loss")[0].name == "sgd_untuned"
  rows += [row("sgd_0.1", s, 9.0, 9.0) for s in (0, 1)]
  rows += [row("orthograd_0.1", s, 4.0, 6.0) for s in (0, 1)]
  its = tuned()
  assert len(its.study.methods) == 6
  trial = row("sgd_2", 0, 0.0) | {"config_hash": "of a trial"}
  rows.append(trial | {"method": "orthograd_2"})
  criteria = ("loss", "scaled_loss")
  both = [its.chosen(criterion) for criterion in criteria]
  methods = [method for each in both for method in each]
  rates = {method.name: method.learning_rate for method in methods}
  assert rates == {
    "sgd": 2.0,
    "orthograd": 0.1,
    "sgd_after_t": 1.0,
    "orthograd_after_t": 1.0,
  }
  contests = [
    its.contest("test", criterion, arms=("arm",)) for criterion in criteria
  ]
  assert [contest.methods for contest in contests] == both
  assert [contest.outcome for contest in contests] == ["loss", "crossed_loss"]
  assert contests[0].pairs == (("sgd", "orthograd"), ("arm", "orthograd"))
  assert contests[1].pairs[0] == ("sgd_after_t", "orthograd_after_t")
  assert all(contest.config == Config(reserve=True) for contest in contests)
  assert [method.strength for method in methods] == [0.0, 1.0, 0.0, 1.0]


def test_refuses_what_is_not_chosen(rows):
  waits = Study(name="waits", methods=tuned().chosen("loss"))
  with pytest.raises(UserError, match="sgd_untuned.*`keep`"):
    tuning.check_chosen(waits)
  tuning.check_chosen(waits.override(["dataset=sample", "per_class=10"]))


def test_temperatures(rows):
  folds = load_study("cross_validation")

  def own(seed, value):
    its = row("sgd", 0, 1.0) | {"config_hash": folds.config.hash}
    return its | {"seed": seed, "metrics": {"temperature_own": value}}

  rows += [own(50 + i, value) for i, value in enumerate((1, 2, 4, 8, 16))]
  rows += [own(55, 3.0), own(56, 3.0) | {"config_hash": "trial"}]
  rows += [own(60, 9.0) | {"epoch": epoch} for epoch in range(5)]
  rows += [own(50, 9.0) | {"epoch": 1}]
  assert tuning.temperatures(folds) == {10: pytest.approx(4.0)}
  its = Study("test", seeds=1, first_seed=10, temperatures_of=folds.name)
  tuning.check_chosen(its)
  its = dataclasses.replace(its, seeds=2)
  with pytest.raises(UserError, match="seeds 11 from cross_val.*`keep`"):
    tuning.check_chosen(its)
