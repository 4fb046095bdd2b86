"""SGD, ⊥Grad, mixup and focal loss on Fashion-MNIST, without T.

    python -m experiments run fashion_without_t

takes one H200 8 minutes, after `fashion_tuning`. The question, and what
follows from which answer, is in PLAN.md.
"""

import dataclasses

from experiments.studies import fashion
from experiments.studies.fashion_tuning import GRIDS
from experiments.studies.fashion_tuning import STUDY as TUNING
from experiments.tuning import against_orthograd, chosen

_methods = chosen(TUNING, GRIDS, "loss")

STUDY = dataclasses.replace(
  fashion.STUDY,
  name="fashion_without_t",
  methods=_methods,
  pairs=against_orthograd(_methods),
  outcome="loss",
)
