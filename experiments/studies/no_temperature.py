"""Ten methods for users who cannot fit a temperature.

    python -m experiments run no_temperature

takes one H200 about half an hour, after `no_temperature_tuning`. The question,
and what follows from which answer, is in PLAN.md.
"""

from experiments import datasets
from experiments.config import Study
from experiments.studies import no_temperature_tuning
from experiments.tuning import chosen

METHODS = chosen(
  no_temperature_tuning.STUDY, no_temperature_tuning.GRIDS, "loss"
)
_by_name = dict(zip(no_temperature_tuning.GRIDS, METHODS, strict=True))

STUDY = Study(
  name="no_temperature",
  config=no_temperature_tuning.RECIPE,
  methods=METHODS,
  pairs=tuple(
    (method.name, _by_name["orthograd"].name)
    for name, method in _by_name.items()
    if name != "orthograd"
  ),
  outcome="loss",
  seeds=10,
  first_seed=400,
  corruptions=datasets.CORRUPTIONS,
)
