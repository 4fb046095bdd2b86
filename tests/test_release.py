"""What is checked before a tag is published."""

import importlib.util
import pathlib
import shutil

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILES = ["pyproject.toml", "CHANGELOG.md", "CITATION.cff", "docs/cite.md"]


def faults(tag, root):
  path = ROOT / ".ci" / "check_tag.py"
  spec = importlib.util.spec_from_file_location("check_tag", path)
  assert spec and spec.loader
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.faults(tag, root)


@pytest.fixture
def released(tmp_path):
  """A clone's files on the day of a release."""
  (tmp_path / "docs").mkdir()
  for name in FILES:
    shutil.copy(ROOT / name, tmp_path / name)
  date = "2026-12-31"
  replace(
    tmp_path / "CHANGELOG.md",
    "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - " + date + "\n\nAll.\n",
  )
  cited = (tmp_path / "CITATION.cff").read_text("utf-8").splitlines()
  cited = [line for line in cited if not line.startswith("date-released")]
  replace(
    tmp_path / "CITATION.cff",
    "\n".join([*cited, f'date-released: "{date}"', ""]),
  )
  return tmp_path


def replace(path, text):
  path.write_text(text, "utf-8")


def test_a_release_passes(released):
  assert faults("v0.1.0", released) == []


@pytest.mark.parametrize(
  ("name", "old", "new", "fault"),
  [
    ("pyproject.toml", '"0.1.0"', '"0.2.0"', "the tag: expected v0.2.0"),
    ("CHANGELOG.md", "[0.1.0]", "[0.0.9]", "CHANGELOG.md: expected 0.1.0"),
    ("CHANGELOG.md", "2026-12-31", "2027-01-01", "date-released in"),
    ("CHANGELOG.md", "ed]\n", "ed]\n\n- More.\n", "move what is unreleased"),
    ("CITATION.cff", "version: 0.1.0", "version: 0.2.0", "got 0.2.0"),
    ("CITATION.cff", "date-released", "date", "got None"),
    ("docs/cite.md", "{0.1.0}", "{0.2.0}", "version in docs/cite.md"),
    ("docs/cite.md", "{2026}", "{2027}", "year in docs/cite.md"),
  ],
)
def test_each_fault_is_told(released, name, old, new, fault):
  text = (released / name).read_text("utf-8")
  assert old in text
  replace(released / name, text.replace(old, new))
  assert any(fault in message for message in faults("v0.1.0", released))


def test_a_wrong_tag_is_told(released):
  assert faults("v0.2.0", released) == ["the tag: expected v0.1.0, got v0.2.0"]
