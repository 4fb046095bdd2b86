"""Pages as notebooks: the code of the page, after a cell that installs."""

import importlib.util
import pathlib
import re

import pytest

pytest.importorskip("myst_nb")
nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

DOCS = pathlib.Path(__file__).parents[2] / "docs"
spec = importlib.util.spec_from_file_location("nb", DOCS / "notebooks.py")
assert spec and spec.loader
notebooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(notebooks)
PAGES = ["start", "calibrate_any_model"]


@pytest.mark.parametrize("name", PAGES)
def test_a_notebook_has_the_cells_of_its_page(name, tmp_path):
  page = DOCS / "guides" / f"{name}.md"
  path = notebooks.write(page, tmp_path)
  content = nbformat.read(path, as_version=4)
  title, install, *cells = content.cells
  assert title.source.startswith("# ") and "%pip install" in install.source
  code = [cell.source for cell in cells if cell.cell_type == "code"]
  fences = re.findall(
    r"^```\{code-cell\}\n(?::tags:[^\n]*\n\n?)?(.*?)\n```$",
    page.read_text("utf-8"),
    re.M | re.S,
  )
  assert len(fences) >= 5
  assert code == fences
  text = "\n".join(c.source for c in cells if c.cell_type == "markdown")
  links = re.findall(r"\]\(([^)]*)\)", text)
  assert all(link.startswith("https://") for link in links)
  # The same page gives the same bytes.
  before = path.read_bytes()
  assert notebooks.write(page, tmp_path).read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
  # A kernel starts where its notebook is, not where the tests run.
  monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
  content = notebooks.notebook((DOCS / "guides" / f"{name}.md").read_text())
  client = nbclient.NotebookClient(
    content, timeout=300, resources={"metadata": {"path": tmp_path}}
  )
  content = client.execute()
  shown = [
    output
    for cell in content.cells
    if cell.cell_type == "code"
    for output in cell.outputs
  ]
  assert any("image/svg+xml" in it.get("data", {}) for it in shown)
