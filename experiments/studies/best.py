"""⊥Grad at its best against the best alternative.

Takes 12 minutes on one H200. See PLAN.md.
"""

from experiments.studies import methods, schedules, strength

# By PLAN.md's rule, on the seeds 100 to 109.
_CHOSEN = ("sam", "strength_0.5")
_known = {
  method.name: method
  for method in (*methods.ALTERNATIVES, *strength.STUDY.methods)
}

STUDY = schedules.STUDY.replace(
  name="best",
  methods=tuple(_known[name] for name in _CHOSEN),
  pairs=(_CHOSEN,),
  seeds=20,
  first_seed=200,
)
