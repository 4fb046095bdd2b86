"""SGD, ⊥Grad, mixup and focal loss on Fashion-MNIST, without T.

    python -m experiments run fashion_without_t

takes one H200 9 minutes, after `fashion_tuning`. See PLAN.md.
"""

from experiments.studies.fashion_tuning import GRIDS
from experiments.studies.fashion_tuning import STUDY as TUNING
from experiments.tuning import contest

STUDY = contest(
  "fashion_without_t", TUNING, GRIDS, "loss", seeds=10, first_seed=520
)
