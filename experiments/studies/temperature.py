"""Temperature scaling of table1's models: the best T, ECE and Brier score.

    python -m experiments run temperature

has nothing to do after table1. Expected: T 2.8 for SGD and 2.7 for ⊥Grad, and
an ECE of 0.01 for both after scaling.
"""

import dataclasses

from experiments.studies import table1

STUDY = dataclasses.replace(
  table1.STUDY, name="temperature", models_of="table1"
)
