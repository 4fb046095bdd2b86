"""The site has every public name and leads to every page.

It is built by `make docs`, which knows more; this needs no Sphinx.
"""

import ast
import fnmatch
import importlib
import inspect
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
MODULES = [
  "orthograd_optax",
  "orthograd_optax.calibration",
  "orthograd_optax.plots",
  "orthograd_optax.stats",
]


def setting(name):
  """A literal of docs/conf.py."""
  tree = ast.parse((ROOT / "docs" / "conf.py").read_text("utf-8"))
  for node in tree.body:
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
      return ast.literal_eval(node.value)
  raise LookupError(f"docs/conf.py does not set {name}.")


def pages():
  """The names of all pages, as Sphinx has them."""
  paths = {path for glob in setting("PAGES") for path in ROOT.glob(glob)}
  names = [p.relative_to(ROOT).with_suffix("").as_posix() for p in paths]
  return {name for name in names if not name.startswith("docs/_build")}


def toctrees(name):
  """The patterns of the pages that a page leads to."""
  path = ROOT / f"{name}.md"
  text = path.read_text("utf-8") if path.exists() else ""
  blocks = re.findall(r"```\{toctree\}\n(.*?)```", text, re.DOTALL)
  for line in "\n".join([*blocks, setting("BELOW").get(name, "")]).splitlines():
    if line and not line.startswith(":"):
      entry = re.sub(r".*<(.*)>", r"\1", line)
      folder = "" if entry.startswith("/") else name.rpartition("/")[0] + "/"
      yield folder + entry.removeprefix("/")


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_documented(name):
  module = importlib.import_module(name)
  public = {
    name
    for name, value in ((name, getattr(module, name)) for name in dir(module))
    if not name.startswith("_")
    and not inspect.ismodule(value)
    and getattr(value, "__module__", "").startswith("orthograd_optax")
  }
  page = ROOT / "docs" / "api" / f"{name.rpartition('.')[2]}.md"
  directive = r"^\.\. (?:auto)?(?:class|function):: ([\w.]+)"
  documented = re.findall(directive, page.read_text("utf-8"), re.MULTILINE)
  assert public - set(documented) == set()
  assert len(documented) == len(set(documented))


def test_contributing_names_every_module():
  text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
  named = set(re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", text))
  modules = {
    path.name
    for folder in ("orthograd_optax", "experiments")
    for path in (ROOT / folder).rglob("*.py")
    if path.parent.name != "studies"
  }
  assert modules <= named
  assert {name for name in named if name.startswith("_")} <= modules


def test_every_page_is_reached():
  names = pages()
  assert len(names) > 30
  reached, left = set(), ["docs/index"]
  while left:
    page = left.pop()
    if page not in reached:
      reached.add(page)
      for pattern in toctrees(page):
        matches = fnmatch.filter(names, pattern)
        # The pages of the studies are there once the site was built.
        built = pattern.startswith("docs/studies/")
        assert matches or built, f"{page} leads to {pattern}, not a page."
        left += matches
  assert names - reached == set()
