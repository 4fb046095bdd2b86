"""The results of reports and comparisons, without text and pages."""

import dataclasses
from typing import Any

import numpy as np

from orthograd_optax.calibration._bins import Reliability
from orthograd_optax.calibration._intervals import Estimate
from orthograd_optax.calibration._recalibrators import Recalibrator

SIGNIFICANT = 0.05  # p-values below it are evidence


@dataclasses.dataclass(frozen=True)
class Part:
  """The examples of one bin, predicted class or group.

  Attributes:
    name: name of the class or group, or the edges of the bin.
    count: number of examples, a mean over seeds.
    accuracy: share of correct examples.
    confidence: mean confidence.
    gap: confidence − accuracy, with the interval of the accuracy; NaN without
      examples. Intervals of classes and groups hold for all of them together.
    p_value: p-value of "the model is calibrated here", adjusted by Holm's
      method for all classes and groups; NaN for bins.
  """

  name: str
  count: float
  accuracy: Estimate
  confidence: float
  gap: Estimate
  p_value: float = np.nan


@dataclasses.dataclass(frozen=True)
class ConfidentError:
  """A wrong prediction.

  Attributes:
    row: row of the example in the input; its index in the raveled labels, if
      these have several axes.
    label: name of its class.
    predicted: name of the predicted class.
    confidence: confidence of the prediction.
  """

  row: int
  label: str
  predicted: str
  confidence: float


@dataclasses.dataclass(frozen=True)
class Results:
  """The numbers of a ``Report``, which documents them."""

  name: str
  examples: int
  seeds: int
  classes: list[str]
  level: float
  metrics: dict[str, Estimate]
  bins: list[Part]
  band: np.ndarray
  p_calibrated: float
  ece_if_calibrated: float
  fit_examples: int
  held_out_examples: int
  fitted_temperature: Estimate | None
  recalibrated: dict[str, dict[str, Estimate]]
  recalibrators: dict[str, Recalibrator]
  by_class: list[Part]
  by_group: list[Part]
  confident_errors: list[ConfidentError]
  best: str | None
  notes: list[str]


@dataclasses.dataclass(frozen=True)
class Comparison:
  """The numbers of a ``ModelComparison``, which documents them."""

  names: tuple[str, str]
  examples: int
  seeds: int
  level: float
  old: dict[str, Estimate]
  new: dict[str, Estimate]
  difference: dict[str, Estimate]
  verdicts: dict[str, str]
  reliabilities: dict[str, Reliability]
  notes: list[str]


def plain(x: Any) -> Any:
  """Converts to what JSON can hold, with seven significant digits."""
  if isinstance(x, Estimate):
    x = x._asdict()
  if isinstance(x, Part | ConfidentError):
    x = vars(x)
  if isinstance(x, dict):
    return {k: plain(v) for k, v in x.items()}
  if isinstance(x, list | tuple):
    return [plain(v) for v in x]
  if isinstance(x, float):
    return float(f"{x:.7g}") if np.isfinite(x) else None
  return x
