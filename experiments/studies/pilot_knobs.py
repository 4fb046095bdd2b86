"""Pilot: the one knob of each method that ⊥Grad is compared with.

Takes 9 minutes on one H200; without ⊥Grad, with SGD's warm-up and cosine. It
chooses settings, on seeds that no result is from: see PLAN.md.
"""

from experiments.config import METHODS, Config, Study
from experiments.tuning import named

# Of all but SAM, the last is a step beyond the edge at which the best of the
# others was.
KNOBS = {
  "label_smoothing": ("smoothing", (0.05, 0.1, 0.02)),
  "focal": ("focus", (1.0, 3.0, 0.5)),
  "mixup": ("mixing", (0.2, 1.0, 0.1)),
  "logit_norm": ("temperature", (0.04, 0.2, 1.0, 0.01)),
  "sam": ("radius", (0.05, 0.1, 0.2)),
  "average": ("averaging", (0.99, 0.999, 0.9999)),
}
STUDY = Study(
  name="pilot_knobs",
  config=Config(learning_rate=0.3),  # which pilot_rates chose
  methods=tuple(
    named(METHODS[name].replace(schedule="cosine"), **{knob: value})
    for name, (knob, values) in KNOBS.items()
    for value in values
  ),
  seeds=2,
  first_seed=900,
)
