"""WRN-28-10 after 100 epochs."""

import itertools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import scipy.stats

from experiments import registry
from experiments.engine import models
from experiments.report import claims, compare, figures, paper
from experiments.report.compare import CORRUPTED, PAIR, UNDER_CORRUPTION
from experiments.report.formats import printed
from experiments.report.page import Drawings
from experiments.report.results import Results
from orthograd_optax import plots, stats

if TYPE_CHECKING:
  from matplotlib.figure import Figure

WIDE_SEEDS = range(5)
CONFIRMATION_SEEDS = range(5, 10)
ALL_SEEDS = range(10)
TF32_SEEDS = range(2)
# Epochs at which all seeds are evaluated, in bfloat16 and in wide_tf32.
EVALUATED_EPOCHS, TF32_EPOCHS = range(10, 101, 10), range(4, 101, 4)
EPOCHS = range(20, 101, 20)  # of tables; extended has these epochs too
# Kinds of parameters, by their names in rows.
KINDS = (
  "kernel, then norm",
  "kernel, no norm",
  "norm scale",
  "norm bias",
  "dense kernel",
  "dense bias",
)


def facts(found: Results, finer: Results, extended: Results) -> dict[str, Any]:
  """The facts of the paper's table and of the appendix.

  Args:
    found: results of wide and wide_confirmation.
    finer: results of wide_tf32.
    extended: results of ResNet-18, to compare with.
  """
  clean = compare.by_metric(found, ALL_SEEDS)
  return {
    "table": claims.table({m: clean[m] for m in paper.WIDE}, paper.WIDE),
    "clean": clean,
    "corrupted": compare.by_metric(
      found, WIDE_SEEDS, CORRUPTED, UNDER_CORRUPTION
    ),
    "epochs": compare.by_epoch(found, ALL_SEEDS, EPOCHS),
    "by_choice": by_choice(found),
    "precision": precision(found, finer),
    "radial": radial(found, extended),
  }


def drawings(found: Results, extended: Results) -> Drawings:
  draw = figures.reliability
  return {
    "wide_reliability": lambda: draw(found, ALL_SEEDS),
    "wide_reliability_corrupted": lambda: draw(found, WIDE_SEEDS, CORRUPTED),
    "radial": lambda: radial_figure(found, extended),
  }


def best_epochs(found: Results, metric: str) -> list[np.ndarray]:
  """A metric of each run at its epoch of the best test accuracy, by method."""
  values = []
  for name in PAIR:
    top1, its = (
      found.over_epochs(name, m, ALL_SEEDS, EVALUATED_EPOCHS)
      for m in ("top1", metric)
    )
    best = np.argmax(top1, axis=1)
    values.append(its[np.arange(len(ALL_SEEDS)), best])
  return values


def by_choice(found: Results) -> dict[str, Any]:
  """How much a result depends on the epoch at which runs are evaluated."""
  late = [epoch for epoch in EVALUATED_EPOCHS if epoch >= 80]
  lines, within = {}, {}
  for metric in ("top1", "loss", "max_logit"):
    values = [found.over_epochs(name, metric, ALL_SEEDS, late) for name in PAIR]
    lines[metric] = {
      "paper": printed(paper.WIDE[metric]),
      "ours": (
        [x[:, -1] for x in values],
        [x.mean(axis=1) for x in values],
        best_epochs(found, metric),
      ),
    }
    within[metric] = np.sqrt(np.mean(np.var(values, axis=2, ddof=1)))
  return {"epochs": len(EVALUATED_EPOCHS), "lines": lines, "within": within}


def precision(found: Results, finer: Results) -> dict[str, Any]:
  """TF32 less bfloat16, of other seeds at the same epochs."""
  since, metrics = (100, 80, 60), ("top1", "loss", "max_logit")

  def change(metric, name, first):
    epochs = [epoch for epoch in TF32_EPOCHS if epoch >= first]
    few = finer.values(name, metric, TF32_SEEDS, epoch=epochs)
    many = found.values(name, metric, CONFIRMATION_SEEDS, epoch=epochs)
    test: Any = scipy.stats.ttest_ind(few, many)
    low, high = test.confidence_interval()
    return {
      "change": few.mean() - many.mean(),
      "interval": (low, high),
      "p": test.pvalue,
    }

  lines = {
    (metric, name): [change(metric, name, epoch) for epoch in since]
    for metric, name in itertools.product(metrics, PAIR)
  }
  adjusted = stats.holm([cell["p"] for line in lines.values() for cell in line])
  last = {
    metric: [finer.values(name, metric, TF32_SEEDS) for name in PAIR]
    for metric in metrics
  }
  return {
    "since": since,
    "lines": lines,
    "least": adjusted.min(),
    "last": last,
  }


def radial_shares(
  found: Results, extended: Results
) -> dict[str, dict[str, dict[str, np.ndarray]]]:
  """The share of ‖g‖² along the weights, in %, by method, network and kind."""
  shares: dict[str, dict[str, dict[str, np.ndarray]]] = {}
  for network, of in {"ResNet-18": extended, "WRN-28-10": found}.items():
    has = of.rows["orthograd", 0, 100, "train"]["metrics"]
    for name in PAIR:
      shares.setdefault(name, {})[network] = {
        kind: 100 * of.over_epochs(name, metric, WIDE_SEEDS, EPOCHS, "train")
        for kind in KINDS
        if (metric := f"radial: {kind}") in has
      }
  return shares


def radial_figure(found: Results, extended: Results) -> "Figure":
  """The shares of ⊥Grad's runs by epoch, a panel for each network."""
  shares = radial_shares(found, extended)["orthograd"]
  figure = plots.curves(shares, EPOCHS, log=True)
  for axis, network in zip(figure.axes, shares, strict=True):
    axis.set_title(network, fontsize=10)
    axis.set_ylabel("")
  figure.axes[0].set_ylabel("share of ‖g‖² along w, %")
  return figure


def radial(found: Results, extended: Results) -> dict[str, Any]:
  """How much of the gradient ⊥Grad can remove, in both networks."""
  shares = radial_shares(found, extended)
  last = lambda name, network, kind: shares[name][network][kind][:, -1]
  model = registry.MODELS["wrn28_10"]()
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
