"""Settings of ten methods, chosen on held-out images: for `no_temperature`.

Takes about 40 minutes on one H200: run it, keep its rows, and run it again with
`--kept` for the extension of the grids. See PLAN.md, "Choosing".
"""

from experiments.config import Config
from experiments.tuning import Grid, Tuning

# The first and the last value of each are a step beyond the grid.
RATES, DECAYS = (0.03, 0.1, 0.3, 1.0), (1e-4, 5e-4, 2e-3, 8e-3)
ADAM_RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
ADAM_DECAYS = (0.05, 0.2, 0.8, 3.2)


def with_knob(knob: str, *ladder: float | None) -> Grid:
  """Creates a grid of learning rates, weight decays and one knob."""
  return Grid({"learning_rate": RATES, "weight_decay": DECAYS, knob: ladder})


SGD_GRID = Grid(
  {"learning_rate": (0.01, 0.03, *RATES[1:], 3.0), "weight_decay": DECAYS}
)
ADAM_GRID = Grid({"learning_rate": ADAM_RATES, "weight_decay": ADAM_DECAYS})
GRIDS = {
  "sgd": SGD_GRID,
  "orthograd": with_knob("strength", 0.25, 0.5, 1.0, None),
  "label_smoothing": with_knob("smoothing", 0.02, 0.05, 0.1, 0.2),
  "focal": with_knob("focus", 0.5, 1.0, 3.0, 5.0),
  "mixup": with_knob("mixing", 0.1, 0.2, 1.0, 2.0),
  "sam": with_knob("radius", 0.05, 0.1, 0.2, 0.4),
  "average": with_knob("averaging", 0.9, 0.99, 0.999, 0.9999),
  "logit_norm": with_knob("temperature", 0.01, 0.04, 0.2, 1.0),
  "muon": ADAM_GRID,
  "adamw": ADAM_GRID,
}

TUNING = Tuning("no_temperature_tuning", Config(), GRIDS, "loss")
STUDY = TUNING.study
