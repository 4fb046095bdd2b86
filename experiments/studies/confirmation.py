"""Table 1 once more, with 20 seeds that table1 has not seen.

Takes 8:50 on one H200, and is expected to give what table1 gives.
"""

from experiments.studies import table1

STUDY = table1.STUDY.replace(
  name="confirmation", first_seed=20, evaluate_every=10
)
