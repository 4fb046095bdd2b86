"""What people read has none of the phrases that made it hard to read."""

import ast
import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILES = [
  *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"),
  *("pyproject.toml", ".ci/*", ".github/*/*", "docs/*.md", "docs/*.py"),
  *("docs/*/*.md", "orthograd_optax/**/*.py", "orthograd_optax/**/*.txt"),
  *("orthograd_optax/**/*.html", "benchmarks/*.py", "examples/*.py"),
  *("experiments/**/*.py", "experiments/*.md", "tests/**/*.py"),
  "experiments/report/templates/*",
]
# Folders that are still to be edited.
TO_COME = ("experiments/", "tests/")
# Each phrase, and what to write in its place.
BANNED = {
  r"\bthat of\b": "name the thing again",
  r"\bthose of\b": "name the things again",
  r"\bbut for\b": "except, without",
  r"(?<!there )\bis no (?!longer\b|more\b)": "is not a",
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
# Phrases that are in order where they are.
EXCEPTIONS = {
  # Quotes the key's former name.
  ("CHANGELOG.md", "as it is"),
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
    for hit in re.finditer(phrase, text, re.IGNORECASE)
    if (name, hit[0].strip().lower()) not in EXCEPTIONS
  ]


@pytest.mark.parametrize("glob", FILES)
def test_no_banned_phrase(glob):
  paths = [path for path in ROOT.glob(glob) if path.is_file()]
  assert paths, glob
  names = [path.relative_to(ROOT).as_posix() for path in paths]
  assert not [
    fault
    for path, name in zip(paths, names, strict=True)
    if not name.startswith(TO_COME)
    for fault in faults(path)
  ]


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
