"""Pictures: reliability, severity, training curves, effects, temperature.

They need matplotlib: ``pip install 'orthograd-optax[plots]'``. Each function
returns a ``matplotlib.figure.Figure`` and touches no global state. :func:`save`
writes the figure to a file.

With several seeds, a line is the mean over seeds, and its band is one standard
deviation on either side. Methods differ in colour, line style and marker: the
colour-blind can tell them apart, also in grey.
"""

from collections.abc import Mapping, Sequence
import io
import itertools
import math
import os
import pathlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from orthograd_optax import _style, calibration, stats
from orthograd_optax.calibration import _bins, _writing

if TYPE_CHECKING:
  from matplotlib.figure import Figure

_MAX_MARKERS = 20  # of a line


def reliability_diagram(
  reliabilities: calibration.Reliability
  | Mapping[str, calibration.Reliability],
  *,
  title: str | None = None,
) -> "Figure":
  """Draws accuracy against confidence, and the share of examples by bin.

  Args:
    reliabilities: a :class:`orthograd_optax.calibration.Reliability`, with or
      without a leading axis for seeds. Or several of these by name, which are
      drawn side by side.
    title: title of the figure.

  Returns:
    A figure with two axes for each name. The upper one has bars of accuracy,
    hatched gaps to the confidence, and the mean ± standard deviation of the
    seeds' ECEs. With several seeds, it has a band over seeds. In bars and band,
    a seed has the weight of its examples in that bin. The lower one has the
    share of examples in each bin.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import calibration, plots
    >>> labels = jnp.arange(1000) % 10
    >>> noise = jax.random.normal(jax.random.key(0), (5, 1000, 10))
    >>> logits = 2.0 * (noise + jax.nn.one_hot(labels, 10)[None])
    >>> over_seeds = jax.vmap(calibration.reliability, in_axes=(0, None))
    >>> bins = over_seeds(logits, labels)
    >>> figure = plots.reliability_diagram({"five seeds": bins})
  """
  if isinstance(reliabilities, calibration.Reliability):
    reliabilities = {"": reliabilities}
  if not reliabilities:
    raise ValueError("reliabilities is empty, but must have at least one.")
  columns = len(reliabilities)
  # Leave room for the legend: three columns need the width of two panels.
  with _style.figure(max(3.1 * columns + 0.5, 4.2), 4.1, title) as figure:
    axes = figure.subplots(
      2,
      columns,
      sharex=True,
      sharey="row",
      squeeze=False,
      height_ratios=[3, 1],
    )
    for i, (name, seeds) in enumerate(reliabilities.items()):
      color = _style.line(i)["color"]
      _draw_reliability(axes[0, i], axes[1, i], seeds, color)
      axes[0, i].set_title(name)
    _finish_reliability(figure, axes, 3 if columns > 1 else 2)
  return figure


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
  report: calibration.Report, *, title: str | None = None
) -> "Figure":
  """Draws the reliability diagram of a report, with intervals.

  Args:
    report: a :class:`orthograd_optax.calibration.Report`.
    title: title of the figure.

  Returns:
    A figure with two axes. The upper one has bars of accuracy with intervals,
    hatched gaps to the confidence, and the band within which the bars of a
    calibrated model end. The lower one has the share of examples in each bin.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import calibration, plots
    >>> logits = 3.0 * jax.random.normal(jax.random.key(0), (400, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), logits / 2.5)
    >>> figure = plots.report_diagram(calibration.report(logits, labels))
  """
  full = np.array([part.count > 0 for part in report.bins])
  table = [(p.count, p.confidence, p.accuracy.value) for p in report.bins]
  columns = np.where(full, np.transpose(table), 0).astype(np.float32)
  bins = calibration.Reliability(*map(jnp.asarray, columns))
  low, high = report.band[:, full]
  centre = (np.arange(full.size) + 0.5)[full] / full.size
  level = f"{100 * report.level:g} %"
  with _style.figure(4.4, 4.6, title) as figure:
    axes = figure.subplots(
      2, 1, sharex=True, squeeze=False, height_ratios=[3, 1]
    )
    top = axes[0, 0]
    top.bar(
      centre,
      high - low,
      bottom=low,
      width=1 / full.size,
      color="0.5",
      alpha=0.35,
      linewidth=0,
      zorder=3,
      label=f"if calibrated, {level}",
    )
    _draw_reliability(top, axes[1, 0], bins, _style.COLORS[0])
    accuracy = [part.accuracy for part in report.bins if part.count > 0]
    # An interval over few seeds may be missing, or may not contain the value.
    reach = [
      (max(a.value - a.low, 0), max(a.high - a.value, 0))
      if math.isfinite(a.low)
      else (0, 0)
      for a in accuracy
    ]
    top.errorbar(
      centre,
      [a.value for a in accuracy],
      yerr=np.transpose(reach),
      fmt="none",
      ecolor="black",
      elinewidth=1,
      capsize=2.5,
      zorder=4,
      label=f"{level} interval",
    )
    _finish_reliability(figure, axes, 2)
  return figure


def gap_plot(
  parts: Sequence[Any], *, level: float = 0.95, title: str | None = None
) -> "Figure":
  """Draws confidence − accuracy of classes or groups, with intervals.

  Args:
    parts: ``by_class`` or ``by_group`` of a report. The first 15 are drawn.
    level: confidence level of the intervals, for the label of the axis.
    title: title of the figure.

  Returns:
    A figure with one axis. Right of zero, the model is overconfident.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import calibration, plots
    >>> logits = 3.0 * jax.random.normal(jax.random.key(0), (400, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), logits / 2.5)
    >>> report = calibration.report(logits, labels)
    >>> figure = plots.gap_plot(report.by_class)
  """
  parts = list(parts)[:15]
  if not parts:
    raise ValueError("parts is empty, but must have at least one.")
  with _style.figure(4.4, 0.9 + 0.26 * len(parts), title) as figure:
    axis = figure.subplots()
    axis.axvline(0, color=_style.GREY, linewidth=1)
    for y, part in enumerate(parts):
      value, low, high = part.gap
      reach = [[value - low], [high - value]] if math.isfinite(low) else None
      axis.errorbar(
        value, y, xerr=reach, fmt="o", capsize=2.5, color=_style.COLORS[0]
      )
    names = [p.name if len(p.name) < 25 else f"{p.name[:24]}…" for p in parts]
    axis.set_yticks(range(len(parts)), names)
    axis.set_ylim(len(parts) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    axis.set_xlabel(f"confidence − accuracy, {100 * level:g} % interval")
  return figure


def _draw_reliability(top, bottom, seeds, color):
  count = np.asarray(seeds.count)
  if count.ndim > 2:
    raise ValueError(
      f"count has shape {count.shape}, but must be (bins,) or (seeds, bins)."
    )
  if not count.any():
    raise ValueError(
      "The reliability has no examples, but must have at least one."
    )
  if not np.all(np.isfinite(seeds.confidence)):
    raise ValueError(
      "The reliability has NaNs: some row of the logits has no softmax. Find "
      "out where that row comes from, or leave it out."
    )
  several = count.ndim == 2 and len(count) > 1
  if count.ndim == 1:
    seeds = jax.tree.map(lambda x: x[None], seeds)
    count = count[None]
  mean = calibration.average_reliability(seeds)
  width = 1 / count.shape[-1]
  full = np.asarray(mean.count) > 0
  centre = (np.arange(full.size) + 0.5)[full] * width
  accuracy = np.asarray(mean.accuracy)[full]
  confidence = np.asarray(mean.confidence)[full]
  share = np.asarray(mean.count) / np.sum(mean.count)

  top.plot([0, 1], [0, 1], color=_style.GREY, linestyle="--", linewidth=1)
  bar = {"width": width, "edgecolor": "white", "linewidth": 0.6}
  top.bar(centre, accuracy, color=color, alpha=0.75, label="accuracy", **bar)
  top.bar(
    centre,
    confidence - accuracy,
    bottom=accuracy,
    width=width,
    facecolor="none",
    edgecolor="0.2",
    linewidth=0.6,
    hatch="////",
    label="gap to confidence",
  )
  ece = np.asarray(_bins.mean_gap(seeds))
  text = f"ECE {ece.mean():.3f}"
  if several:
    text += f" ± {ece.std(ddof=1):.3f}"
    weight = (count / np.maximum(count.sum(axis=0), 1))[:, full]
    squares = (np.asarray(seeds.accuracy)[:, full] - accuracy) ** 2
    unbiased = len(count) / (len(count) - 1)
    spread = np.sqrt(unbiased * np.sum(weight * squares, axis=0))
    top.bar(
      centre,
      2 * spread,
      bottom=accuracy - spread,
      width=width,
      color="black",
      alpha=0.3,
      linewidth=0,
      label=f"± 1 s.d. of {len(count)} seeds",
    )
  box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
  top.text(
    0.96,
    0.05,
    text,
    ha="right",
    transform=top.transAxes,
    bbox=box,
  )
  top.set(xlim=(0, 1), ylim=(0, 1))
  top.xaxis.set_major_formatter("{x:g}")

  bottom.bar(centre, 100 * share[full], color=color, alpha=0.75, **bar)
  for i in np.flatnonzero(share < 0.01):  # Their bars are too low to see.
    place = {"ha": "center", "va": "bottom", "rotation": 90, "fontsize": 6}
    bottom.annotate(
      f" n = {np.asarray(mean.count)[i]:,.0f}", ((i + 0.5) * width, 0), **place
    )
  for value, line, name in (
    (np.sum(share[full] * accuracy), "-", "accuracy, all bins"),
    (np.sum(share[full] * confidence), "--", "confidence, all bins"),
  ):
    bottom.axvline(value, color="black", linestyle=line, label=name, lw=1)
  bottom.set_xlabel("confidence")


def severity_curves(
  values: Mapping[str, Any],
  *,
  metric: str,
  severities: Sequence[float] | None = None,
  title: str | None = None,
) -> "Figure":
  """Draws a metric against the severity of corruption.

  Args:
    values: an array of shape (seeds, severities) for each optimizer, by name;
      (severities,) for one seed.
    metric: name of the metric, for the label of the axis.
    severities: the severities. By default 1, 2, 3, ...
    title: title of the figure.

  Returns:
    A figure with one axis.

  Examples:
    >>> from orthograd_optax import plots
    >>> sgd = [[0.20, 0.25, 0.31], [0.21, 0.24, 0.33]]
    >>> orthograd = [[0.19, 0.22, 0.27], [0.18, 0.23, 0.26]]
    >>> figure = plots.severity_curves(
    ...   {"SGD": sgd, "⊥Grad": orthograd}, metric="ECE"
    ... )
  """
  arrays = _stack(values, "severities")
  number = _length(arrays)
  x = np.arange(1, number + 1) if severities is None else np.asarray(severities)
  if x.shape != (number,):
    raise ValueError(
      f"severities has shape {x.shape}, but must have one number for each "
      f"value: the values have {number}."
    )
  with _style.figure(4.2, 3.1, title) as figure:
    axis = figure.subplots()
    _draw_curves(axis, x, arrays)
    axis.set(xlabel="severity", ylabel=metric)
    _legend(axis, [axis])
  return figure


def curves(
  values: Mapping[str, Mapping[str, Any]],
  x: Sequence[float],
  *,
  xlabel: str = "epoch",
  log: bool = False,
  title: str | None = None,
) -> "Figure":
  """Draws metrics against the epoch, the step or the severity.

  Args:
    values: by metric, and then by optimizer, an array of shape (seeds, epochs);
      (epochs,) for one seed.
    x: the epochs.
    xlabel: label of the x axis.
    log: whether all metrics share one logarithmic scale.
    title: title of the figure.

  Returns:
    A figure with one axis for each metric.

  Examples:
    >>> from orthograd_optax import plots
    >>> sgd = [[2.0, 1.1, 1.4], [2.1, 1.2, 1.3]]
    >>> orthograd = [[2.0, 1.1, 1.2], [2.1, 1.1, 1.2]]
    >>> figure = plots.curves(
    ...   {"loss": {"SGD": sgd, "⊥Grad": orthograd}}, [10, 20, 30]
    ... )
  """
  if not values:
    raise ValueError("values is empty, but must have at least one.")
  at = np.asarray(x)
  panels = {name: _stack(group, "values") for name, group in values.items()}
  for name, arrays in panels.items():
    if at.shape != (_length(arrays),):
      raise ValueError(
        f"x has shape {at.shape}, but must have one number for each value: "
        f"{name} has {_length(arrays)}."
      )
  columns = 2 if len(panels) in (2, 4) else min(len(panels), 3)
  lines = math.ceil(len(panels) / columns)
  # Give an optimizer the same style in all panels.
  names = list(dict.fromkeys(itertools.chain(*values.values())))
  with _style.figure(3.1 * columns, 2.6 * lines + 0.4, title) as figure:
    grid = figure.subplots(lines, columns, squeeze=False, sharey=log)
    axes = list(grid.flat)
    for (name, arrays), axis in zip(panels.items(), axes, strict=False):
      _draw_curves(axis, at, arrays, names)
      axis.set(xlabel=xlabel, ylabel=name)
      if log:
        axis.set_yscale("log")
    for axis in axes[len(panels) :]:
      axis.remove()
    place = {"loc": "outside lower center", "ncols": min(len(names), columns)}
    _legend(figure, axes[: len(panels)], **place)
  return figure


def _stack(values: Mapping[str, Any], what: str) -> dict[str, np.ndarray]:
  """The values as arrays of shape (seeds, points)."""
  if not values:
    raise ValueError("values is empty, but must have at least one.")
  arrays = {name: np.atleast_2d(np.asarray(v)) for name, v in values.items()}
  levels = {v.shape[-1] for v in arrays.values()}
  if len(levels) > 1 or any(v.ndim != 2 for v in arrays.values()):
    shapes = {name: np.shape(v) for name, v in values.items()}
    raise ValueError(
      f"values have the shapes {shapes}, but must be (seeds, {what}), with the "
      f"same {what}."
    )
  return arrays


def _length(arrays: Mapping[str, np.ndarray]) -> int:
  return next(iter(arrays.values())).shape[1]


def _draw_curves(axis, x, arrays, names=None) -> None:
  names = names or list(arrays)
  for name, array in arrays.items():
    style = _draw_line(axis, names.index(name), x, array)
    axis.lines[-1].set(
      marker=style["marker"], markevery=math.ceil(len(x) / _MAX_MARKERS)
    )
    seeds = f" ({len(array)} seeds, ± 1 s.d.)" if len(array) > 1 else ""
    axis.plot([], [], **style, label=name + seeds)
  if len(x) <= 12:
    axis.set_xticks(x)


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
  with _style.figure(6.2, 0.9 + 0.28 * len(rows), title) as figure:
    axis = figure.subplots()
    axis.axvline(0, color=_style.GREY, linewidth=1)
    for y, (name, row) in enumerate(rows):
      face = _style.COLORS[0] if table.adjusted[name] < 0.05 else "white"
      look = {"color": _style.COLORS[0], "markerfacecolor": face}
      if math.isinf(row.d):
        # Draw an arrow at the edge.
        edge = axis.get_yaxis_transform()
        side, marker = (0.99, ">") if row.d > 0 else (0.01, "<")
        axis.plot(side, y, marker, transform=edge, **look)
      else:
        axis.errorbar(
          row.d,
          y,
          xerr=[[row.d - row.interval[0]], [row.interval[1] - row.d]],
          fmt="o",
          capsize=2.5,
          **look,
        )
      text = f"{row.d:.2f} ({row.interval[0]:.2f}, {row.interval[1]:.2f})"
      axis.text(
        1.02,
        y,
        text.replace("-", "−"),
        va="center",
        transform=axis.get_yaxis_transform(),
      )
    for face, sign in ((_style.COLORS[0], "<"), ("white", "≥")):
      axis.plot(
        [],
        [],
        "o",
        color=_style.COLORS[0],
        markerfacecolor=face,
        label=f"p (Holm) {sign} 0.05",
      )
    axis.set_yticks(
      range(len(rows)), [name + _better(name) for name, _ in rows]
    )
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    level = 100 * rows[0][1].level
    first, second = table.names
    axis.set_xlabel(
      f"Cohen's d of {first} − {second}, {level:g} % interval\n"
      f"← {first} is lower    {first} is higher →"
    )
    figure.legend(loc="outside lower center", ncols=2)
  return figure


def _better(metric: str) -> str:
  """Which side of zero is the better one, for a metric of a known name."""
  if metric.lower() in ("loss", "nll", "ece", "mce", "brier", "aurc"):
    return " (lower is better)"
  higher = metric.lower() in ("auroc", "top1", "top5") or "accuracy" in metric
  return " (higher is better)" if higher else ""


def temperature_curve(
  logits: Any,
  labels: Any,
  *,
  temperatures: Sequence[float] | None = None,
  title: str | None = None,
) -> "Figure":
  """Draws the loss against the temperature, with its minimum.

  Args:
    logits: array of shape (examples, classes) or (seeds, examples, classes), or
      several of these by name.
    labels: integer array of shape (examples,).
    temperatures: the temperatures. By default 60 numbers, from a quarter of the
      lowest best temperature to four times the highest. For this, best
      temperatures are clipped to 0.01 and 100.
    title: title of the figure.

  Returns:
    A figure with one axis.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import plots
    >>> logits = 3.0 * jax.random.normal(jax.random.key(0), (2, 500, 10))
    >>> labels = jax.random.categorical(jax.random.key(1), logits[0] / 2.5)
    >>> figure = plots.temperature_curve({"SGD": logits}, labels)
  """
  named = logits if isinstance(logits, Mapping) else {"": logits}
  if not named:
    raise ValueError("logits is empty, but must have at least one.")
  stacks = {k: jnp.asarray(v) for k, v in named.items()}
  stacks = {k: v[None] if v.ndim == 2 else v for k, v in stacks.items()}
  over_seeds = lambda f: jax.vmap(f, in_axes=(0, None))
  for name, stack in stacks.items():
    # Check here: under vmap, values can't be checked.
    if not np.isfinite(calibration.nll(stack[0], labels)):
      raise ValueError(
        f"The loss of {name or 'the logits'} is not finite. Leave out examples "
        "whose logits are not finite."
      )
  labels = jnp.asarray(labels)
  best = {
    name: np.asarray(over_seeds(calibration.fit_temperature)(stack, labels))
    for name, stack in stacks.items()
  }
  if temperatures is None:
    ends = np.clip(np.concatenate(list(best.values())), 0.01, 100)
    temperatures = np.geomspace(ends.min() / 4, ends.max() * 4, 60).tolist()
  grid = np.asarray(temperatures, np.float32)
  if (
    grid.ndim != 1 or not grid.size or not np.all((grid > 0) & (grid < np.inf))
  ):
    raise ValueError(
      f"temperatures are {temperatures}, but must be positive numbers."
    )

  def losses(logits, labels):
    one = lambda t: calibration.nll(logits / t, labels)
    return jax.lax.map(one, jnp.asarray(grid))

  with _style.figure(4.2, 3.1, title) as figure:
    axis = figure.subplots()
    axis.axvline(1, color=_style.GREY, linewidth=1, linestyle=":")
    for i, (name, stack) in enumerate(stacks.items()):
      y = np.asarray(over_seeds(losses)(stack, labels))
      style = _draw_line(axis, i, grid, y)
      middle = np.mean(best[name])
      text = f"T = {middle:.3g}"
      if len(stack) > 1:
        text += f" ± {np.std(best[name], ddof=1):.2g} ({len(stack)} seeds)"
      if grid.min() <= middle <= grid.max():
        there = over_seeds(calibration.nll)(stack / middle, labels)
        axis.plot(middle, np.mean(there), **style)
      axis.plot([], [], **style, label=f"{name}: {text}" if name else text)
    axis.set_xscale("log")
    _style.log_ticks(axis.xaxis, grid.min(), grid.max())
    axis.set(xlabel="temperature", ylabel="loss")
    _legend(axis, [axis])
  return figure


def save(figure: "Figure", path: str | os.PathLike) -> pathlib.Path:
  """Writes a figure to a file. The suffix chooses the format.

  An existing file is replaced only once the new one is complete.

  Args:
    figure: a figure from this module.
    path: path of the file, ending in ``.svg``, ``.png`` or ``.pdf``.

  Returns:
    The path.

  Examples:
    >>> import pathlib, tempfile
    >>> from orthograd_optax import plots
    >>> figure = plots.severity_curves({"SGD": [0.2, 0.3]}, metric="ECE")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   print(plots.save(figure, pathlib.Path(folder, "ece.svg")).name)
    ece.svg
  """
  path = pathlib.Path(path)
  suffix = path.suffix.lower()
  if suffix not in (".svg", ".png", ".pdf"):
    raise ValueError(
      f"{path} ends in {path.suffix!r}, but must end in .svg, .png or .pdf."
    )
  # Leave out the date, so that the same figure gives the same bytes.
  date = {".svg": "Date", ".pdf": "CreationDate"}.get(suffix)
  with _writing.replacing(path) as temporary:
    with _style.matplotlib().rc_context(_style.RC_PARAMS):
      figure.draw_without_rendering()  # settles the layout, to the last bit
      metadata = {date: None} if date else None
      figure.savefig(temporary, dpi=200, metadata=metadata)
  return path


def svg(figure: "Figure") -> str:
  """Converts a figure to SVG without a background, to put into a page.

  Args:
    figure: a figure from this module.

  Returns:
    The text of an SVG file. The same figure gives the same text.

  Examples:
    >>> from orthograd_optax import plots
    >>> figure = plots.severity_curves({"SGD": [0.2, 0.3]}, metric="ECE")
    >>> plots.svg(figure).strip().endswith("</svg>")
    True
  """
  out = io.StringIO()
  with _style.matplotlib().rc_context(_style.RC_PARAMS):
    figure.draw_without_rendering()
    options = {"transparent": True, "metadata": {"Date": None}}
    figure.savefig(out, format="svg", **options)
  return out.getvalue()


def _draw_line(axis, i, x, seeds) -> dict[str, Any]:
  """Draws the mean over seeds and its band; returns the style of the line."""
  style = _style.line(i)
  mean = seeds.mean(axis=0)
  axis.plot(x, mean, color=style["color"], linestyle=style["linestyle"])
  if len(seeds) > 1:
    spread = seeds.std(axis=0, ddof=1)
    band = {"color": style["color"], "alpha": 0.2, "linewidth": 0}
    axis.fill_between(x, mean - spread, mean + spread, **band)
  return style


def _legend(where, axes, **place):
  """A legend of the lines without data.

  matplotlib's own legend leaves out names that begin with an underscore.
  """
  handles = {
    line.get_label(): line
    for axis in axes
    for line in axis.lines
    if not len(line.get_xdata())
  }
  where.legend(handles.values(), handles.keys(), **place)
