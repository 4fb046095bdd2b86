"""What is said of `language`, against SciPy."""

import math

import numpy as np
import pytest
import scipy.stats

from experiments.language import PAIRS, SEEDS, SMALL, Recipe
from experiments.report import build, compare, language
from experiments.report.render import markdown
from experiments.rows import RowsError


def make_rows():
  """Rows of five seeds: one diverged, and of the weak decay all but one."""
  random = np.random.default_rng(0)
  rows = []
  for arm in (arm for pair in PAIRS for arm in pair):
    for seed in SEEDS:
      value = random.normal(1.0 + 0.1 * arm.orthograd, 0.03)
      lost = (arm.key, seed) == ("adamw_usual", SEEDS[-1])
      lost |= arm.key == "adamw_weak" and seed > SEEDS[0]
      metrics = {"loss": value, "ece": 0.1 * value}
      scaled = {"loss": 0.9 * value, "ece": 0.01 * value}
      row = {"method": arm.key, "seed": seed, "settings": arm._asdict()}
      row["metrics"] = dict.fromkeys(metrics) if lost else metrics
      rows.append(row | {"scaled_crossed": scaled})
  return rows


def test_the_result():
  rows = make_rows()
  old, new = (
    np.array([row["metrics"]["loss"] for row in rows if row["method"] == name])
    for name in ("adamw_usual", "orthograd_adamw_usual")
  )
  old, new = (values[:4].astype(float) / math.log(2) for values in (old, new))
  test = scipy.stats.ttest_rel(new, old)
  low, high = test.confidence_interval()
  adjusted = 4 * test.pvalue  # Holm, of two equal p and two missing tests
  assert adjusted < 0.05 and low > 0.03 * old.mean()
  text = language.text(rows)
  assert (
    f"| usual | bits per byte | {old.mean():.4f} → {new.mean():.4f} | "
    f"{np.mean(new - old):+.4f} ({low:+.4f}, {high:+.4f}) | "
    f"{0.03 * old.mean():.4f} | {adjusted:.3f} | 4 |"
  ) in text
  assert f"{np.mean(new - old):+.4f} bits per byte: **harms**" in text
  assert "the weak weight decay, fewer than two seeds have both" in text
  assert "left out: adamw_usual (seed 104), adamw_weak (seed 101), " in text


def test_the_page(tmp_path):
  text = {"packages": 2, "files": 3, "bytes": 4000, "sha256": "0"}
  known = {
    "config": vars(SMALL) | {"text": {"train": text, "test": text}},
    **{"device": "1 × H200", "versions": {"jax": "0.10"}, "commit": "123"},
    "time": "2026-12-01 10:00:00",
  }
  rows = [row | known for row in make_rows()]
  facts = build.context(compare.Comparisons(), tmp_path, True)
  page = markdown("language.md", facts | language.facts(rows))
  assert language.text(rows) in page
  assert "| train | 2 | 3 | 4,000 |" in page and "PLAN.md#18-language" in page
  assert "H200, jax 0.10, commit 123, 2026-12-01" in page


def make_rows_of_the_plan():
  known = {"config": vars(Recipe()) | {"text": {}}, "config_hash": "a"}
  return [row | known for row in make_rows()]


def test_rows_of_the_plan():
  rows = make_rows_of_the_plan()
  small = rows[0] | {"config": vars(SMALL) | {"text": {}}, "config_hash": "b"}
  another_seed = rows[0] | {"seed": 1}
  assert language.planned([small, *rows, another_seed]) == rows
  assert language.planned([small, *rows[1:], another_seed]) == []
  with pytest.raises(RowsError, match="several texts.*a, b.*Keep"):
    language.planned([rows[0] | {"config_hash": "b"}, *rows[1:]])


def test_the_answers_lines(monkeypatch):
  """Once the plan's rows are kept, in nats; each ECE has Holm's adjustment."""
  rows = make_rows_of_the_plan()
  load = build.kept.load
  monkeypatch.setattr(
    *(build.kept, "load"),
    lambda names: rows if names == ["language"] else load(names),
  )
  monkeypatch.setitem(build.query.LABELS, "situations", {})
  ((label, line),) = build.situations(compare.Comparisons()).items()
  assert label == "text, AdamW, weight decay 0.1"
  assert line["study"] == "language"
  for name, part, metric in (
    ("loss", "metrics", "loss"),
    ("ece", "metrics", "ece"),
    ("scaled_loss", "scaled_crossed", "loss"),
    ("scaled_ece", "scaled_crossed", "ece"),
  ):
    old, new = (
      [row[part][metric] for row in rows if row["method"] == key][:4]
      for key in ("adamw_usual", "orthograd_adamw_usual")
    )
    assert line[name].change == pytest.approx(np.mean(new) - np.mean(old))
    p = scipy.stats.ttest_rel(new, old).pvalue
    assert line[name].adjusted == pytest.approx(min(4 * p, 1))
