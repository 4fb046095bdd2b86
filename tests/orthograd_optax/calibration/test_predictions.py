"""What reports take as predictions, and what they refuse."""

import jax
import numpy as np
import pytest
from small_reports import EXAMPLES, overconfident, report

from orthograd_optax import calibration


def test_names_of_classes():
  logits, labels = overconfident()
  names = np.array(["a", "b", "c"])
  by_name = report(logits, names[labels], classes=names)
  assert by_name.metrics == report(logits, labels).metrics
  with pytest.raises(ValueError, match=r"labels\[0\] is '.'.*classes are 'x'"):
    report(logits, names[labels], classes=["x", "y", "z"])
  with pytest.raises(
    ValueError, match="one name for each of the 3 columns.*has 2 names"
  ):
    report(logits, labels, classes=["x", "y"])
  with pytest.raises(TypeError, match="labels = "):
    report(logits, names[labels])


def test_classes_may_be_numbers():
  """Labels are then their names. Beside other names, labels are indices."""
  logits, labels = overconfident()
  expected = report(logits, labels).metrics["accuracy"]
  classes = [7, 1, 3, 5, 9][: logits.shape[1]]
  assert len(classes) == logits.shape[1]
  names = np.array(classes)[np.asarray(labels)]
  words = [f"class {c}" for c in classes]
  for given, known in (
    (names, classes),
    (names.astype(str), classes),
    (jax.numpy.asarray(names), classes),
    (labels, words),
  ):
    result = report(logits, given, classes=known)
    assert result.metrics["accuracy"] == expected
  with pytest.raises(ValueError, match="labels.*is '0', but the classes are"):
    report(logits, 0 * labels, classes=classes)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"row": (7, np.nan)}, r"logits\[7\] has no .* a NaN.*leave it out"),
    ({"row": (9, np.inf)}, r"logits\[9\] has no softmax: it has ∞"),
    ({"row": (9, -np.inf)}, r"logits\[9\] has no softmax: it has only −∞"),
    ({"label": (5, 3)}, r"3 classes.*0 to 2, but labels\[5\] is 3"),
    ({"label": (5, -1)}, r"labels\[5\] is -1"),
    ({"cut": 3}, r"labels must have .* but has \(3,\)"),
    ({"groups": np.zeros(3)}, r"groups has shape \(3,\)"),
    ({"seeds": np.zeros(3)}, r"seeds has shape \(3,\)"),
    (
      {"cut": 3, "seeds": np.arange(EXAMPLES) % 2},
      r"labels must .* \(400,\) for logits .* \(400, 3\), but has \(3,\)",
    ),
    ({"label": (8, 3), "seeds": np.arange(EXAMPLES) % 2}, r"labels\[8\] is 3"),
    (
      {"row": (8, np.nan), "seeds": np.arange(EXAMPLES) % 2},
      r"logits\[8\] has",
    ),
    ({"fit": np.zeros(EXAMPLES)}, "fit has .* float64.*booleans"),
    ({"fit": np.zeros(EXAMPLES, bool)}, "fit must leave.* has 0 of 400"),
    ({"level": 95}, "level must be .* is 95"),
    ({"resamples": 0}, "resamples must be .* is 0"),
    ({"resamples": 19}, "resamples must be at least 20.* no p-value would"),
    ({"num_bins": 0}, "num_bins must be .* 0"),
  ],
)
def test_reports_refuse(change, message):
  logits, labels = overconfident()
  logits, labels = logits.copy(), labels.copy()
  if "row" in change:
    row, value = change.pop("row")
    logits[row] = value
  if "label" in change:
    row, value = change.pop("label")
    labels[row] = value
  labels = labels[: change.pop("cut", None)]
  with pytest.raises(ValueError, match=message):
    calibration.report(logits, labels, **change)


def test_more_refusals():
  logits, labels = overconfident()
  with pytest.raises(ValueError, match=r"seeds\[3\] is NaN"):
    seeds = np.where(np.arange(EXAMPLES) == 3, np.nan, 0)
    report(logits, labels, seeds=seeds)
  with pytest.raises(ValueError, match=r"seeds\[0\] is NaN"):
    report(logits, labels, seeds=np.array(["NaT"] * EXAMPLES, "M8[s]"))
  with pytest.raises(ValueError, match="'a' more than once"):
    report(logits, labels, classes=["a", "b", "a"])
  with pytest.raises(ValueError, match=r"labels\[0\] is '1111.*\.\.\."):
    report(logits, ["1" * 400] * EXAMPLES, classes=["a", "b", "c"])
  p = np.asarray(jax.nn.softmax(logits)).round(2)
  p[:, 0] *= 0.9
  for wrong in (p, np.stack([p, p]), p[:, 0], p[:, :1]):
    with pytest.raises(ValueError, match="look like probabilities"):
      report(wrong, labels % 2)
    with pytest.raises(ValueError, match="look like probabilities"):
      calibration.compare(wrong, wrong, labels % 2)
  outside = np.clip(logits, 0, 1)
  assert not np.allclose(outside.sum(axis=1), 1, atol=0.2)
  report(outside, labels)
