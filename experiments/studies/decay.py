"""⊥Grad and weight decay.

Takes 17 minutes on one H200 after `schedules`, whose runs at 5e-4 it uses. See
PLAN.md.
"""

from experiments.config import with_orthograd
from experiments.studies import schedules
from experiments.studies.schedules import COSINE, ORTHOGRAD_COSINE

_none, _little, _much = (
  COSINE.replace(name=f"decay_{decay:g}", weight_decay=decay)
  for decay in (0.0, 1e-4, 2e-3)
)
# By weight decay; COSINE's is 5e-4.
_plain = (_none, _little, COSINE, _much)
_projected = tuple(map(with_orthograd, _plain))
_heads = tuple(
  COSINE.replace(name=f"head_decay_{times:g}", head_decay=times)
  for times in (4.0, 16.0)
)

STUDY = schedules.STUDY.comparing(
  # ⊥Grad beside SGD, at each weight decay.
  *zip(_plain, _projected, strict=True),
  *((ORTHOGRAD_COSINE, head) for head in _heads),
  name="decay",
  models_of="schedules",
  methods=(*_plain, *_projected, *_heads),
)
