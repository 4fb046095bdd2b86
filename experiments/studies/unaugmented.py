"""extended without augmentation, 2 seeds × {SGD, ⊥Grad}.

    python -m experiments run unaugmented

was not run yet. It tells whether that is what the paper's accuracies after 1000
epochs are of.
"""

import dataclasses

from experiments.studies import extended

STUDY = dataclasses.replace(
  extended.STUDY,
  name="unaugmented",
  config=dataclasses.replace(extended.STUDY.config, augment=False),
  seeds=2,
  evaluate_every=100,
  corrupted_at=(),
)
