"""Ensembles of networks that train on the same images.

Takes 8 minutes on one H200, after `no_temperature_tuning`. See PLAN.md.
"""

from experiments.config import Config, Study, ensemble
from experiments.studies import no_temperature_tuning
from experiments.tuning import chosen

_sgd, _orthograd = chosen(
  no_temperature_tuning.STUDY,
  {name: no_temperature_tuning.GRIDS[name] for name in ("sgd", "orthograd")},
  "scaled_loss",
)

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
