"""Five folds of each seed of `cross_validated`, for the temperatures.

Takes 7 minutes on one H200. The five seeds from 5 s on train on four fifths of
the images of seed s, each without another fifth. T is fitted on that fifth.
"""

from experiments.studies import held_out_temperature

STUDY = held_out_temperature.STUDY.replace(
  name="cross_validation",
  config=held_out_temperature.STUDY.config.replace(
    per_class=400, calibrate=100, seeds_per_subset=5
  ),
  seeds=50,
  first_seed=2000,
  corruptions=(),
)
