"""SGD and AdamW with all of CIFAR-10, without and with ⊥Grad.

    python -m experiments run all_images

takes one H200 14 minutes, after `all_images_tuning`. The question, and what
follows from which answer, is in PLAN.md.
"""

from experiments.config import Study
from experiments.studies import all_images_tuning
from experiments.tuning import chosen

_sgd, _orthograd, _adamw, _orthograd_adamw = chosen(
  all_images_tuning.STUDY, all_images_tuning.GRIDS, "scaled_loss"
)

STUDY = Study(
  name="all_images",
  config=all_images_tuning.RECIPE,
  methods=(_sgd, _orthograd, _adamw, _orthograd_adamw),
  pairs=(
    (_sgd.name, _orthograd.name),
    (_adamw.name, _orthograd_adamw.name),
  ),
  outcome="crossed_loss",
  seeds=5,
  first_seed=500,
)
