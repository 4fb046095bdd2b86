"""Checks that the files agree with a tag, such as v0.1.0, before a release."""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).parents[1]


def faults(tag: str, root: pathlib.Path = ROOT) -> list[str]:
  """Returns what to correct before this tag can be published."""
  project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
  version = project["project"]["version"]
  citation = (root / "CITATION.cff").read_text("utf-8")
  page = (root / "docs" / "cite.md").read_text("utf-8")
  changelog = (root / "CHANGELOG.md").read_text("utf-8")
  sections = re.split(r"^## ", changelog, flags=re.M)[1:]
  released = re.findall(
    r"^## \[([\d.]+)\] - (\d{4}-\d\d-\d\d)$", changelog, re.M
  )
  newest, date = released[0] if released else ("none", "none")
  cited = dict(
    re.findall(r'^(version|date-released): "?([\d.-]+)"?$', citation, re.M)
  )
  bibtex = dict(re.findall(r"\b(version|year) *= {([\d.]+)}", page)[:2])
  expected = {
    "the tag": (f"v{version}", tag),
    "the newest version in CHANGELOG.md": (version, newest),
    "version in CITATION.cff": (version, cited.get("version")),
    "date-released in CITATION.cff": (date, cited.get("date-released")),
    "version in docs/cite.md": (version, bibtex.get("version")),
    "year in docs/cite.md": (date[:4], bibtex.get("year")),
  }
  messages = [
    f"{what}: expected {correct}, got {given}"
    for what, (correct, given) in expected.items()
    if correct != given
  ]
  if sections[0].partition("\n")[2].strip() and "Unreleased" in sections[0]:
    messages.append(f"CHANGELOG.md: move what is unreleased under [{version}]")
  return messages


if __name__ == "__main__":
  if len(sys.argv) != 2:
    sys.exit("expected one tag, such as v0.1.0")
  if messages := faults(sys.argv[1]):
    sys.exit("\n".join(messages))
