"""Tests of pairs, their adjustment, and the rule for verdicts."""

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import scipy.stats

from experiments.report import compare, query
from experiments.report.compare import Compared
from experiments.report.query import OUTCOMES
from experiments.studies import where

from .reading import cohens_d, holm, paired

LOSS, ACCURACY, ECE = (OUTCOMES[it] for it in ("loss", "accuracy", "ece"))


@pytest.mark.parametrize(
  ("change", "noise", "loss", "accuracy"),
  [
    (-0.2, 0.01, "helps", "harms, but by less than matters"),
    (0.2, 0.01, "harms", "helps, but by less than matters"),
    (
      *(-0.02, 0.001, "helps, but by less than matters"),
      "harms, but by less than matters",
    ),
    (0.0, 0.001, "no difference that matters", "no difference that matters"),
    (0.0, 0.2, "undecided", "no difference that matters"),
    (0.0, 1.0, "undecided", "undecided"),
  ],
)
def test_verdicts(change, noise, loss, accuracy):
  """The margin is 3 % of a mean of 1.5, which is 0.045, or 0.5 points."""
  a = np.linspace(1.0, 2.0, 10)
  b = a + change + noise * np.tile([1.0, -1.0], 5)
  assert Compared(LOSS, a, b).verdict == loss
  assert Compared(ACCURACY, a, b).verdict == accuracy


@given(
  st.lists(st.floats(-0.1, 0.1), min_size=3, max_size=12),
  st.floats(1e-4, 0.05),
  st.floats(1, 10),
)
def test_verdicts_follow_the_interval(differences, spread, factor):
  """By SciPy's interval; an adjustment can only make them less certain."""
  a = np.ones(len(differences))
  b = a + np.array(differences) + spread * np.arange(len(a))
  low, high = scipy.stats.ttest_rel(b, a).confidence_interval()
  row = Compared(LOSS, a, b)
  inside = -0.03 < low and high < 0.03
  if low > 0 or high < 0:
    word = "helps" if high < 0 else "harms"
    tail = ", but by less than matters" if inside else ""
    assert row.verdict == word + tail
  row.adjusted = min(1.0, factor * row.adjusted)
  if row.adjusted >= 0.05:
    word = "no difference that matters" if inside else "undecided"
    assert row.verdict == word


@pytest.mark.parametrize("pair", [("sam", "mixup"), ("sam", "strength_0.5")])
def test_verdicts_are_the_same_in_both_orders(pair):
  rng = np.random.default_rng(0)
  a, b = rng.normal(1.0, 0.01, 9), rng.normal(0.8, 0.01, 9)
  one, other = Compared(LOSS, a, b, pair), Compared(LOSS, b, a, pair[::-1])
  assert (
    one.verdict == other.verdict == (f"{query.method_name(pair[1])} is better")
  )


def test_the_margin_is_of_the_mean_without_orthograd():
  a, b = np.full(4, 2.0), np.array([1.0, 1.1, 0.9, 1.0])
  assert Compared(LOSS, a, b, ("sgd", "orthograd")).margin == 0.06
  assert Compared(LOSS, a, b, ("orthograd", "mixup")).margin == 0.03
  assert Compared(ECE, a, b).margin is None


def test_an_old_verdict_is_named_if_it_differs():
  a = np.full(6, 0.3)
  b = a + 0.005 + 0.01 * np.array([1, -1, 1, -1, 1, -1])
  row = Compared(LOSS, a, b, planned=0.02)
  assert row.verdict == "undecided"
  assert row.old_verdict == "no difference that matters"
  assert Compared(LOSS, a, b, planned=0.009).old_verdict == ""


def test_equal_pairs_do_not_differ():
  row = Compared(LOSS, np.ones(3), np.ones(3))
  assert row.p == 1 and row.interval == (0, 0) and row.sign == 0
  assert row.verdict == "no difference that matters"


@given(st.integers(0, 10_000))
def test_numbers_against_scipy(seed):
  rng = np.random.default_rng(seed)
  a, b = rng.normal(size=(2, 8))
  row = Compared(LOSS, a, b)
  change, low, high, p = paired(a, b)
  numbers = [row.change, *row.interval, row.p, row.d]
  expected = [change, low, high, p, cohens_d(a, b)]
  np.testing.assert_allclose(numbers, expected, rtol=1e-9)
  rows = [Compared(LOSS, a, b + 0.1 * i) for i in range(4)]
  compare.adjust(rows, planned=6)
  np.testing.assert_allclose(
    [row.adjusted for row in rows],
    holm([row.p for row in rows] + [1.0, 1.0])[:4],
  )


def test_claims():
  rng = np.random.default_rng(1)
  low, same, wide = (
    Compared(LOSS, np.ones(9), 1 + change + rng.normal(scale=noise, size=9))
    for change, noise in ((-0.2, 0.01), (0.0, 0.001), (0.0, 0.5))
  )
  assert compare.claim(-1, [low]) == "confirmed"
  assert compare.claim(1, [low]) == compare.claim(0, [low]) == "contradicted"
  assert compare.claim(-1, [low, wide]) == "not confirmed"
  assert compare.claim(0, [same]) == "confirmed"
  assert compare.claim(0, [same, wide]) == "not confirmed"


def test_what_carries_the_effect():
  rng = np.random.default_rng(2)
  row = lambda change: Compared(
    LOSS, np.ones(9), 1 + change + rng.normal(scale=0.005, size=9)
  )
  whole = row(-0.2)
  carried = lambda part, beside: compare.carried(part, whole, beside)
  assert carried(row(-0.2), row(0.0)) == "carries the effect"
  assert carried(row(-0.1), row(0.1)) == "some of it"
  assert carried(row(0.0), row(0.2)) == "does nothing"
  assert carried(row(0.2), row(0.4)) == "undecided"


def test_what_the_plan_adjusts(ask, runs):
  """Holm over the study's pairs, and over all cells of the other outcomes."""
  actual, study = runs("schedules", "where"), where.STUDY
  tested = ask.tested("where")
  seeds = range(100, 110)
  values = lambda metric, part="metrics": [
    actual(where, metric, seeds, part=part, pair=pair) for pair in study.pairs
  ]
  p = holm([paired(*x)[-1] for x in values("loss", "scaled_half")])
  adjusted = [row.adjusted for row in tested["scaled_loss"].values()]
  np.testing.assert_allclose(adjusted, p)
  cells = [row for it, column in tested.items() for row in column.values()]
  others = [row for row in cells[10:] if not np.isnan(row.adjusted)]
  assert len(others) == 60  # of six outcomes that the plan tests
  least = min(others, key=lambda row: row.p)
  assert least.adjusted == pytest.approx(60 * least.p)
  assert not any(row.differs for row in tested["scaled_ece"].values())


def test_sizes_of_data_are_one_family(ask):
  names = ("schedules", "data_1_percent", "data_100_percent")
  rows = [
    ask.compare(
      name,
      "cosine",
      "orthograd_cosine",
      seeds=ask.results(name).seeds(["cosine", "orthograd_cosine"]),
    )
    for name in names
  ]
  expected = holm([row.p for row in rows])
  for name, p in list(zip(names, expected, strict=True))[1:]:
    (row,) = ask.tested(name)["scaled_loss"].values()
    assert row.adjusted == pytest.approx(p)
