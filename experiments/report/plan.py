"""PLAN.md: which studies it plans, and what it says of each."""

import pathlib
import re

from experiments import config

PATH = pathlib.Path(__file__).parents[1] / "PLAN.md"


def studies() -> dict[str, config.Study]:
  """The studies that have a section, by name."""
  names = filter(section, config.study_names())
  return {name: config.load_study(name) for name in names}


def section(name: str) -> str | None:
  """What is written of a study, under a numbered heading that names it."""
  parts = re.split(r"^## ", PATH.read_text("utf-8"), flags=re.MULTILINE)
  for part in parts:
    heading, _, text = part.partition("\n")
    if heading[:1].isdigit() and f"`{name}`" in heading:
      return text.strip()
  return None
