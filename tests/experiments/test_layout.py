"""Data flow one way: datasets, config, engine, report."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# What each part may import of the others, besides `files`.
MAY_IMPORT = {
  "files": set(),
  "fields": set(),
  "registry": set(),
  "shares": set(),
  "grokking": {"engine", "rows", "standalone", "tuning"},
  "language": {"engine", "rows", "standalone", "tuning"},
  "standalone": {"engine", "rows", "tuning"},
  "tuning": {"config", "rows"},
  "datasets": set(),
  "config": {"datasets", "fields", "registry", "shares", "studies"},
  "studies": {"datasets", "config", "tuning"},
  "rows": {"config", "fields"},
  "engine": {
    *("datasets", "config", "fields", "registry", "rows", "shares", "tuning"),
  },
  "report": {
    *("datasets", "config", "engine", "grokking", "language", "registry"),
    *("rows", "studies"),
  },
  "cli": {
    *("datasets", "config", "engine", "grokking", "language", "report"),
    *("rows", "tuning"),
  },
  "__main__": {"cli"},
}


def imported(path: pathlib.Path) -> set[str]:
  """Names of modules, such as experiments.engine.train."""
  names = set()
  for node in ast.walk(ast.parse(path.read_text("utf-8"))):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      # A relative import starts from the folder, or from one above.
      folders = path.relative_to(ROOT).parent.parts
      start = folders[: len(folders) + 1 - node.level] if node.level else ()
      module = ".".join([*start, *([node.module] if node.module else [])])
      names |= {f"{module}.{alias.name}" for alias in node.names}
  return names


def parts() -> list[str]:
  paths = (ROOT / "experiments").iterdir()
  actual = {p.stem for p in paths if p.suffix == ".py" or any(p.glob("*.py"))}
  return sorted(actual - {"__init__"})


def modules(part: str) -> list[pathlib.Path]:
  folder = ROOT / "experiments" / part
  return sorted(folder.glob("*.py")) or [folder.with_suffix(".py")]


def test_all_parts_are_listed():
  assert parts() == sorted(MAY_IMPORT)


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_direction(part):
  for path in modules(part):
    rooms = {
      name.split(".")[1]
      for name in imported(path)
      if name.startswith("experiments.")
    }
    assert rooms <= MAY_IMPORT[part] | {part, "files"}, path


@pytest.mark.parametrize(
  "part", ["datasets", "cli", "engine", "report", "rows"]
)
def test_no_circle_within_a_room(part):
  uses = {}
  for path in modules(part):
    if path.stem == "__init__":
      continue
    prefix = f"experiments.{part}."
    names = imported(path)
    uses[path.stem] = {
      name.removeprefix(prefix).split(".")[0]
      for name in names
      if name.startswith(prefix)
    }
  assert_no_circle(uses)


def assert_no_circle(uses: dict[str, set[str]]) -> None:
  uses = dict(uses)
  while uses:
    free = [name for name, used in uses.items() if not used & set(uses)]
    assert free, f"a circle among {sorted(uses)}"
    for name in free:
      del uses[name]


def test_no_circle_in_the_library():
  """Imports within functions and for type checkers count, too."""
  actual = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for path in (ROOT / "orthograd_optax").glob("**/*.py")
  }
  faces = {
    n.removesuffix(".__init__") for n in actual if n.endswith("__init__")
  }
  faces.remove("orthograd_optax")
  paths = {n: path for n, path in actual.items() if not n.endswith("__init__")}

  def modules_behind(name):
    """A face stands for all modules that it imports."""
    for one in (name, name.rpartition(".")[0]):
      if one in paths:
        return {one}
      if one in faces:
        shown = imported(actual[f"{one}.__init__"])
        return set.union(*map(modules_behind, shown)) - {one}
    return set()

  uses = {
    module: set().union(*map(modules_behind, imported(path)))
    for module, path in paths.items()
  }
  page = uses["orthograd_optax.calibration._page"]
  assert "orthograd_optax.plots._reliability" in page  # within a function
  assert_no_circle(uses)


def test_the_library_imports_no_experiments():
  for path in (ROOT / "orthograd_optax").glob("**/*.py"):
    assert not {n for n in imported(path) if n.startswith("experiments")}, path


def test_the_face_of_datasets():
  from experiments import datasets

  assert (
    len(datasets.CORRUPTIONS) == 15 and len(datasets.EXTRA_CORRUPTIONS) == 4
  )
  labels = datasets.load_sample().train_labels
  assert len(datasets.class_balanced_subset(labels, 3, seed=0)) == 30
  assert callable(datasets.corrupt) and callable(datasets.load_cifar10)
