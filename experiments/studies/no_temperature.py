"""Ten methods for users who cannot fit a temperature.

Takes 20 minutes on one H200, after `no_temperature_tuning`. See PLAN.md.
"""

from experiments import datasets
from experiments.studies.no_temperature_tuning import TUNING

STUDY = TUNING.contest(
  "no_temperature",
  "loss",
  seeds=10,
  first_seed=400,
  corruptions=datasets.CORRUPTIONS,
  arms=("held_out_temperature", "cross_validated"),
)
