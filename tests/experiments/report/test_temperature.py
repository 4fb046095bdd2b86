"""What temperature scaling leaves."""

import pytest
from reading import (
  change_text,
  corrupted,
  holm,
  pair_text,
  paired,
  section,
  tables,
)

from experiments.studies import extended, table1, wide

SETTINGS = {
  "ResNet-18": (table1, 40),
  "WRN-28-10": (wide, 10),
  "1000 epochs": (extended, 5),
  "ResNet-18, corrupted": (table1, 40),
  "WRN-28-10, corrupted": (wide, 5),
  "1000 epochs, corrupted": (extended, 5),
}


@pytest.mark.parametrize("part", ["scaled_half", "scaled"])
def test_every_cell(kept, runs, under_corruption, page, appendix, part):
  where = page if part == "scaled_half" else appendix
  ((_, *lines),) = tables(where, "Temperature scaling")
  if part == "scaled_half":
    paper = lines.pop(0)
    assert paper[2:] == ["2.80 / 2.66", "", "0.015 / 0.015", "0.34 / 0.34"]
  assert {line[0] for line in lines} == set(SETTINGS)
  fitted = "temperature_half" if part == "scaled_half" else "temperature"
  for name, count, temperature, *cells in lines:
    study, seeds = SETTINGS[name]
    assert count == f"{seeds}"
    hard = "corrupted" in name
    of = corrupted(kept) if hard else ["clean"]
    its = under_corruption if hard else runs
    get = lambda m, p, study=study, seeds=seeds, of=of, its=its: its(
      study, m, range(seeds), of, p
    )
    assert temperature == pair_text(*get(fitted, "metrics"), temperature)
    values = [get(m, part) for m in ("loss", "ece", "brier")]
    adjusted = holm([paired(*x)[-1] for x in values])
    for cell, (a, b), p in zip(cells, values, adjusted, strict=True):
      means, _, change = cell.partition(": ")
      assert means == pair_text(a, b, means)
      assert change == change_text(a, b, change, p < 0.05)


def test_the_papers_claims(page):
  text = section(page, "Temperature scaling")
  assert "are the same after scaling: **not confirmed**" in text
