"""SGD and ⊥Grad where a fifth of the labels is wrong, after T.

    python -m experiments run label_noise

takes one H200 4 minutes, after `label_noise_tuning`. The question, and what
follows from which answer, is in PLAN.md.
"""

from experiments.config import Study
from experiments.studies.label_noise_tuning import GRIDS, RECIPE
from experiments.studies.label_noise_tuning import STUDY as TUNING
from experiments.tuning import against_orthograd, chosen

_methods = chosen(TUNING, GRIDS, "scaled_loss")

STUDY = Study(
  name="label_noise",
  config=RECIPE,
  methods=_methods,
  pairs=against_orthograd(_methods),
  outcome="crossed_loss",
  seeds=10,
  first_seed=510,
)
