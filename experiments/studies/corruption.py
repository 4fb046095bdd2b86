"""table1's models on CIFAR-10-C: 15 corruptions and 4 extra, 5 severities.

Takes 2:39 on one H200 after table1. Expected: from severity 1 to 5, an accuracy
of 71 to 51 %, with ⊥Grad's loss and ECE lower at each.
"""

from experiments import datasets
from experiments.studies import table1

STUDY = table1.STUDY.replace(
  name="corruption", models_of="table1", corruptions=datasets.ALL_CORRUPTIONS
)
