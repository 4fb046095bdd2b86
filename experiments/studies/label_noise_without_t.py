"""SGD and ⊥Grad where a fifth of the labels is wrong, without T.

Takes 4 minutes on one H200, after `label_noise_tuning`. See PLAN.md.
"""

from experiments.studies.label_noise_tuning import TUNING

STUDY = TUNING.contest(
  "label_noise_without_t", "loss", seeds=10, first_seed=510
)
