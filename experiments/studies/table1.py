"""Table 1: ResNet-18, 20 seeds × {SGD, ⊥Grad}, 10 % of CIFAR-10.

python -m experiments run table1

One H200: 8 minutes, by `python -m experiments plan table1`.
"""

from experiments.config import Config, Study

STUDY = Study(name="table1", config=Config())
