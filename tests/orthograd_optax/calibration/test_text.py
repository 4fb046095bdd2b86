"""The words of a report follow from its numbers."""

import re

import numpy as np
import pytest
from small_reports import EXAMPLES, made, overconfident

from orthograd_optax import calibration
from orthograd_optax.calibration import _table, _text


def test_one_number_for_each_name():
  """The page says which examples a number describes."""
  page, result = made().html(), made()
  assert result.fitted_temperature is not None
  fitted = result.fitted_temperature.value
  assert f"fitted temperature is {fitted:.3g}" in page
  assert result.fit_examples == result.held_out_examples == EXAMPLES // 2
  assert "on 200 held-out examples" in page
  assert "All numbers, on 400 examples" in page
  gap = 100 * result.metrics["overconfidence"].value
  before, after = (
    100 * result.recalibrated[k]["ece"].value
    for k in ("uncalibrated", "temperature")
  )
  answer = (
    f"No. It is overconfident by {gap:.1f} points. Dividing the logits by "
    f"{fitted:.3g} lowers ECE from {before:.1f} % to {after:.1f} % on 200 "
    "held-out examples."
  )
  assert f'<div class="box"><p>{answer}</p></div>' in page
  assert answer in str(result) and result.to_dict()["answer"] == answer


def test_table():
  text = str(made())
  for label in (m.label for m in _table.METRICS.values()):
    assert label in text
  value, low, high = made().metrics["ece"]
  assert re.search(rf"\nECE +{value:.4f} +\({low:.4f}, {high:.4f}\)\n", text)
  assert "Next: Recalibrate: temperature." in text
  assert 'calibration.fit(logits, labels, "temperature")' in text


def test_the_code_of_the_recommendation_runs(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  _, code = _text.recommendation(made())
  logits, labels = overconfident()
  names = {"logits": logits, "labels": labels, "new_logits": logits}
  exec(code, names)
  np.testing.assert_allclose(names["probabilities"].sum(axis=1), 1, rtol=1e-5)
  assert calibration.load("recalibrator.json").method == "temperature"


@pytest.mark.parametrize(
  ("gap", "p", "words"),
  [
    ((0.1, 0.05, 0.15), 0.001, "No: it is overconfident"),
    ((-0.1, -0.15, -0.05), 0.001, "No: it is underconfident"),
    ((0.01, -0.05, 0.07), 0.001, "On average, yes, but not at every"),
    ((-0.1, -0.15, -0.05), 0.3, "There is no evidence"),
  ],
)
def test_words_follow_from_numbers(gap, p, words):
  """All verdicts of a page agree with p."""
  metrics = made().metrics | {"overconfidence": calibration.Estimate(*gap)}
  changed = {"metrics": metrics, "p_calibrated": p, "best": None}
  changed = calibration.Report(**(vars(made()) | changed))
  assert words in _text.answers(changed)["gap"].text
  assert _text.answer(changed).startswith("No." if p < 0.05 else "There is no")
  assert ("Yes." in _text.answers(changed)["noise"].text) == (p < 0.05)
