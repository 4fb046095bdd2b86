"""ResNet-18 after 100 epochs."""

import numpy as np
import pytest
from reading import column, is_corrupted, is_resnet, tables
import scipy.stats

from experiments.report import compare, formats, paper
from experiments.report import kept as kept_rows
from experiments.report.formats import METRICS
from experiments.report.results import Results
from experiments.studies import table1


def test_table_1(kept, page):
  ((header, *lines),) = tables(page, "Table 1")
  by_name = {line[0]: dict(zip(header, line, strict=True)) for line in lines}
  assert len(by_name) == len(paper.TABLE_1) == 12
  for metric in paper.TABLE_1:
    cells = by_name[METRICS[metric]]
    a, b = (
      column(kept, name, metric, range(20)) for name in ("sgd", "orthograd")
    )
    pooled = np.sqrt((np.var(a, ddof=1) + np.var(b, ddof=1)) / 2)
    d = (np.mean(a) - np.mean(b)) / pooled
    assert cells["d, ours"].split()[0] == f"{d:.2f}"
    p = scipy.stats.ttest_ind(a, b, equal_var=False).pvalue
    assert float(cells["p, Welch"]) == pytest.approx(p, rel=0.5, abs=5e-4)
    p = scipy.stats.ttest_rel(a, b).pvalue
    assert float(cells["p, paired"]) == pytest.approx(p, rel=0.5, abs=5e-4)
    first, second = (i for i, name in enumerate(header) if name == "ours")
    row = next(x for x in lines if x[0] == METRICS[metric])
    for i, x in ((first, a), (second, b)):
      mean, std = row[i].split(" ± ")
      digits = len(mean.partition(".")[2])
      assert mean == f"{np.mean(x):.{digits}f}"
      assert std == f"{np.std(x, ddof=1):.{digits}f}" and float(std) > 0


@pytest.mark.parametrize("metric", paper.TOLERANCE)
@pytest.mark.parametrize("seeds", [range(20), range(20, 40)])
def test_columns_are_the_papers(kept, metric, seeds):
  for optimizer in ("sgd", "orthograd"):
    ours = np.mean(column(kept, optimizer, metric, seeds))
    theirs = getattr(paper.TABLE_1[metric], optimizer)
    assert abs(ours - theirs) <= paper.TOLERANCE[metric]


@pytest.mark.parametrize("metric", ["max_logit", "logit_variance"])
def test_logits_are_smaller(kept, metric):
  a, b = (
    column(kept, name, metric, range(40)) for name in ("sgd", "orthograd")
  )
  assert np.mean(b) < np.mean(a)
  assert scipy.stats.ttest_ind(a, b, equal_var=False).pvalue < 0.001


def test_headline(kept):
  """What the README quotes is what the rows say."""
  text = (kept_rows.FOLDER.parents[1] / "README.md").read_text("utf-8")
  found = Results(kept, table1.STUDY.config)
  rows = compare.by_metric(found, range(40))
  names = {"top1": "accuracy, %", "max_logit": "max logit", "ece": "ECE"}
  names |= {m: METRICS[m] for m in ("loss", "entropy", "temperature")}
  for metric, name in names.items():
    row = rows[metric]
    cells = [
      name,
      formats.spread(row.a, metric),
      formats.spread(row.b, metric),
      formats.effect(row.paired),
      formats.p_value(row.holm),
    ]
    assert f"| {' | '.join(cells)} |" in text


def test_corruption_by_severity(kept, page):
  _, by_severity, by_corruption, _ = tables(page, "CIFAR-10-C: the same")
  (line,) = (x for x in by_severity if x[0] == "loss")
  names = {row["dataset"] for row in kept if row["dataset"].endswith("/3")}
  extra = {"speckle_noise/3", "gaussian_blur/3", "spatter/3", "saturate/3"}
  assert len(names) == 19 and extra < names
  for optimizer, cell in zip(
    ("sgd", "orthograd"), line[3].strip(" *").split(" / "), strict=True
  ):
    losses = [
      column(kept, optimizer, "loss", range(20), name) for name in names - extra
    ]
    assert cell == f"{np.mean(losses):.3f}"
  assert len(by_corruption) == 1 + 19


def test_renormalization_is_tested_for_equivalence(kept, page):
  clean, corrupted = tables(page, "Renormalized, or not")
  assert len(corrupted) == len(clean) - 1  # weights don't depend on images
  (line,) = (x for x in clean if x[0] == "ECE")
  a, b = (
    column(kept, name, "ece", range(10))
    for name in ("orthograd", "orthograd_unnormalized")
  )
  # Two one-sided tests: the larger p-value.
  p = max(
    scipy.stats.ttest_rel(a + 0.01, b, alternative="greater").pvalue,
    scipy.stats.ttest_rel(a - 0.01, b, alternative="less").pvalue,
  )
  assert float(line[-1]) == pytest.approx(p, abs=5e-4)


def test_reliability_is_of_all_corrupted_images(kept, page):
  for name, seeds, sets in (
    ("reliability", 40, 1),
    ("reliability_corrupted", 20, 75),
  ):
    found = [
      row
      for row in kept
      if row["optimizer"] == "sgd"
      and is_resnet(row)
      and ((row["dataset"] == "clean") if sets == 1 else is_corrupted(row))
    ]
    assert len(found) == seeds * sets
    counts = np.sum([row["bins"]["count"] for row in found], axis=0)
    bars = [
      patch.get_height()
      for patch in page.figures[name].axes[2].patches
      if patch.get_height() > 0
    ]
    shares = 100 * counts / np.sum(counts)
    np.testing.assert_allclose(max(bars), max(shares), rtol=1e-4)
