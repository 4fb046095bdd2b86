"""WRN-28-10 after 100 epochs."""

import itertools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import scipy.stats

from experiments.engine import models
from experiments.report import claims, compare, figures, paper
from experiments.report.compare import CORRUPTED, PAIR, UNDER_CORRUPTION
from experiments.report.formats import printed
from experiments.report.page import Drawings
from experiments.report.results import Results
from orthograd_optax import _style, plots, stats

if TYPE_CHECKING:
  from matplotlib.figure import Figure

SEEDS, FRESH = range(5), range(5, 10)  # of wide and of wide_confirmation
BOTH = range(10)
FEW = range(2)  # of wide_tf32
# Epochs that all seeds of bfloat16, and those of wide_tf32, are evaluated at.
WAY, EVERY_4 = range(10, 101, 10), range(4, 101, 4)
EPOCHS = range(20, 101, 20)  # of tables; extended has them, too
# Kinds of parameters on which ⊥Grad acts, as rows name them.
KINDS = (
  "kernel, then norm",
  "kernel, no norm",
  "norm scale",
  "norm bias",
  "dense kernel",
  "dense bias",
)


def facts(found: Results, finer: Results, extended: Results) -> dict[str, Any]:
  """The paper's table, and what the appendix has.

  Args:
    found: of wide and wide_confirmation.
    finer: of wide_tf32.
    extended: of ResNet-18, to compare with.
  """
  clean = compare.by_metric(found, BOTH)
  return {
    "table": claims.table({m: clean[m] for m in paper.WIDE}, paper.WIDE),
    "clean": clean,
    "corrupted": compare.by_metric(found, SEEDS, CORRUPTED, UNDER_CORRUPTION),
    "epochs": compare.by_epoch(found, BOTH, EPOCHS),
    "by_choice": by_choice(found),
    "precision": precision(found, finer),
    "radial": radial(found, extended),
  }


def drawings(found: Results, extended: Results) -> Drawings:
  draw = figures.reliability
  return {
    "wide_reliability": lambda: draw(found, BOTH),
    "wide_reliability_corrupted": lambda: draw(found, SEEDS, CORRUPTED),
    "radial": lambda: radial_figure(found, extended),
  }


def best_epochs(found: Results, metric: str) -> list[np.ndarray]:
  """Of SGD's and ⊥Grad's runs, after the epoch that is best on the test set."""
  values = []
  for name in PAIR:
    top1, its = (
      found.over_epochs(name, m, BOTH, WAY) for m in ("top1", metric)
    )
    best = np.argmax(top1, axis=1)
    values.append(its[np.arange(len(BOTH)), best])
  return values


def by_choice(found: Results) -> dict[str, Any]:
  """How much hangs on the epoch after which a run is evaluated."""
  late = [epoch for epoch in WAY if epoch >= 80]
  lines, within = {}, {}
  for metric in ("top1", "loss", "max_logit"):
    values = [found.over_epochs(name, metric, BOTH, late) for name in PAIR]
    lines[metric] = {
      "paper": printed(paper.WIDE[metric]),
      "ours": (
        [x[:, -1] for x in values],
        [x.mean(axis=1) for x in values],
        best_epochs(found, metric),
      ),
    }
    within[metric] = np.sqrt(np.mean(np.var(values, axis=2, ddof=1)))
  return {"epochs": len(WAY), "lines": lines, "within": within}


def precision(found: Results, finer: Results) -> dict[str, Any]:
  """What TF32 changes, beside other seeds of bfloat16 at the same epochs."""
  since, metrics = (100, 80, 60), ("top1", "loss", "max_logit")

  def change(metric, name, first):
    epochs = [epoch for epoch in EVERY_4 if epoch >= first]
    few = finer.values(name, metric, FEW, epoch=epochs)
    many = found.values(name, metric, FRESH, epoch=epochs)
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
    metric: [finer.values(name, metric, FEW) for name in PAIR]
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
  """Of ‖g‖², along the weights: by optimizer, network and kind, in %."""
  shares: dict[str, dict[str, dict[str, np.ndarray]]] = {}
  for network, of in {"ResNet-18": extended, "WRN-28-10": found}.items():
    has = of.rows["orthograd", 0, 100, "train"]["metrics"]
    for name in PAIR:
      shares.setdefault(name, {})[network] = {
        kind: 100 * of.over_epochs(name, metric, SEEDS, EPOCHS, "train")
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
  _style.log_ticks(figure.axes[0].yaxis, *figure.axes[0].get_ylim())
  return figure


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
