"""⊥Grad with all of CIFAR-10.

Has as many steps as `schedules`, and takes 3 minutes on one H200. See PLAN.md,
`data_size`.
"""

from experiments.config import Config
from experiments.studies import data_1_percent

STUDY = data_1_percent.STUDY.replace(
  name="data_100_percent",
  config=Config(per_class=5000, epochs=10),  # 782 steps each: 7,820, not 7,900
  seeds=5,
)
