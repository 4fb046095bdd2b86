"""Ensembles of networks that train on the same images.

Takes 9 minutes on one H200, after `no_temperature_tuning`. See PLAN.md.
"""

from experiments.config import Config, Study, ensemble
from experiments.studies.no_temperature_tuning import TUNING

_sgd, _orthograd = TUNING.chosen("scaled_loss", "sgd", "orthograd")

STUDY = Study(
  name="same_images",
  config=Config(reserve=True, seeds_per_subset=5),
  methods=(_sgd, _orthograd),
  pairs=((ensemble(_sgd.name, 5), ensemble(_orthograd.name, 5)),),
  outcome="crossed_loss",
  seeds=25,
  first_seed=550,
  ensembles=(5,),
)
