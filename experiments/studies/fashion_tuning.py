"""Settings on Fashion-MNIST, chosen on held-out images: for `fashion`.

Takes 10 minutes on one H200, and 5 more for the extension of the grids.
"""

from experiments.config import Config
from experiments.studies.no_temperature_tuning import GRIDS
from experiments.tuning import Tuning

TUNING = Tuning(
  "fashion_tuning",
  Config(dataset="fashion_mnist", per_class=600),
  {name: GRIDS[name] for name in ("sgd", "orthograd", "mixup", "focal")},
  "scaled_loss",
)
STUDY = TUNING.study
