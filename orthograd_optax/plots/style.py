"""Defines the style of all figures in this repository, for reuse."""

from collections.abc import Iterator
import contextlib
from typing import Any
import warnings

from orthograd_optax.calibration._inputs import as_name

# Okabe and Ito, Color Universal Design, 2008: color-blind readers can tell
# these apart.
COLORS = (
  *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
  "#000000",
)
GREY = "0.35"
# For print in grey. 7 colors, 4 lines and 5 markers have 140 combinations.
_LINES = ("-", "--", "-.", ":")
_MARKERS = "osD^v"
# For scripts that DejaVu Sans lacks, where one of these is installed.
_FALLBACK_FONTS = (
  *("Noto Sans CJK JP", "Noto Sans CJK SC", "Hiragino Sans", "PingFang SC"),
  *("Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS"),
)
RC_PARAMS: dict[Any, Any] = {
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
  "legend.frameon": True,
  "legend.framealpha": 0.85,
  "legend.edgecolor": "none",
  "legend.fontsize": 8,
  "lines.linewidth": 1.5,
  "lines.markersize": 4.5,
  "svg.hashsalt": "orthograd-optax",
}


@contextlib.contextmanager
def context() -> Iterator[Any]:
  """Applies the style, without warnings about fonts; yields matplotlib."""
  try:
    import matplotlib
    import matplotlib.figure
    import matplotlib.font_manager
    import matplotlib.text
  except ImportError as error:
    raise ImportError(
      "orthograd_optax.plots needs matplotlib: pip install matplotlib"
    ) from error
  installed = set(matplotlib.font_manager.get_font_names())
  fonts = [name for name in _FALLBACK_FONTS if name in installed]
  params: Any = {"font.family": [RC_PARAMS["font.family"], *fonts]}
  with matplotlib.rc_context(RC_PARAMS | params), warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Glyph .* missing from font")
    warnings.filterwarnings("ignore", "Matplotlib currently does not support")
    yield matplotlib


@contextlib.contextmanager
def figure(
  width: float, height: float, title: str | None = None, literal: bool = False
) -> Iterator[Any]:
  """Opens a figure in the style. Draw inside the context.

  Args:
    width: width in inches.
    height: height in inches.
    title: title of the figure.
    literal: whether to draw text literally, so that a ``$`` in a name does
      not start a formula, and characters that UTF-8 lacks are escaped.

  Examples:
    >>> from orthograd_optax.plots import style
    >>> with style.figure(4, 3, "Loss") as figure:
    ...   axis = figure.subplots()
    ...   lines = axis.loglog([1, 10, 100], [3, 2, 1], **style.line(0))
    ...   style.log_ticks(axis.xaxis, 1, 100)
  """
  with context() as matplotlib:
    new = matplotlib.figure.Figure((width, height), layout="constrained")
    if title is not None:
      new.suptitle(title, fontsize=11)
    yield new
    for text in new.findobj(matplotlib.text.Text) if literal else ():
      text.set_text(as_name(text.get_text()))
      text.set_parse_math(False)


def line(i: int) -> dict[str, Any]:
  """Returns the color, line style and marker of the i-th method."""
  return {
    "color": COLORS[i % len(COLORS)],
    "linestyle": _LINES[i % len(_LINES)],
    "marker": _MARKERS[i % len(_MARKERS)],
  }


def log_ticks(axis: Any, low: float, high: float) -> None:
  """Labels a logarithmic axis with plain numbers, such as 0.5 or 20.

  Args:
    axis: ``xaxis`` or ``yaxis`` of matplotlib's axes.
    low: the smallest value drawn.
    high: the largest value drawn.
  """
  from matplotlib import ticker

  steps = (1, 2, 5) if high < 1000 * low else (1,)
  axis.set_major_locator(ticker.LogLocator(subs=steps))
  axis.set_major_formatter("{x:g}")
  axis.set_minor_locator(ticker.NullLocator())
