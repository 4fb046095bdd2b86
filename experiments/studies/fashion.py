"""SGD, ⊥Grad, mixup and focal loss on Fashion-MNIST, after T.

Takes 6 minutes on one H200, after `fashion_tuning`. See PLAN.md.
"""

from experiments.studies.fashion_tuning import TUNING

STUDY = TUNING.contest("fashion", "scaled_loss", seeds=10, first_seed=520)
