"""SGD and ⊥Grad in a few minutes, on the sample that comes with the code.

    make demo

A small pre-activation network, 5 seeds of each optimizer. One to three
minutes on two cores.
"""

from experiments.config import Config, Study

STUDY = Study(
  name="quick",
  config=Config(
    model="small",
    dataset="sample",
    per_class=50,
    epochs=50,
    learning_rate=0.05,
    precision="float32",
  ),
  seeds=5,
  evaluate_every=10,
)
