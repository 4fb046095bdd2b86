"""What people read has none of the phrases that made it hard to read."""

import ast
import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PLACES = [
  *("*", ".ci/*", ".github/**/*", "benchmarks/**/*", "docs/*", "docs/*/*"),
  *("examples/*", "experiments/**/*", "orthograd_optax/**/*", "tests/**/*"),
]
SUFFIXES = "|.py|.md|.toml|.txt|.html|.css|.yml|.yaml|.cff".split("|")
# Written by `make docs`.
BUILT = ("docs/_build/", "docs/studies/")
# Each phrase, and what to write in its place.
BANNED = {
  r"\bthat of\b": "name the thing again",
  r"\bthose of\b": "name the things again",
  r"\bbut for\b": "except, without",
  r"(?<!there )\bis no (?!longer\b|more\b)": "is not a",
  r"\bless (the|its|their|that|what)\b": "minus",
  r"\blikewise\b": "also, the same",
  r"\bof which\b": "two sentences",
  r"(?<!far )\bas it is\b": "unchanged, uncalibrated",
  r"\bby itself\b": "alone, on its own",
  r"\bif you like\b": "optionally",
  r"\bsome (hundred|thousand|per ?cent)": "several hundred; a number",
  r"\bthe one\b[^.]*\bthe other\b": "name both",
  r"\bnot sure enough\b": "underconfident",
  r"\btoo sure\b": "overconfident",
}
# Files and phrases that stay, and why.
EXCEPTIONS = {
  # A plan is not reworded after its runs.
  ("experiments/PLAN.md", phrase)
  for phrase in BANNED
} | {
  # Quotes the key's former name.
  ("CHANGELOG.md", r"(?<!far )\bas it is\b")
}


def prose(path: pathlib.Path) -> str:
  """Returns a file's text; of Python files, its strings and comments."""
  text = path.read_text("utf-8")
  if path.suffix == ".py":
    strings = [
      node.value
      for node in ast.walk(ast.parse(text))
      if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    lines = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [t.string for t in lines if t.type == tokenize.COMMENT]
    text = "\n\n".join([*strings, "\n".join(comments)])
  # A phrase may be broken at the end of a line, also of a comment.
  return re.sub(r"\s+(# )?", " ", text)


def faults(path: pathlib.Path) -> list[str]:
  name = path.relative_to(ROOT).as_posix()
  text = prose(path)
  return [
    f"{name}: …{text[max(0, hit.start() - 30) : hit.end() + 20]}…: {remedy}"
    for phrase, remedy in BANNED.items()
    if (name, phrase) not in EXCEPTIONS
    for hit in re.finditer(phrase, text, re.IGNORECASE)
  ]


def files(place: str) -> list[pathlib.Path]:
  """Returns the text files of a place that people wrote."""
  paths = [
    path
    for path in ROOT.glob(place)
    if path.is_file()
    and path.suffix in SUFFIXES
    and path != pathlib.Path(__file__)
    and not path.relative_to(ROOT).as_posix().startswith(BUILT)
  ]
  assert paths, place
  return paths


@pytest.mark.parametrize("place", PLACES)
def test_no_banned_phrase(place):
  assert not [fault for path in files(place) for fault in faults(path)]


@pytest.mark.parametrize(
  "folder",
  [".ci", "benchmarks", "docs", "examples", "experiments", "orthograd_optax"],
)
def test_docstrings_of_functions_start_with_a_verb(folder):
  """Except the commands' docstrings, which are help texts."""
  for path in files(f"{folder}/**/*.py"):
    if path.parent.name == "cli":
      continue
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
      if isinstance(node, ast.FunctionDef):
        text = ast.get_docstring(node) or "Returns"
        assert re.match(r"[A-Z][a-z]+s\b|Undoes\b", text), (path, node.name)


def test_a_phrase_is_seen_across_lines(tmp_path, monkeypatch):
  monkeypatch.setitem(globals(), "ROOT", tmp_path)
  path = tmp_path / "code.py"
  path.write_text(
    '"""Loss, and that\nof others."""\n# All but\n# for one.\nx = "a"  "b"\n'
    'print(f"{x} is no "\n  "number; there is no y")\n',
    "utf-8",
  )
  assert [fault.rpartition(": ")[2] for fault in faults(path)] == [
    "name the thing again",
    "except, without",
    "is not a",
  ]
