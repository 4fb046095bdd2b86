"""The guide pages: their cells run, in order, and their links lead somewhere.

Without Sphinx: a page is text, and its cells are found by their fences. They
run with the eight devices of `conftest.py`, so that pages for several devices
need no process of their own.
"""

import os
import pathlib
import re
import statistics
import sys
import types

import jax
import pytest

from experiments.rows import read

GUIDES = pathlib.Path(__file__).parents[2] / "docs" / "guides"
RESULTS = GUIDES.parents[1] / "experiments" / "results"
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
  "your_own_images",
]
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
    "\n" * page[: found.start(1)].count("\n")
    + re.sub(r"^:\w+:.*$", "", found[1], flags=re.M)
    for found in CELL.finditer(page)
  ]


def test_pages():
  assert sorted(PAGES) == sorted(path.stem for path in GUIDES.glob("*.md"))
  for name in PAGES:
    assert cells(name) or "![" in text(name), f"{name} has nothing to see"
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


def test_numbers_of_the_studies():
  """Numbers beside a link to a result are in that result."""
  found = 0
  # A row of a table is a line, an item of a list may be several.
  joined = re.sub(r"\n +", " ", text("when_to_use_it"))
  for line in joined.splitlines():
    links = re.findall(r"\((\.\./\.\./experiments/results/\w+\.md)", line)
    if not links:
      continue
    results = "".join((GUIDES / x).read_text("utf-8") for x in links)
    line = re.sub(r"\]\([^)]*\)", "]", line).replace("−", "-")
    for number in re.findall(r"[+-]?\d+\.\d+", line):
      found += 1
      assert number in results, f"{number} is not in {links}"
  assert found > 20


def test_other_methods():
  """The table of other methods is that of the page of `methods`."""
  page = (RESULTS / "methods.md").read_text("utf-8")
  rows = {}
  for line in page.partition("## All methods")[2].splitlines():
    cells = line.strip("| ").split(" | ")
    if len(cells) == 10 and "±" in line:
      after_t, loss = (cells[i].partition(" ±")[0] for i in (2, 6))
      rows[cells[0]] = [loss, after_t]
  section = text("when_to_use_it").partition("### Beside other methods")[2]
  table = re.findall(r"^\| ([^|]+) ((?:\| 0\.\d+ ){4})\|$", section, re.M)
  assert len(table) == len(rows) / 2 == 8
  for label, cells in table:
    name = label.partition(" (")[0].removesuffix(" of the weights")
    plain, projected = (name, f"⊥Grad, {name}")
    if name == "SGD":
      plain, projected = "SGD, cosine", "⊥Grad, cosine"
    numbers = [rows[plain], rows[projected]]
    expected = [n for pair in zip(*numbers, strict=True) for n in pair]
    assert re.findall(r"[\d.]+", cells) == expected


def test_pilots():
  """The table of pilots is that of the kept rows: means of two seeds."""
  rows = list(read(RESULTS / "pilot_optimizers.jsonl.gz"))
  checked = set()
  for line in text("when_to_use_it").splitlines():
    if not re.match(r"\| ⊥?(AdamW|Lion|Muon)\b[^|]*\| [\d.]+ ", line):
      continue
    label, rate, decay, *numbers = line.strip("| ").split(" | ")
    base = label.lstrip("⊥").split(",")[0].lower()
    name = f"{'orthograd_' * label.startswith('⊥')}{base}_{rate}_{decay}"
    runs = [
      row for row in rows if row["method"] == name and row["dataset"] == "clean"
    ]
    assert len(runs) == 2, name
    expected = [
      statistics.fmean(get(run) for run in runs)
      for get in (
        lambda run: run["scaled_half"]["loss"],
        lambda run: run["metrics"]["loss"],
        lambda run: run["metrics"]["ece"],
        lambda run: run["metrics"]["top1"],
        lambda run: run["metrics"]["weight_norm"],
      )
    ]
    for number, value in zip(numbers, expected, strict=True):
      digits = len(number.partition(".")[2])
      assert number == f"{value:.{digits}f}", f"{name}: {value}"
    checked.add(name)
  assert len(checked) == 9
