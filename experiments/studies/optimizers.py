"""⊥Grad with AdamW, Lion and Muon.

Takes 17 minutes on one H200. See PLAN.md.
"""

from experiments.config import METHODS, with_orthograd
from experiments.studies import schedules

# Learning rate and weight decay that pilot_optimizers chose, without ⊥Grad and
# with it.
_TUNED = {
  "adamw": ((3e-3, 0.5), (1e-2, 0.05)),
  "lion": ((3e-4, 5.0), (1e-3, 0.5)),
  "muon": ((3e-3, 0.5), (1e-2, 0.05)),
}


def _at(name, rate, decay):
  return METHODS[name].replace(
    schedule="cosine", learning_rate=rate, weight_decay=decay
  )


STUDY = schedules.STUDY.comparing(
  *(
    (_at(name, *plain), with_orthograd(_at(name, *projected)))
    for name, (plain, projected) in _TUNED.items()
  ),
  name="optimizers",
  models_of="schedules",
)
