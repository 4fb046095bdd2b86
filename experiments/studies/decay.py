"""⊥Grad and weight decay.

    python -m experiments run decay

takes one H200 about 19 minutes after `schedules`, whose runs at 5e-4 it uses.
The question, and what follows from which answer, is in PLAN.md.
"""

import dataclasses

from experiments.config import with_orthograd
from experiments.studies import schedules
from experiments.studies.schedules import COSINE, ORTHOGRAD_COSINE

_plain = tuple(
  dataclasses.replace(COSINE, name=f"decay_{decay:g}", weight_decay=decay)
  for decay in (0.0, 1e-4, 2e-3)
)
_heads = tuple(
  dataclasses.replace(COSINE, name=f"head_decay_{times:g}", head_decay=times)
  for times in (4.0, 16.0)
)
_projected = tuple(map(with_orthograd, _plain))

STUDY = dataclasses.replace(
  schedules.STUDY,
  name="decay",
  models_of="schedules",
  methods=(COSINE, ORTHOGRAD_COSINE, *_plain, *_projected, *_heads),
  pairs=(
    (COSINE.name, ORTHOGRAD_COSINE.name),
    *((a.name, b.name) for a, b in zip(_plain, _projected, strict=True)),
    *((ORTHOGRAD_COSINE.name, head.name) for head in _heads),
  ),
)
