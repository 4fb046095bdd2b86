"""Fits recalibrators on some examples, and evaluates them on held-out ones."""

from collections.abc import Callable
import math
from typing import Any

import jax
import numpy as np
from scipy import special

from orthograd_optax.calibration import _fits, _recalibrators, _resampling
from orthograd_optax.calibration._intervals import Estimate
from orthograd_optax.calibration._predictions import Predictions
from orthograd_optax.calibration._results import SIGNIFICANT
from orthograd_optax.calibration._sample import MIN_TEMPERATURE, Sample

EVALUATED = ("accuracy", "nll", "brier", "ece")
UNCALIBRATED = "uncalibrated"
MAX_TO_FIT = 50_000, 10_000_000  # examples and logits, except for temperature


def evaluate(predictions: Predictions, level: float, options: tuple):
  """Fits each method, and evaluates it on the held-out examples.

  Returns metrics and descriptions by method, the temperature of the examples to
  fit on, and the recalibrators of the first seed.
  """
  runs = predictions.runs
  if any(run.to_fit is None for run in runs):
    return {}, None, {}
  methods = ["temperature", "vector", "isotonic"]
  if runs[0].logits.shape[1] == 2:
    methods.insert(1, "platt")
  described = {name: [] for name in (UNCALIBRATED, *methods)}
  first, temperatures = {}, []
  for run in runs:
    assert run.to_fit is not None and run.held_out is not None
    to_fit = Sample(*run.to_fit, *options)
    temperatures.append(_resampling.describe(to_fit, ["temperature"]))
    fits = {m: _fit(m, to_fit, predictions.columns) for m in methods}
    first = first or {m: recalibrator for m, (recalibrator, _) in fits.items()}
    logits, labels = run.held_out
    for name, of_method in described.items():
      with np.errstate(all="ignore"):  # a fit to infinite logits is NaN
        changed = fits[name][1](logits) if name in fits else logits
      sample = Sample(changed, labels, *options)
      of_method.append(_resampling.describe(sample, EVALUATED))
  evaluated = {}
  for name, of_method in described.items():
    metrics = _resampling.estimates(of_method, level)
    metrics["nll_gain"] = _nll_gain(described[UNCALIBRATED], of_method, level)
    evaluated[name] = metrics, of_method
  temperature = _resampling.estimates(temperatures, level)["temperature"]
  return evaluated, temperature, first


def _fit(method: str, sample: Sample, columns: int) -> tuple[Any, Callable]:
  """Returns a recalibrator, and the same as a function of NumPy logits."""
  kind = _recalibrators.KINDS[method]
  dtype = np.promote_types(sample.logits.dtype, np.float32)
  dtype = jax.dtypes.canonicalize_dtype(dtype)
  put = lambda x: jax.device_put(np.asarray(x, dtype))  # compiles nothing
  if method == "temperature":
    t = sample.temperature
    return kind(put(t), columns=columns), lambda z: z / t
  # A fit to all examples would take minutes. Use every second, or every tenth.
  most = min(MAX_TO_FIT[0], MAX_TO_FIT[1] // sample.logits.shape[1])
  step = math.ceil(sample.examples / most)
  logits, labels = sample.logits[::step], sample.labels[::step]
  if method == "isotonic":
    p = special.softmax(logits.astype(np.float64), axis=1).astype(dtype)
    x, y = map(put, _fits.isotonic_knots(p, labels))
    fitted = kind(x, y, columns=columns)
    serve = fitted.export()
    return fitted, lambda z: np.log(serve(z))
  scale, bias = _fits.affine(logits, labels, shared=method == "platt")
  fitted = kind(put(scale), put(bias), columns=columns)
  return fitted, lambda z: z * scale + bias


def _nll_gain(before, after, level) -> Estimate:
  return _resampling.difference("nll", after, before, level)


def is_always_right(temperature: Estimate | None) -> bool:
  """Returns whether every prediction to fit on is correct, so that T → 0."""
  return temperature is not None and temperature.value <= 100 * MIN_TEMPERATURE


def best(evaluated, temperature, p_calibrated, level) -> str | None:
  """Returns the first method that no later method beats significantly."""
  calibrated = p_calibrated >= SIGNIFICANT
  if not evaluated or calibrated or is_always_right(temperature):
    return None
  chosen = UNCALIBRATED
  for name, (_, described) in evaluated.items():
    if _nll_gain(evaluated[chosen][1], described, level).low > 0:
      chosen = name
  return None if chosen == UNCALIBRATED else chosen
