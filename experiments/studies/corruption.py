"""table1's models on CIFAR-10-C: 15 corruptions and 4 extra, 5 severities.

python -m experiments run corruption
"""

import dataclasses

from experiments import corruptions
from experiments.studies import table1

STUDY = dataclasses.replace(
  table1.STUDY,
  name="corruption",
  models_of="table1",
  corruptions=corruptions.ALL,
)
