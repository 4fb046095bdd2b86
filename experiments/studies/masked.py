"""⊥Grad on all but the kernels before a norm.

Takes 2:27 on one H200 after `schedules`, whose ⊥Grad it uses. See PLAN.md.
"""

from experiments.studies import schedules
from experiments.studies.schedules import ORTHOGRAD_COSINE

_masked = ORTHOGRAD_COSINE.replace(
  name=f"{ORTHOGRAD_COSINE.name}_unnormed", where="unnormed"
)

STUDY = schedules.STUDY.comparing(
  (ORTHOGRAD_COSINE, _masked), name="masked", models_of="schedules"
)
