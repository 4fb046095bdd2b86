"""What PLAN.md concludes from a study, by the rule that it states there.

Each function computes the facts of the template of its name, in
`templates/conclusions/`. All were written before their studies were run, but
for what PLAN.md lists under Deviations.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.config import ensemble, with_orthograd
from experiments.report import outcomes
from experiments.report.compare import LEVEL, Compared, seconds_per_run
from experiments.report.outcomes import MATTERS, is_small, mean
from experiments.report.results import Results
from experiments.rows import kept
from experiments.studies import (
  best,
  corruption,
  decay,
  ensembles,
  masked,
  methods,
  optimizers,
  pilot_optimizers,
  schedules,
  strength,
  where,
)

CONSTANT, COSINE = schedules.STUDY.pairs
# The two outcomes that some rules ask for: after T, and as it is.
BOTH = ("scaled_loss", "loss")


def compare(
  found: Results, outcome: str, pairs: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Compared]:
  return outcomes.compare(found, outcomes.OUTCOMES[outcome], pairs)


def compare_pair(
  found: Results, outcome: str, pair: tuple[str, str]
) -> Compared:
  return outcomes.compare_pair(found, outcomes.OUTCOMES[outcome], pair)


def compare_both(found: Results, pair: tuple[str, str]) -> dict[str, Compared]:
  """A pair by both outcomes."""
  return {it: compare_pair(found, it, pair) for it in BOTH}


def of_schedules(found: Results) -> dict[str, Any]:
  """The loss without T, with the schedule that people use."""
  return {"loss": compare_pair(found, "loss", COSINE), "cosine": COSINE}


def of_where(found: Results) -> dict[str, Any]:
  """For each outcome and schedule: which parts carry the effect?"""
  cases = []
  for outcome in BOTH:
    rows = compare(found, outcome, where.STUDY.pairs)
    label = outcomes.OUTCOMES[outcome].label
    for schedule, pair in {"constant rate": CONSTANT, "cosine": COSINE}.items():
      parts = parts_of(found, outcome, rows, pair)
      case = {"label": f"{label}, {schedule}", "whole": rows[pair]}
      cases.append(case | {"parts": parts})
  carries = {
    part
    for case in cases
    for part, (*_, verdict) in case["parts"].items()
    if verdict == "carries the effect"
  }
  return {"cases": cases, "carries": sorted(carries)}


def parts_of(
  found: Results,
  outcome: str,
  rows: Mapping[tuple[str, str], Compared],
  pair: tuple[str, str],
) -> dict[str, tuple[Compared, Compared, str]]:
  """Each part beside SGD, beside ⊥Grad on all, and what it does.

  Args:
    found: the rows of runs.
    outcome: its name.
    rows: all of the study's pairs by that outcome.
    pair: SGD, and ⊥Grad on all.
  """
  plain, whole = pair
  parts = {}
  for name in (b for a, b in rows if a == plain and b != whole):
    row, beside = rows[plain, name], compare_pair(found, outcome, (whole, name))
    verdict = carried(row, rows[pair], beside)
    parts[name.removeprefix(f"{whole}_")] = (row, beside, verdict)
  return parts


def carried(part: Compared, whole: Compared, beside: Compared) -> str:
  """What a part does of the whole's effect.

  Args:
    part: beside SGD.
    whole: beside SGD.
    beside: the part beside the whole.
  """
  shares = part.sign == whole.sign != 0
  if shares and is_small(beside, MATTERS):
    return "carries the effect"
  if is_small(part, MATTERS):
    return "does nothing"
  return "some of it" if shares else "undecided"


def of_masked(found: Results) -> dict[str, Any]:
  """Whether masking makes no difference that matters."""
  (pair,) = masked.STUDY.pairs
  rows = compare_both(found, pair)
  return rows | {
    "same": all(is_small(row, MATTERS) for row in rows.values()),
    "corrupted_loss": compare_pair(found, "corrupted_loss", pair),
  }


def of_strength(found: Results) -> dict[str, Any]:
  """The smallest strength that is as good as the best, by both outcomes."""
  names = strength.STUDY.method_names
  constant = {
    method.strength: method.name
    for method in strength.STUDY.methods
    if method.strength_at_end is None
  }
  best = {it: min(names, key=lambda n: mean(found, n, it)) for it in BOTH}
  fits = {
    value: all(
      name == best[it]
      or is_small(compare_pair(found, it, (best[it], name)), MATTERS)
      for it in BOTH
    )
    for value, name in sorted(constant.items())
  }
  after_t, losses = (compare(found, it, strength.STUDY.pairs) for it in BOTH)
  return {
    "advice": next((value for value, fit in fits.items() if fit), None),
    "trend": {x: losses[COSINE[0], constant[x]] for x in fits if x},
    "same_after_t": all(is_small(row, MATTERS) for row in after_t.values()),
  }


def of_decay(found: Results) -> dict[str, Any]:
  """At which decays ⊥Grad helps, and whether decay of the head replaces it."""
  after_t = compare(found, "scaled_loss", decay.STUDY.pairs)
  signs = [after_t[pair].sign for pair in decay.LEVELS if pair in after_t]
  config = decay.STUDY.config
  decays = {
    it.name: it.resolve(config).weight_decay for it in decay.STUDY.methods
  }
  losses = compare(found, "loss", decay.LEVELS)
  heads = {}
  for method in decay.STUDY.methods:
    pair = COSINE[1], method.name
    if method.head_decay != 1 and pair in after_t:
      rows = compare_both(found, pair)
      replaces = all(row.interval[1] < MATTERS for row in rows.values())
      heads[method.head_decay] = rows | {"replaces": replaces}
  return {
    "helps": signs.count(-1),
    "harms": signs.count(1),
    "losses": {decays[plain]: row for (plain, _), row in losses.items()},
    "heads": heads,
  }


def of_methods(found: Results) -> dict[str, Any]:
  """The best single method and the best pair."""
  plain, projected = zip(*methods.STUDY.pairs, strict=True)
  singles = [*plain, COSINE[1]]
  pairs = [name for name in projected if name != COSINE[1]]
  single, pair = (
    min(names, key=lambda n: mean(found, n)) for names in (singles, pairs)
  )
  means = {"single": mean(found, single), "pair": mean(found, pair)}
  return {
    "single": single,
    "pair": pair,
    "means": means,
    "recommended": pair if means["single"] - means["pair"] >= MATTERS else None,
  }


def of_alternatives(found: Results) -> dict[str, Any]:
  """The best alternative to ⊥Grad."""
  names = [method.name for method in methods.ALTERNATIVES]
  return {"best": min(names, key=lambda name: mean(found, name))}


def of_optimizers(found: Results) -> dict[str, Any]:
  """Is it optimizer-agnostic?"""
  pairs = optimizers.STUDY.pairs
  rows = compare(found, "scaled_loss", pairs).values()
  signs = [row.sign for row in rows]
  if signs.count(-1) == len(pairs):
    agnostic = "confirmed"
  else:
    agnostic = "contradicted" if 1 in signs else "not confirmed"
  return {"agnostic": agnostic, "same_settings": list(at_same_settings())}


def at_same_settings() -> Iterator[dict[str, Any]]:
  """Pilots of an optimizer without ⊥Grad and with it, at the same settings."""
  study = pilot_optimizers.STUDY
  found = Results(kept.load([study.name]), study.config)
  for method in study.methods:
    pair = method.name, with_orthograd(method).name
    if pair[1] in study.method_names:
      yield {
        "base": method.base,
        "rate": method.learning_rate,
        "decay": method.weight_decay,
        "means": [
          (
            outcomes.OUTCOMES[it].metric,
            [mean(found, name, it) for name in pair],
          )
          for it in ("loss", "ece", "scaled_loss")
        ],
      }


def of_wide_cosine(found: Results) -> dict[str, Any]:
  """⊥Grad beside SGD, by both outcomes and accuracy."""
  accuracy = compare_pair(found, "accuracy", COSINE)
  return compare_both(found, COSINE) | {"accuracy": accuracy}


def of_ensembles(found: Results) -> dict[str, Any]:
  """How sure they are, those of other methods, and the single networks."""
  (pair,) = ensembles.STUDY.pairs
  confidence = outcomes.Outcome("confidence", "max_softmax")
  accuracy = outcomes.OUTCOMES["accuracy"]
  temperature = outcomes.Outcome("T", "temperature_half")
  return {
    "excess": [
      np.mean(100 * confidence.values(found, name))
      - np.mean(accuracy.values(found, name))
      for name in pair
    ],
    "surest": surest(found, pair[0]),
    "temperatures": [np.mean(temperature.values(found, name)) for name in pair],
    "scaled_ece": outcomes.compare_pair(
      found, outcomes.DESCRIBED["scaled_ece"], pair
    ),
    "rivals": rival_ensembles(),
    "single": {
      it: compare_pair(found, it, COSINE) for it in (*BOTH, "accuracy")
    },
  }


def surest(found: Results, name: str) -> dict[str, float]:
  """The bin of the highest confidence, of all seeds, in percent."""
  rows = found.get(name, found.seeds([name]))
  count, confidence, accuracy = (
    np.array([row["bins"][it] for (row,) in rows])
    for it in ("count", "confidence", "accuracy")
  )
  last = count[:, -1]
  return {
    "confidence": 100 * float(np.average(confidence[:, -1], weights=last)),
    "accuracy": 100 * float(np.average(accuracy[:, -1], weights=last)),
    "share": 100 * float(last.sum() / count.sum()),
  }


def rival_ensembles() -> dict[str, float]:
  """The loss after T of ensembles that do as well or better without ⊥Grad."""
  studies = {
    "mixup": methods.STUDY,
    "adamw": optimizers.STUDY,
    "muon": optimizers.STUDY,
    "sam": best.STUDY,  # which has the most of its ensembles
  }
  return {
    name: mean(Results(kept.load([it.name]), it.config), ensemble(name, 5))
    for name, it in studies.items()
  }


def of_best(found: Results) -> dict[str, Any]:
  """How much longer the alternative takes, and ⊥Grad at full strength."""
  rival, ours = (seconds_per_run(found, name) for name in best.STUDY.pairs[0])
  fresh = Results(kept.load(["ensembles"]), ensembles.STUDY.config)
  return {"cost": rival / ours, "full_strength": mean(fresh, COSINE[1], "loss")}


def of_corruption_confirmation(found: Results) -> dict[str, Any]:
  """Is the accuracy under corruption real? With seeds 0 to 19 beside it."""
  first_config = corruption.STUDY.config
  first = Results(kept.load(["corruption"]), first_config)
  fresh, earlier = (
    compare_pair(of, "corrupted_accuracy", CONSTANT) for of in (found, first)
  )
  clean = (
    compare_pair(of, "accuracy", CONSTANT)
    for of in (found, Results(kept.load(["confirmation"]), first_config))
  )
  both = zip((earlier.a, earlier.b), (fresh.a, fresh.b), strict=True)
  verdict = "undecided"
  if fresh.p < LEVEL and fresh.change > 0:
    verdict = "real"
  elif fresh.interval[1] < 0.5:
    verdict = "refuted"
  return {
    "fresh": fresh,
    "earlier": earlier,
    "all": Compared(fresh.metric, *map(np.concatenate, both)),
    "spread": [np.std(row.b - row.a, ddof=1) for row in clean],
    "verdict": verdict,
  }


CONCLUSIONS: dict[str, Callable[[Results], dict[str, Any]]] = {
  "schedules": of_schedules,
  "where": of_where,
  "masked": of_masked,
  "strength": of_strength,
  "decay": of_decay,
  "methods": of_methods,
  "alternatives": of_alternatives,
  "optimizers": of_optimizers,
  "wide_cosine": of_wide_cosine,
  "ensembles": of_ensembles,
  "best": of_best,
  "corruption_confirmation": of_corruption_confirmation,
}
