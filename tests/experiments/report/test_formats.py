"""How names and numbers are written."""

import numpy as np
import pytest

from experiments.report import formats, paper


@pytest.mark.parametrize(
  ("p", "text"),
  [(0.86, "0.860"), (0.001, "0.001"), (0.00099, "0.00099"), (2e-7, "2e-7")],
)
def test_p_value(p, text):
  assert formats.p_value(p) == text


def test_runs():
  runs = np.array([1.0, 2.0, 4.0])
  assert formats.mean(runs) == "2.33"
  assert formats.spread(runs, "loss") == "2.333 ± 1.528"
  assert formats.with_error(runs, "ece") == "2.3333 ± 0.8819"


def test_differences():
  assert formats.signed(0.01234, "loss") == "+0.012"
  assert formats.interval((-0.5, 0.25)) == "(-0.50, +0.25)"


def test_printed():
  found = formats.printed(paper.TABLE_1["max_softmax"])
  assert found.pair == "0.920 / 0.914"
  assert found.d == "-1.06" and found.p == "0.002"
  found = formats.printed(paper.TABLE_1["confidence_correlation"])
  assert (found.pair, found.d, found.p) == ("0.445 / 0.467", "", "")
  assert set(formats.printed(None)) == {""} and formats.printed(None).pair == ""


def test_names():
  assert formats.label("gaussian_noise") == "gaussian noise"
  assert formats.bare("top1") == "top-1 accuracy"
