"""Which protocol gives the paper's accuracies? Batches of 512, one seed.

    python -m experiments run extended_screen_batch

takes one H200 3 minutes. The question, and what follows from which
answer, is in PLAN.md under `extended_screen`.
"""

import dataclasses

from experiments.config import ORTHOGRAD, SGD
from experiments.studies import extended_screen

STUDY = dataclasses.replace(
  extended_screen.STUDY,
  name="extended_screen_batch",
  config=dataclasses.replace(extended_screen.STUDY.config, batch_size=512),
  methods=(SGD, ORTHOGRAD),
  pairs=((SGD.name, ORTHOGRAD.name),),
)
