"""One-line alternatives in place of ⊥Grad.

Trains nothing after `methods`, whose runs it compares. See PLAN.md, `methods`.
"""

from experiments.studies import methods
from experiments.studies.methods import ALTERNATIVES
from experiments.studies.schedules import ORTHOGRAD_COSINE

STUDY = methods.STUDY.replace(
  name="alternatives",
  methods=(ORTHOGRAD_COSINE, *ALTERNATIVES),
  pairs=tuple((ORTHOGRAD_COSINE.name, other.name) for other in ALTERNATIVES),
)
