"""ResNet-18 after 1000 epochs."""

import numpy as np
from reading import (
  METRICS,
  change_text,
  check_grid,
  corrupted,
  holm,
  paired,
  section,
  tables,
)

from experiments.report import paper
from experiments.studies import extended, table1

SEEDS = range(5)


def by_severity(runs, sets):
  return {
    metric: [runs(extended, metric, SEEDS, of) for of in sets]
    for metric in paper.EXTENDED
  }


def test_table_and_verdicts(kept, runs, page, under_corruption):
  ((_, *lines),) = tables(page, "ResNet-18 for 1000 epochs")
  sets = [["clean"], *(corrupted(kept, i) for i in range(1, 6))]
  values = by_severity(runs, sets)
  check_grid([line[1:] for line in lines[1::2]], values.values())
  assert lines[0][1] == "70.5 / 65.8" and lines[0][0].endswith("paper")
  for line, rows in zip(lines[::2], paper.EXTENDED.values(), strict=True):
    for cell, row in zip(line[2:], rows, strict=True):
      assert list(map(float, cell.split(" / "))) == [row.sgd, row.orthograd]
  text = section(page, "ResNet-18 for 1000 epochs")
  stars = {
    METRICS[of[0].removesuffix(", paper").removesuffix(", %")]: [
      cell.endswith("*") for cell in ours[1:]
    ]
    for of, ours in zip(lines[::2], lines[1::2], strict=True)
  }
  assert not any(stars["top1"])
  assert "higher clean accuracy: **not confirmed**" in text
  assert "higher accuracy from severity 3 on: **not confirmed**" in text
  assert stars["loss"] == [False] * 4 + [True] * 2
  assert "loss from severity 2 on: **not confirmed** (\\* at 4 and 5" in text
  assert all(stars["ece"][2:])
  assert all(np.mean(b) < np.mean(a) for a, b in values["ece"][2:])
  assert "ECE from severity 2 on: **confirmed**" in text
  # At severity 5, beside all runs of 100 epochs.
  mine = values["top1"][5][1]
  best = np.max(under_corruption(table1, "top1", range(40), corrupted(kept, 5)))
  assert f"**not confirmed** ({np.sum(mine > best)} of 5 seeds are)" in text


def test_differences(kept, runs, former, appendix):
  now, before, _ = tables(appendix, "ResNet-18 for 1000 epochs")
  sets = [["clean"], *(corrupted(kept, i) for i in range(1, 6))]
  once = [["clean"], *([f"severity {i}"] for i in range(1, 6))]
  for (_, *lines), of, groups in ((now, runs, sets), (before, former, once)):
    values = [
      pair for line in by_severity(of, groups).values() for pair in line
    ]
    stars = holm([paired(*x)[-1] for x in values]) < 0.05
    cells = [cell for line in lines for cell in line[1:]]
    for cell, (a, b), star in zip(cells, values, stars, strict=True):
      assert cell == change_text(a, b, cell, star)


def test_by_epoch(kept, runs, appendix):
  *_, (_, *lines) = tables(appendix, "ResNet-18 for 1000 epochs")
  parts = [(m, "metrics") for m in ("top1", "loss", "ece", "max_softmax")]
  parts += [("loss", "scaled_half")]
  values = [
    [
      runs(extended, metric, SEEDS, of, part, epoch)
      for epoch in (100, 200, 400, 700, 1000)
    ]
    for of in (["clean"], corrupted(kept))
    for metric, part in parts
  ]
  check_grid([line[1:] for line in lines], values)


def test_words(runs, appendix):
  text = section(appendix, "ResNet-18 for 1000 epochs")
  late = [runs(extended, "top1", SEEDS, epoch=e) for e in range(800, 1001, 20)]
  assert f"lowest of all {np.size(late)} values" in text
  assert f"is {np.min(late):.1f} %" in text
  confidence = np.mean(runs(extended, "max_softmax", SEEDS), axis=1)
  accuracy = np.mean(runs(extended, "top1", SEEDS), axis=1)
  for i in (0, 1):
    said = f"{100 * confidence[i]:.1f} % at an accuracy of {accuracy[i]:.1f}"
    assert said in text
