"""Comparisons of two models against their differences."""

import functools
import json

import numpy as np
import pytest
from scipy import stats
from small_reports import Page, overconfident

from orthograd_optax import calibration
from orthograd_optax.calibration import _table


@functools.cache
def compared():
  logits, labels = overconfident()
  return calibration.compare(
    logits, logits / 2, labels, names=("hot", "cool"), resamples=200
  )


def test_compare_in_pairs():
  result = compared()
  logits, labels = overconfident()
  expected = calibration.ece(logits / 2, labels) - calibration.ece(
    logits, labels
  )
  assert result.difference["ece"].value == pytest.approx(
    float(expected), rel=1e-4
  )
  assert result.verdicts["ece"] == "cool is better"
  assert result.verdicts["confidence"] == "higher in hot"
  # Scaling changes no answer, and in pairs not even by noise.
  value, *interval = result.difference["accuracy"]
  assert value == 0 and np.isnan(interval).all()
  assert result.verdicts["accuracy"] == "no difference shown"
  # Losses of the same examples go together.
  gap = result.difference["nll"]
  alone = result.old["nll"]
  assert gap.high - gap.low < alone.high - alone.low
  assert "cool is better" in str(result)
  Page(result.html())
  assert result._repr_html_().startswith("<iframe")
  json.dumps(result.to_dict(), allow_nan=False)
  few = calibration.compare(logits[:19], logits[:19] / 2, labels[:19])
  assert set(few.verdicts.values()) == {""}
  assert "19 examples are too few for a verdict: use at least 20" in str(few)
  same = calibration.compare(logits, logits, labels, resamples=200)
  assert set(same.verdicts.values()) == {"no difference shown"}


@pytest.mark.parametrize("seeds", [3, 5])
def test_few_seeds_have_no_verdict(seeds):
  runs = [overconfident(seed) for seed in range(seeds)]
  logits = np.stack([z for z, _ in runs])
  labels = runs[0][1]
  result = calibration.compare(logits, logits / 2, labels, resamples=10)
  assert result.seeds == seeds
  differences = [
    float(calibration.nll(z / 2, labels) - calibration.nll(z, labels))
    for z in logits
  ]
  expected = stats.ttest_1samp(differences, 0).confidence_interval()
  np.testing.assert_allclose(result.difference["nll"][1:], expected, rtol=1e-3)
  if seeds < 5:
    assert set(result.verdicts.values()) == {""}
    assert "3 seeds are too few for a verdict" in str(result)
  else:
    assert result.verdicts["nll"] == "new is better"
  assert result.plot() is not None


def test_differences_are_new_minus_old():
  assert "difference (cool − hot)" in str(compared())
  assert "difference (cool − hot)" in compared().html()
  for key, metric in _table.METRICS.items():
    old, new = compared().old[key].value, compared().new[key].value
    difference = compared().difference[key].value
    assert difference == pytest.approx(new - old, abs=1e-12), metric.label
  assert compared().to_dict()["names"] == ["hot", "cool"]


def test_compare_refuses():
  logits, labels = overconfident()
  with pytest.raises(ValueError, match=r"\(400, 3\) and \(399, 3\)"):
    calibration.compare(logits, logits[1:], labels)
