"""The paper's recipe on CIFAR-10-C, with seeds that `corruption` has not.

Takes 10 minutes on one H200. See PLAN.md.
"""

from experiments import datasets
from experiments.config import Study

STUDY = Study(
  name="corruption_confirmation",
  outcome="corrupted_accuracy",
  seeds=20,
  first_seed=20,
  corruptions=datasets.CORRUPTIONS,
)
