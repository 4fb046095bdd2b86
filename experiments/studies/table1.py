"""Table 1: ResNet-18, 20 seeds × {SGD, ⊥Grad}, 10 % of CIFAR-10.

python -m experiments run table1

One H200: 7.2 minutes of training, by the time of a step (316,000 of 1.37 ms).
"""

from experiments.config import Config, Study

STUDY = Study(name="table1", config=Config())
