"""Pilot: the learning rate of SGD and ⊥Grad with warm-up and cosine.

Takes 3 minutes on one H200. It chooses settings, on seeds that no result is
from: see PLAN.md.
"""

from experiments.config import SGD, Study, with_orthograd
from experiments.tuning import named

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
_plain = tuple(
  named(SGD.replace(schedule="cosine"), learning_rate=rate) for rate in RATES
)
STUDY = Study(
  name="pilot_rates",
  methods=(*_plain, *map(with_orthograd, _plain)),
  seeds=2,
  first_seed=900,
)
