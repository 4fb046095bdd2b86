"""Settings with wrong labels, chosen on held-out images: for `label_noise`.

Takes 5 minutes on one H200, and 3 more for the extension of the grids.
"""

from experiments.config import Config
from experiments.studies.no_temperature_tuning import GRIDS as ALL
from experiments.tuning import tuning_study

GRIDS = {name: ALL[name] for name in ("sgd", "orthograd")}
STUDY = tuning_study(
  "label_noise_tuning", Config(label_noise=0.2), GRIDS, "scaled_loss"
)
