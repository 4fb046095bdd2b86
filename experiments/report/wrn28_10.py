"""WRN-28-10 after 100 epochs."""

import functools
import itertools
from typing import Any

import jax
import numpy as np
import scipy.stats

from experiments.engine import models
from experiments.report import compare, figures, paper
from experiments.report.compare import CORRUPTED, PAIR
from experiments.report.formats import printed
from experiments.report.page import Drawings
from experiments.report.results import Results
from orthograd_optax import plots, stats

SEEDS, FRESH = range(5), range(5, 10)  # of wide and of wide_confirmation
BOTH = range(10)
FEW = range(2)  # of wide_tf32
# Epochs that wide, wide_confirmation and wide_tf32 evaluate.
WAY, FINER, EVERY_4 = range(10, 101, 10), range(2, 101, 2), range(4, 101, 4)
RADIAL = range(20, 101, 20)  # that extended has, too
# Kinds of parameters on which ⊥Grad acts, as rows name them.
KINDS = (
  "kernel, then norm",
  "kernel, no norm",
  "norm scale",
  "norm bias",
  "dense kernel",
  "dense bias",
)


def is_complete(found: Results) -> bool:
  return found.has(PAIR, SEEDS, CORRUPTED) and found.has(
    PAIR, SEEDS, epochs=WAY
  )


def facts(
  found: Results, finer: Results, extended: Results | None
) -> dict[str, Any]:
  """Parts without rows are None.

  Args:
    found: of wide and wide_confirmation.
    finer: of wide_tf32.
    extended: of ResNet-18, to compare with; None if there is no such.
  """
  table = functools.partial(
    compare.beside_the_paper,
    paper_rows=paper.WIDE,
    tolerance=paper.TOLERANCE_WIDE,
  )

  def part(of: Results, study: str, seeds: range, epochs: range):
    if not of.has(PAIR, seeds, epochs=epochs):
      return None
    return {
      "run": compare.provenance(of, study),
      "table": table(of, seeds),
      "by_epoch": by_epoch(of, seeds, epochs),
    }

  confirmation = part(found, "wide_confirmation", FRESH, FINER)
  tf32 = part(finer, "wide_tf32", FEW, EVERY_4)
  return {
    "wide": part(found, "wide", SEEDS, WAY),
    "scaled": compare.scaled(found, SEEDS),
    "corrupted": compare.over_sets(found, SEEDS, CORRUPTED),
    "confirmation": confirmation,
    "luck": luck(found) if confirmation else None,
    "both": table(found, BOTH) if confirmation else None,
    "tf32": tf32,
    "precision": precision(found, finer) if confirmation and tf32 else None,
    "radial": radial(found, extended) if extended else None,
  }


def drawings(found: Results, extended: Results) -> Drawings:
  draw = figures.reliability
  return {
    "wide_reliability": lambda: draw(found, SEEDS),
    "wide_reliability_corrupted": lambda: draw(found, SEEDS, CORRUPTED),
    "radial": lambda: plots.curves(
      radial_shares(found, extended)["orthograd"], RADIAL, log=True
    ),
  }


def best_epochs(
  found: Results, seeds: range, epochs: range, metric: str
) -> list[np.ndarray]:
  """Of SGD's and ⊥Grad's runs, after the epoch that is best on the test set."""
  values = []
  for name in PAIR:
    top1, its = (
      found.over_epochs(name, m, seeds, epochs) for m in ("top1", metric)
    )
    best = np.argmax(top1, axis=1)
    values.append(its[np.arange(len(seeds)), best])
  return values


def by_epoch(found: Results, seeds: range, epochs: range) -> dict[str, Any]:
  """How much hangs on the epoch after which a run is evaluated."""
  late = [epoch for epoch in epochs if epoch >= 80]
  lines, within = {}, {}
  for metric in ("top1", "loss", "max_logit"):
    values = [found.over_epochs(name, metric, seeds, late) for name in PAIR]
    lines[metric] = {
      "paper": printed(paper.WIDE[metric]),
      "ours": (
        [x[:, -1] for x in values],
        [x.mean(axis=1) for x in values],
        best_epochs(found, seeds, epochs, metric),
      ),
    }
    within[metric] = np.sqrt(np.mean(np.var(values, axis=2, ddof=1)))
  return {
    "seeds": seeds,
    "epochs": len(epochs),
    "late": late,
    "lines": lines,
    "within": within,
  }


def luck(found: Results) -> dict[str, Any]:
  """What fresh seeds say of the distance to the paper's table."""

  def p_of(metric, i, runs):
    row = paper.WIDE[metric]
    theirs = row.sgd, row.orthograd
    assert row.d
    # Cohen's d gives away the standard deviation that it is in units of.
    of_paper = theirs[i], abs((theirs[0] - theirs[1]) / row.d), len(SEEDS)
    ours = runs.mean(), runs.std(ddof=1), len(runs)
    test = scipy.stats.ttest_ind_from_stats(*ours, *of_paper, equal_var=False)
    return float(test.pvalue)

  last = [
    (metric, i, found.values(name, metric, FRESH))
    for metric in ("top1", "loss")
    for i, name in enumerate(PAIR)
  ]
  adjusted = stats.holm([p_of(*it) for it in last])
  best = best_epochs(found, FRESH, FINER, "top1")
  return {
    "last": [
      {
        "metric": metric,
        "optimizer": PAIR[i],
        "ours": runs,
        "paper": printed(paper.WIDE[metric])[i],
        "p": p,
      }
      for (metric, i, runs), p in zip(last, adjusted, strict=True)
    ],
    "p_best": [p_of("top1", i, runs) for i, runs in enumerate(best)],
  }


def precision(found: Results, finer: Results) -> dict[str, Any]:
  """What TF32 changes, beside other seeds of bfloat16 at the same epochs."""

  def change(metric, name, since):
    epochs = [epoch for epoch in EVERY_4 if epoch >= since]
    few = finer.values(name, metric, FEW, epoch=epochs)
    many = found.values(name, metric, FRESH, epoch=epochs)
    test: Any = scipy.stats.ttest_ind(few, many)
    low, high = test.confidence_interval()
    return few.mean() - many.mean(), low, high, test.pvalue

  since, metrics = (100, 80, 60), ("top1", "loss", "max_logit")
  lines = {
    (metric, name): [change(metric, name, epoch) for epoch in since]
    for metric, name in itertools.product(metrics, PAIR)
  }
  return {
    "since": since,
    "lines": lines,
    "ps": [cell[-1] for line in lines.values() for cell in line],
    "few": len(FEW),
    "many": len(FRESH),
  }


def radial_shares(
  found: Results, extended: Results
) -> dict[str, dict[str, dict[str, np.ndarray]]]:
  """Of ‖g‖², along the weights: by optimizer, network and kind, in %."""
  shares: dict[str, dict[str, dict[str, np.ndarray]]] = {}
  for network, of in {"ResNet-18": extended, "WRN-28-10": found}.items():
    has = of.rows["orthograd", 0, 100, "train"]["metrics"]
    for name in PAIR:
      shares.setdefault(name, {})[network] = {
        kind: 100 * of.over_epochs(name, metric, SEEDS, RADIAL, "train")
        for kind in KINDS
        if (metric := f"radial: {kind}") in has
      }
  return shares


def radial(found: Results, extended: Results) -> dict[str, Any]:
  """Where ⊥Grad has something to remove, in both networks."""
  shares = radial_shares(found, extended)
  last = lambda name, network, kind: shares[name][network][kind][:, -1]
  model = models.MODELS["wrn28_10"]()
  shapes = jax.eval_shape(lambda: models.init(model, jax.random.key(0)))
  kinds = jax.tree.leaves(models.kinds(model, shapes["params"]))
  bare, normed = "kernel, no norm", "kernel, then norm"
  return {
    "bare": last("orthograd", "WRN-28-10", bare).mean(),
    "normed": last("orthograd", "WRN-28-10", normed).mean(),
    "bare_kernels": kinds.count(bare),
    "kernels": kinds.count(bare) + kinds.count(normed),
    "dense": {
      name: {
        "wide": last(name, "WRN-28-10", "dense kernel"),
        "resnet": last(name, "ResNet-18", "dense kernel"),
      }
      for name in PAIR
    },
  }
