"""Temperature scaling of table1's models: the best T, ECE and Brier score.

python -m experiments run temperature
"""

import dataclasses

from experiments.studies import table1

STUDY = dataclasses.replace(
  table1.STUDY, name="temperature", models_of="table1"
)
