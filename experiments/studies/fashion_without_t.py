"""SGD, ⊥Grad, mixup and focal loss on Fashion-MNIST, without T.

Takes 9 minutes on one H200, after `fashion_tuning`. See PLAN.md.
"""

from experiments.studies.fashion_tuning import GRIDS
from experiments.studies.fashion_tuning import STUDY as TUNING
from experiments.tuning import contest

STUDY = contest(
  "fashion_without_t", TUNING, GRIDS, "loss", seeds=10, first_seed=520
)
