"""wide once more, with 5 seeds that it has not seen, and at every other epoch.

    python -m experiments run wide_confirmation

was not run yet. It tells whether what wide gives is the luck of its seeds, or
of the epoch after which they are evaluated.
"""

import dataclasses

from experiments.studies import wide

STUDY = dataclasses.replace(
  wide.STUDY,
  name="wide_confirmation",
  first_seed=5,
  evaluate_every=2,
  corruptions=(),
)
