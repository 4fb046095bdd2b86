"""Markdown from a template and facts, and one HTML page from that Markdown."""

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
  """What a template says that can't be said: where, and why."""


def _finalize(value: Any) -> Any:
  """Lets only words and finite numbers into the text."""
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
  """A template's text.

  Raises:
    TemplateError: if a fact is undefined, missing or not finite.
  """
  try:
    return ENVIRONMENT.get_template(template).render(facts)
  except (jinja2.UndefinedError, formats.NumberError) as error:
    # jinja puts the templates' own lines on the stack.
    stack = traceback.extract_tb(error.__traceback__)
    where = [frame for frame in stack if not frame.filename.endswith(".py")][-1]
    raise TemplateError(
      f"{pathlib.Path(where.filename).name}, line {where.lineno}: {error}: "
      f"{where.line}"
    ) from error


def markdown(template: str, facts: Mapping[str, Any]) -> str:
  """A template's text, with a line for each paragraph, item and table row.

  A template may wrap them: a paragraph ends at an empty line, an item of a list
  at the next one's dash, and a row of a table at the | that ends a line.
  """
  text = render(template, facts)
  text = re.sub(r"(?<![\n|])\n *+(?![\n#]|- )", " ", text.strip())
  return re.sub(r"\n{3,}", "\n\n", text)


@dataclasses.dataclass(frozen=True)
class Page:
  """What a page says, and how to draw what it shows.

  Attributes:
    markdown: the text; the title is the first heading, and a picture is a
      paragraph of its own, such as ![a caption](effects.png).
    drawings: a function for each picture's name, such as "effects".
  """

  markdown: str
  drawings: Drawings

  @functools.cached_property
  def figures(self) -> dict[str, "Figure"]:
    """Those that the text shows."""
    names = re.findall(r"^!\[.*\]\((.*)\.png\)$", self.markdown, re.MULTILINE)
    if unknown := set(names) - set(self.drawings):
      raise TemplateError(
        f"The text shows {', '.join(sorted(unknown))}, but must show one of "
        f"{', '.join(sorted(self.drawings))}."
      )
    return {name: self.drawings[name]() for name in names}

  def write_markdown(self, path: pathlib.Path) -> None:
    """A file of Markdown, and its pictures beside it."""
    for name, figure in self.figures.items():
      plots.save(figure, path.parent / f"{name}.png")
    with files.replacing(path) as temporary:
      temporary.write_text(self.markdown + "\n", encoding="utf-8")

  def write_html(self, path: pathlib.Path) -> None:
    """One page that needs no other file."""
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
        # Numbers are on the right, as the style has it.
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
