"""Pilot: learning rate and weight decay of AdamW, Lion and Muon.

Takes 15 minutes on one H200; each is tried without ⊥Grad and behind it. It
chooses settings, on seeds that no result is from: see PLAN.md.
"""

import itertools

from experiments.config import METHODS, Study, with_orthograd
from experiments.tuning import named

# Learning rates, and weight decays, which are multiplied by the former.
GRIDS = {
  "adamw": itertools.product((1e-3, 3e-3), (0.05, 0.5)),
  "lion": itertools.product((1e-4, 3e-4), (0.5, 5.0)),
  "muon": itertools.product((1e-3, 3e-3), (0.05, 0.5)),
}
# The best were at an edge: a step beyond it, without ⊥Grad and with it.
BEYOND = {
  "adamw": (((1e-2, 0.5), (3e-3, 5.0)), ((1e-2, 0.05), (3e-3, 0.005))),
  "lion": (((1e-3, 5.0), (3e-4, 50.0)), ((1e-3, 0.5), (3e-4, 0.05))),
  "muon": (((1e-2, 0.5), (3e-3, 5.0)), ((1e-2, 0.05), (3e-3, 0.005))),
}


def _methods():
  for name, grid in GRIDS.items():
    base = METHODS[name].replace(schedule="cosine")
    make = lambda rate, decay, base=base: named(
      base, learning_rate=rate, weight_decay=decay
    )
    first = list(itertools.starmap(make, grid))
    plain, projected = (
      list(itertools.starmap(make, more)) for more in BEYOND[name]
    )
    yield from [*first, *plain]
    yield from map(with_orthograd, [*first, *projected])


STUDY = Study(
  name="pilot_optimizers", methods=tuple(_methods()), seeds=2, first_seed=900
)
