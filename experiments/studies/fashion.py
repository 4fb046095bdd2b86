"""SGD, ⊥Grad, mixup and focal loss on Fashion-MNIST, after T.

    python -m experiments run fashion

takes one H200 8 minutes, after `fashion_tuning`. The question, and what
follows from which answer, is in PLAN.md.
"""

from experiments.config import Study
from experiments.studies.fashion_tuning import GRIDS, RECIPE
from experiments.studies.fashion_tuning import STUDY as TUNING
from experiments.tuning import against_orthograd, chosen

_methods = chosen(TUNING, GRIDS, "scaled_loss")

STUDY = Study(
  name="fashion",
  config=RECIPE,
  methods=_methods,
  pairs=against_orthograd(_methods),
  outcome="crossed_loss",
  seeds=10,
  first_seed=520,
)
