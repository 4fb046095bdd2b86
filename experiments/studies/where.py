"""⊥Grad on parts of the network.

Takes 19 minutes on one H200 after `schedules`, whose SGD and ⊥Grad on all
parameters it uses. See PLAN.md.
"""

from experiments.config import ORTHOGRAD, SGD
from experiments.studies import schedules
from experiments.studies.schedules import COSINE, ORTHOGRAD_COSINE

# At each schedule, SGD, and ⊥Grad on all parameters and on parts of them.
_lines = tuple(
  (
    plain,
    projected,
    *(
      projected.replace(name=f"{projected.name}_{where}", where=where)
      for where in ("head", "body", "norms", "normed_kernels")
    ),
  )
  for plain, projected in ((SGD, ORTHOGRAD), (COSINE, ORTHOGRAD_COSINE))
)

STUDY = schedules.STUDY.replace(
  name="where",
  models_of="schedules",
  methods=tuple(method for line in _lines for method in line),
  pairs=tuple(
    (plain.name, method.name) for plain, *line in _lines for method in line
  ),
)
