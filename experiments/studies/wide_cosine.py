"""⊥Grad with WRN-28-10 and a cosine schedule.

Takes 12 minutes on one H200. See PLAN.md.
"""

from experiments.config import with_orthograd
from experiments.studies import schedules, wide

# The learning rate of the network's own paper.
COSINE = schedules.COSINE.replace(learning_rate=0.1)

STUDY = schedules.STUDY.comparing(
  (COSINE, with_orthograd(COSINE)),
  name="wide_cosine",
  config=wide.STUDY.config,
  seeds=5,
)
