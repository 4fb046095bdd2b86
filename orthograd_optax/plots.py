"""Pictures of calibration: reliability, severity, effects, temperature.

They need matplotlib: ``pip install 'orthograd-optax[plots]'``. Each function
returns a ``matplotlib.figure.Figure`` that no window or global state knows of;
:func:`save` writes it. Colours are told apart by the colour-blind, and lines
also by their style and markers, for print in grey.

Where there are several seeds, lines and bars are means over them, and bands are
one standard deviation on either side.
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import os
import pathlib
import tempfile
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from orthograd_optax import calibration, stats

if TYPE_CHECKING:
  from matplotlib.figure import Figure

# Okabe and Ito, Color Universal Design, 2008.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
_MARKERS = "osD^vP"
_GREY = "0.35"
_STYLE = {
  "font.size": 9,
  "font.family": "DejaVu Sans",
  "axes.titlesize": 10,
  "axes.labelsize": 9,
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.axisbelow": True,
  "axes.grid": True,
  "grid.color": "0.88",
  "grid.linewidth": 0.6,
  "hatch.linewidth": 0.6,
  "legend.frameon": False,
  "legend.fontsize": 8,
  "lines.linewidth": 1.5,
  "lines.markersize": 4.5,
  "svg.hashsalt": "orthograd-optax",
}


def reliability_diagram(
  reliabilities: calibration.Reliability
  | Mapping[str, calibration.Reliability],
  *,
  title: str | None = None,
) -> "Figure":
  """Accuracy against confidence, with the gap, and where the images are.

  Args:
    reliabilities: what :func:`orthograd_optax.calibration.reliability` gives,
      with or without a leading axis for seeds, or several of these by name, to
      be drawn side by side.
    title: a title above all.

  Returns:
    A figure with two axes for each: bars of accuracy, with hatched gaps to the
    confidence, the ECE of the average diagram and, over seeds, a band; and
    below it the share of images in each bin.

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
    raise ValueError("There are no reliabilities to draw.")
  columns = len(reliabilities)
  with _figure(3.1 * columns + 0.5, 4.1, title) as figure:
    axes = figure.subplots(
      2,
      columns,
      sharex=True,
      sharey="row",
      squeeze=False,
      height_ratios=[3, 1],
    )
    for i, (name, seeds) in enumerate(reliabilities.items()):
      color = _COLORS[i % len(_COLORS)]
      _draw_reliability(axes[0, i], axes[1, i], seeds, color)
      axes[0, i].set_title(name)
    axes[0, 0].set_ylabel("accuracy")
    axes[1, 0].set_ylabel("images (%)")
    handles, names = axes[0, 0].get_legend_handles_labels()
    axes[0, 0].legend(handles, names, loc="upper left")
    axes[1, 0].legend(loc="upper left")
  return figure


def _draw_reliability(top, bottom, seeds, color):
  count = np.asarray(seeds.count)
  if count.ndim > 2:
    raise ValueError(
      f"count has shape {count.shape}, but must be (bins,) or (seeds, bins)."
    )
  several = count.ndim == 2
  mean = calibration.average_reliability(seeds) if several else seeds
  width = 1 / count.shape[-1]
  full = np.asarray(mean.count) > 0
  centre = (np.arange(full.size) + 0.5)[full] * width
  accuracy = np.asarray(mean.accuracy)[full]
  confidence = np.asarray(mean.confidence)[full]
  share = np.asarray(mean.count) / np.sum(mean.count)

  top.plot([0, 1], [0, 1], color=_GREY, linestyle="--", linewidth=1)
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
  if several:
    # Only of seeds that have images in the bin.
    known = np.where(count > 0, np.asarray(seeds.accuracy), np.nan)[:, full]
    spread = np.array(
      [np.nanstd(c, ddof=c[~np.isnan(c)].size > 1) for c in known.T]
    )
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
  ece = np.sum(share[full] * np.abs(accuracy - confidence))
  box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 2}
  top.text(
    0.96,
    0.05,
    f"ECE {ece:.3f}",
    ha="right",
    transform=top.transAxes,
    bbox=box,
  )
  top.set(xlim=(0, 1), ylim=(0, 1))
  top.xaxis.set_major_formatter("{x:g}")

  bottom.bar(centre, 100 * share[full], color=color, alpha=0.75, **bar)
  for value, line, name in (
    (np.sum(share[full] * accuracy), "-", "accuracy"),
    (np.sum(share[full] * confidence), "--", "mean confidence"),
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
  """A metric against the severity of corruption, with a band over seeds.

  Args:
    values: for each optimizer an array of shape (seeds, severities), or
      (severities,) for one seed.
    metric: what it is, for the axis.
    severities: by default 1, 2, 3, ...
    title: a title above all.

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
  if not values:
    raise ValueError("There are no values to draw.")
  arrays = {name: np.atleast_2d(np.asarray(v)) for name, v in values.items()}
  levels = {v.shape[-1] for v in arrays.values()}
  if len(levels) > 1 or any(v.ndim != 2 for v in arrays.values()):
    shapes = {name: np.shape(v) for name, v in values.items()}
    raise ValueError(
      f"values have shapes {shapes}, but must be (seeds, severities), with the "
      "same severities."
    )
  (number,) = levels
  x = np.arange(1, number + 1) if severities is None else np.asarray(severities)
  if x.shape != (number,):
    raise ValueError(
      f"severities has shape {x.shape}, but the values have {number} each."
    )
  with _figure(4.2, 3.1, title) as figure:
    axis = figure.subplots()
    for i, (name, array) in enumerate(arrays.items()):
      style = _draw_line(axis, i, x, array)
      axis.lines[-1].set_marker(style["marker"])
      axis.plot([], [], **style, label=name + _of_seeds(array))
    axis.set(xlabel="severity", ylabel=metric, xticks=x)
    axis.legend()
  return figure


def forest_plot(
  table: stats.ComparisonTable, *, title: str | None = None
) -> "Figure":
  """Effect sizes with their intervals, one metric a line.

  Args:
    table: what :func:`orthograd_optax.stats.compare_table` gives.
    title: a title above all.

  Returns:
    A figure with one axis. Effects whose Holm-adjusted p is below 0.05 are
    filled, others hollow.

  Examples:
    >>> from orthograd_optax import plots, stats
    >>> sgd = {"loss": [1.24, 1.31, 1.22], "ece": [0.17, 0.16, 0.17]}
    >>> orthograd = {"loss": [1.18, 1.16, 1.15], "ece": [0.16, 0.17, 0.16]}
    >>> table = stats.compare_table(sgd, orthograd, names=("SGD", "⊥Grad"))
    >>> figure = plots.forest_plot(table)
  """
  rows = list(table.rows.items())
  with _figure(6.2, 0.9 + 0.28 * len(rows), title) as figure:
    axis = figure.subplots()
    axis.axvline(0, color=_GREY, linewidth=1)
    for y, (name, row) in enumerate(rows):
      clear = table.adjusted[name] < 0.05
      axis.errorbar(
        row.d,
        y,
        xerr=[[row.d - row.interval[0]], [row.interval[1] - row.d]],
        color=_COLORS[0],
        marker="o",
        markerfacecolor=_COLORS[0] if clear else "white",
        capsize=2.5,
        linestyle="none",
      )
      text = f"{row.d:.2f} ({row.interval[0]:.2f}, {row.interval[1]:.2f})"
      axis.text(
        1.02,
        y,
        text.replace("-", "−"),
        va="center",
        transform=axis.get_yaxis_transform(),
      )
    for face, sign in ((_COLORS[0], "<"), ("white", "≥")):
      axis.plot(
        [],
        [],
        "o",
        color=_COLORS[0],
        markerfacecolor=face,
        label=f"p (Holm) {sign} 0.05",
      )
    axis.set_yticks(range(len(rows)), [name for name, _ in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    level = 100 * rows[0][1].level
    first, second = table.names
    axis.set_xlabel(f"Cohen's d of {first} − {second}, {level:g} % interval")
    figure.legend(loc="outside lower center", ncols=2)
  return figure


def temperature_curve(
  logits: Any,
  labels: Any,
  *,
  temperatures: Sequence[float] | None = None,
  title: str | None = None,
) -> "Figure":
  """The loss against the temperature, with its minimum.

  Args:
    logits: array of shape (images, classes) or (seeds, images, classes), or
      several of these by name.
    labels: integer array of shape (images,).
    temperatures: by default 60 of them, from a quarter of the lowest of the
      best to four times the highest.
    title: a title above all.

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
    raise ValueError("There are no logits to draw.")
  stacks = {k: jnp.asarray(v) for k, v in named.items()}
  stacks = {k: v[None] if v.ndim == 2 else v for k, v in stacks.items()}
  over_seeds = lambda f: jax.vmap(f, in_axes=(0, None))
  labels = jnp.asarray(labels)
  for stack in stacks.values():
    calibration.nll(stack[0], labels)  # for its checks, which vmap can't do
  best = {
    name: np.asarray(over_seeds(calibration.fit_temperature)(stack, labels))
    for name, stack in stacks.items()
  }
  if temperatures is None:
    ends = np.concatenate(list(best.values()))
    temperatures = np.geomspace(ends.min() / 4, ends.max() * 4, 60).tolist()
  grid = np.asarray(temperatures, np.float32)
  if grid.ndim != 1 or not np.all(grid > 0):
    raise ValueError(f"temperatures are {grid}, but must be positive numbers.")

  def losses(logits, labels):
    one = lambda t: calibration.nll(logits / t, labels)
    return jax.lax.map(one, jnp.asarray(grid))

  with _figure(4.2, 3.1, title) as figure:
    axis = figure.subplots()
    axis.axvline(1, color=_GREY, linewidth=1, linestyle=":")
    for i, (name, stack) in enumerate(stacks.items()):
      y = np.asarray(over_seeds(losses)(stack, labels))
      style = _draw_line(axis, i, grid, y)
      at_best = over_seeds(calibration.nll)
      scaled = stack / best[name][:, None, None]
      middle = float(np.mean(best[name]))
      axis.plot(middle, np.mean(at_best(scaled, labels)), **style)
      text = f"T = {middle:.2f}{_of_seeds(y)}"
      axis.plot([], [], **style, label=f"{name}: {text}" if name else text)
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(
      _matplotlib().ticker.LogLocator(subs=(1, 2, 5))
    )
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_locator(_matplotlib().ticker.NullLocator())
    axis.set(xlabel="temperature", ylabel="loss")
    axis.legend()
  return figure


def save(figure: "Figure", path: str | os.PathLike) -> pathlib.Path:
  """Writes a figure, in the format that the path's suffix names.

  A file that was there is replaced at once, or left as it was.

  Args:
    figure: what another function here returned.
    path: ends in ``.svg``, ``.png`` or ``.pdf``.

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
  # Without a date, the same figure gives the same bytes.
  date = {".svg": "Date", ".pdf": "CreationDate"}.get(suffix)
  handle, name = tempfile.mkstemp(suffix, f".{path.stem}-", path.parent)
  os.close(handle)
  try:
    with _matplotlib().rc_context(_STYLE):
      figure.savefig(name, dpi=200, metadata={date: None} if date else None)
    os.chmod(name, 0o644)
    os.replace(name, path)
  finally:
    with contextlib.suppress(FileNotFoundError):
      os.remove(name)
  return path


def _draw_line(axis, i, x, seeds) -> dict[str, Any]:
  """Draws the mean over seeds and its band; returns the style of the line."""
  color = _COLORS[i % len(_COLORS)]
  line = _LINES[i % len(_LINES)]
  mean = seeds.mean(axis=0)
  axis.plot(x, mean, color=color, linestyle=line)
  if len(seeds) > 1:
    spread = seeds.std(axis=0, ddof=1)
    axis.fill_between(
      x, mean - spread, mean + spread, color=color, alpha=0.2, linewidth=0
    )
  marker = _MARKERS[i % len(_MARKERS)]
  return {"color": color, "linestyle": line, "marker": marker}


def _of_seeds(seeds) -> str:
  return f" ({len(seeds)} seeds, ± 1 s.d.)" if len(seeds) > 1 else ""


@contextlib.contextmanager
def _figure(width, height, title) -> Iterator[Any]:
  """A figure of so many inches, in this module's style."""
  matplotlib = _matplotlib()
  with matplotlib.rc_context(_STYLE):
    figure = matplotlib.figure.Figure((width, height), layout="constrained")
    if title is not None:
      figure.suptitle(title, fontsize=11)
    yield figure


def _matplotlib() -> Any:
  try:
    import matplotlib
    import matplotlib.figure
    import matplotlib.ticker
  except ImportError as error:
    raise ImportError(
      "orthograd_optax.plots needs matplotlib: pip install "
      "'orthograd-optax[plots]'"
    ) from error
  return matplotlib
