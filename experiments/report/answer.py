"""The front page of the results: should I use ⊥Grad?

Its words are in `templates/answer.md`, its numbers from the rows that are kept.
"""

from typing import Any

import numpy as np

from experiments import config
from experiments.report import (
  conclusions,
  grokking,
  outcomes,
  replication,
  study,
  temperature,
)
from experiments.report.compare import CLEAN, seconds_per_run
from experiments.report.formats import method_name
from experiments.report.page import Page, markdown
from experiments.report.results import Results
from experiments.studies import (
  best,
  decay,
  ensembles,
  extended,
  masked,
  methods,
  optimizers,
  schedules,
  table1,
  wide,
)
from orthograd_optax.plots import style

LOSS = outcomes.OUTCOMES["loss"]
COLUMNS = ("accuracy", "loss", "scaled_loss", "corrupted_loss", "ece")
CONSTANT, COSINE = schedules.STUDY.pairs
# ⊥Grad on some parameters, of less strength, or not all of the time.
LESS = (
  f"{COSINE[1]}_head",
  f"{COSINE[1]}_norms",
  "strength_0.75",
  "ramped_in",
  "ramped_out",
)
# What ⊥Grad adds to a training step of ResNet-18 with SGD, as a share of it:
# benchmarks/results/.
COST = 0.04
ENSEMBLE = 5
(ENSEMBLES,) = ensembles.STUDY.pairs
# Its results are on the page of `extended_screen`.
NO_PAGE = "extended_screen_batch"


def make(planned: study.Loaded, replicated: replication.Rows) -> Page:
  """The page.

  Args:
    planned: what :func:`study.load_planned` returns.
    replicated: the rows of the replication.
  """
  results = {name: found for name, (_, found) in planned.items()}
  found = results["schedules"]
  pairs = [*methods.STUDY.pairs, *optimizers.STUDY.pairs]
  names = [name for pair in pairs for name in pair]
  plain, whole = COSINE
  facts = {
    "cosine": by_outcome(found, COSINE),
    "few_images": by_outcome(results["data_1_percent"], COSINE),
    "all_images": by_outcome(results["data_100_percent"], COSINE),
    "less": {
      name.removeprefix(f"{whole}_"): outcomes.compare_pair(
        found, LOSS, (plain, name)
      )
      for name in LESS
    },
    "wide": by_outcome(results["wide_cosine"], COSINE),
    "added_to": {pair[0]: by_outcome(found, pair) for pair in pairs},
    "decay": {
      pair[0]: by_outcome(results["decay"], pair) for pair in decay.LEVELS
    },
    "head_decay": {
      name: outcomes.mean(results["decay"], name, "loss")
      for name in decay.HEADS
    },
    "masked": by_outcome(found, masked.STUDY.pairs[0]),
    "corrupted_accuracy": outcomes.compare_pair(
      results["corruption_confirmation"],
      outcomes.OUTCOMES["corrupted_accuracy"],
      CONSTANT,
    ),
    **replication_facts(replicated),
    "best": outcomes.compare_pair(
      results["best"], outcomes.OUTCOMES["scaled_loss"], best.STUDY.pairs[0]
    ),
    "fresh": by_outcome(results["ensembles"], COSINE),
    "ensembles": by_outcome(results["ensembles"], ENSEMBLES),
    "described": {
      "constant": ensemble_means(found, CONSTANT),
      "sam": ensemble_means(found, ("sam", "orthograd_sam")),
      **{
        name: ensemble_means(results[name], COSINE)
        for name in ("wide_cosine", *study.SIZES)
      },
    },
    "grokking": grokking.kept_facts(),
    "rivals": conclusions.rival_ensembles(),
    "table": table(found, names, results["ensembles"]),
    "columns": [outcomes.OUTCOMES[name].label for name in COLUMNS],
    "more": more(found, names),
    "done": [
      name
      for name, of in planned.items()
      if study.is_complete(*of) and name != NO_PAGE
    ],
  }
  return Page(markdown("answer.md", facts), {"answer": lambda: figure(found)})


def by_outcome(found: Results, pair: study.Pair) -> dict[str, Any]:
  """A pair by each outcome, without adjustment."""
  return {
    name: outcomes.compare_pair(found, outcome, pair)
    for name, outcome in (outcomes.OUTCOMES | outcomes.DESCRIBED).items()
  }


def replication_facts(rows: replication.Rows) -> dict[str, Any]:
  """The replication's loss, and all of its settings after T."""
  settings = {
    "ResNet-18": table1.STUDY,
    "WRN-28-10": wide.STUDY,
    "1000 epochs": extended.STUDY,
  }
  found = {name: Results(rows, of.config) for name, of in settings.items()}
  return {
    "replicated_loss": outcomes.compare_pair(
      found["ResNet-18"], LOSS, CONSTANT
    ),
    "after_t": {
      name: temperature.line(found[name], seeds, CLEAN, "scaled_half")
      for name, seeds in temperature.SEEDS.items()
    },
  }


def ensemble_means(found: Results, pair: study.Pair) -> dict[str, list[float]]:
  """The mean of the ensembles, without ⊥Grad and with it, by outcome."""
  names = [config.ensemble(name, ENSEMBLE) for name in pair]
  return {
    outcome: [outcomes.mean(found, name, outcome) for name in names]
    for outcome in ("loss", "ece", "scaled_loss")
  }


def outcome_of(found: Results, name: str, outcome: str) -> np.ndarray:
  """An outcome of each seed of a method."""
  return outcomes.OUTCOMES[outcome].values(found, name)


def table(
  found: Results, names: list[str], ensembled: Results
) -> dict[str, dict[str, Any]]:
  """For each method, and ensembles of the first two, what the table says."""
  lines = {}
  seconds = {name: seconds_per_run(found, name) for name in names}
  members = dict(zip(ENSEMBLES, COSINE, strict=True))
  for name in [*names, *members]:
    member = members.get(name, name)
    its = ensembled if name in members else found
    cost = seconds[member] / seconds[COSINE[0]]
    cost += COST if member.startswith("orthograd") else 0.0
    lines[method_name(name)] = {
      "seeds": len(its.seeds([name])),
      "cells": [
        (outcomes.OUTCOMES[outcome].metric, outcome_of(its, name, outcome))
        for outcome in COLUMNS
      ],
      "cost": cost * (ENSEMBLE if name in members else 1),
    }
  return lines


def more(found: Results, names: list[str]) -> dict[str, Any]:
  """Outcomes that the plan does not have, of each method."""
  return {
    "labels": [outcome.label for outcome in outcomes.DESCRIBED.values()],
    "lines": {
      method_name(name): [
        (outcome.metric, outcome.values(found, name))
        for outcome in outcomes.DESCRIBED.values()
      ]
      for name in names
    },
  }


def figure(found: Results) -> Any:
  """Loss, and loss after T, against accuracy: from without ⊥Grad to with it."""
  rows = {
    "SGD, and other methods on top of it": methods.STUDY.pairs,
    "other optimizers, each tuned without ⊥Grad and again with it": (
      COSINE,
      *optimizers.STUDY.pairs,
    ),
  }
  title = "hollow: without ⊥Grad; filled: with it"
  with style.figure(7.2, 7.8, title) as drawn:
    parts = drawn.subfigures(len(rows), height_ratios=(1.1, 1))
    for part, (name, pairs) in zip(parts, rows.items(), strict=True):
      part.suptitle(name, fontsize=10)
      _draw_row(part, found, pairs)
  return drawn


def _draw_row(part, found, pairs) -> None:
  panels = part.subplots(1, 2, sharex=True)
  shown = {"loss": "loss without T", "scaled_loss": "loss after T"}
  for panel, (outcome, label) in zip(panels, shown.items(), strict=True):
    for number, pair in enumerate(pairs):
      look = style.line(number) | {"zorder": 3 + len(pairs) - number}
      if pair == COSINE:  # what the page is about
        look |= {"linewidth": 2.5, "markersize": 6}
      _draw_pair(panel, found, pair, outcome, look)
    panel.set_xlabel("accuracy, % (more is better)")
    panel.set_ylabel(f"{label}, nats (less is better)")
  handles, labels = panels[0].get_legend_handles_labels()
  part.legend(handles, labels, loc="outside lower center", ncols=4)


def _draw_pair(axis, found, pair, outcome, look) -> None:
  accuracy, loss = (
    [outcome_of(found, name, it) for name in pair]
    for it in ("accuracy", outcome)
  )
  x, y = np.mean(accuracy, axis=1), np.mean(loss, axis=1)
  errors = {"xerr": _standard_error(accuracy), "yerr": _standard_error(loss)}
  axis.errorbar(x, y, **errors, ecolor="0.7", elinewidth=1, fmt="none")
  axis.plot(x, y, **look, label=method_name(pair[0]))
  axis.plot(x[0], y[0], **look, markerfacecolor="white")


def _standard_error(runs: list[np.ndarray]) -> np.ndarray:
  return np.std(runs, axis=1, ddof=1) / np.sqrt(np.shape(runs)[1])
