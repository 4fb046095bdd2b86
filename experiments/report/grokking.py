"""Makes the pages of grokking, studies 11 and 20: who generalizes, and when."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments import grokking
from experiments.grokking import (
  ADAMW,
  ARMS,
  ORTHOGRAD,
  RATES_STEPS,
  RATES_STUDY,
  STUDY,
  Arm,
  Recipe,
)
from experiments.report import figures
from experiments.report.compare import LEVEL, clock_start
from experiments.report.render import Page, markdown
from experiments.rows import RowsError, kept
from orthograd_optax import stats

PILOT = "grokking_pilot"
DECAYED = ARMS[2]  # AdamW with the weight decay that the pilot chose
Rows = Sequence[Mapping[str, Any]]


def kept_facts() -> dict[str, Any]:
  """Returns the facts of the rows that are kept."""
  return facts(kept.load([STUDY, PILOT]), Recipe())


def kept_rates() -> dict[str, Any]:
  """Returns the facts of the kept rows at several learning rates."""
  return rates_facts(kept.load([RATES_STUDY]), RATES_STEPS)


def make(its: Mapping[str, Any], context: Mapping[str, Any]) -> Page:
  """Returns the page of what :func:`facts` returns."""
  drawings = {"grokking": lambda: figures.grokking(its["curves"], its["steps"])}
  return Page(markdown("grokking.md", {**context, **its}), drawings)


def facts(rows: Rows, recipe: Recipe) -> dict[str, Any]:
  """Returns the facts of the page, of the seeds that all arms have."""
  main = [row for row in rows if row["study"] == STUDY]
  to_goal = {arm: grokking.steps_to_goal(main, arm, recipe) for arm in ARMS}
  seeds = sorted(set.intersection(*map(set, to_goal.values())))
  if len(seeds) < 2:
    raise RowsError(
      f"{len(seeds)} seed(s) have all four arms, but a comparison needs two. "
      "Run `python -m experiments grokking` to train them."
    )
  by_key = {
    (row["method"], row["seed"], row["epoch"]): row
    for row in main
    if row["config_hash"] == recipe.hash
  }
  every = recipe.evaluate_every
  steps = range(every, recipe.steps + 1, every)
  accuracies = lambda arm, step: np.array(
    [by_key[arm.key, seed, step]["metrics"]["top1"] for seed in seeds], float
  )
  goal = {arm: np.array([to_goal[arm][s] for s in seeds]) for arm in ARMS}
  start = min(map(clock_start, by_key.values()))
  end = max(clock_start(row) + row["wall_time"] for row in by_key.values())
  its = {
    "recipe": recipe,
    "goal": grokking.GOAL,
    "seeds": seeds,
    "steps": steps,
    "arms": [
      _arm(main, arm, {s: to_goal[arm][s] for s in seeds}, recipe)
      for arm in ARMS
    ],
    "curves": {
      arm.name: np.stack([accuracies(arm, s) for s in steps], 1) for arm in ARMS
    },
    **conclude(goal, recipe.steps),
    "tuned": grokking.TUNED,
    "pilot": pilot_steps(rows, recipe),
    "row": by_key[DECAYED.key, seeds[-1], recipe.steps],
    "minutes": (end - start) / 60,
  }
  return its | {"verdict": markdown("grokking_verdict.md", its)}


def rates_facts(rows: Rows, steps: int) -> dict[str, Any]:
  """Returns the facts of the page about several learning rates."""
  by_rate, p_values = {}, {}
  for rate in grokking.RATES:
    recipe = Recipe(learning_rate=rate, steps=steps)
    its = [row for row in rows if row["config_hash"] == recipe.hash]
    arms = dict.fromkeys(Arm(**row["settings"]) for row in its)
    goal = {arm: grokking.steps_to_goal(its, arm, recipe) for arm in arms}
    by_rate[rate] = {arm: _arm(its, arm, goal[arm], recipe) for arm in arms}
    for question, p in grokking.tests(goal, steps).items():
      p_values[rate, question] = p
  holm = stats.holm(list(p_values.values())).tolist()
  is_tuned = lambda arm: arm.weight_decay and not arm.orthograd
  where = lambda is_so: [
    rate
    for rate, arms in by_rate.items()
    for arm, its in arms.items()
    if is_so(arm, its, arms)
  ]
  whole = lambda its: its["reached"] == its["seeds"]
  median = lambda its: its["to_goal"][0]
  return {
    "rates": by_rate,
    "tests": [
      (*test, p, adjusted)
      for (test, p), adjusted in zip(p_values.items(), holm, strict=True)
    ],
    # The rates at which all seeds reach 99 %.
    "bare": where(lambda arm, its, _: arm == ADAMW and whole(its)),
    "orthograd": where(lambda arm, its, _: arm == ORTHOGRAD and whole(its)),
    "tuned": where(lambda arm, its, _: is_tuned(arm) and whole(its)),
    # Where AdamW with a tuned weight decay needs fewer steps than ⊥AdamW.
    "sooner": where(
      lambda arm, its, arms: (
        is_tuned(arm) and median(its) < median(arms[ORTHOGRAD])
      )
    ),
    "steps": steps,
    "row": rows[-1],
  }


def _arm(
  rows: Rows, arm: Arm, goal: Mapping[int, int], recipe: Recipe
) -> dict[str, Any]:
  """Returns the steps to 99 % of an arm's seeds, and metrics at the end."""
  steps, end = list(goal.values()), (arm.key, recipe.steps, recipe.hash)
  ended = [
    row
    for row in rows
    if (row["method"], row["epoch"], row["config_hash"]) == end
    and row["seed"] in goal
  ]
  values = lambda part, metric: np.array(
    [r[part][metric] for r in ended], float
  )
  return {
    "name": arm.name,
    "seeds": len(steps),
    "reached": sum(step <= recipe.steps for step in steps),
    "to_goal": [float(f(steps)) for f in (np.median, np.min, np.max)],
    "train": values("train", "top1"),
    **{m: values("metrics", m) for m in ("top1", "loss", "ece")},
  }


def pilot_steps(rows: Rows, recipe: Recipe) -> dict[float, list[int]]:
  """Returns the steps to 99 % of the pilot's seeds, by AdamW's weight decay."""
  pilot = [row for row in rows if row["study"] == PILOT]
  return {
    decay: list(
      grokking.steps_to_goal(pilot, Arm(False, decay), recipe).values()
    )
    for decay in sorted({row["settings"]["weight_decay"] for row in pilot})
  }


def conclude(goal: Mapping[Arm, np.ndarray], steps: int) -> dict[str, Any]:
  """Returns the plan's two tests of the steps to 99 %, and their conclusion."""
  reached = [int(np.sum(goal[arm] <= steps)) for arm in (ORTHOGRAD, ADAMW)]
  fisher = grokking.fisher(goal[ORTHOGRAD], goal[ADAMW], steps)
  wilcoxon = stats.wilcoxon(goal[ORTHOGRAD], goal[DECAYED])
  difference = goal[ORTHOGRAD] - goal[DECAYED]
  n = np.count_nonzero(difference)
  p = {"fisher": fisher, "wilcoxon": wilcoxon.pvalue}
  holm = dict(zip(p, stats.holm(list(p.values())).tolist(), strict=True))
  more = holm["fisher"] < LEVEL and reached[0] > reached[1]
  # The rank sum of positive differences, minus its expectation.
  excess = wilcoxon.statistic - n * (n + 1) / 4
  differs = holm["wilcoxon"] < LEVEL
  return {
    "p": p,
    "holm": holm,
    "difference": float(np.median(difference)),
    "orthograd_faster": differs and excess < 0,
    "adamw_faster": differs and excess > 0,
    "needed": more and differs and excess < 0,
  }
