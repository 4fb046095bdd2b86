"""⊥Grad in ensembles of five networks.

    python -m experiments run ensembles

takes one H200 about 12 minutes. The question, and what follows from which
answer, is in PLAN.md.
"""

import dataclasses

from experiments.studies import schedules
from experiments.studies.schedules import COSINE, ORTHOGRAD_COSINE

_alone = dataclasses.replace(
  schedules.STUDY,
  name="ensembles",
  methods=(COSINE, ORTHOGRAD_COSINE),
  pairs=(),
  seeds=25,
  first_seed=300,
)
STUDY = dataclasses.replace(_alone, pairs=(_alone.pooled,))
