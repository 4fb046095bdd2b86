"""A small version of the campaign of faults, without studies that train."""

import random

from faults import damage, hostile, index, inputs, library, mounts, surroundings
import pytest


@pytest.mark.slow
def test_damage(tmp_path):
  for figures in damage.run(tmp_path / "faults", seed=1, share=0.02):
    assert figures.cases and not figures.wrong, figures.wrong


@pytest.mark.slow
def test_library(tmp_path):
  for figures in library.run(tmp_path / "faults", seed=1, share=0.02):
    assert figures.cases and not figures.wrong, figures.wrong


@pytest.mark.slow
def test_hostile():
  (figures,) = hostile.run()
  assert figures.outcomes["refused"] == figures.cases > 10
  assert not figures.wrong, figures.wrong


def test_surroundings(tmp_path):
  for figures in surroundings.run(tmp_path):
    assert figures.cases and not figures.wrong, figures.wrong


@pytest.mark.slow
def test_mounts(tmp_path):
  for figures in mounts.run(tmp_path / "faults", seed=1):
    if reason := next((x for x in figures.outcomes if "skipped" in x), None):
      pytest.skip(reason)
    assert figures.cases and not figures.wrong, figures.wrong


@pytest.mark.slow
def test_hostile_indexes():
  for figures in index.run(share=0.2):
    assert figures.cases and not figures.wrong, figures.wrong


def test_what_is_wrong_is_seen(tmp_path):
  """A reader that lets everything pass, or raises, is found out."""
  path, chance = tmp_path / "x", random.Random(0)
  careless = inputs.Reader("x", path, b"hello", path.read_bytes, same=True)
  figures = damage.each([careless], "flips", inputs.flip, 5, chance)
  assert figures.outcomes == {"read otherwise": 5} and len(figures.wrong) == 5
  strict = inputs.Reader("x", path, b"12", lambda: int(path.read_bytes()))
  figures = damage.each([strict], "cuts", lambda *_: b"x", 5, chance)
  assert figures.outcomes == {"a traceback": 5} and len(figures.wrong) == 5
