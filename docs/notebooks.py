"""Makes notebooks of pages, to open in Jupyter or Colab."""

import pathlib
import re

from myst_nb.core.read import read_myst_markdown_notebook
import nbformat
from nbformat import NotebookNode, v4

# pip takes the wheel in the notebook's folder, or else the one on PyPI.
INSTALL = """\
# Until the package is on PyPI, put its wheel beside this notebook. To build it
# in a clone, run `pip wheel --no-deps .`. In Colab, upload it.
%pip install --quiet --find-links . "orthograd-optax[plots]"
"""


def notebook(page: str) -> NotebookNode:
  """Returns a page as a notebook that first installs what it needs.

  Args:
    page: text of a page that myst-nb reads as a notebook.
  """
  content = read_myst_markdown_notebook(page)
  content.metadata = {
    "kernelspec": {"name": "python3", "display_name": "Python 3"}
  }
  title = content.cells[0]
  title.source, _, rest = title.source.partition("\n")
  content.cells[1:1] = [v4.new_code_cell(INSTALL), v4.new_markdown_cell(rest)]
  for i, cell in enumerate(content.cells):
    cell.id = f"cell-{i}"  # by default random: builds would differ
    if cell.cell_type == "markdown":
      cell.source = without_links_to_files(cell.source).strip()
  nbformat.validate(content)
  return content


def without_links_to_files(text: str) -> str:
  """Returns Markdown in which links to other files are plain text."""
  return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


def write(page: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """Writes a page as a notebook; returns the path of its file."""
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f"{page.stem}.ipynb"
  nbformat.write(notebook(page.read_text("utf-8")), path)
  return path
