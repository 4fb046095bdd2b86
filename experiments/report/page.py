"""A report as a list of blocks, written as one HTML page or as Markdown.

A block is a text (a paragraph, a heading after ##, or a list of lines that
begin with a dash; with `code` and **bold**), a :class:`Table` or a
:class:`Picture`.
"""

from collections.abc import Sequence
import dataclasses
import html
import pathlib
import re
import tempfile
from typing import TYPE_CHECKING

from experiments import files
from orthograd_optax import plots

if TYPE_CHECKING:
  from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff;
  max-width: 84rem; margin: 0 auto; padding: 1.5rem 1rem }
h1 { font-size: 1.5rem; line-height: 1.25 } h2 { font-size: 1.2rem;
  margin-top: 2.5rem } h3 { font-size: 1rem; margin-top: 1.5rem }
figure { margin: 1rem 0 } svg { width: 100%; height: auto; max-width: 46rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .8rem;
  font-variant-numeric: tabular-nums; white-space: nowrap }
th, td { padding: .25rem .5rem; text-align: right;
  border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0;
  background: #fff; white-space: normal; min-width: 6.5rem }
.text { text-align: left; white-space: normal; min-width: 8rem }
p, li { max-width: 46rem }
code { font-size: .9em; overflow-wrap: anywhere }
figcaption, .small { color: #555; font-size: .85rem }
@page { size: A4 landscape; margin: 12mm }
@media print { html { font-size: 11px } body { font-size: 1rem;
  max-width: none; padding: 0 } h2, h3 { break-after: avoid }
  figure, tr { break-inside: avoid } .wide { overflow: visible } }
"""


@dataclasses.dataclass(frozen=True)
class Table:
  """Cells of text, the first row of which is the header.

  Attributes:
    rows: of the same length; the first column is on the left.
    note: what is to be said below.
    texts: columns that hold sentences, not numbers.
  """

  rows: Sequence[Sequence[str]]
  note: str = ""
  texts: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Picture:
  """A figure, the name of its file, and what it shows."""

  figure: "Figure"
  name: str
  caption: str


Block = str | Table | Picture


def write_html(blocks: Sequence[Block], path: pathlib.Path) -> None:
  """One page that needs no other file; its title is the first heading."""
  first = blocks[0]
  assert isinstance(first, str)
  page = (
    '<!doctype html><html lang="en"><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f"<title>{html.escape(first.lstrip('# '))}</title><style>{STYLE}</style>\n"
    + "\n".join(map(_html, blocks))
    + "\n"
  )
  with files.replacing(path) as temporary:
    temporary.write_text(page, encoding="utf-8")


def write_markdown(blocks: Sequence[Block], path: pathlib.Path) -> None:
  """A file of Markdown, and its pictures beside it."""
  for block in blocks:
    if isinstance(block, Picture):
      plots.save(block.figure, path.parent / f"{block.name}.png")
  with files.replacing(path) as temporary:
    temporary.write_text("\n\n".join(map(_markdown, blocks)) + "\n", "utf-8")


def _html(block: Block) -> str:
  if isinstance(block, Table):
    head, *body = (
      "<tr>" + "".join(_cell(block, i, row) for i in range(len(row))) + "</tr>"
      for row in block.rows
    )
    head = head.replace("<td", "<th").replace("</td>", "</th>")
    note = f'<p class="small">{_inline(block.note)}</p>' if block.note else ""
    return (
      f'<div class="wide"><table><thead>{head}</thead><tbody>{"".join(body)}'
      f"</tbody></table></div>{note}"
    )
  if isinstance(block, Picture):
    caption = f"<figcaption>{_inline(block.caption)}</figcaption>"
    return f"<figure>{_svg(block.figure)}{caption}</figure>"
  if heading := re.match(r"(#+) (.*)", block):
    level = len(heading[1])
    return f"<h{level}>{_inline(heading[2])}</h{level}>"
  if block.startswith("- "):
    items = block.removeprefix("- ").split("\n- ")
    return (
      "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
    )
  return f"<p>{_inline(block)}</p>"


def _cell(table: Table, i: int, row: Sequence[str]) -> str:
  kind = ' class="text"' if i in table.texts else ""
  return f"<td{kind}>{_inline(row[i])}</td>"


def _inline(text: str) -> str:
  text = html.escape(text, quote=False)
  text = re.sub(r"`([^`]*)`", r"<code>\1</code>", text)
  return re.sub(r"\*\*([^*]*)\*\*", r"<b>\1</b>", text)


def _svg(figure: "Figure") -> str:
  with tempfile.TemporaryDirectory() as folder:
    path = plots.save(figure, pathlib.Path(folder, "figure.svg"))
    text = path.read_text("utf-8")
  return re.sub(r"^.*?(?=<svg)", "", text, flags=re.DOTALL)


def _markdown(block: Block) -> str:
  if isinstance(block, Table):
    line = lambda row: (
      "| " + " | ".join(c.replace("|", "\\|") for c in row) + " |"
    )
    head, *body = block.rows
    left = {0, *block.texts}
    rule = ["---" if i in left else "---:" for i in range(len(head))]
    lines = [line(head), "|" + "|".join(rule) + "|", *map(line, body)]
    return "\n".join(lines) + (f"\n\n{block.note}" if block.note else "")
  if isinstance(block, Picture):
    return f"![{block.caption}]({block.name}.png)"
  return block
