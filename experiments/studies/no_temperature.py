"""Ten methods for users who cannot fit a temperature.

    python -m experiments run no_temperature

takes one H200 about half an hour, after `no_temperature_tuning`. The question,
and what follows from which answer, is in PLAN.md.
"""

from experiments import datasets
from experiments.config import Study
from experiments.studies.no_temperature_tuning import GRIDS, RECIPE
from experiments.studies.no_temperature_tuning import STUDY as TUNING
from experiments.tuning import against_orthograd, chosen

_methods = chosen(TUNING, GRIDS, "loss")
_arms = "held_out_temperature", "cross_validated"

STUDY = Study(
  name="no_temperature",
  config=RECIPE,
  methods=_methods,
  pairs=against_orthograd(_methods, _arms),
  outcome="loss",
  seeds=10,
  first_seed=400,
  corruptions=datasets.CORRUPTIONS,
  arms=_arms,
)
