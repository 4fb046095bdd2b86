"""⊥Grad with WRN-28-10 and a cosine schedule.

Takes 12 minutes on one H200. See PLAN.md.
"""

from experiments.config import with_orthograd
from experiments.studies import schedules, wide

# The learning rate of the network's own paper.
COSINE = schedules.COSINE.replace(learning_rate=0.1)
ORTHOGRAD_COSINE = with_orthograd(COSINE)

STUDY = schedules.STUDY.replace(
  name="wide_cosine",
  config=wide.STUDY.config,
  methods=(COSINE, ORTHOGRAD_COSINE),
  pairs=((COSINE.name, ORTHOGRAD_COSINE.name),),
  seeds=5,
)
