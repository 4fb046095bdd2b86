"""ResNet-18 after 100 epochs."""

import numpy as np
import pytest
from reading import (
  EXTRA,
  METRICS,
  by_metric,
  change_text,
  check_comparison,
  check_grid,
  cohens_d,
  corrupted,
  pair_text,
  paired,
  section,
  tables,
)

from experiments.report import paper
from experiments.rows import kept as kept_rows
from experiments.studies import extended, table1

UNDER_CORRUPTION = list(METRICS.values())[:-2]
# Within what our columns are to come to the paper's.
TOLERANCE = {
  "top1": 1.0,
  "loss": 0.06,
  "ece": 0.01,
  "brier": 0.01,
  "entropy": 0.015,
  "max_softmax": 0.006,
  "max_logit": 0.4,
  "logit_variance": 2.5,
  "temperature": 0.1,
  "weight_norm": 0.2,
}


def of_metrics(runs, metrics, seeds, *of, **how):
  return {m: runs(table1, m, seeds, *of, **how) for m in metrics}


def test_table_1(runs, page):
  lines = by_metric(tables(page, "Table 1")[0])
  values = of_metrics(runs, METRICS.values(), range(40))
  adjusted = check_comparison(lines, values)
  for metric, cells in lines.items():
    theirs = paper.TABLE_1[metric]
    a, b = map(float, cells["paper"].split(" / "))
    assert (a, b) == (theirs.sgd, theirs.orthograd)
    # The paper's d is SGD less ⊥Grad.
    assert cells["d, paper"] == (
      "" if theirs.d is None else f"{-theirs.d:+.2f}"
    )
    change, low, high, _ = paired(*values[metric])
    if metric in ("top1", "top5", "weight_norm"):
      assert adjusted[metric] >= 0.05
      small = metric == "top1" and -0.5 < low < high < 0.5
      expected = "confirmed" if small else "not confirmed"
    else:
      same = (change > 0) == (b > a)
      expected = "confirmed" if same else "contradicted"
      expected = expected if adjusted[metric] < 0.05 else "not confirmed"
    assert cells["verdict"] == expected
  off = [
    name
    for name, metric in METRICS.items()
    if any(
      abs(np.mean(x) - y) > np.std(x, ddof=1)
      for x, y in zip(values[metric], paper.TABLE_1[metric][:2], strict=True)
    )
  ]
  assert f"but for {', '.join(off)} " in section(page, "Table 1")


@pytest.mark.parametrize("metric", TOLERANCE)
@pytest.mark.parametrize("seeds", [range(20), range(20, 40)])
def test_columns_are_the_papers(runs, metric, seeds):
  for ours, theirs in zip(
    runs(table1, metric, seeds), paper.TABLE_1[metric][:2], strict=True
  ):
    assert abs(np.mean(ours) - theirs) <= TOLERANCE[metric]


def test_headline(runs):
  """What the README quotes is what the rows say."""
  after = {"part": "scaled_half"}
  quoted = [
    ("after 1000 epochs", runs(extended, "ece", range(5), **after), 4),
    ("max logit", runs(table1, "max_logit", range(40)), 2),
    ("40 seeds", runs(table1, "loss", range(40)), 3),
    (
      "-0.019), after a temperature",
      runs(table1, "loss", range(40), **after),
      3,
    ),
  ]
  text = (kept_rows.FOLDER.parents[1] / "README.md").read_text("utf-8")
  text = " ".join(text.split())
  for words, pair, digits in quoted:
    change = change_text(*pair, f"{0:.{digits}f}", star=False)
    # The number follows the words that say what it is of.
    assert change in text[text.index(words) :][:150]


def test_by_epoch(runs, appendix):
  ((header, *lines),) = tables(appendix, "ResNet-18, by epoch")
  epochs = [20, 40, 60, 80, 100]
  assert header[1:] == [f"epoch {epoch}" for epoch in epochs]
  parts = [(m, "metrics") for m in METRICS.values()]
  parts += [("loss", "scaled_half")]
  values = [
    [runs(table1, m, range(40), part=part, epoch=e) for e in epochs]
    for m, part in parts
  ]
  check_grid([line[1:] for line in lines], values)


def test_corruption(kept, under_corruption, page):
  (table,) = tables(page, "CIFAR-10-C: ResNet-18")
  lines = by_metric(table)
  values = of_metrics(
    under_corruption, UNDER_CORRUPTION, range(40), corrupted(kept)
  )
  adjusted = check_comparison(lines, values)
  assert {m: cells["verdict"] for m, cells in lines.items()} == {
    m: ""
    if m not in paper.UNDER_CORRUPTION
    else "contradicted"
    if m == "top1"
    else "confirmed"
    for m in lines
  }
  assert max(adjusted.values()) < 0.05


def test_corruption_by_severity_and_by_name(kept, under_corruption, appendix):
  runs, seeds = under_corruption, range(40)
  ((_, *lines),) = tables(appendix, "CIFAR-10-C by severity")
  of = {i: corrupted(kept, i) for i in range(1, 6)}
  assert [len(names) for names in of.values()] == [15] * 5
  values = [
    [runs(table1, m, seeds, of[i]) for i in of] for m in UNDER_CORRUPTION
  ]
  check_grid([line[1:] for line in lines], values)
  (_, *lines), extra = tables(appendix, "CIFAR-10-C by corruption")
  names = [line[0].replace(" ", "_") for line in lines]
  assert len(names) == 19 and set(EXTRA) == set(names[-4:])
  sets = lambda name: [f"{name}/{i}" for i in range(1, 6)]
  values = [
    [
      runs(table1, m, range(20) if name in EXTRA else seeds, sets(name))
      for m in UNDER_CORRUPTION
    ]
    for name in names
  ]
  check_grid([line[1:] for line in lines], values)
  every = [of for name in EXTRA for of in sets(name)]
  values = of_metrics(runs, UNDER_CORRUPTION, range(20), every)
  check_comparison(by_metric(extra), values)


def test_renormalization(kept, runs, former, page, appendix):
  pair = ("orthograd", "orthograd_unnormalized")
  seeds, text = range(10), section(page, "Renormalized")
  family = of_metrics(runs, METRICS.values(), seeds, pair=pair)
  lines = by_metric(tables(page, "Renormalized")[0])
  check_comparison(lines, {m: family[m] for m in lines}, family)
  assert set(lines) == set(paper.RENORMALIZATION)
  assert {cells["verdict"] for cells in lines.values()} == {"not confirmed"}
  doubtful = [n for n, m in METRICS.items() if paired(*family[m])[-1] < 0.05]
  assert f"Unadjusted, {', '.join(doubtful)} have p < 0.05" in text
  clean, dirty = tables(appendix, "Renormalization")
  clean[0][5:] = dirty[0][5:] = ["first run", "p, first run"]
  check_comparison(by_metric(clean), family)
  values = of_metrics(runs, UNDER_CORRUPTION, seeds, corrupted(kept), pair=pair)
  check_comparison(by_metric(dirty), values)
  for table, of in ((clean, ["clean"]), (dirty, ["CIFAR-10-C"])):
    lines = {
      m: cells | {"difference": cells["first run"], "p": cells["p, first run"]}
      for m, cells in by_metric(table).items()
    }
    values = of_metrics(former, lines, seeds, of, pair=pair)
    assert min(paired(*x)[-1] for x in values.values()) >= 0.05
    for metric, cells in lines.items():
      cells["means"] = pair_text(*values[metric], cells["means"])
      cells["d"] = f"{cohens_d(*values[metric]):+.2f}"
    check_comparison(lines, values)


def test_reliability_is_of_all_corrupted_images(kept, loaded, appendix):
  hardest = set(corrupted(kept))
  for name, rows, sets in (
    ("reliability", kept, 1),
    ("reliability_corrupted", [*kept, *loaded[2]], 75),
  ):
    found = [
      row
      for row in rows
      if row["config_hash"] == table1.STUDY.config.hash
      and (row["method"], row["epoch"]) == ("sgd", 100)
      and (
        (row["dataset"] == "clean") if sets == 1 else row["dataset"] in hardest
      )
    ]
    assert len(found) == 40 * sets
    counts = np.sum([row["bins"]["count"] for row in found], axis=0)
    bars = [
      patch.get_height()
      for patch in appendix.figures[name].axes[2].patches
      if patch.get_height() > 0
    ]
    shares = 100 * counts / np.sum(counts)
    np.testing.assert_allclose(max(bars), max(shares), rtol=1e-4)
