"""A report as one self-contained page of HTML."""

from collections.abc import Iterable, Sequence
import html
import importlib.resources
import os
import pathlib
import re
import string
from typing import TYPE_CHECKING, Any
import zlib

from orthograd_optax.calibration import _saving, _table, _text
from orthograd_optax.calibration._results import Comparison, Part, Results

if TYPE_CHECKING:
  from matplotlib.figure import Figure

MAX_ROWS = 15  # rows of a table; the others are folded
# Colours in figures, and the colours of the page that replace them.
_THEMED = {
  "#000000": "currentColor",
  "#ffffff": "var(--paper)",
  "#333333": "currentColor",
  "#595959": "var(--muted)",
  "#e0e0e0": "var(--line)",
}


class Page:
  """A result that is saved as a page, and displayed by a notebook."""

  def html(self) -> str:
    """Returns the page as HTML. Needs matplotlib."""
    raise NotImplementedError

  def save(self, path: str | os.PathLike) -> pathlib.Path:
    """Writes the page as one self-contained HTML file, and returns its path.

    Needs matplotlib. An existing file is replaced only once the new one is
    complete.
    """
    return _saving.write_text(path, self.html())

  def _repr_html_(self) -> str:
    try:
      page = self.html()
    except ImportError:
      return f"<pre>{html.escape(str(self))}</pre>"
    style = "width: 100%; height: 40rem; border: 1px solid #8888"
    return f'<iframe srcdoc="{html.escape(page)}" style="{style}"></iframe>'


def plots() -> Any:
  # Not at the top: importing plots imports this package first.
  from orthograd_optax import plots

  return plots


def report_page(report: Results) -> str:
  """Returns the page of one model. Each section answers a question."""
  diagram = figure(
    plots().report_diagram(report),
    "Reliability diagram: accuracy against confidence, and below it the "
    "share of examples with that confidence.",
  )
  bins = folded("Numbers of the bins", part_table("bin", report.bins))
  worst = []
  kinds = (("predicted class", report.by_class), ("group", report.by_group))
  for kind, parts in kinds:
    if parts:
      gaps = plots().gap_plot(parts, level=report.level)
      caption = (
        f"Confidence minus accuracy by {kind}. Filled: significant after "
        "adjustment. Intervals hold for all of them together."
      )
      worst += [f"<h3>By {kind}</h3>", figure(gaps, caption)]
      worst.append(part_table(kind, parts[:MAX_ROWS]))
      if len(parts) > MAX_ROWS:
        more = part_table(kind, parts[MAX_ROWS:])
        worst[-1] += folded(f"{len(parts) - MAX_ROWS} more", more)
  worst.append(errors_table(report))
  more = {
    "gap": [diagram, bins],
    "scale": [methods_table(report)],
    "worst": worst,
  }
  body = [box(_text.answer(report)), *map(note, report.notes)]
  for key, answer in _text.answers(report).items():
    body += [f"<h2>{answer.question}</h2>", paragraph(answer.text)]
    body += more.get(key, [])
  action, code = _text.recommendation(report)
  body += ["<h2>What to do next?</h2>", box(action)]
  if code:
    body.append(f"<pre><code>{html.escape(code)}</code></pre>")
  size = _text.size(report)
  metrics = [
    [_table.label(k), _text.cells(k, x)] for k, x in report.metrics.items()
  ]
  metrics.append([_text.P_VALUE, _text.p_value(report.p_calibrated)])
  body += [f"<h2>All numbers, on {size}</h2>", table([["", "value"], *metrics])]
  title = f"Can the confidence of {report.name} be trusted?"
  return document(title, size, body, report.level)


def comparison_page(comparison: Comparison) -> str:
  """Returns the page of two models."""
  old, new = comparison.names
  body = [
    box(_text.comparison_summary(comparison)),
    table(_text.comparison_rows(comparison)),
    figure(
      plots().reliability_diagram(comparison.reliabilities),
      f"Reliability diagrams of {old} and {new}.",
    ),
    *map(note, comparison.notes),
  ]
  title = f"{old} or {new}: whose confidence can be trusted?"
  size = _text.comparison_size(comparison)
  return document(title, size, body, comparison.level)


def document(title: str, size: str, body: Iterable[str], level: float) -> str:
  folder = importlib.resources.files("orthograd_optax.calibration")
  page, style = (
    folder.joinpath(f"page.{x}").read_text("utf-8") for x in ("html", "css")
  )
  return string.Template(page).substitute(
    title=html.escape(title),
    size=html.escape(size),
    style=style,
    body="\n".join(body),
    level=f"{100 * level:g}",
  )


def paragraph(text: str) -> str:
  return f"<p>{html.escape(text)}</p>"


def note(text: str) -> str:
  return f'<p class="note">Note: {html.escape(text)}</p>'


def box(text: str) -> str:
  return f'<div class="box">{paragraph(text)}</div>'


def folded(summary: str, content: str) -> str:
  return f"<details><summary>{summary}</summary>{content}</details>"


def figure(drawn: "Figure", caption: str) -> str:
  """Returns the figure as SVG, in the colours of the page."""
  text = re.sub(r"^.*?(?=<svg)", "", plots().svg(drawn), flags=re.DOTALL)
  text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
  # Make ids unique: two figures on a page must not share them.
  name = f"f{zlib.crc32(text.encode()):08x}-"
  text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}", text)
  text = re.sub(
    r"((?:fill|stroke): )(#[0-9a-fA-F]{6})",
    lambda match: match[1] + _THEMED.get(match[2].lower(), match[2]),
    text,
  )
  caption = html.escape(caption)
  text = text.replace("<svg ", f'<svg role="img" aria-label="{caption}" ')
  return f"<figure>{text}<figcaption>{caption}</figcaption></figure>"


def table(rows: Sequence[Sequence[_text.Cell]], best: str | None = None) -> str:
  """Returns a table. The first row is its header, the first column text."""

  def line(tag, row):
    cells = [f'<{tag} class="text">{html.escape(row[0])}</{tag}>']
    for cell in row[1:]:
      value, interval = (cell, "") if isinstance(cell, str) else cell
      small = f" <small>{interval}</small>" if interval else ""
      cells.append(f"<{tag}>{html.escape(value)}{small}</{tag}>")
    start = '<tr class="best">' if row[0] == best else "<tr>"
    return f"{start}{''.join(cells)}</tr>"

  head = f"<thead>{line('th', rows[0])}</thead>"
  body = "".join(line("td", row) for row in rows[1:])
  table = f"<table>{head}<tbody>{body}</tbody></table>"
  return f'<div class="wide">{table}</div>'


def methods_table(report: Results) -> str:
  if not report.recalibrated:
    return ""
  header = f"on {report.held_out_examples:,} held-out examples"
  rows: list[list[_text.Cell]] = [[header, "NLL", "ECE", "Brier", "accuracy"]]
  for method, metrics in report.recalibrated.items():
    names = ("nll", "ece", "brier", "accuracy")
    cells = (_text.cells(name, metrics[name]) for name in names)
    rows.append([_text.METHODS[method], *cells])
  return table(rows, _text.METHODS[report.best or "uncalibrated"])


def part_table(kind: str, parts: Iterable[Part]) -> str:
  header = [kind, "examples", "accuracy", "confidence", "confidence − accuracy"]
  rows: list[list[_text.Cell]] = [[*header, "adjusted p"]]
  for part in parts:
    rows.append(
      [
        part.name,
        f"{part.count:,.0f}",
        _text.cells("accuracy", part.accuracy),
        f"{part.confidence:.4f}" if part.count else "—",
        _text.cells("gap", part.gap),
        _text.p_value(part.p_value),
      ]
    )
  return table([row[:-1] for row in rows] if kind == "bin" else rows)


def errors_table(report: Results) -> str:
  if not report.confident_errors:
    return paragraph("There are no errors.")
  rows = [["row (from 0)", "label", "predicted", "confidence"]]
  for e in report.confident_errors:
    rows.append([str(e.row), e.label, e.predicted, f"{e.confidence:.6f}"])
  return "<h3>The most confident errors</h3>" + table(rows)
