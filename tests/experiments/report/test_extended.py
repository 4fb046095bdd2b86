"""ResNet-18 after 1000 epochs."""

import dataclasses

import numpy as np
from reading import is_corrupted, section, tables, values
import scipy.stats

from experiments.report import replication
from experiments.studies import extended, unaugmented


def test_extended(kept, page):
  assert {"extended", "trajectories"} < set(page.figures)
  (table, said, way) = tables(page, "Extended training")
  assert table[1][1] == "70.5 / 65.8" and table[1][0].endswith("paper")
  last = lambda *what: np.array(
    [by_epoch[1000] for by_epoch in values(kept, extended, *what).values()]
  )
  a, b = (last(name, "top1") for name in ("sgd", "orthograd"))
  assert len(a) == len(b) == 5
  assert table[2][1] == f"{np.mean(a):.2f} / {np.mean(b):.2f}"
  assert way[1][5] == table[2][1]
  assert "0 of 5 seeds" in said[-1][2] and "not confirmed" in said[-1][1]
  names = {row["dataset"] for row in kept if is_corrupted(row)}
  hardest = [name for name in names if name.endswith("/5")]
  assert len(hardest) == 15
  a, b = (
    np.mean([last(name, "loss", of) for of in hardest], axis=0)
    for name in ("sgd", "orthograd")
  )
  change = b - a
  students, error = scipy.stats.t(4), np.std(change, ddof=1) / np.sqrt(5)
  margin = students.ppf(0.975) * error
  low, high = np.mean(change) - margin, np.mean(change) + margin
  p = 2 * students.cdf(np.mean(change) / error)
  expected = f"5: {np.mean(change):.3f} ({low:.3f}, {high:.3f}), p {p:.2g}"
  assert said[2][2].endswith(expected) and said[2][1] == "**holds**"
  text = section(page, "Extended training")
  late = [
    value
    for name in ("sgd", "orthograd")
    for by_epoch in values(kept, extended, name, "top1").values()
    for epoch, value in by_epoch.items()
    if epoch >= 800
  ]
  assert f"lowest of all {len(late)} values" in text
  assert f"is {min(late):.1f} %" in text
  scaled = [
    np.mean(last(name, "loss", "clean", "scaled"))
    for name in ("sgd", "orthograd")
  ]
  assert "{:.3f} against {:.3f}".format(*scaled) in text


def test_sections_to_come(kept):
  """Of studies that have not been run, on rows such as they make."""

  def as_if(row, study, **fields):
    config = study.STUDY.config
    its = {"study": study.STUDY.name, "model": config.model}
    its |= {"config": dataclasses.asdict(config), "config_hash": config.hash}
    return row | its | fields

  made = []
  its = extended.STUDY.config.hash
  for row in kept:
    if row["config_hash"] == its:
      if row["epoch"] == 1000 and row["seed"] < 2:
        made.append(as_if(row, unaugmented))
  page = replication.make([*kept, *made])
  assert "\n### Without augmentation, 2 seeds\n" in page.markdown
  assert len(tables(page, "Extended training")) == 4
