"""Settings with all images, chosen on held-out images: for `all_images`.

Takes 9 minutes on one H200, and 5 more for the extension of the grids.
"""

from experiments.config import Config
from experiments.tuning import Grid, Tuning

_SGD = {
  "learning_rate": (0.01, 0.03, 0.1, 0.3),
  "weight_decay": (1e-4, 5e-4, 2e-3, 8e-3),
}
_ADAMW = {
  "learning_rate": (5e-4, 1e-3, 2e-3, 4e-3),
  "weight_decay": (0.05, 0.2, 0.8, 3.2),
}
# Its best setting with 10 % of the images has a higher rate, a weaker decay.
_ORTHOGRAD_ADAMW = {
  "learning_rate": (1e-3, 2e-3, 4e-3, 8e-3),
  "weight_decay": (0.0125, 0.05, 0.2, 0.8),
}
GRIDS = {
  "sgd": Grid(_SGD),
  "orthograd": Grid(_SGD),
  "adamw": Grid(_ADAMW),
  "orthograd_adamw": Grid(_ORTHOGRAD_ADAMW),
}

TUNING = Tuning(
  "all_images_tuning",
  Config(per_class=4500, epochs=50),
  GRIDS,
  "scaled_loss",
  seeds=1,
  more=2,
)
STUDY = TUNING.study
