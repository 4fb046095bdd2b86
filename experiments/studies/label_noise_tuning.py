"""Settings with wrong labels, chosen on held-out images: for `label_noise`.

    python -m experiments run label_noise_tuning

takes one H200 5 minutes, and 3 more for the extension of the grids.
"""

from experiments.config import Config, Study
from experiments.studies.no_temperature_tuning import GRIDS as ALL
from experiments.tuning import methods_to_try

GRIDS = {name: ALL[name] for name in ("sgd", "orthograd")}

STUDY = Study(
  name="label_noise_tuning",
  config=Config(evaluate_on="held_out", label_noise=0.2),
  methods=methods_to_try("label_noise_tuning", GRIDS, "scaled_loss"),
  seeds=2,
  first_seed=906,
)
