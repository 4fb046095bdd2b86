"""SGD, ⊥Grad, mixup and focal loss on Fashion-MNIST, after T.

    python -m experiments run fashion

takes one H200 9 minutes, after `fashion_tuning`. See PLAN.md.
"""

from experiments.studies.fashion_tuning import GRIDS
from experiments.studies.fashion_tuning import STUDY as TUNING
from experiments.tuning import contest

STUDY = contest(
  "fashion", TUNING, GRIDS, "scaled_loss", seeds=10, first_seed=520
)
