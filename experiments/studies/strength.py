"""⊥Grad of less strength, ramped in and ramped out.

    python -m experiments run strength

takes one H200 11:39 after `schedules`, whose SGD and ⊥Grad it uses.
The question, and what follows from which answer, is in PLAN.md.
"""

import dataclasses

from experiments.studies import schedules
from experiments.studies.schedules import COSINE, ORTHOGRAD_COSINE

_parts = (
  *(
    dataclasses.replace(
      ORTHOGRAD_COSINE, name=f"strength_{strength:g}", strength=strength
    )
    for strength in (0.25, 0.5, 0.75)
  ),
  dataclasses.replace(
    ORTHOGRAD_COSINE, name="ramped_in", strength=0.0, strength_at_end=1.0
  ),
  dataclasses.replace(ORTHOGRAD_COSINE, name="ramped_out", strength_at_end=0.0),
)

STUDY = dataclasses.replace(
  schedules.STUDY,
  name="strength",
  models_of="schedules",
  methods=(COSINE, ORTHOGRAD_COSINE, *_parts),
  pairs=tuple(
    (COSINE.name, method.name) for method in (ORTHOGRAD_COSINE, *_parts)
  ),
)
