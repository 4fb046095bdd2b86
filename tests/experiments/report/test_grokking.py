"""The page of grokking, from rows that are made up here."""

import itertools

import numpy as np
import pytest
import scipy.stats
from statsmodels.stats.multitest import multipletests

from experiments import grokking
from experiments.report import grokking as page
from experiments.report.render import TemplateError, markdown
from experiments.rows import RowsError, kept

RECIPE = grokking.Recipe(steps=50)
SEEDS = range(100, 110)
NEVER = RECIPE.steps + 1


def made(goals, pilot=()):
  """Rows of runs that reach 99 % after so many steps.

  Args:
    goals: for each arm, the steps of each seed.
    pilot: pairs of weight decay and steps.
  """
  runs = [
    (grokking.STUDY, arm, seed, goal)
    for arm, its in goals.items()
    for seed, goal in zip(SEEDS, its, strict=False)
  ]
  runs += [
    (page.PILOT, grokking.Arm(False, decay), 900, goal) for decay, goal in pilot
  ]
  scores = lambda top1: {"top1": top1, "loss": 0.5 - top1 / 300, "ece": 0.1}
  return [
    {
      "study": study,
      "method": arm.key,
      "settings": arm._asdict(),
      "seed": seed,
      "epoch": step,
      "train": scores(100.0),
      "metrics": scores(99.5 if step >= goal else 0.1),
      "config_hash": RECIPE.hash,
      "wall_time": float(step),
      "time": f"2026-11-17T09:00:{step:02}+00:00",
      "versions": {"jax": "0.10.2"},
      "device": "1 × cpu",
      "cores": 2,
      "commit": "unknown",
    }
    for (study, arm, seed, goal), step in itertools.product(
      runs, range(5, RECIPE.steps + 1, 5)
    )
  ]


def adjust(p_values) -> np.ndarray:
  return np.asarray(multipletests(p_values, method="holm")[1])


def goals(orthograd, decayed, bare=(NEVER,) * 10):
  adamw, ours, other, both = grokking.ARMS
  return {adamw: bare, ours: orthograd, other: decayed, both: [20] * 10}


LATE = [30, 35, 25, 40, 30, 45, 30, 35, 30, 50]
SOON = [10, 15, 10, 15, 20, 10, 15, 10, 25, 15]


def test_page(tmp_path):
  ours, theirs = LATE, SOON
  rows = made(goals(ours, theirs), pilot=[(1.0, 40), (8.0, 15)])
  link = {"page": lambda name, plan_only: f"PLAN.md#11-{name}"}
  made_page = page.make(rows, RECIPE, link)
  made_page.write_markdown(tmp_path / "grokking.md")
  assert "**Weight decay does it, too:** without" in made_page.markdown
  assert (tmp_path / "grokking.png").stat().st_size > 10_000
  actual = (tmp_path / "grokking.md").read_text("utf-8")
  fisher = scipy.stats.fisher_exact([[10, 0], [0, 10]]).pvalue
  wilcoxon = scipy.stats.wilcoxon(ours, theirs).pvalue
  holm = adjust([fisher, wilcoxon])
  expected = f"| Fisher’s exact | {fisher:.2g} | {holm[0]:.2g} |"
  assert expected.replace("e-0", "e-") in actual
  assert f"| {wilcoxon:.3f} | {holm[1]:.3f} |" in actual
  cells = [line.split(" | ") for line in actual.splitlines() if "AdamW" in line]
  table = {line[0]: line[1:] for line in cells if len(line) == 7}
  assert table["| AdamW"][:2] == ["0 of 10", "> 50 (> 50 to > 50)"]
  expected = f"{np.median(ours):g} ({min(ours)} to {max(ours)})"
  assert table["| ⊥AdamW"][:2] == ["10 of 10", expected]
  assert table["| ⊥AdamW"][3] == "99.50 ± 0.00"
  assert "| 8 | 15.0 | 15 |" in actual and "| 1 | 40.0 | 40 |" in actual
  assert "PLAN.md#11-grokking) was written and committed before" in actual


@pytest.mark.parametrize(
  "ours, theirs, bare",
  [
    (LATE, LATE, [NEVER] * 10),  # no difference
    (SOON, [NEVER] * 10, [NEVER] * 10),
    (SOON, LATE, SOON),  # both reach it without decay
    (LATE, [*SOON[:5], *[NEVER] * 5], [NEVER] * 7 + [40] * 3),
  ],
)
def test_p_against_scipy(ours, theirs, bare):
  each = goals(ours, theirs, bare).items()
  goal = {k: dict(zip(SEEDS, v, strict=True)) for k, v in each}
  actual = page.conclude(goal, RECIPE)
  count = lambda its: sum(goal <= RECIPE.steps for goal in its)
  table = [[count(ours), 10 - count(ours)], [count(bare), 10 - count(bare)]]
  fisher = scipy.stats.fisher_exact(table)[1]
  wilcoxon = 1.0 if ours == theirs else scipy.stats.wilcoxon(ours, theirs)[1]
  np.testing.assert_allclose(
    list(actual["p"].values()), [fisher, wilcoxon], rtol=1e-12
  )
  holm = adjust([fisher, wilcoxon])
  np.testing.assert_allclose(list(actual["holm"].values()), holm, rtol=1e-12)
  more = holm[0] < 0.05 and count(ours) > count(bare)
  sooner = holm[1] < 0.05 and np.mean(ours) < np.mean(theirs)
  assert actual["needed"] == (more and sooner)
  assert actual["orthograd_faster"] == sooner
  assert not (actual["orthograd_faster"] and actual["adamw_faster"])


@pytest.mark.parametrize(
  "bare, verdict",
  [
    ([NEVER] * 10, "**“Needed”, by the plan’s rule:**"),
    (SOON, "**Faster than weight decay, but not shown to be needed:**"),
  ],
)
def test_other_verdicts(bare, verdict):
  actual = page.facts(made(goals(SOON, LATE, bare)), RECIPE)
  assert actual["verdict"].startswith(verdict)


def test_learning_rates(monkeypatch):
  tuned, stable = grokking.Arm(False, 3.0), grokking.STABLEMAX
  never, rows = [NEVER] * 10, []
  steps = {0.003: (never, SOON), 0.01: (SOON, LATE), 0.03: (LATE, SOON)}
  for rate, (ours, theirs) in steps.items():
    its = {grokking.ADAMW: never, grokking.ORTHOGRAD: ours}
    recipe = grokking.Recipe(learning_rate=rate, steps=RECIPE.steps)
    its |= {tuned: theirs, stable: never, grokking.Arm(True, 0.3): never}
    rows += [row | {"config_hash": recipe.hash} for row in made(its)]
  lacks = [row for row in rows if row["method"] != tuned.key]
  with pytest.raises(RowsError, match="rate 0.003 has 4 of five arms"):
    page.rates_facts(lacks, RECIPE.steps)
  facts = page.rates_facts(rows, RECIPE.steps)
  assert facts["bare"] == [] and facts["orthograd"] == [0.01, 0.03]
  assert facts["tuned"] == [0.003, 0.01, 0.03]
  assert facts["rates"][0.003][tuned]["to_goal"] == [15, min(SOON), max(SOON)]
  expected = []
  for ours, theirs in steps.values():
    count = sum(its <= RECIPE.steps for its in ours)
    expected.append(scipy.stats.fisher_exact([[count, 0], [10 - count, 10]])[1])
    expected.append(scipy.stats.wilcoxon(ours, theirs)[1])
    same = ours == never
    expected.append(1.0 if same else scipy.stats.wilcoxon(ours, never)[1])
  p, holm = np.transpose([its[2:] for its in facts["tests"]()])
  np.testing.assert_allclose(p, expected, rtol=1e-12)
  np.testing.assert_allclose(holm, adjust(expected), rtol=1e-12)
  context = {
    "grokking_rates": lambda: facts,
    "page": lambda name, plan_only=False: f"{name}.md",
  }
  text = markdown("grokking_rates.md", context)
  assert (
    "**Not at every learning rate:** without weight decay, all seeds" in text
  )
  assert (
    "with ⊥AdamW at learning rates 0.01 and 0.03, and with AdamW at no" in text
  )
  assert "| 0.003 | ⊥AdamW | 0 of 10 | never |" in text
  assert "| 0.03 | ⊥AdamW − AdamW, weight decay 3: Wilcoxon |" in text


def test_too_few_seeds():
  rows = made({arm: [10] for arm in grokking.ARMS})
  with pytest.raises(RowsError, match=r"1 seed\(s\) have all four arms"):
    page.facts(rows, RECIPE)
  with pytest.raises(RowsError, match=r"0 seed\(s\)"):
    page.facts(rows, grokking.Recipe())


def test_missing_number():
  rows = made(goals(SOON, LATE))
  rows[9]["metrics"]["loss"] = None  # diverged, at the end
  with pytest.raises(TemplateError, match="must be finite"):
    page.make(rows, RECIPE, {"page": lambda *_, **__: ""})


def test_kept_rows():
  rows = kept.load([grokking.STUDY, page.PILOT])
  its = page.facts(rows, grokking.Recipe())
  assert its["seeds"] == list(SEEDS) and len(its["pilot"]) == 5
  steps = {decay: np.mean(each) for decay, each in its["pilot"].items()}
  assert min(steps, key=steps.__getitem__) == grokking.TUNED
