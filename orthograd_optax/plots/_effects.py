"""Effect sizes and gaps with their intervals, one to a line."""

from collections.abc import Sequence
import math
from typing import TYPE_CHECKING, Any

from orthograd_optax import stats
from orthograd_optax.calibration._inputs import as_name
from orthograd_optax.stats._runs import expect

from . import style

if TYPE_CHECKING:
  from matplotlib.figure import Figure


def forest_plot(
  table: stats.ComparisonTable, *, title: str | None = None
) -> "Figure":
  """Draws effect sizes with their intervals, one line for each metric.

  Args:
    table: a :class:`orthograd_optax.stats.ComparisonTable`.
    title: title of the figure.

  Returns:
    A figure with one axis. Markers are filled if the Holm-adjusted p is below
    0.05, and hollow otherwise. Infinite effects are arrows at the edge.

  Examples:
    >>> from orthograd_optax import plots, stats
    >>> sgd = {"loss": [1.24, 1.31, 1.22], "ece": [0.17, 0.16, 0.17]}
    >>> orthograd = {"loss": [1.18, 1.16, 1.15], "ece": [0.16, 0.17, 0.16]}
    >>> table = stats.compare_table(sgd, orthograd, names=("SGD", "⊥Grad"))
    >>> figure = plots.forest_plot(table)
  """
  rows = list(table.rows.items())
  height = 0.9 + 0.28 * len(rows) + (0.3 if title else 0)
  with style.figure(6.2, height, title, literal=True) as figure:
    axis = figure.subplots()
    _label_rows(axis, [name + _better(name) for name in table.rows])
    edge = axis.get_yaxis_transform()
    faces = {True: style.COLORS[0], False: "white"}
    for y, (name, row) in enumerate(rows):
      face = faces[table.adjusted[name] < 0.05]
      look = {"color": style.COLORS[0], "markerfacecolor": face}
      low, high = row.d_interval
      if math.isinf(row.d):
        side, marker = (0.99, ">") if row.d > 0 else (0.01, "<")
        axis.plot(side, y, marker, transform=edge, **look)
      else:
        reach = [[row.d - low], [high - row.d]]
        axis.errorbar(row.d, y, xerr=reach, fmt="o", capsize=2.5, **look)
      text = f"{row.d:.2f} ({low:.2f}, {high:.2f})".replace("-", "−")
      axis.text(1.02, y, text, va="center", transform=edge)
    for face, sign in zip(faces.values(), "<≥", strict=True):
      look = {"color": style.COLORS[0], "markerfacecolor": face}
      axis.plot([], [], "o", **look, label=f"p (Holm) {sign} 0.05")
    old, new = table.names
    axis.set_xlabel(
      f"Cohen's d of {new} − {old}, {100 * rows[0][1].level:g} % interval\n"
      f"← {new} is lower    {new} is higher →"
    )
    figure.legend(loc="outside lower center", ncols=2)
  return figure


def _better(metric: str) -> str:
  """Returns which side of zero is better, for a metric of a known name."""
  if metric.lower() in ("loss", "nll", "ece", "mce", "brier", "aurc"):
    return " (lower is better)"
  higher = metric.lower() in ("auroc", "top1", "top5") or "accuracy" in metric
  return " (higher is better)" if higher else ""


def _label_rows(axis, names) -> None:
  """Labels the rows from top to bottom, and marks zero."""
  axis.axvline(0, color=style.GREY, linewidth=1)
  # The labels of ticks are set again whenever they are drawn.
  axis.set_yticks(range(len(names)), list(map(as_name, names)))
  axis.set_ylim(len(names) - 0.5, -0.5)
  axis.grid(axis="y", visible=False)


def gap_plot(
  parts: Sequence[Any], *, level: float = 0.95, title: str | None = None
) -> "Figure":
  """Draws confidence − accuracy of classes or groups, with intervals.

  Args:
    parts: ``by_class`` or ``by_group`` of a report. The first 15 are drawn.
    level: joint confidence level of the intervals, for the axis label.
    title: title of the figure.

  Returns:
    A figure with one axis. Right of zero, the model is overconfident. Markers
    are as in :func:`forest_plot`.

  Examples:
    >>> from orthograd_optax import calibration, plots
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7] * 50)
    >>> report = calibration.report(logits, [0, 1, 1] * 50)
    >>> figure = plots.gap_plot(report.by_class)
  """
  parts = list(parts)[:15]
  expect(parts, "at least one class or group", "none: parts is empty")
  height = 0.9 + 0.26 * len(parts)
  with style.figure(4.4, height, title, literal=True) as figure:
    axis = figure.subplots()
    names = [p.name if len(p.name) < 25 else f"{p.name[:24]}…" for p in parts]
    _label_rows(axis, names)
    look = {"fmt": "o", "capsize": 2.5, "color": style.COLORS[0]}
    for y, part in enumerate(parts):
      value, low, high = part.gap
      reach = [[value - low], [high - value]] if math.isfinite(low) else None
      face = style.COLORS[0] if part.p_value < 0.05 else "white"
      axis.errorbar(value, y, xerr=reach, markerfacecolor=face, **look)
    axis.set_xlabel(f"confidence − accuracy, {100 * level:g} % joint intervals")
  return figure
