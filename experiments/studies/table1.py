"""Table 1: ResNet-18, 20 seeds × {SGD, ⊥Grad}, 10 % of CIFAR-10.

python -m experiments run table1
"""

from experiments.config import Config, Study

STUDY = Study(name="table1", config=Config(), evaluate_every=20)
