"""⊥Grad with all of CIFAR-10.

    python -m experiments run data_100_percent

has as many steps as `schedules`, and takes one H200 3 minutes. See PLAN.md,
`data_size`.
"""

from experiments.config import Config
from experiments.studies import data_1_percent

STUDY = data_1_percent.STUDY.replace(
  name="data_100_percent",
  config=Config(per_class=5000, epochs=10),  # 782 steps each: 7,820, not 7,900
  seeds=5,
)
