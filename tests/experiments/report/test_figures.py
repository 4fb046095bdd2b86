"""What the report's own pictures show, read back from the figures."""

import numpy as np
import pytest
from reading import paired

from experiments.report import figures
from experiments.report.outcomes import OUTCOMES
from experiments.studies import extended, table1, wide


def drawn(axis):
  """The names of lines, and the ends of their intervals."""
  names = [tick.get_text() for tick in axis.get_yticklabels()]
  ends = [bars.get_segments()[0][:, 0] for _, _, (bars,) in axis.containers]
  return dict(zip(names, ends, strict=True))


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES)
def test_differences_say_which_side_is_better(outcome):
  changes = {"a": (0.01, -0.02, 0.04), "b": (-0.2, -0.3, -0.1)}
  figure = figures.differences({outcome: changes})
  (axis,) = figure.axes
  for name, (low, high) in drawn(axis).items():
    np.testing.assert_allclose((low, high), changes[name][1:])
  lower_is_better = "accuracy" not in outcome.label
  side = "← better" if lower_is_better else "better →"
  assert side in axis.get_xlabel() and outcome.label in axis.get_xlabel()
  assert [t.get_text() for t in axis.texts] == [
    "+0.010 (−0.020, +0.040)",
    "−0.200 (−0.300, −0.100)",
  ]
  assert len(figure.legends) == (outcome.matters is not None)


def test_before_and_after_scaling(pages, runs):
  (axis,) = pages["replication"].drawings["scaling"]().axes
  shown = drawn(axis)
  cases = {
    "ResNet-18": (table1, range(40)),
    "WRN-28-10": (wide, range(10)),
    "1000 epochs": (extended, range(5)),
  }
  assert len(shown) == 2 * len(cases)
  for name, (study, seeds) in cases.items():
    for words, part in (("as trained", "metrics"), ("after T", "scaled_half")):
      _, low, high, _ = paired(*runs(study, "loss", seeds, part=part))
      np.testing.assert_allclose(shown[f"{name}, {words}"], (low, high))


def test_radial_names_the_networks_and_the_unit(pages):
  figure = pages["replication_appendix"].drawings["radial"]()
  titles = [axis.get_title() for axis in figure.axes]
  assert titles == ["ResNet-18", "WRN-28-10"]
  assert figure.axes[0].get_ylabel() == "share of ‖g‖² along w, %"
