"""SGD, ⊥Grad, mixup and focal loss on Fashion-MNIST.

    python -m experiments run fashion

takes one H200 14 minutes, after `fashion_tuning`. The question, and what
follows from which answer, is in PLAN.md.
"""

from experiments.config import Study
from experiments.studies import fashion_tuning
from experiments.tuning import chosen_twice

_methods, _pairs = chosen_twice(fashion_tuning.STUDY, fashion_tuning.GRIDS)

STUDY = Study(
  name="fashion",
  config=fashion_tuning.RECIPE,
  methods=_methods,
  pairs=_pairs,
  seeds=10,
  first_seed=520,
)
