"""Reliability diagrams."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from orthograd_optax.calibration import _bins, _results
from orthograd_optax.stats._runs import expect

from . import style

if TYPE_CHECKING:
  from matplotlib.figure import Figure


def reliability_diagram(
  reliabilities: _bins.Reliability | Mapping[str, _bins.Reliability],
  *,
  title: str | None = None,
) -> "Figure":
  """Draws accuracy against confidence, and the share of examples by bin.

  Args:
    reliabilities: a :class:`orthograd_optax.calibration.Reliability`, with or
      without a leading axis for seeds, or several by name, side by side.
    title: title of the figure.

  Returns:
    A figure with two axes for each name. The upper one has bars of accuracy,
    hatched gaps to the confidence, and the ECE. With several seeds, it has a
    band of one standard deviation, where a seed has the weight of its examples
    in the bin. The lower one has the share of examples in each bin.

  Examples:
    >>> from orthograd_optax import calibration, plots
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> bins = calibration.reliability(logits, [0, 1, 1])
    >>> figure = plots.reliability_diagram({"SGD": bins})
  """
  if isinstance(reliabilities, _bins.Reliability):
    reliabilities = {"": reliabilities}
  expect(reliabilities, "at least one reliability", "none")
  columns = len(reliabilities)
  # Leave room for the legend: three columns need the width of two panels.
  width = max(3.1 * columns + 0.5, 4.2)
  with style.figure(width, 4.1, title, literal=True) as figure:
    axes = _subplots(figure, columns)
    for i, (name, seeds) in enumerate(reliabilities.items()):
      color = style.line(i)["color"]
      _draw_reliability(axes[0, i], axes[1, i], seeds, color)
      axes[0, i].set_title(name)
    _finish_reliability(figure, axes, 3 if columns > 1 else 2)
  return figure


def _subplots(figure, columns):
  share = {"sharex": True, "sharey": "row", "squeeze": False}
  return figure.subplots(2, columns, **share, height_ratios=[3, 1])


def _finish_reliability(figure, axes, ncols):
  axes[0, 0].set_ylabel("accuracy")
  axes[1, 0].set_ylabel("examples (%)")
  handles = {}
  for axis in axes.flat:
    for handle, name in zip(*axis.get_legend_handles_labels(), strict=True):
      handles.setdefault(name, handle)
  place = "outside lower center"
  figure.legend(handles.values(), handles.keys(), loc=place, ncols=ncols)


def report_diagram(
  report: _results.Results, *, title: str | None = None
) -> "Figure":
  """Draws the reliability diagram of a report, with intervals.

  Args:
    report: a :class:`orthograd_optax.calibration.Report`.
    title: title of the figure.

  Returns:
    A figure as from :func:`reliability_diagram`, with intervals, and with the
    band within which the bars of a calibrated model end.

  Examples:
    >>> from orthograd_optax import calibration, plots
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7] * 50)
    >>> report = calibration.report(logits, [0, 1, 1] * 50)
    >>> figure = plots.report_diagram(report)
  """
  full = np.array([part.count > 0 for part in report.bins])
  table = [(p.count, p.confidence, p.accuracy.value) for p in report.bins]
  columns: Any = np.where(full, np.transpose(table), 0)
  bins = _bins.Reliability(*columns)
  low, high = report.band[:, full]
  centre = (np.arange(full.size) + 0.5)[full] / full.size
  level = f"{100 * report.level:g} %"
  with style.figure(4.4, 4.6, title, literal=True) as figure:
    axes = _subplots(figure, 1)
    top = axes[0, 0]
    band = {"color": "0.5", "alpha": 0.35, "linewidth": 0, "zorder": 3}
    band["label"] = f"if calibrated, {level}"
    top.bar(centre, high - low, 1 / full.size, low, **band)
    _draw_reliability(top, axes[1, 0], bins, style.COLORS[0])
    estimates = [part.accuracy for part in report.bins if part.count > 0]
    value, low, high = np.array(estimates, np.float64).T
    # An interval over few seeds may be missing, or may not contain the value.
    reach = np.maximum([value - low, high - value], 0)
    reach = np.where(np.isfinite(reach), reach, 0)
    look = {"fmt": "none", "ecolor": "black", "elinewidth": 1, "capsize": 2.5}
    look |= {"zorder": 4, "label": f"{level} interval"}
    top.errorbar(centre, value, reach, **look)
    _finish_reliability(figure, axes, 2)
  return figure


def _draw_reliability(top, bottom, seeds, color):
  count = np.asarray(seeds.count)
  shapes = "a count of shape (bins,) or (seeds, bins)"
  expect(count.ndim <= 2, shapes, f"shape {count.shape}")
  expect(count.any(), "at least one example", "empty bins")
  nan = "NaN: a row of the logits has no softmax"
  advice = "Find out where that row comes from, or leave it out."
  finite = np.all(np.isfinite(seeds.confidence))
  expect(finite, "finite confidences", nan, advice)
  count, confidences, accuracies = (
    np.atleast_2d(np.asarray(x, np.float64))
    for x in (count, seeds.confidence, seeds.accuracy)
  )
  total = count.sum(axis=0)
  width, full = 1 / total.size, total > 0
  weight = count[:, full] / total[full]
  centre = (np.arange(full.size) + 0.5)[full] * width
  accuracy = np.sum(weight * accuracies[:, full], axis=0)
  confidence = np.sum(weight * confidences[:, full], axis=0)
  share = total / total.sum()

  top.plot([0, 1], [0, 1], color=style.GREY, linestyle="--", linewidth=1)
  bar = {"color": color, "edgecolor": "white", "alpha": 0.75, "linewidth": 0.6}
  top.bar(centre, accuracy, width, label="accuracy", **bar)
  gap = {"facecolor": "none", "edgecolor": "0.2", "linewidth": 0.6}
  gap |= {"hatch": "////", "label": "gap to confidence"}
  top.bar(centre, confidence - accuracy, width, accuracy, **gap)
  gaps = np.sum(count * np.abs(accuracies - confidences), axis=1)
  ece = gaps / count.sum(axis=1)
  text = f"ECE {ece.mean():.3f}"
  if len(count) > 1:
    text += f" ± {ece.std(ddof=1):.3f}"
    squares = (accuracies[:, full] - accuracy) ** 2
    unbiased = len(count) / (len(count) - 1)
    spread = np.sqrt(unbiased * np.sum(weight * squares, axis=0))
    band = {"color": "black", "alpha": 0.3, "linewidth": 0}
    name = f"± 1 s.d. of {len(count)} seeds"
    top.bar(centre, 2 * spread, width, accuracy - spread, label=name, **band)
  box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
  top.text(0.96, 0.05, text, ha="right", transform=top.transAxes, bbox=box)
  top.set(xlim=(0, 1), ylim=(0, 1))
  top.xaxis.set_major_formatter("{x:g}")

  bottom.bar(centre, 100 * share[full], width, **bar)
  for i in np.flatnonzero(share < 0.01):  # Their bars are too low to see.
    place = {"ha": "center", "va": "bottom", "rotation": 90, "fontsize": 6}
    bottom.annotate(f" n = {total[i]:,.0f}", ((i + 0.5) * width, 0), **place)
  for value, line, name in (
    (np.sum(share[full] * accuracy), "-", "accuracy, all bins"),
    (np.sum(share[full] * confidence), "--", "confidence, all bins"),
  ):
    bottom.axvline(value, color="black", linestyle=line, label=name, lw=1)
  bottom.set_xlabel("confidence")
