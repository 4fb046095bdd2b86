"""Makes the pages of grokking, studies 11 and 20: who generalizes, and when."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments import grokking
from experiments.grokking import ADAMW, ARMS, ORTHOGRAD, Arm, Recipe, Rows
from experiments.report import figures
from experiments.report.compare import LEVEL, clock_start
from experiments.report.render import Page, markdown
from experiments.rows import RowsError
from orthograd_optax import stats

PILOT = "grokking_pilot"
DECAYED = ARMS[2]  # AdamW with the weight decay that the pilot chose


def make(rows: Rows, recipe: Recipe, context: Mapping[str, Any]) -> Page:
  """Returns the page of the study and its pilot, by their rows."""
  its = facts(rows, recipe)
  drawings = {"grokking": lambda: figures.grokking(its["curves"], its["steps"])}
  return Page(markdown("grokking.md", {**context, **its}), drawings)


def facts(rows: Rows, recipe: Recipe) -> dict[str, Any]:
  """Returns the facts of the page, of the seeds that all arms have."""
  study = grokking.STUDY, recipe.hash
  main = [row for row in rows if (row["study"], row["config_hash"]) == study]
  goal = grokking.steps_to_goal(main, recipe)
  seeds = sorted(set.intersection(*(set(goal.get(arm, ())) for arm in ARMS)))
  if len(seeds) < 2:
    raise RowsError(
      f"{len(seeds)} seed(s) have all four arms, but a comparison needs two. "
      "Run `python -m experiments grokking` to train them."
    )
  main = [row for row in main if row["seed"] in seeds]
  main.sort(key=lambda row: (row["seed"], row["epoch"]))
  goal = {arm: {seed: goal[arm][seed] for seed in seeds} for arm in ARMS}
  curve = lambda arm: np.array(
    [row["metrics"]["top1"] for row in main if row["method"] == arm.key], float
  )
  start = min(map(clock_start, main))
  end = max(clock_start(row) + row["wall_time"] for row in main)
  pilot = [row for row in rows if row["study"] == PILOT]
  tried = grokking.steps_to_goal(pilot, recipe)
  every = recipe.evaluate_every
  its = {
    "recipe": recipe,
    "goal": grokking.GOAL,
    "seeds": seeds,
    "steps": range(every, recipe.steps + 1, every),
    "arms": list(_arms(main, goal, recipe).values()),
    "curves": {arm.name: curve(arm).reshape(len(seeds), -1) for arm in ARMS},
    **conclude(goal, recipe),
    "tuned": grokking.TUNED,
    # The pilot's steps, by weight decay.
    "pilot": {
      arm.weight_decay: list(tried[arm].values()) for arm in sorted(tried)
    },
    "row": [row for row in main if row["method"] == DECAYED.key][-1],
    "minutes": (end - start) / 60,
  }
  return its | {"verdict": markdown("grokking_verdict.md", its)}


def rates_facts(
  rows: Rows, steps: int = grokking.RATES_STEPS
) -> dict[str, Any]:
  """Returns the facts of the page about several learning rates."""
  goals, by_rate = {}, {}
  for rate in grokking.RATES:
    recipe = Recipe(learning_rate=rate, steps=steps)
    goals[rate] = grokking.steps_to_goal(rows, recipe)
    if len(goals[rate]) < 5:
      raise RowsError(
        f"Learning rate {rate:g} has {len(goals[rate])} of five arms. Run "
        "`python -m experiments grokking --rates` to train them."
      )
    by_rate[rate] = _arms(rows, goals[rate], recipe)
  where = lambda is_so: [rate for rate, arms in by_rate.items() if is_so(arms)]
  whole = lambda its: its["reached"] == its["seeds"]
  median = lambda its: its["to_goal"][0]
  tuned = lambda arms: next(
    arms[arm] for arm in arms if arm.weight_decay and not arm.orthograd
  )
  return {
    "rates": by_rate,
    "tests": lambda: [  # They take seconds.
      (*question, *p) for question, p in grokking.tests(goals, steps).items()
    ],
    # The rates at which all seeds reach 99 %.
    "bare": where(lambda arms: whole(arms[ADAMW])),
    "orthograd": where(lambda arms: whole(arms[ORTHOGRAD])),
    "tuned": where(lambda arms: whole(tuned(arms))),
    # Where AdamW with a tuned weight decay needs fewer steps than ⊥AdamW.
    "sooner": where(lambda arms: median(tuned(arms)) < median(arms[ORTHOGRAD])),
    "steps": steps,
    "row": rows[-1],
  }


def _arms(
  rows: Rows, goal: Mapping[Arm, Mapping[int, int]], recipe: Recipe
) -> dict[Arm, dict[str, Any]]:
  """Returns the steps to 99 % of each arm's seeds, and metrics at the end."""
  end = recipe.hash, recipe.steps
  ended = [row for row in rows if (row["config_hash"], row["epoch"]) == end]
  arms = {}
  for arm, its in goal.items():
    steps = list(its.values())
    last = [row for row in ended if row["method"] == arm.key]
    values = lambda part, metric, last=last: np.array(
      [row[part][metric] for row in last], float
    )
    arms[arm] = {
      "name": arm.name,
      "seeds": len(steps),
      "reached": sum(step <= recipe.steps for step in steps),
      "to_goal": [float(f(steps)) for f in (np.median, np.min, np.max)],
      "train": values("train", "top1"),
      **{m: values("metrics", m) for m in ("top1", "loss", "ece")},
    }
  return arms


def conclude(
  goal: Mapping[Arm, Mapping[int, int]], recipe: Recipe
) -> dict[str, Any]:
  """Returns the plan's two tests of the steps to 99 %, and their conclusion."""
  tests = grokking.tests({recipe.learning_rate: goal}, recipe.steps)
  p, holm = (
    dict(zip(("fisher", "wilcoxon"), its, strict=True))
    for its in zip(*tests.values(), strict=True)
  )
  bare, ours, decayed = (
    np.array(list(goal[arm].values())) for arm in (ADAMW, ORTHOGRAD, DECAYED)
  )
  reached = lambda steps: np.sum(steps <= recipe.steps)
  more = holm["fisher"] < LEVEL and reached(ours) > reached(bare)
  # The rank sum of positive differences, minus its expectation.
  n = np.count_nonzero(ours - decayed)
  excess = stats.wilcoxon(ours, decayed).statistic - n * (n + 1) / 4
  differs = holm["wilcoxon"] < LEVEL
  return {
    "p": p,
    "holm": holm,
    "difference": float(np.median(ours - decayed)),
    "orthograd_faster": differs and excess < 0,
    "adamw_faster": differs and excess > 0,
    "needed": more and differs and excess < 0,
  }
