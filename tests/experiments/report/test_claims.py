"""One rule for verdicts."""

import numpy as np
import pytest

from experiments.report import claims, compare, paper


def row(low, high, metric="loss", adjusted=None):
  """With about that interval of the difference, and an adjusted p."""
  rng = np.random.default_rng(0)
  noise = rng.normal(size=20)
  noise = (noise - noise.mean()) / noise.std(ddof=1)
  margin = 2.093024 / np.sqrt(20)  # Student's t of 19, 97.5 %
  change = (low + high) / 2 + noise * (high - low) / 2 / margin
  found = compare.Compared(metric, np.zeros(20), change)
  np.testing.assert_allclose(found.interval, (low, high), rtol=1e-5)
  found.adjusted = found.p if adjusted is None else adjusted
  return found


LOWER, HIGHER, UNSURE = row(-0.3, -0.1), row(0.1, 0.3), row(-0.3, 0.1)


@pytest.mark.parametrize(
  ("sign", "rows", "verdict"),
  [
    (-1, [LOWER], "confirmed"),
    (1, [LOWER], "contradicted"),
    (-1, [UNSURE], "not confirmed"),
    (1, [UNSURE], "not confirmed"),
    # An interval without 0 is not enough if the adjusted p isn't.
    (-1, [row(-0.3, -0.1, adjusted=0.06)], "not confirmed"),
    # Of several cells, all must be so, and none the other way.
    (-1, [LOWER, LOWER], "confirmed"),
    (-1, [LOWER, UNSURE], "not confirmed"),
    (-1, [LOWER, HIGHER], "contradicted"),
    # No difference: within the margin, and not significant.
    (0, [row(-0.01, 0.019)], "confirmed"),
    (0, [row(-0.01, 0.021)], "not confirmed"),
    (0, [row(0.001, 0.019)], "contradicted"),
    (0, [row(-0.4, 0.45, "top1")], "confirmed"),
    (0, [row(-0.4, 0.55, "top1")], "not confirmed"),
    # Without a margin nothing is shown to be the same.
    (0, [row(-1e-6, 1e-6, "ece")], "not confirmed"),
  ],
)
def test_verdict(sign, rows, verdict):
  assert claims.verdict(sign, rows) == verdict


def test_what_the_paper_claims():
  signs = {m: paper.sign(m, r) for m, r in paper.TABLE_1.items()}
  assert {m for m, s in signs.items() if s == 0} == {
    "top1",
    "top5",
    "weight_norm",
  }
  assert {m for m, s in signs.items() if s > 0} == {
    "entropy",
    "confidence_correlation",
  }
