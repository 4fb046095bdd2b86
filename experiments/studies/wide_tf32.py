"""wide in TF32 instead of bfloat16, 2 seeds × {SGD, ⊥Grad}, every 4 epochs.

Takes 9:09 minutes on one H200. It asks whether the precision of convolutions is
what keeps wide from the paper's loss and accuracies.
"""

from experiments.studies import wide

STUDY = wide.STUDY.replace(
  name="wide_tf32",
  config=wide.STUDY.config.replace(precision="tf32"),
  seeds=2,
  evaluate_every=4,
  corruptions=(),
)
