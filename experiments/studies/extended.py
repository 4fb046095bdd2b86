"""ResNet-18 for 1000 epochs, 5 seeds × {SGD, ⊥Grad}, clean and corrupted.

python -m experiments run extended
"""

from experiments import corruptions
from experiments.config import Config, Study

STUDY = Study(
  name="extended",
  config=Config(epochs=1000),
  seeds=5,
  evaluate_every=20,
  corruptions=corruptions.CORRUPTIONS,
  corrupted_at=(100, 200, 400, 700),
  diagnostics=True,
)
