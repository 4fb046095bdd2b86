"""The paper's recipe on CIFAR-10-C, with seeds that `corruption` has not.

    python -m experiments run corruption_confirmation

takes one H200 10 minutes. See PLAN.md.
"""

from experiments import datasets
from experiments.config import Config, Study

STUDY = Study(
  name="corruption_confirmation",
  config=Config(),
  outcome="corrupted_accuracy",
  seeds=20,
  first_seed=20,
  corruptions=datasets.CORRUPTIONS,
)
