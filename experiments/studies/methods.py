"""⊥Grad together with its one-line alternatives.

Takes 36 minutes on one H200 after `schedules`, whose SGD and ⊥Grad it uses. See
PLAN.md.
"""

from experiments.config import METHODS, with_orthograd
from experiments.studies import schedules
from experiments.studies.schedules import COSINE, ORTHOGRAD_COSINE

# The one knob of each, which pilot_knobs chose.
_KNOBS: dict[str, dict[str, float]] = {
  "label_smoothing": {"smoothing": 0.02},
  "focal": {"focus": 1.0},
  "mixup": {"mixing": 0.2},
  "logit_norm": {"temperature": 0.04},
  "sam": {"radius": 0.1},
  "sgdp": {},
  "average": {"averaging": 0.999},
}
ALTERNATIVES = tuple(
  METHODS[name].replace(
    schedule="cosine", learning_rate=COSINE.learning_rate, **knob
  )
  for name, knob in _KNOBS.items()
)
_projected = tuple(map(with_orthograd, ALTERNATIVES))

STUDY = schedules.STUDY.comparing(
  (COSINE, ORTHOGRAD_COSINE),
  *zip(ALTERNATIVES, _projected, strict=True),
  name="methods",
  models_of="schedules",
  methods=(COSINE, ORTHOGRAD_COSINE, *ALTERNATIVES, *_projected),
)
