"""⊥Grad renormalized beside not, 10 seeds, clean and corrupted.

Takes 2:46 on one H200; the renormalized ones are table1's, if it was run
before. Expected: no difference beyond chance.
"""

from experiments import datasets
from experiments.config import METHODS
from experiments.studies import table1

STUDY = table1.STUDY.replace(
  name="renormalization",
  models_of="table1",
  methods=(METHODS["orthograd"], METHODS["orthograd_unnormalized"]),
  seeds=10,
  corruptions=datasets.CORRUPTIONS,
)
