"""The paper's numbers: Hedges, OrthoGrad Improves Neural Calibration, 2025.

Effect sizes are SGD less ⊥Grad, as in the paper.
"""

from typing import NamedTuple


class Row(NamedTuple):
  """A line of a table that compares two optimizers."""

  sgd: float
  orthograd: float
  d: float | None = None
  p: float | None = None


# ResNet-18, 20 seeds.
TABLE_1 = {
  "top1": Row(75.18, 75.27, -0.05, 0.86),
  "top5": Row(97.67, 97.81, -0.35, 0.28),
  "loss": Row(1.26, 1.19, 0.64, 0.05),
  "ece": Row(0.168, 0.161, 0.48, 0.14),
  "brier": Row(0.408, 0.400, 0.28, 0.37),
  "entropy": Row(0.208, 0.224, -1.11, 0.001),
  "max_softmax": Row(0.920, 0.914, 1.06, 0.002),
  "max_logit": Row(13.58, 13.03, 1.52, 2.5e-5),
  "logit_variance": Row(45.73, 42.30, 2.00, 2e-7),
  "confidence_correlation": Row(0.445, 0.467),
  "temperature": Row(2.80, 2.66, p=0.003),
  "weight_norm": Row(79.69, 79.72, p=0.36),
}
# WRN-28-10, 5 seeds.
WIDE = {
  "top1": Row(78.54, 79.00, -0.35, 0.59),
  "top5": Row(98.05, 97.84, 0.50, 0.44),
  "loss": Row(1.05, 0.88, 2.56, 0.004),
  "ece": Row(0.14, 0.12, 2.40, 0.015),
  "brier": Row(0.35, 0.33, 0.86, 0.21),
  "entropy": Row(0.19, 0.25, -4.18, 2e-4),
  "max_softmax": Row(0.92, 0.91, 2.91, 0.002),
  "max_logit": Row(12.11, 8.68, 11.20, 3e-6),
  "logit_variance": Row(31.37, 13.83, 15.45, 6e-6),
}
# ResNet-18 after 1000 epochs, one seed: on the test set, and by severity.
EXTENDED_CLEAN = Row(70.5, 65.8)
EXTENDED = {
  "top1": [Row(67, 64), Row(63, 63), Row(59, 61), Row(55, 59), Row(51, 55)],
  "loss": [
    Row(1.79, 1.91),
    Row(2.02, 1.93),
    Row(2.62, 2.00),
    Row(2.53, 2.08),
    Row(2.88, 2.24),
  ],
  "ece": [
    Row(0.23, 0.24),
    Row(0.26, 0.24),
    Row(0.29, 0.25),
    Row(0.32, 0.26),
    Row(0.36, 0.28),
  ],
  "confidence_correlation": [
    Row(0.388, 0.382),
    Row(0.366, 0.384),
    Row(0.347, 0.377),
    Row(0.329, 0.374),
    Row(0.301, 0.343),
  ],
}
# After temperature scaling. The paper claims no difference. Its Brier scores
# are divided by the 10 classes; these are not.
TEMPERATURE = {"ece": Row(0.015, 0.015), "brier": Row(0.34, 0.34)}
# ⊥Grad, 10 seeds: renormalized, and not. The paper claims no difference.
RENORMALIZATION = {
  "top1": Row(74.89, 74.14),
  "loss": Row(1.198, 1.230),
  "ece": Row(0.164, 0.167),
  "entropy": Row(0.225, 0.220),
  "max_softmax": Row(0.914, 0.916),
  "max_logit": Row(12.62, 12.56),
}
# Under corruption, the paper has a figure and these claims about ⊥Grad: +1 for
# more, -1 for less, 0 for no difference.
UNDER_CORRUPTION = {
  "top1": 0,
  "loss": -1,
  "entropy": 1,
  "max_softmax": -1,
  "max_logit": -1,
  "logit_variance": -1,
}
# The paper claims that these are the same with both optimizers.
UNCHANGED = ("top1", "top5", "weight_norm")


def sign(metric: str, row: Row) -> int:
  """The sign of ⊥Grad less SGD that the paper claims."""
  if metric in UNCHANGED:
    return 0
  return 1 if row.orthograd > row.sgd else -1
