"""Makes Markdown from a template and facts, and HTML from the Markdown."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import numbers
import pathlib
import re
import tempfile
import traceback
from typing import TYPE_CHECKING, Any, cast

import jinja2
import markdown_it

from experiments import files
from experiments.report import formats
from orthograd_optax import plots

if TYPE_CHECKING:
  from matplotlib.figure import Figure

Drawings = dict[str, Callable[[], "Figure"]]
FOLDER = pathlib.Path(__file__).parent / "templates"


class TemplateError(ValueError):
  """A template can't be rendered. The message says where and why."""


def _finalize(value: Any) -> Any:
  """Allows only texts and finite numbers in a template's output."""
  if isinstance(value, str | jinja2.Undefined):
    return value
  if value is None or isinstance(value, numbers.Real):
    return formats.check(cast(float | None, value))
  raise formats.NumberError(f"{value!r} is neither text nor a number")


ENVIRONMENT = jinja2.Environment(
  loader=jinja2.FileSystemLoader(FOLDER),
  undefined=jinja2.StrictUndefined,
  finalize=_finalize,
  trim_blocks=True,
  lstrip_blocks=True,
)
ENVIRONMENT.filters |= formats.FILTERS


def render(template: str, facts: Mapping[str, Any]) -> str:
  """Renders a template.

  Raises:
    TemplateError: if a fact is undefined, missing or not finite.
  """
  try:
    return ENVIRONMENT.get_template(template).render(facts)
  except (jinja2.UndefinedError, formats.NumberError) as error:
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

  Attributes:
    markdown: the text. The first heading is the title. A picture is a paragraph
      of its own, such as ![a caption](severity.png).
    drawings: for each picture's name, such as "severity", a function that draws
      it.
  """

  markdown: str
  drawings: Drawings

  @functools.cached_property
  def figures(self) -> dict[str, "Figure"]:
    """The figures that the text shows."""
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

  def write_html(self, path: pathlib.Path) -> None:
    """Writes one HTML page that needs no other file."""
    with files.replacing(path) as temporary:
      temporary.write_text(self.html(), encoding="utf-8")

  def html(self) -> str:
    def picture(renderer, tokens, i, options, env):
      name = tokens[i].attrs["src"].removesuffix(".png")
      caption = renderer.renderInline(tokens[i].children or (), options, env)
      return f"{_svg(self.figures[name])}<figcaption>{caption}</figcaption>"

    parser = markdown_it.MarkdownIt("commonmark", {"html": False})
    parser.enable("table")
    parser.add_render_rule("image", picture)
    parser.add_render_rule("table_open", lambda *_: '<div class="wide"><table>')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    tokens = parser.parse(self.markdown)
    for i, token in enumerate(tokens):
      if token.type in ("th_open", "td_open"):
        # The style aligns numbers to the right, and class "text" to the left.
        token.attrs = {} if token.attrs else {"class": "text"}
      elif token.children and token.children[0].type == "image":
        tokens[i - 1].tag = tokens[i + 1].tag = "figure"
    body = parser.renderer.render(tokens, parser.options, {})
    return render("page.html", {"title": tokens[1].content, "body": body})


def _svg(figure: "Figure") -> str:
  with tempfile.TemporaryDirectory() as folder:
    path = plots.save(figure, pathlib.Path(folder, "figure.svg"))
    text = path.read_text("utf-8")
  return re.sub(r"^.*?(?=<svg)", "", text, flags=re.DOTALL)
