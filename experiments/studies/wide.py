"""WRN-28-10, 5 seeds × {SGD, ⊥Grad}, clean and corrupted.

python -m experiments run wide
"""

from experiments import corruptions
from experiments.config import Config, Study

STUDY = Study(
  name="wide",
  config=Config(model="wrn28_10"),
  seeds=5,
  evaluate_every=10,
  corruptions=corruptions.CORRUPTIONS,
  diagnostics=True,
)
