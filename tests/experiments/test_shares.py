"""Shares of a study: every run is in one, and the same one on any machine."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st
import pytest

from experiments import config, shares
from experiments.files import UserError

STUDIES = ("quick", "methods", "table1", "strength")


def share_of(study, number, count):
  return dataclasses.replace(study, share=(number, count)).runs


@given(name=st.sampled_from(STUDIES), seeds=st.integers(1, 23), data=st.data())
def test_every_run_is_in_one_share(name, seeds, data):
  study = config.load_study(name).override([f"seeds={seeds}"])
  groups = len(list(shares.divide(study, study.runs, lambda _: 10)))
  count = data.draw(st.integers(1, groups))
  parts = [share_of(study, i + 1, count) for i in range(count)]
  assert all(parts)
  runs = [run for part in parts for run in part]
  assert len(runs) == len(study.runs) and set(runs) == set(study.runs)


def test_as_many_shares_as_runs():
  study = config.load_study("quick").override(["seeds=4"])
  seeds = [{run.seed for run in share_of(study, i + 1, 4)} for i in range(4)]
  assert seeds == [{0}, {1}, {2}, {3}]  # SGD and ⊥Grad of a seed together
  assert [len(share_of(study, i + 1, 8)) for i in range(8)] == [1] * 8
  for share in ((9, 9), (0, 4), (5, 4)):
    with pytest.raises(UserError, match="Expected a share such as 1/"):
      share_of(study, *share)


def test_ensembles_stay_whole():
  study = config.load_study("ensembles")
  for run in share_of(study, 2, 3):
    others = share_of(study, 2, 3)
    block = study.block(run.seed)
    whole = {r for r in study.runs if study.block(r.seed) == block}
    assert {r for r in whole if r.method == run.method} <= set(others)
  with pytest.raises(UserError, match="With --share or --jobs, use fewer"):
    share_of(study, 1, len(study.runs))


def test_a_share_has_its_own_folder():
  study = config.load_study("methods")
  third = dataclasses.replace(study, share=(3, 4))
  assert third.folder == study.folder / "shares" / "3-of-4"
  assert third.override(["epochs=3"]).share == (3, 4)
