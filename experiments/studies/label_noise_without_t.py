"""SGD and ⊥Grad where a fifth of the labels is wrong, without T.

    python -m experiments run label_noise_without_t

takes one H200 4 minutes, after `label_noise_tuning`. The question, and what
follows from which answer, is in PLAN.md.
"""

import dataclasses

from experiments.studies import label_noise
from experiments.studies.label_noise_tuning import GRIDS
from experiments.studies.label_noise_tuning import STUDY as TUNING
from experiments.tuning import against_orthograd, chosen

_methods = chosen(TUNING, GRIDS, "loss")

STUDY = dataclasses.replace(
  label_noise.STUDY,
  name="label_noise_without_t",
  methods=_methods,
  pairs=against_orthograd(_methods),
  outcome="loss",
)
