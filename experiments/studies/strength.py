"""⊥Grad of less strength, ramped in and ramped out.

Takes 11:39 on one H200 after `schedules`, whose SGD and ⊥Grad it uses. See
PLAN.md.
"""

from experiments.studies import schedules
from experiments.studies.schedules import COSINE, ORTHOGRAD_COSINE

_parts = (
  *(
    ORTHOGRAD_COSINE.replace(name=f"strength_{strength:g}", strength=strength)
    for strength in (0.25, 0.5, 0.75)
  ),
  ORTHOGRAD_COSINE.replace(name="ramped_in", strength=0.0, strength_at_end=1.0),
  ORTHOGRAD_COSINE.replace(name="ramped_out", strength_at_end=0.0),
)

STUDY = schedules.STUDY.comparing(
  *((COSINE, method) for method in (ORTHOGRAD_COSINE, *_parts)),
  name="strength",
  models_of="schedules",
)
