"""⊥Grad at a constant learning rate, and with a cosine schedule.

Takes 12 minutes on one H200. Its runs are the baseline of `where`, `masked`,
`strength`, `decay` and `methods`. See PLAN.md.
"""

from experiments import datasets
from experiments.config import ORTHOGRAD, SGD, Study, with_orthograd

# At the learning rate that pilot_rates chose.
COSINE = SGD.replace(name="cosine", schedule="cosine", learning_rate=0.3)
ORTHOGRAD_COSINE = with_orthograd(COSINE)

STUDY = Study(
  name="schedules",
  seeds=10,
  first_seed=100,
  corruptions=datasets.CORRUPTIONS,
  ensembles=(5,),
).comparing((SGD, ORTHOGRAD), (COSINE, ORTHOGRAD_COSINE))
