"""Draws what pages show."""

from collections.abc import Mapping, Sequence
import re
import textwrap
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from experiments.report import query
from experiments.report.compare import Compared
from experiments.report.query import PAIR, Results, method_name
from orthograd_optax import plots
from orthograd_optax.calibration import Reliability
from orthograd_optax.plots import style

if TYPE_CHECKING:
  from matplotlib.figure import Figure

BLUE, RED, GREEN = style.COLORS[:3]
# Colors that pages replace in dark mode.
DARK_GREY, LIGHT_GREY = "#595959", "#e0e0e0"
# By the words of a verdict: color, and whether the marker is filled.
LOOKS = {
  "helps": (GREEN, True),
  "helps, but by less than matters": (GREEN, False),
  "harms": (RED, True),
  "harms, but by less than matters": (RED, False),
  "no difference that matters": (DARK_GREY, True),
  "undecided": (DARK_GREY, False),
}
LONGEST_LABEL = 34


def effects(
  lines: Mapping[str, Mapping[str, Compared]],
  outcomes: Sequence[str] = ("loss", "scaled_loss"),
  relative: bool = False,
) -> "Figure":
  """Draws differences with intervals, one a line, colored by their verdicts.

  Each outcome has a column. If `relative`, the axis is in percent of the mean
  without ⊥Grad; the numbers beside the lines are in the outcome's unit.
  """
  columns = [query.OUTCOMES[name] for name in outcomes]
  labels = [textwrap.fill(name, LONGEST_LABEL) for name in lines]
  longest = max(map(len, "\n".join(labels).split("\n")))
  width = 0.4 + 0.065 * longest + 3.7 * len(columns)
  height = 1.3 + sum(0.12 + 0.16 * (1 + it.count("\n")) for it in labels)
  shown: dict[str, Any] = {}
  with style.figure(width, height) as figure:
    axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)
    for axis, name, it in zip(axes.flat, outcomes, columns, strict=True):
      unit = ", %" if relative else ", nats" if it.metric == "loss" else ""
      label = "loss without T" if name == "loss" else it.label
      rows = [line[name] for line in lines.values()]
      for y, row in enumerate(rows):
        shown |= _draw_effect(axis, y, row, relative)
      if relative:
        axis.set_title("nats", loc="right", fontsize=8)
      _shorten(axis, rows)
      axis.axvline(0, color=DARK_GREY, linewidth=1)
      axis.grid(axis="y", visible=False)
      axis.locator_params(axis="x", nbins=5, steps=[1, 2, 5, 10])
      sides = ["better", "worse"]
      if not {row.verdict for row in rows} <= LOOKS.keys():
        sides = ["the first is better", "the second is better"]
      left, right = sides[:: it.sign]
      axis.set_xlabel(f"difference in {label}{unit}\n← {left}    {right} →")
    axes[0, 0].set_yticks(range(len(labels)), labels)
    axes[0, 0].set_ylim(len(labels) - 0.5, -0.5)
    order = [*LOOKS, *sorted(shown.keys() - LOOKS.keys())]
    handles = {name: shown[name] for name in order if name in shown}
    ncols = min(len(handles), 2 * len(columns))
    place: Any = {"loc": "outside lower center", "ncols": ncols}
    place["title"] = "verdicts, by the adjusted p"
    figure.legend(handles.values(), handles.keys(), **place)
  return figure


def _draw_effect(axis, y: int, row: Compared, relative: bool) -> dict[str, Any]:
  """Draws a line of :func:`effects`. Returns handles for the legend."""
  handles = {}
  scale = 100 / float(np.mean(row.a)) if relative else 1.0
  middle, (low, high) = row.change, row.interval
  if row.margin is not None:
    reach = row.margin * scale
    band = axis.barh(y, 2 * reach, 0.98, -reach, color=LIGHT_GREY, zorder=0)
    small = "too small to matter"
    handles[f"under 3 %: {small}" if relative else small] = band
  name = re.sub(".* is better", "one is better", row.verdict)
  color, full = LOOKS.get(name, (BLUE, "less" not in name))
  reach = [[(middle - low) * scale], [(high - middle) * scale]]
  face = color if full else "white"
  look = {"color": color, "markerfacecolor": face, "capsize": 2.5}
  handles[name] = axis.errorbar(middle * scale, y, xerr=reach, fmt="o", **look)
  text = f"{middle:+.3f} ({low:+.3f}, {high:+.3f})".replace("-", "−")
  beside = axis.get_yaxis_transform()
  axis.text(1.02, y, text, va="center", transform=beside, fontsize=8)
  return handles


def _shorten(axis, rows: Sequence[Compared]) -> None:
  """Draws differences that are far beyond the others as arrows at the edge."""
  far = 8 * np.median([np.abs(row.interval).max() for row in rows])
  beyond = {y: r.change for y, r in enumerate(rows) if abs(r.change) > far > 0}
  if beyond:
    near = [r.interval for r in rows if abs(r.change) <= far]
    low, high = np.min(near), np.max(near)
    axis.set_xlim(low - 0.1 * (high - low), high + 0.1 * (high - low))
  for y, change in beyond.items():
    place = {"transform": axis.get_yaxis_transform(), "clip_on": False}
    axis.plot(float(change > 0), y, "<>"[change > 0], color=BLUE, **place)


def reliability(
  results: Results, methods: Sequence[str] = PAIR, images: str = "clean"
) -> "Figure":
  """Draws reliability diagrams, of all seeds that a method has."""
  rows = lambda method, seed: results.get(method, seed, images)
  bins = {
    method_name(it): _pooled([rows(it, s) for s in results.seeds([it], images)])
    for it in methods
  }
  figure = plots.reliability_diagram(bins)
  if any("ensemble" in method for method in methods):
    for text in figure.legends[0].texts:
      text.set_text(text.get_text().replace(" seeds", " ensembles"))
  return figure


def _pooled(seeds: Sequence[list[dict[str, Any]]]) -> Reliability:
  """Returns the bins of each seed, pooled over the images of its rows."""
  count, confidence, accuracy = (
    np.array([[row["bins"][key] for row in rows] for rows in seeds], float)
    for key in ("count", "confidence", "accuracy")
  )
  total = count.sum(1)
  # Empty bins may have no mean.
  whole = lambda bins: np.where(count, count * bins, 0).sum(1)
  mean = lambda bins: whole(bins) / np.maximum(total, 1)
  return Reliability(*map(jnp.array, (total, mean(confidence), mean(accuracy))))


def severity(results: Results) -> "Figure":
  """Draws metrics by severity. 0 is the clean test set."""
  seeds = results.seeds(PAIR, "corrupted")
  of = lambda method, metric: [
    results.values(method, metric, seeds, images=f"severity {i}")
    for i in range(6)
  ]
  values = {
    query.METRICS[metric]: {
      method_name(method): np.stack(of(method, metric), axis=1)
      for method in PAIR
    }
    for metric in ("top1", "loss", "ece", "entropy")
  }
  return plots.curves(values, range(6), xlabel="severity")


def training(
  networks: Mapping[str, Results],
  panels: Mapping[str, Sequence[str]],
  epochs: Sequence[int],
  methods: Sequence[str] = PAIR,
) -> "Figure":
  """Draws outcomes by epoch, a row for each network that titles name.

  The panels have the images and the outcome for each title.
  """
  names = [method_name(method) for method in methods]
  values = {
    f"{network}: {title}".removeprefix(": "): {
      name: results.over_epochs(
        method, it, results.seeds([method], images, epochs), epochs, images
      )
      for name, method in zip(names, methods, strict=True)
    }
    for network, results in networks.items()
    for title, (images, it) in panels.items()
  }
  figure = plots.curves(values, epochs)
  if len(networks) > 1:  # they differ in their seeds, which the caption says
    handles: Any = figure.legends[0].legend_handles[: len(names)]
    figure.legends[0].remove()
    place = {"loc": "outside lower center", "frameon": False}
    figure.legend(handles, names, **place, ncols=len(names))
  return figure


def radial(
  shares: Mapping[str, Mapping[str, np.ndarray]], epochs: Sequence[int]
) -> "Figure":
  """Draws the share of ‖g‖² along the weights by epoch, by network and kind."""
  figure = plots.curves(shares, epochs, log=True)
  for axis, network in zip(figure.axes, shares, strict=True):
    axis.set_title(network, fontsize=10)
    axis.set_ylabel("")
  figure.axes[0].set_ylabel("share of ‖g‖² along w, %")
  return figure


def temperatures(panels: Mapping[str, Mapping[str, np.ndarray]]) -> "Figure":
  """Draws the fitted T by learning rate × weight decay, where that is not 0."""
  with style.figure(7.4, 3.4) as figure:
    axes = figure.subplots(1, len(panels), sharey=True)
    for axis, (title, its) in zip(axes, panels.items(), strict=True):
      axis.axhspan(0.8, 1.5, color=LIGHT_GREY, zorder=0, label="T 0.8 to 1.5")
      for i, column in enumerate(("without", "with")):
        shown = (its["decay"] > 0) & (its[column] < 100)  # not at chance
        look = style.line(i) | {"linestyle": "", "label": f"{column} ⊥Grad"}
        axis.plot(its["decay"][shown], its[column][shown], **look)
      axis.set(title=title, xscale="log", yscale="log")
      axis.set_xlabel("learning rate × weight decay")
    axes[0].set_ylabel("fitted T")
    style.log_ticks(axes[0].yaxis, *axes[0].get_ylim())
    shared = axes[0].get_legend_handles_labels()
    figure.legend(*shared, loc="outside lower center", ncols=3)
  return figure


def grokking(
  curves: Mapping[str, np.ndarray], steps: Sequence[int]
) -> "Figure":
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
