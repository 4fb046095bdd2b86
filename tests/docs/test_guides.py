"""The guide pages: their cells run, in order, and their links lead somewhere.

Without Sphinx: a page is text, and its cells are found by their fences. They
run with the eight devices of `conftest.py`, so that pages for several devices
need no process of their own.
"""

import os
import pathlib
import re
import sys
import types

import jax
import pytest

GUIDES = pathlib.Path(__file__).parents[2] / "docs" / "guides"
PAGES = [
  "start",
  "what_it_does",
  "when_to_use_it",
  "recipes",
  "recipes_devices",
  "ten_lines",
  "from_pytorch",
  "one_file",
  "calibrate_any_model",
  "compare_two_methods",
  "extending_the_experiments",
  "many_machines",
  "your_own_images",
]
# Pages without code cells and pictures.
WORDS = ("when_to_use_it", "many_machines")
# The others train, or compile many programs.
QUICK = [
  "compare_two_methods",
  "extending_the_experiments",
  "one_file",
  "your_own_images",
]
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.M | re.S)


def text(name: str) -> str:
  return (GUIDES / f"{name}.md").read_text("utf-8")


def cells(name: str) -> list[str]:
  """The code of a page, cell by cell, without options such as `:tags:`.

  Lines before a cell are empty, so that a traceback has the page's numbers.
  """
  page = text(name)
  return [
    "\n" * page[: cell.start(1)].count("\n")
    + re.sub(r"^:\w+:.*$", "", cell[1], flags=re.M)
    for cell in CELL.finditer(page)
  ]


def test_pages():
  assert sorted(PAGES) == sorted(path.stem for path in GUIDES.glob("*.md"))
  for name in PAGES:
    seen = cells(name) or "![" in text(name) or name in WORDS
    assert seen, f"{name} has nothing to see"
    # Only a notebook's cells run.
    assert bool(cells(name)) == text(name).startswith(
      "---\nfile_format: mystnb"
    )


# Of flax 0.12.0, which goes with jax 0.8.0.
@pytest.mark.filterwarnings("ignore:jax.ArrayRef is deprecated")
@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
    for name in PAGES
    if name != "when_to_use_it"
  ],
)
def test_cells_run(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  # A page may set flags for a JAX that has not started yet.
  for key, value in os.environ.items():
    monkeypatch.setenv(key, value)
  # A notebook's way to show a picture.
  display = types.SimpleNamespace(SVG=str)
  monkeypatch.setitem(sys.modules, "IPython.display", display)
  namespace = {"__name__": "__main__"}
  with jax.numpy_rank_promotion("allow"):  # as users have it
    for cell in cells(name):
      exec(compile(cell, GUIDES / f"{name}.md", "exec"), namespace)


@pytest.mark.parametrize("name", PAGES)
def test_links(name):
  """Files and headings that pages link to are there."""
  anchor = lambda title: re.sub(r"[^\w\- ]", "", title.lower()).replace(
    " ", "-"
  )
  for target in re.findall(r"\]\(([^)\s]+)\)", text(name)):
    if target.startswith("https://"):
      continue
    path, _, heading = target.partition("#")
    file = GUIDES / path if path else GUIDES / f"{name}.md"
    assert file.is_file(), f"{name}.md links to {target}"
    if heading:
      titles = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.M)
      assert heading in map(anchor, titles), f"{name}.md links to {target}"
