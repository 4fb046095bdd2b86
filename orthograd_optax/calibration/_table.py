"""The table of metrics that reports, comparisons and the bootstrap share."""

from collections.abc import Callable
import functools
from typing import Any, NamedTuple

import numpy as np

from orthograd_optax.calibration._sample import COVERAGE, Sample


class Metric(NamedTuple):
  """One line of the table."""

  label: str
  # Returns 1 + resamples numbers: of the sample itself, then of each draw.
  draws: Callable[[Sample], np.ndarray]
  limits: tuple[float, float] = (0.0, 1.0)
  direction: int = -1  # 1 if higher is better, −1 if lower is better, else 0
  # Returns the exact value, if the draws are approximate.
  value: Callable[[Sample], float] | None = None
  # The fraction of the examples that the metric counts, if it is the share of
  # correct or wrong ones among them. It then has Wilson's interval.
  share: float | None = None


def _mean(label, name, *rest, **options) -> Metric:
  return Metric(label, lambda s: s.means[name], *rest, **options)


def _ranked(label, name, direction=-1, **options) -> Metric:
  exact, draws = lambda s: s.ranked[name], lambda s: s.ranked_draws[name]
  return Metric(label, draws, direction=direction, value=exact, **options)


_ABOVE = (0.0, np.inf)
# Except for overconfidence, ece_equal_mass and temperature, each is named after
# its function in `calibration`. The order is the order of the tables.
METRICS: dict[str, Metric] = {
  "accuracy": _mean("accuracy", "correct", direction=1, share=1.0),
  "confidence": _mean("mean confidence", "confidence", direction=0),
  "overconfidence": Metric(
    "confidence − accuracy",
    lambda s: s.means["confidence"] - s.means["correct"],
    (-1.0, 1.0),
    0,
  ),
  "nll": _mean("NLL (log-loss), nats", "nll", _ABOVE),
  "brier": _mean("Brier score", "brier", (0.0, 2.0)),
  "ece": Metric("ECE", lambda s: s.mean_gap(s.bins)),
  "ece_equal_mass": Metric(
    "ECE, bins of equal mass", lambda s: s.mean_gap(s.mass_bins)
  ),
  "classwise_ece": Metric("classwise ECE", lambda s: s.classwise_ece()),
  "rms_calibration_error": Metric(
    "RMS calibration error", lambda s: s.rms_gap(s.bins)
  ),
  "ks_calibration_error": _ranked("KS calibration error", "ks"),
  "auroc": _ranked("AUROC of confidence", "auroc", 1),
  "aurc": _ranked("AURC", "aurc"),
  "selective_risk": _ranked(
    f"error rate of the most confident {100 * COVERAGE:.0f} %",
    "selective_risk",
    share=COVERAGE,
  ),
  "entropy": _mean("entropy, nats", "entropy", _ABOVE, 0),
  "temperature": Metric(
    "best temperature",
    lambda s: s.temperature_draws,
    limits=_ABOVE,
    direction=0,
    value=lambda s: s.temperature,
  ),
}
_FUNCTIONS = {name: (name, {}) for name in METRICS if name != "overconfidence"}
_FUNCTIONS |= {
  "ece_equal_mass": ("ece", {"binning": "mass"}),
  "selective_risk": ("selective_risk", {"coverage": COVERAGE}),
  "temperature": ("fit_temperature", {}),
}


def label(name: str) -> str:
  """Returns a metric's label. A user's own metric is labelled by its name."""
  return METRICS[name].label if name in METRICS else name


def find(function: Any) -> tuple[str | None, dict[str, Any]]:
  """Returns the name of a function's metric, or None, and its options."""
  options = {}
  if isinstance(function, functools.partial) and not function.args:
    function, options = function.func, dict(function.keywords)
  module = getattr(function, "__module__", None) or ""
  if not module.startswith("orthograd_optax.calibration."):
    return None, {}
  bins = {"num_bins": options.pop("num_bins")} if "num_bins" in options else {}
  if options.get("binning") == "width":
    del options["binning"]
  wanted = getattr(function, "__name__", ""), options
  name = next((k for k, one in _FUNCTIONS.items() if one == wanted), None)
  return name, bins if name else {}
