"""A report as one self-contained page of HTML."""

from collections.abc import Iterable, Sequence
import html
import importlib.resources
import os
import pathlib
import re
from typing import TYPE_CHECKING, Any
import zlib

from orthograd_optax.calibration import _saving, _table, _text
from orthograd_optax.calibration._intervals import Estimate
from orthograd_optax.calibration._results import (
  ComparisonResults,
  Part,
  ReportResults,
)

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


def report_page(report: ReportResults) -> str:
  """Returns the page of one model. Each section answers a question."""
  answers = _text.answers(report)
  action, code = _text.recommendation(report)
  more = {
    "gap": [
      figure(
        plots().report_diagram(report),
        "Reliability diagram: accuracy against confidence, and below it the "
        "share of examples with that confidence.",
      ),
      folded("Numbers of the bins", part_table("bin", report.bins)),
    ],
    "scale": [methods_table(report)],
    "worst": [],
  }
  kinds = (("predicted class", report.by_class), ("group", report.by_group))
  for kind, parts in kinds:
    if parts:
      gaps = plots().gap_plot(parts, level=report.level)
      caption = (
        f"Confidence minus accuracy by {kind}. Filled: significant after "
        "adjustment. Intervals hold for all of them together."
      )
      more["worst"] += [
        f"<h3>By {kind}</h3>",
        figure(gaps, caption),
        long_table(lambda rows, kind=kind: part_table(kind, rows), parts),
      ]
  more["worst"].append(errors_table(report))
  body = [box(_text.answer(report)), *map(note, report.notes)]
  for key, answer in answers.items():
    body += [f"<h2>{answer.question}</h2>", paragraph(answer.text)]
    body += more.get(key, [])
  body += ["<h2>What to do next?</h2>", box(action)]
  if code:
    body.append(f"<pre><code>{html.escape(code)}</code></pre>")
  body += [f"<h2>All numbers, on {_text.size(report)}</h2>"]
  body.append(metrics_table(report))
  title = f"Can the confidence of {report.name} be trusted?"
  return document(title, _text.size(report), body, report.level)


def comparison_page(comparison: ComparisonResults) -> str:
  """Returns the page of two models."""
  old, new = comparison.names
  body = [
    box(_text.comparison_summary(comparison)),
    comparison_table(comparison),
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
  style = importlib.resources.files("orthograd_optax.calibration").joinpath(
    "page.css"
  )
  lines = [
    "<!DOCTYPE html>",
    '<html lang="en">',
    "<head>",
    '<meta charset="utf-8">',
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    f"<title>{html.escape(title)}</title>",
    f"<style>\n{style.read_text('utf-8')}</style>",
    "</head>",
    "<body>",
    f"<h1>{html.escape(title)}</h1>",
    f'<p class="size">{html.escape(size)}</p>',
    *body,
    f"<footer>Numbers in brackets are {100 * level:g} % intervals. Accuracies, "
    "error rates and gaps of bins, classes and groups have Wilson’s interval, "
    "other numbers the bootstrap’s; — where all resamples agree, so that there "
    "is none. With several seeds, all have Student’s interval over seeds. Made "
    "by orthograd-optax.</footer>",
    "</body>",
    "</html>",
  ]
  return "\n".join(lines) + "\n"


def paragraph(text: str) -> str:
  return f"<p>{html.escape(text)}</p>"


def note(text: str) -> str:
  return f'<p class="note">Note: {html.escape(text)}</p>'


def box(text: str) -> str:
  return f'<div class="box">{paragraph(text)}</div>'


def folded(summary: str, content: str) -> str:
  return f"<details><summary>{summary}</summary>{content}</details>"


def figure(drawn: "Figure", caption: str) -> str:
  caption = html.escape(caption)
  svg = _svg(drawn).replace("<svg ", f'<svg role="img" aria-label="{caption}" ')
  return f"<figure>{svg}<figcaption>{caption}</figcaption></figure>"


def _svg(drawn: "Figure") -> str:
  """Returns the figure as SVG, in the colours of the page."""
  text = re.sub(r"^.*?(?=<svg)", "", plots().svg(drawn), flags=re.DOTALL)
  text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
  # Make ids unique: two figures on a page must not share them.
  name = f"f{zlib.crc32(text.encode()):08x}-"
  text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}", text)

  def themed(match):
    colour = match[2].lower()
    return match[1] + _THEMED.get(colour, match[2])

  return re.sub(r"((?:fill|stroke): )(#[0-9a-fA-F]{6})", themed, text)


def table(
  header: Sequence[str],
  rows: Iterable[Sequence[str]],
  best: str | None = None,
) -> str:
  """Returns a table. Cells are HTML; the first column is aligned as text."""

  def line(tag, cells, marked=False):
    first, *others = cells
    cells = [f'<{tag} class="text">{first}</{tag}>']
    cells += [f"<{tag}>{cell}</{tag}>" for cell in others]
    row = '<tr class="best">' if marked else "<tr>"
    return f"{row}{''.join(cells)}</tr>"

  body = [line("td", row, row[0] == best) for row in rows]
  head = f"<thead>{line('th', header)}</thead>"
  lines = f"<tbody>{''.join(body)}</tbody>"
  return f'<div class="wide"><table>{head}{lines}</table></div>'


def cell(name: str, estimate: Estimate) -> str:
  value, interval = _text.cells(name, estimate)
  return f"{value} <small>{interval}</small>" if interval else value


def metrics_table(report: ReportResults) -> str:
  rows = [
    (html.escape(_table.label(name)), cell(name, estimate))
    for name, estimate in report.metrics.items()
  ]
  rows.append((_text.P_VALUE, _text.p_value(report.p_calibrated)))
  return table(["", "value"], rows)


def methods_table(report: ReportResults) -> str:
  if not report.recalibrated:
    return ""
  names = {k: html.escape(v) for k, v in _text.METHODS.items()}
  columns = {"nll": "NLL", "ece": "ECE", "brier": "Brier"}
  columns["accuracy"] = "accuracy"
  rows = [
    (names[method], *(cell(column, metrics[column]) for column in columns))
    for method, metrics in report.recalibrated.items()
  ]
  best = names[report.best or "uncalibrated"]
  header = f"on {report.held_out_examples:,} held-out examples"
  return table([header, *columns.values()], rows, best)


def part_table(kind: str, parts: Iterable[Part]) -> str:
  rows = [
    (
      html.escape(part.name),
      f"{part.count:,.0f}",
      cell("accuracy", part.accuracy),
      f"{part.confidence:.4f}" if part.count else "—",
      cell("gap", part.gap),
      *([] if kind == "bin" else [_text.p_value(part.p_value)]),
    )
    for part in parts
  ]
  header = [kind, "examples", "accuracy", "confidence", "confidence − accuracy"]
  return table(header + (["adjusted p"] if kind != "bin" else []), rows)


def long_table(draw: Any, rows: Sequence[Any]) -> str:
  text = draw(rows[:MAX_ROWS])
  if len(rows) > MAX_ROWS:
    text += folded(f"{len(rows) - MAX_ROWS} more", draw(rows[MAX_ROWS:]))
  return text


def errors_table(report: ReportResults) -> str:
  if not report.confident_errors:
    return paragraph("There are no errors.")
  rows = [
    (
      str(error.row),
      html.escape(error.label),
      html.escape(error.predicted),
      f"{error.confidence:.6f}",
    )
    for error in report.confident_errors
  ]
  header = ["row (from 0)", "label", "predicted", "confidence"]
  return "<h3>The most confident errors</h3>" + table(header, rows)


def comparison_table(comparison: ComparisonResults) -> str:
  rows = [
    (
      html.escape(_table.label(name)),
      *(cell(name, side[name]) for side in (comparison.old, comparison.new)),
      cell("", comparison.difference[name]),
      html.escape(comparison.verdicts[name]),
    )
    for name in comparison.difference
  ]
  header = map(html.escape, _text.comparison_header(comparison))
  return table(list(header), rows)
