"""Figures that several parts of a report use."""

from collections.abc import Iterable, Mapping, Sequence
import itertools
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from experiments.report.compare import PAIR, SEVERITIES, compare
from experiments.report.formats import METRICS, method_name
from experiments.report.outcomes import OUTCOMES, Outcome
from experiments.report.results import Results
from orthograd_optax import plots
from orthograd_optax.calibration import Reliability
from orthograd_optax.plots import style

if TYPE_CHECKING:
  from matplotlib.figure import Figure


def reliability(
  found: Results,
  seeds: Sequence[int] | None,
  datasets: Sequence[str] = ("clean",),
  optimizers: Sequence[str] = PAIR,
) -> "Figure":
  """Reliability diagrams. None for seeds means all that a method has."""
  bins = {}
  for name in optimizers:
    its = found.seeds([name], datasets) if seeds is None else seeds
    bins[method_name(name)] = _bins(found.get(name, its, datasets))
  return plots.reliability_diagram(bins)


def _bins(seeds: Iterable[list[dict[str, Any]]]) -> Reliability:
  """The bins of each seed, pooled over the images of its rows."""

  def pool(found):
    part = {
      k: np.array([r["bins"][k] for r in found]) for k in found[0]["bins"]
    }
    count = part["count"].sum(0)
    mean = lambda k: (part["count"] * part[k]).sum(0) / np.maximum(count, 1)
    return count, mean("confidence"), mean("accuracy")

  arrays = zip(*map(pool, seeds), strict=True)
  return Reliability(*(jnp.array(np.stack(x)) for x in arrays))


def severity(found: Results, seeds: Sequence[int]) -> "Figure":
  """Metrics by severity. 0 is the clean test set."""
  values = {
    METRICS[metric]: {
      method_name(optimizer): np.stack(
        [found.values(optimizer, metric, seeds, s) for s in SEVERITIES], axis=1
      )
      for optimizer in PAIR
    }
    for metric in ("top1", "loss", "ece", "entropy")
  }
  return plots.curves(values, range(6), xlabel="severity")


def on_the_way(
  networks: Mapping[str, tuple[Results, Sequence[int]]], epochs: Sequence[int]
) -> "Figure":
  """Max logit, ECE and loss after T by epoch. Each network has a row."""
  parts = {
    "max logit": ("max_logit", "metrics"),
    "ECE": ("ece", "metrics"),
    "loss after T": ("loss", "scaled_half"),
  }
  values = {
    f"{network}: {title}": {
      method_name(name): found.over_epochs(
        name, metric, seeds, epochs, part=part
      )
      for name in PAIR
    }
    for network, (found, seeds) in networks.items()
    for title, (metric, part) in parts.items()
  }
  return plots.curves(values, epochs)


def training(
  found: Results,
  panels: Mapping[str, tuple[str, str]],
  seeds: Sequence[int] | None,
  epochs: Sequence[int],
  optimizers: Sequence[str] = PAIR,
) -> "Figure":
  """Metrics by epoch.

  Args:
    found: the results.
    panels: for each title, the set of images and the metric.
    seeds: to average over; None for all that a method has.
    epochs: to draw.
    optimizers: the methods to draw.
  """
  values = {title: {} for title in panels}
  for (title, (dataset, metric)), name in itertools.product(
    panels.items(), optimizers
  ):
    its = found.seeds([name], [dataset], epochs) if seeds is None else seeds
    line = found.over_epochs(name, metric, its, epochs, dataset)
    values[title][method_name(name)] = line
  return plots.curves(values, epochs)


def differences(
  panels: Mapping[Outcome, Mapping[str, tuple[float, float, float]]],
) -> "Figure":
  """Differences with their intervals, one a line.

  Args:
    panels: for each outcome, by the same names of lines, a difference and the
      ends of its interval. The axis says which side is better, and a band which
      differences are too small to matter.
  """
  sides = {1: "← better    worse →", -1: "← worse    better →"}
  names = list(next(iter(panels.values())))
  width = 0.5 + 0.07 * max(map(len, names)) + 3.8 * len(panels)
  with style.figure(width, 1.0 + 0.28 * len(names)) as figure:
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axis, (outcome, changes) in zip(axes.flat, panels.items(), strict=True):
      if (matters := outcome.matters) is not None:
        band = {"color": "0.92", "linewidth": 0, "zorder": 0}
        name = f"too small to matter (±{round(matters, 3):g})"
        axis.axvspan(-matters, matters, **band, label=name)
      axis.axvline(0, color=style.GREY, linewidth=1)
      for y, (middle, low, high) in enumerate(changes.values()):
        ends = [[middle - low], [high - middle]]
        color = style.COLORS[0]
        axis.errorbar(middle, y, xerr=ends, fmt="o", color=color, capsize=2.5)
        text = f"{middle:+.3f} ({low:+.3f}, {high:+.3f})".replace("-", "−")
        beside = axis.get_yaxis_transform()
        axis.text(1.02, y, text, va="center", transform=beside)
      axis.grid(axis="y", visible=False)
      axis.locator_params(axis="x", nbins=5, steps=[1, 2, 5, 10])
      unit = ", nats" if outcome.metric == "loss" else ""
      label = f"difference in {outcome.label}{unit}, 95 % interval"
      axis.set_xlabel(f"{label}\n{sides[outcome.sign]}")
    axis = axes.flat[0]
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    if axis.get_legend_handles_labels()[0]:
      figure.legend(loc="outside lower center")
  return figure


def before_and_after_scaling(
  networks: Mapping[str, tuple[Results, Sequence[int]]],
) -> "Figure":
  """The test loss of ⊥Grad less SGD, as trained and after T."""
  parts = {"as trained": "metrics", "after T": "scaled_half"}
  changes = {}
  for (name, (found, seeds)), part in itertools.product(
    networks.items(), parts
  ):
    row = compare(found, "loss", seeds, part=parts[part])
    changes[f"{name}, {part}"] = (row.change, *row.interval)
  return differences({OUTCOMES["scaled_loss"]._replace(label="loss"): changes})
