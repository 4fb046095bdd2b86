"""Pilot: learning rate and weight decay of AdamW, Lion and Muon.

    python -m experiments run pilot_optimizers

takes one H200 9 minutes; each is tried without ⊥Grad and behind it. It chooses
settings, on seeds that no result is from: see PLAN.md.
"""

import dataclasses
import itertools

from experiments.config import METHODS, Study, with_orthograd
from experiments.studies.pilot_rates import at

# Learning rates, and weight decays, which are multiplied by the former.
GRIDS = {
  "adamw": ((1e-3, 3e-3), (0.05, 0.5)),
  "lion": ((1e-4, 3e-4), (0.5, 5.0)),
  "muon": ((1e-3, 3e-3), (0.05, 0.5)),
}
_plain = tuple(
  at(
    dataclasses.replace(METHODS[name], schedule="cosine"),
    learning_rate=rate,
    weight_decay=decay,
  )
  for name, grid in GRIDS.items()
  for rate, decay in itertools.product(*grid)
)
STUDY = Study(
  name="pilot_optimizers",
  methods=(*_plain, *map(with_orthograd, _plain)),
  seeds=2,
  first_seed=900,
)
