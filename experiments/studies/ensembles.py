"""⊥Grad in ensembles of five networks.

Takes 11 minutes on one H200. See PLAN.md.
"""

from experiments.config import ensemble
from experiments.studies import schedules
from experiments.studies.schedules import COSINE, ORTHOGRAD_COSINE

STUDY = schedules.STUDY.replace(
  name="ensembles",
  methods=(COSINE, ORTHOGRAD_COSINE),
  pairs=((ensemble(COSINE.name, 5), ensemble(ORTHOGRAD_COSINE.name, 5)),),
  seeds=25,
  first_seed=300,
)
