"""What is said of `language`, against SciPy."""

import math

import numpy as np
import scipy.stats

from experiments.language import PAIRS, SMALL
from experiments.report import build, compare, language
from experiments.report.render import markdown


def make_rows():
  """Rows of five seeds: one diverged, and of the weak decay all but one."""
  random = np.random.default_rng(0)
  rows = []
  for arm in (arm for pair in PAIRS for arm in pair):
    for seed in range(5):
      value = random.normal(1.0 + 0.1 * arm.orthograd, 0.03)
      lost = (arm.key, seed) == ("adamw_usual", 4)
      lost |= arm.key == "adamw_weak" and seed > 0
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
  assert "left out: adamw_usual (seed 4), adamw_weak (seed 1), " in text


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
