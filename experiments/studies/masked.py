"""⊥Grad on all but the kernels before a norm.

    python -m experiments run masked

takes one H200 2:27 after `schedules`, whose ⊥Grad it uses. The question, and
what follows from which answer, is in PLAN.md.
"""

import dataclasses

from experiments.studies import schedules
from experiments.studies.schedules import ORTHOGRAD_COSINE

_masked = dataclasses.replace(
  ORTHOGRAD_COSINE, name=f"{ORTHOGRAD_COSINE.name}_unnormed", where="unnormed"
)

STUDY = dataclasses.replace(
  schedules.STUDY,
  name="masked",
  models_of="schedules",
  methods=(ORTHOGRAD_COSINE, _masked),
  pairs=((ORTHOGRAD_COSINE.name, _masked.name),),
)
