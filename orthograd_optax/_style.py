"""The look that all pictures of this repository share."""

from collections.abc import Iterator
import contextlib
from typing import Any

# Okabe and Ito, Color Universal Design, 2008: the colour-blind can tell these
# apart.
COLORS = (
  *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
  "#000000",
)
GREY = "0.35"
# For print in grey. 7 colours, 4 lines and 5 markers have 140 combinations.
_LINES = ("-", "--", "-.", ":")
_MARKERS = "osD^v"
RC_PARAMS = {
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
def figure(
  width: float, height: float, title: str | None = None
) -> Iterator[Any]:
  """Opens a figure of this size, in inches. Draw inside of the context."""
  library = matplotlib()
  with library.rc_context(RC_PARAMS):
    new = library.figure.Figure((width, height), layout="constrained")
    if title is not None:
      new.suptitle(title, fontsize=11)
    yield new


def line(i: int) -> dict[str, Any]:
  """The colour, line style and marker of the i-th method in a picture."""
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
  ticker = matplotlib().ticker
  steps = (1, 2, 5) if high < 1000 * low else (1,)
  axis.set_major_locator(ticker.LogLocator(subs=steps))
  axis.set_major_formatter("{x:g}")
  axis.set_minor_locator(ticker.NullLocator())


def matplotlib() -> Any:
  """Imports matplotlib, which is an extra."""
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
