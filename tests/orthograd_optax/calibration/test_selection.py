"""Recalibrators of a report against `calibration.fit`."""

import chex
import jax
import numpy as np
import pytest
from small_reports import EXAMPLES, calibrated, overconfident, report

from orthograd_optax import calibration


def test_fit_on_a_validation_set():
  """All numbers are of the other examples."""
  logits, labels = overconfident(0, 3 * EXAMPLES // 2)
  validation = np.arange(len(labels)) % 3 == 0
  result = report(logits, labels, fit=validation)
  test = logits[~validation], labels[~validation]
  assert result.examples == EXAMPLES
  assert result.metrics["ece"].value == pytest.approx(
    float(calibration.ece(*test)), rel=1e-5
  )
  expected = calibration.fit(logits[validation], labels[validation])
  half = result.fitted_temperature
  assert half is not None
  assert half.value == pytest.approx(float(expected.temperature), rel=1e-5)
  rows = [error.row for error in result.confident_errors]
  assert all(row % 3 != 0 for row in rows)


@pytest.mark.parametrize("classes", [2, 4])
def test_recalibrators_are_those_of_fit(classes):
  """Fitted to the same half; temperatures in NumPy and in JAX."""
  logits, labels = calibrated(0, classes, 600)
  logits = 2 * logits + np.arange(classes, dtype=np.float32)
  result = report(logits, labels).recalibrators
  fit, _ = calibration.split(labels)
  pair = logits[fit], labels[fit]
  assert ("platt" in result) == (classes == 2)
  for method, recalibrate in result.items():
    expected = calibration.fit(*pair, method)
    losses = [
      float(calibration.nll(one(pair[0]), pair[1]))
      for one in (recalibrate, expected)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5), method
    np.testing.assert_allclose(
      jax.nn.softmax(recalibrate(pair[0])),
      jax.nn.softmax(expected(pair[0])),
      atol=2e-3,
    )
  alike = report(np.full((60, 3), 0.3) + 5, labels[:60] % 3)
  assert alike.recalibrated["vector"]["nll"].value < 2  # and not 1e7


def test_recalibrators_take_what_the_report_took():
  """Also the scores of two classes, and the printed code works for them."""
  logits, labels = calibrated(0, 2, 300)
  scores = 3 * (logits[:, 1] - logits[:, 0])
  for given in (scores, scores[:, None], np.stack([0 * scores, scores], 1)):
    result = report(given, labels)
    assert result.metrics["nll"].value == pytest.approx(
      float(calibration.nll(given, labels)), rel=1e-5
    )
    for recalibrate in result.recalibrators.values():
      assert recalibrate.columns == (2 if given.shape == (300, 2) else 1)
      p = jax.nn.softmax(recalibrate(given))
      chex.assert_shape(p, (300, 2))
      np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
