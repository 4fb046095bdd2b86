"""⊥Grad by learning rate and weight decay.

Takes 17 minutes on one H200. See PLAN.md.
"""

import itertools

from experiments.config import SGD, Config, Study, with_orthograd
from experiments.tuning import named

RATES = 0.03, 0.1, 0.3, 1.0
DECAYS = 0.0, 1e-4, 5e-4, 2e-3, 8e-3

_plain = tuple(
  named(SGD.replace(schedule="cosine"), learning_rate=rate, weight_decay=decay)
  for rate, decay in itertools.product(RATES, DECAYS)
)
_projected = tuple(map(with_orthograd, _plain))

STUDY = Study(
  "map", Config(reserve=True), outcome="loss", seeds=3, first_seed=600
).comparing(
  *zip(_plain, _projected, strict=True), methods=(*_plain, *_projected)
)
