"""wide in TF32 instead of bfloat16, 2 seeds × {SGD, ⊥Grad}, every 4 epochs.

    python -m experiments run wide_tf32

takes 9:09 minutes on one H200. It asks whether the precision of convolutions is
what keeps wide from the paper's loss and accuracies.
"""

import dataclasses

from experiments.studies import wide

STUDY = dataclasses.replace(
  wide.STUDY,
  name="wide_tf32",
  config=dataclasses.replace(wide.STUDY.config, precision="tf32"),
  seeds=2,
  evaluate_every=4,
  corruptions=(),
)
