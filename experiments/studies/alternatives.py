"""One-line alternatives in place of ⊥Grad.

Trains nothing after `methods`, whose runs it compares. See PLAN.md, `methods`.
"""

from experiments.studies import methods
from experiments.studies.schedules import ORTHOGRAD_COSINE

STUDY = methods.STUDY.comparing(
  *((ORTHOGRAD_COSINE, other) for other in methods.ALTERNATIVES),
  name="alternatives",
)
