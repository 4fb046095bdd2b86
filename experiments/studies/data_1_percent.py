"""⊥Grad with 1 % of CIFAR-10.

Has as many steps as `schedules`, and takes 5 minutes on one H200. See PLAN.md,
`data_size`.
"""

from experiments.config import Config
from experiments.studies import schedules

STUDY = schedules.STUDY.comparing(
  (schedules.COSINE, schedules.ORTHOGRAD_COSINE),
  name="data_1_percent",
  config=Config(per_class=50, epochs=988),  # 8 steps each: 7,904, not 7,900
)
