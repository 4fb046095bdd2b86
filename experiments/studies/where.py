"""⊥Grad on parts of the network.

Takes 19 minutes on one H200 after `schedules`, whose SGD and ⊥Grad on all
parameters it uses. See PLAN.md.
"""

from experiments.config import ORTHOGRAD, SGD
from experiments.studies import schedules
from experiments.studies.schedules import COSINE, ORTHOGRAD_COSINE


def _pairs():
  """Yields SGD beside ⊥Grad, on all parameters and on parts of them."""
  for plain, projected in ((SGD, ORTHOGRAD), (COSINE, ORTHOGRAD_COSINE)):
    yield plain, projected
    for where in ("head", "body", "norms", "normed_kernels"):
      name = f"{projected.name}_{where}"
      yield plain, projected.replace(name=name, where=where)


STUDY = schedules.STUDY.comparing(
  *_pairs(), name="where", models_of="schedules"
)
