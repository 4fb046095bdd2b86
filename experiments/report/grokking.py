"""The page of study 11, grokking: when AdamW and ⊥AdamW generalize."""

from collections.abc import Iterator, Mapping, Sequence
import datetime
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.stats

from experiments import grokking
from experiments.grokking import ADAMW, ARMS, ORTHOGRAD, Arm, Recipe
from experiments.report import plan
from experiments.report.compare import LEVEL
from experiments.report.page import Page, markdown
from experiments.rows import RowsError, kept
from orthograd_optax import plots, stats

if TYPE_CHECKING:
  from matplotlib.figure import Figure

DECAYED = ARMS[2]  # AdamW with the weight decay that the pilot chose
Rows = Sequence[Mapping[str, Any]]


def write(output: pathlib.Path, rows: Rows, recipe: Recipe) -> str:
  """Writes `grokking.md` and its picture into a folder.

  Returns:
    The verdict, and where the page is.
  """
  path, its = output / "grokking.md", facts(rows, recipe)
  make(its).write_markdown(path)
  return f"{its['verdict']}\n\nWrote {path}."


def make_kept() -> Iterator[tuple[str, Page]]:
  """The page of the rows that are kept, if there are any."""
  if kept.load([grokking.STUDY]):
    yield grokking.STUDY, make(kept_facts())


def kept_facts() -> dict[str, Any]:
  """The facts of the rows that are kept."""
  return facts(kept.load(grokking.STUDIES), Recipe())


def make(its: Mapping[str, Any]) -> Page:
  """Makes the page of what :func:`facts` returns."""
  drawings = {"grokking": lambda: figure(its["curves"], its["steps"])}
  return Page(markdown("grokking.md", its), drawings)


def facts(rows: Rows, recipe: Recipe) -> dict[str, Any]:
  """The facts of the page, of the seeds that all arms have."""
  main = [row for row in rows if row["study"] == grokking.STUDY]
  to_goal = {arm: grokking.steps_to_goal(main, arm, recipe) for arm in ARMS}
  seeds = sorted(set.intersection(*map(set, to_goal.values())))
  if len(seeds) < 2:
    raise RowsError(
      f"{len(seeds)} seed(s) have all four arms, but a comparison needs two. "
      "Run `python -m experiments grokking` to train them."
    )
  found = {
    (row["method"], row["seed"], row["epoch"]): row
    for row in main
    if row["config_hash"] == recipe.hash
  }
  every = recipe.evaluate_every
  steps = range(every, recipe.steps + 1, every)
  values = lambda arm, part, metric, step=recipe.steps: np.array(
    [found[arm.key, seed, step][part][metric] for seed in seeds], float
  )
  goal = {arm: np.array([to_goal[arm][s] for s in seeds]) for arm in ARMS}
  its = {
    "recipe": recipe,
    "goal": grokking.GOAL,
    "seeds": seeds,
    "steps": steps,
    "arms": [
      {
        "name": name(arm),
        "reached": int(np.sum(goal[arm] <= recipe.steps)),
        "to_goal": [float(f(goal[arm])) for f in (np.median, np.min, np.max)],
        "train": values(arm, "train", "top1"),
        **{m: values(arm, "metrics", m) for m in ("top1", "loss", "ece")},
      }
      for arm in ARMS
    ],
    "curves": {
      name(arm): np.stack([values(arm, "metrics", "top1", s) for s in steps], 1)
      for arm in ARMS
    },
    **conclude(goal, recipe.steps),
    "tuned": grokking.TUNED,
    "pilot": grokking.pilot_steps(rows, recipe),
    "plan": quoted_plan(),
    "row": found[DECAYED.key, seeds[-1], recipe.steps],
    "minutes": _minutes(list(found.values())),
  }
  return its | {"verdict": markdown("grokking_verdict.md", its)}


def conclude(goal: Mapping[Arm, np.ndarray], steps: int) -> dict[str, Any]:
  """The plan's two tests, and their conclusion.

  Args:
    goal: for each arm, the steps to 99 % of each seed.
    steps: of training. A seed with more steps never reached 99 %.
  """
  reached = [int(np.sum(goal[arm] <= steps)) for arm in (ORTHOGRAD, ADAMW)]
  table = [[count, len(goal[ADAMW]) - count] for count in reached]
  fisher: Any = scipy.stats.fisher_exact(table)
  wilcoxon = stats.wilcoxon(goal[ORTHOGRAD], goal[DECAYED])
  difference = goal[ORTHOGRAD] - goal[DECAYED]
  n = np.count_nonzero(difference)
  p = {"fisher": float(fisher.pvalue), "wilcoxon": wilcoxon.pvalue}
  holm = dict(zip(p, stats.holm(list(p.values())).tolist(), strict=True))
  more = holm["fisher"] < LEVEL and reached[0] > reached[1]
  # The rank sum of positive differences, less its expectation.
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


def name(arm: Arm) -> str:
  text = "⊥AdamW" if arm.orthograd else "AdamW"
  decay = f", weight decay {arm.weight_decay:g}" if arm.weight_decay else ""
  return text + decay


def quoted_plan() -> str:
  """The section of the plan, as a quotation."""
  text = plan.section(grokking.STUDY) or ""
  paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
  return "\n\n".join(f"> {part}" for part in paragraphs)


def figure(curves: Mapping[str, np.ndarray], steps: Sequence[int]) -> "Figure":
  """Draws test accuracy by step: seeds thin, their median thick."""
  medians = {arm: np.median(each, axis=0) for arm, each in curves.items()}
  drawn = plots.curves({"test accuracy, %": medians}, steps, xlabel="step")
  drawn.set_size_inches(6.2, 3.2)
  drawn.legends[0].remove()
  (axis,) = drawn.axes
  thick = [line for line in axis.lines if np.size(line.get_xdata())]
  for line, each in zip(thick, curves.values(), strict=True):
    line.set(linewidth=2.5, marker="")
    axis.plot(steps, each.T, color=line.get_color(), linewidth=0.5, alpha=0.6)
  place = {"loc": "center right", "fontsize": 8, "edgecolor": "none"}
  place["handlelength"] = 4  # as long as the dashes
  axis.legend(thick, list(curves), **place)
  return drawn


def _minutes(rows: Rows) -> float:
  """From the start of the first run to the end of the last."""
  time = lambda row: datetime.datetime.fromisoformat(row["time"]).timestamp()
  start = min(time(row) - row["wall_time"] for row in rows)
  return (max(map(time, rows)) - start) / 60
