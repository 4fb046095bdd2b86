"""Which protocol gives the paper's accuracies? Batches of 512, one seed.

Takes 3 minutes on one H200. See PLAN.md, `extended_screen`.
"""

from experiments.config import ORTHOGRAD, SGD
from experiments.studies import extended_screen

STUDY = extended_screen.STUDY.comparing(
  (SGD, ORTHOGRAD),
  name="extended_screen_batch",
  config=extended_screen.STUDY.config.replace(batch_size=512),
)
