"""Makes Markdown from a template that asks, and HTML from the Markdown.

A number that is missing or not finite is an error.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import html
import importlib.resources
import math
import numbers
import pathlib
import re
import tomllib
import traceback
from typing import TYPE_CHECKING, Any, cast

import jinja2
import markdown_it
import numpy as np

from experiments import files
from experiments.report import compare, query
from experiments.report.query import LABELS, method_name, pair_name, power
from orthograd_optax import plots
from orthograd_optax.calibration import _page as page_of_the_library

if TYPE_CHECKING:
  from matplotlib.figure import Figure

Drawings = Mapping[str, Callable[[], "Figure"]]
FOLDER = pathlib.Path(__file__).parent / "templates"
PAPER = tomllib.loads((FOLDER.parent / "paper.toml").read_text("utf-8"))
BROAD = 7  # inches from which a figure takes all of a page's width
DIGITS: dict[str, int] = LABELS["digits"]


class TemplateError(ValueError):
  """A template can't be rendered. The message says where and why."""


class NumberError(ValueError):
  """A number is missing or not finite."""


def finite(value: float | None) -> float:
  if value is None or not math.isfinite(value):
    raise NumberError(f"a number is {value}, but must be finite")
  return value


def form(value: float | None, spec: str) -> str:
  """Formats a number by a specification such as ".2f"."""
  return format(finite(value), spec)


def number(value: float | None, metric: str = "") -> str:
  """Formats a number with the digits of its metric."""
  return form(value, f".{DIGITS.get(metric, 2)}f")


def mean(runs: Sequence[float] | np.ndarray, metric: str = "") -> str:
  return number(np.mean(runs).item(), metric)


def spread(runs: Sequence[float] | np.ndarray, metric: str = "") -> str:
  """Formats the mean ± the standard deviation."""
  middle = mean(runs, metric)
  return f"{middle} ± {number(np.std(runs, ddof=1).item(), metric)}"


def signed(value: float | None, metric: str = "") -> str:
  """Formats a number with its sign and the digits of its metric."""
  return form(value, f"+.{DIGITS.get(metric, 2)}f")


def interval(ends: tuple[float, float], metric: str = "") -> str:
  return f"({signed(ends[0], metric)}, {signed(ends[1], metric)})"


def by(row: compare.Compared) -> str:
  """Formats a difference with its interval."""
  return (
    f"{signed(row.change, row.metric)} {interval(row.interval, row.metric)}"
  )


def p_value(p: float | None) -> str:
  return form(p, ".3f" if finite(p) >= 0.001 else ".2g").replace("e-0", "e-")


def label(key: str) -> str:
  """Returns the label of an outcome, a metric or a corruption."""
  return query.outcome(key).label.replace("_", " ")


def bare(key: str) -> str:
  """Returns a label without its unit."""
  return label(key).removesuffix(", %")


def _finalize(value: Any) -> Any:
  """Allows only texts and finite numbers in a template's output."""
  if isinstance(value, str | jinja2.Undefined):
    return value
  if value is None or isinstance(value, numbers.Real):
    return finite(cast(float | None, value))
  raise NumberError(f"{value!r} is neither text nor a number")


ENVIRONMENT = jinja2.Environment(
  loader=jinja2.FileSystemLoader(FOLDER),
  undefined=jinja2.StrictUndefined,
  finalize=_finalize,
  trim_blocks=True,
  lstrip_blocks=True,
)
_FORMATS = (
  *(bare, by, form, interval, label, mean, number, p_value, power, signed),
  spread,
)
ENVIRONMENT.filters |= {it.__name__: it for it in _FORMATS}
ENVIRONMENT.filters |= {"name": method_name, "pair": pair_name}


def render(template: str, facts: Mapping[str, Any]) -> str:
  """Renders a template.

  Raises:
    TemplateError: if a fact is undefined, missing or not finite.
  """
  try:
    return ENVIRONMENT.get_template(template).render(facts)
  except (jinja2.UndefinedError, NumberError) as error:
    # Jinja puts the templates' lines on the stack.
    stack = traceback.extract_tb(error.__traceback__)
    where = [frame for frame in stack if not frame.filename.endswith(".py")][-1]
    raise TemplateError(
      f"{pathlib.Path(where.filename).name}, line {where.lineno}: {error}: "
      f"{where.line}"
    ) from error


def markdown(template: str, facts: Mapping[str, Any]) -> str:
  """Renders a template, and joins the lines of paragraphs, items and rows.

  In a template, a paragraph ends at an empty line, a list's item at the next
  dash, and a table's row at a | that ends a line.
  """
  text = render(template, facts)
  text = re.sub(r"(?<![\n|])\n *+(?![\n#]|- )", " ", text.strip())
  return re.sub(r"\n{3,}", "\n\n", text)


@dataclasses.dataclass(frozen=True)
class Page:
  """A page's text, and the functions that draw its pictures.

  A picture is a paragraph of its own, such as ![a caption](severity.png), and
  "severity" is the name of what draws it.
  """

  markdown: str
  drawings: Drawings

  @functools.cached_property
  def figures(self) -> dict[str, "Figure"]:
    """Returns the figures that the text shows."""
    names = re.findall(r"^!\[.*\]\((.*)\.png\)$", self.markdown, re.MULTILINE)
    if unknown := set(names) - set(self.drawings):
      raise TemplateError(
        f"The text shows {', '.join(sorted(unknown))}, but must show one of "
        f"{', '.join(sorted(self.drawings))}."
      )
    return {name: self.drawings[name]() for name in names}

  def write_markdown(self, path: pathlib.Path) -> None:
    """Writes the Markdown, and the pictures beside it."""
    for name, figure in self.figures.items():
      plots.save(figure, path.parent / f"{name}.png")
    with files.replacing(path) as temporary:
      temporary.write_text(self.markdown + "\n", encoding="utf-8")

  def html(self) -> str:
    """Returns one HTML page that needs no other file.

    A table before the first section has the headline numbers.
    """

    def picture(renderer, tokens, i, options, env):
      name = tokens[i].attrs["src"].removesuffix(".png")
      caption = tokens[i].content.replace("`", "")
      drawn = self.figures[name]
      shown = page_of_the_library.figure(drawn, caption)
      if drawn.get_figwidth() > BROAD:
        shown = shown.replace("<figure>", '<figure class="broad">')
      return shown

    parser = markdown_it.MarkdownIt("commonmark", {"html": False})
    parser.enable("table")
    parser.add_render_rule("image", picture)
    tokens, section = parser.parse(self.markdown), False
    for i, token in enumerate(tokens):
      section |= token.type == "heading_open" and token.tag == "h2"
      if token.type in ("th_open", "td_open"):
        # The style aligns numbers to the right, and class "text" to the left.
        token.attrs = {} if token.attrs else {"class": "text"}
      elif token.type == "table_open":
        token.meta["class"] = "wide" if section else "numbers"
      elif token.children and token.children[0].type == "image":
        tokens[i - 1].hidden = tokens[i + 1].hidden = True
    opening = lambda it, i, *_: f'<div class="{it[i].meta["class"]}"><table>'
    parser.add_render_rule("table_open", lambda _, *args: opening(*args))
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    style = importlib.resources.files("orthograd_optax.calibration")
    facts = {
      "title": html.escape(tokens[1].content),
      "style": style.joinpath("page.css").read_text("utf-8"),
      "body": parser.renderer.render(tokens, parser.options, {}),
    }
    return render("page.html", facts)
