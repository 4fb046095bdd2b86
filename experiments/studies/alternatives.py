"""One-line alternatives in place of ⊥Grad.

    python -m experiments run alternatives

trains nothing after `methods`, whose runs it compares. The question, and
what follows from which answer, is in PLAN.md under `methods`.
"""

import dataclasses

from experiments.studies import methods
from experiments.studies.methods import ALTERNATIVES
from experiments.studies.schedules import ORTHOGRAD_COSINE

STUDY = dataclasses.replace(
  methods.STUDY,
  name="alternatives",
  methods=(ORTHOGRAD_COSINE, *ALTERNATIVES),
  pairs=tuple((ORTHOGRAD_COSINE.name, other.name) for other in ALTERNATIVES),
)
