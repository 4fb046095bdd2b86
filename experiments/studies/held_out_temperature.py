"""SGD on 4,500 images, with T fitted on 500 others: an arm of `no_temperature`.

Takes 2 minutes on one H200. Rows have `scaled_own`: the test images at this T.
"""

from experiments.studies import no_temperature
from experiments.studies.no_temperature_tuning import TUNING

(SGD,) = TUNING.chosen("scaled_loss", "sgd")

STUDY = no_temperature.STUDY.replace(
  name="held_out_temperature",
  config=no_temperature.STUDY.config.replace(per_class=450, calibrate=50),
  methods=(SGD,),
  pairs=(),
  arms=(),
)
