"""Pilot: learning rate and weight decay of AdamW, Lion and Muon.

Takes 15 minutes on one H200; each is tried without ⊥Grad and behind it. It
chooses settings, on seeds that no result is from: see PLAN.md.
"""

import itertools

from experiments.config import METHODS, Study, with_orthograd
from experiments.tuning import named

# Learning rates, and weight decays, which are multiplied by the former.
GRIDS = {
  "adamw": ((1e-3, 3e-3), (0.05, 0.5)),
  "lion": ((1e-4, 3e-4), (0.5, 5.0)),
  "muon": ((1e-3, 3e-3), (0.05, 0.5)),
}
# The best were at an edge: a step beyond it, without ⊥Grad and with it.
BEYOND = {
  "adamw": (((1e-2, 0.5), (3e-3, 5.0)), ((1e-2, 0.05), (3e-3, 0.005))),
  "lion": (((1e-3, 5.0), (3e-4, 50.0)), ((1e-3, 0.5), (3e-4, 0.05))),
  "muon": (((1e-2, 0.5), (3e-3, 5.0)), ((1e-2, 0.05), (3e-3, 0.005))),
}


def _methods():
  for name, (plain, projected) in BEYOND.items():
    base = METHODS[name].replace(schedule="cosine")
    first = list(itertools.product(*GRIDS[name]))
    for rate, decay in (*first, *plain):
      yield named(base, learning_rate=rate, weight_decay=decay)
    for rate, decay in (*first, *projected):
      method = named(base, learning_rate=rate, weight_decay=decay)
      yield with_orthograd(method)


STUDY = Study(
  name="pilot_optimizers", methods=tuple(_methods()), seeds=2, first_seed=900
)
