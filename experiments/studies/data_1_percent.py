"""⊥Grad with 1 % of CIFAR-10.

Has as many steps as `schedules`, and takes 5 minutes on one H200. See PLAN.md,
`data_size`.
"""

from experiments.config import Config
from experiments.studies import schedules
from experiments.studies.schedules import COSINE, ORTHOGRAD_COSINE

STUDY = schedules.STUDY.replace(
  name="data_1_percent",
  config=Config(per_class=50, epochs=988),  # 8 steps each: 7,904, not 7,900
  methods=(COSINE, ORTHOGRAD_COSINE),
  pairs=((COSINE.name, ORTHOGRAD_COSINE.name),),
)
