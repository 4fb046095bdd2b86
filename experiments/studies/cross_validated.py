"""SGD with T from 5-fold cross-validation: an arm of `no_temperature`.

Takes 2 minutes on one H200, after the rows of `cross_validation` are kept. Rows
have `scaled_own`: the test images at this T.
"""

from experiments.studies import no_temperature
from experiments.studies.held_out_temperature import SGD

STUDY = no_temperature.STUDY.replace(
  name="cross_validated",
  methods=(SGD,),
  pairs=(),
  arms=(),
  temperatures_of="cross_validation",
)
