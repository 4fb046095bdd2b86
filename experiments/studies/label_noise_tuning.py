"""Settings with wrong labels, chosen on held-out images: for `label_noise`.

Takes 5 minutes on one H200, and 3 more for the extension of the grids.
"""

from experiments.config import Config
from experiments.studies.no_temperature_tuning import GRIDS
from experiments.tuning import Tuning

TUNING = Tuning(
  "label_noise_tuning",
  Config(label_noise=0.2),
  {name: GRIDS[name] for name in ("sgd", "orthograd")},
  "scaled_loss",
)
STUDY = TUNING.study
