"""SGD and AdamW with all of CIFAR-10, without and with ⊥Grad.

Takes 11 minutes on one H200, after `all_images_tuning`. See PLAN.md.
"""

from experiments.studies.all_images_tuning import TUNING

STUDY = TUNING.contest("all_images", "scaled_loss", seeds=5, first_seed=500)
