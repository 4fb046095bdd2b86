"""Settings on Fashion-MNIST, chosen on held-out images: for `fashion`.

    python -m experiments run fashion_tuning

takes one H200 12 minutes, and 6 more for the extension of the grids.
"""

from experiments.config import Config, Study
from experiments.studies.no_temperature_tuning import GRIDS as ALL
from experiments.tuning import methods_to_try

GRIDS = {name: ALL[name] for name in ("sgd", "orthograd", "mixup", "focal")}

STUDY = Study(
  name="fashion_tuning",
  config=Config(evaluate_on="held_out", dataset="fashion_mnist", per_class=600),
  methods=methods_to_try("fashion_tuning", GRIDS, "scaled_loss"),
  seeds=2,
  first_seed=906,
)
