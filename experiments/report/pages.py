"""All pages of the rows that are kept."""

from collections.abc import Iterator
import pathlib

from experiments.report import answer, grokking, replication, screen
from experiments.report import study as studies
from experiments.report.page import Page
from experiments.rows import kept


def make() -> Iterator[tuple[str, Page]]:
  """Each page that the rows suffice for, after its name."""
  replicated = replication.load()
  yield from replication.make(*replicated).items()
  planned = studies.load_planned()
  yield from studies.make_kept(planned)
  yield from screen.make_kept(planned)
  yield from grokking.make_kept()
  yield "README", answer.make(planned, replicated[0])


def write(output: pathlib.Path | None = None) -> Iterator[pathlib.Path]:
  """Writes each page as Markdown, with its pictures.

  Args:
    output: the folder; by default that of the kept rows.

  Yields:
    The pages' paths, as they are written.
  """
  output = output or kept.FOLDER
  output.mkdir(parents=True, exist_ok=True)
  for name, page in make():
    path = output / f"{name}.md"
    page.write_markdown(path)
    yield path
