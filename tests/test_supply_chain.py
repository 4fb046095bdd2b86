"""What CI installs and runs is pinned, down to what a package needs itself."""

import ast
import importlib.metadata
import pathlib
import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
import pytest

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def installed(requirements):
  """All distributions that requirements lead to, in this environment."""
  seen, left = set(), [Requirement(text) for text in requirements]
  while left:
    wanted = left.pop()
    name = canonicalize_name(wanted.name)
    extras = tuple(sorted(wanted.extras))
    if (name, extras) in seen:
      continue
    seen.add((name, extras))
    if name == PROJECT["name"]:
      left += [Requirement(text) for e in extras for text in EXTRAS[e]]
      continue
    for text in importlib.metadata.requires(name) or ():
      needed = Requirement(text)
      if needed.marker is None or any(
        needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)
      ):
        left.append(needed)
  return {name for name, _ in seen} - {PROJECT["name"]}


def pinned(file):
  """The names that a file of constraints has a version of."""
  lines = (ROOT / file).read_text("utf-8").splitlines()
  pins = [Requirement(line) for line in lines if not line.startswith("#")]
  for pin in pins:
    assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), pin
  return {canonicalize_name(pin.name) for pin in pins}


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-oldest.txt"])
def test_all_that_is_installed_is_pinned(file):
  names = pinned(file)
  needed = installed([*PROJECT["dependencies"], *EXTRAS["dev"]])
  assert needed <= names, needed - names
  # What builds packages from source, and ours.
  assert {"editables", "hatchling", "setuptools", "wheel"} <= names


def test_all_that_builds_the_site_is_pinned():
  """The extra `docs` is not in `dev`, nor built with the oldest versions."""
  pytest.importorskip("sphinx")
  needed, names = installed(EXTRAS["docs"]), pinned("constraints.txt")
  assert needed <= names, needed - names


# Tests that import these skip without them.
OPTIONAL = {"libtpu", "sphinx", "torch", "torchvision"}


@pytest.mark.parametrize(
  ("folder", "extras"),
  [
    # What functions import when they are called: pandas, to read Parquet; Flax,
    # for a metric of NNX.
    ("orthograd_optax", ["plots", "dev", "examples"]),
    ("examples", ["examples"]),
    ("experiments", ["plots", "experiments", "cluster"]),
    ("tests", ["plots", "experiments", "cluster", "reference", "dev"]),
  ],
)
def test_what_is_imported_is_declared(folder, extras):
  """Not only brought along by something else."""
  texts = [*PROJECT["dependencies"], *(t for e in extras for t in EXTRAS[e])]
  declared = {canonicalize_name(Requirement(text).name) for text in texts}
  providers = importlib.metadata.packages_distributions()
  for name in imported(folder):
    names = {canonicalize_name(it) for it in providers.get(name, ())}
    if names:
      assert names & declared, f"{folder} imports {name}, from {names}"


def imported(folder):
  """The top-level modules that a folder's files import."""
  names = set()
  for path in (ROOT / folder).rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
      if isinstance(node, ast.Import):
        names |= {alias.name.partition(".")[0] for alias in node.names}
      elif isinstance(node, ast.ImportFrom) and not node.level:
        names.add(str(node.module).partition(".")[0])
  return names - OPTIONAL - {"benchmarks", "experiments", "orthograd_optax"}


WORKFLOWS = "\n".join(
  path.read_text("utf-8") for path in (ROOT / ".github").glob("*/*.yml")
)


def test_actions_are_commits():
  """A tag can be moved."""
  actions = re.findall(r"uses: (.*)", WORKFLOWS)
  assert actions
  for action in actions:
    assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", action), action


def test_no_job_keeps_its_credentials():
  checkout = r"- uses: actions/checkout@.*\n"
  kept = r" +with:\n +persist-credentials: false\n"
  assert len(re.findall(checkout, WORKFLOWS)) == len(
    re.findall(checkout + kept, WORKFLOWS)
  )
