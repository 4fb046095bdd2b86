"""SGD and ⊥Grad where a fifth of the labels is wrong, without T.

Takes 4 minutes on one H200, after `label_noise_tuning`. See PLAN.md.
"""

from experiments.studies.label_noise_tuning import GRIDS
from experiments.studies.label_noise_tuning import STUDY as TUNING
from experiments.tuning import contest

STUDY = contest(
  "label_noise_without_t", TUNING, GRIDS, "loss", seeds=10, first_seed=510
)
