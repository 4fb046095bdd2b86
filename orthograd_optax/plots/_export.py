"""Writes figures to files."""

import io
import os
import pathlib
from typing import TYPE_CHECKING
import warnings

from orthograd_optax.calibration import _saving
from orthograd_optax.stats._runs import expect

from . import style

if TYPE_CHECKING:
  from matplotlib.figure import Figure


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
    >>> figure = plots.curves({"ECE": {"SGD": [0.2, 0.3]}}, [1, 2])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   print(plots.save(figure, pathlib.Path(folder, "ece.svg")).name)
    ece.svg
  """
  path = pathlib.Path(path)
  suffix = path.suffix.lower()
  expect(suffix in (".svg", ".png", ".pdf"), "a .svg, .png or .pdf file", path)
  # Leave out the date, so that the same figure gives the same bytes.
  date = {".svg": "Date", ".pdf": "CreationDate"}.get(suffix)
  with _saving.replacing(path) as temporary:
    metadata = {date: None} if date else None
    _write(figure, temporary, dpi=200, metadata=metadata)
  return path


def svg(figure: "Figure") -> str:
  """Returns a figure as SVG without a background, to embed in a page.

  Args:
    figure: a figure from this module.

  Returns:
    The text of an SVG file. The same figure gives the same text.

  Examples:
    >>> from orthograd_optax import plots
    >>> figure = plots.curves({"ECE": {"SGD": [0.2, 0.3]}}, [1, 2])
    >>> plots.svg(figure).strip().endswith("</svg>")
    True
  """
  out = io.StringIO()
  _write(figure, out, format="svg", transparent=True, metadata={"Date": None})
  return out.getvalue()


def _write(figure, file, **options):
  with style.context() as matplotlib:
    with warnings.catch_warnings(record=True) as log:
      warnings.simplefilter("always")
      figure.draw_without_rendering()  # settles the layout, to the last bit
    missing = any("missing from font" in str(entry.message) for entry in log)
    # Leave characters that no font has here to the fonts of the viewer.
    matplotlib.rcParams["svg.fonttype"] = "none" if missing else "path"
    figure.savefig(file, **options)
