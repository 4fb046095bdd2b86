"""ResNet-18 for 1000 epochs, 5 seeds × {SGD, ⊥Grad}, clean and corrupted.

Takes 19:27 on one H200. Expected: from SGD to ⊥Grad, max logit 8.0 → 3.1 and a
confidence of 92 → 74 %, at an accuracy of 81 and 82 %; under corruption, ECE
0.24 → 0.11 and accuracy 64 → 61 %.
"""

from experiments import datasets
from experiments.config import Config, Study

STUDY = Study(
  name="extended",
  config=Config(epochs=1000),
  seeds=5,
  evaluate_every=20,
  corruptions=datasets.CORRUPTIONS,
  corrupted_at=(100, 200, 400, 700),
  diagnostics=True,
)
