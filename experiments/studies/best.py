"""⊥Grad at its best against the best alternative.

Takes 12 minutes on one H200. See PLAN.md.
"""

from experiments.studies import methods, schedules, strength

_known = {
  method.name: method
  for method in (*methods.ALTERNATIVES, *strength.STUDY.methods)
}

# By PLAN.md's rule, on the seeds 100 to 109.
STUDY = schedules.STUDY.comparing(
  (_known["sam"], _known["strength_0.5"]), name="best", seeds=20, first_seed=200
)
