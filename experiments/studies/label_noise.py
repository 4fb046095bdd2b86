"""SGD and ⊥Grad where a fifth of the labels is wrong.

    python -m experiments run label_noise

takes one H200 6 minutes, after `label_noise_tuning`. The question, and what
follows from which answer, is in PLAN.md.
"""

from experiments.config import Study
from experiments.studies import label_noise_tuning
from experiments.tuning import chosen_twice

_methods, _pairs = chosen_twice(
  label_noise_tuning.STUDY, label_noise_tuning.GRIDS
)

STUDY = Study(
  name="label_noise",
  config=label_noise_tuning.RECIPE,
  methods=_methods,
  pairs=_pairs,
  seeds=10,
  first_seed=510,
)
