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


def _pairs():
  for name, settings in _TUNED.items():
    plain, projected = (
      METHODS[name].replace(
        schedule="cosine", learning_rate=rate, weight_decay=decay
      )
      for rate, decay in settings
    )
    yield plain, with_orthograd(projected)


_pairs_of_methods = tuple(_pairs())

STUDY = schedules.STUDY.replace(
  name="optimizers",
  models_of="schedules",
  methods=tuple(method for pair in _pairs_of_methods for method in pair),
  pairs=tuple((a.name, b.name) for a, b in _pairs_of_methods),
)
