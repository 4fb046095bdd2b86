"""⊥Grad with all of CIFAR-10.

    python -m experiments run data_100_percent

has as many steps as `schedules`, and takes one H200 3 minutes. The
question, and what follows from which answer, is in PLAN.md under `data_size`.
"""

import dataclasses

from experiments.config import Config
from experiments.studies import data_1_percent

STUDY = dataclasses.replace(
  data_1_percent.STUDY,
  name="data_100_percent",
  config=Config(per_class=5000, epochs=10),  # 782 steps each: 7,820, not 7,900
  seeds=5,
)
