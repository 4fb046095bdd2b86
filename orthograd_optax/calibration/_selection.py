"""Fits recalibrators on some examples, and evaluates them on held-out ones."""

from collections.abc import Callable
import math
from typing import Any

import jax
import numpy as np
from scipy import optimize, special

from orthograd_optax.calibration import _fits, _intervals, _resampling
from orthograd_optax.calibration._intervals import Estimate
from orthograd_optax.calibration._predictions import Predictions
from orthograd_optax.calibration._recalibrators import (
  Isotonic,
  Platt,
  Recalibrator,
  Temperature,
  VectorScaling,
)
from orthograd_optax.calibration._results import SIGNIFICANT
from orthograd_optax.calibration._sample import MIN_TEMPERATURE, Sample

EVALUATED = ("accuracy", "nll", "brier", "ece")
UNCALIBRATED = "uncalibrated"
MAX_TO_FIT = 50_000, 10_000_000  # examples and logits, except for temperature


def evaluate(predictions: Predictions, level: float, options: dict[str, Any]):
  """Fits each method, and evaluates it on the held-out examples.

  Returns:
    By method, its metrics and its description, with draws of the NLL; the
    temperature of the examples to fit on; and the recalibrators of the first
    seed, by method.
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
    to_fit = Sample(*run.to_fit, **options)
    temperatures.append(_resampling.describe(to_fit, ["temperature"]))
    fits = {m: _fit(m, to_fit, predictions.columns) for m in methods}
    first = first or {m: recalibrator for m, (recalibrator, _) in fits.items()}
    logits, labels = run.held_out
    for name, of_method in described.items():
      with np.errstate(all="ignore"):  # a fit to infinite logits is NaN
        changed = fits[name][1](logits) if name in fits else logits
      sample = Sample(changed, labels, **options)
      of_method.append(_resampling.describe(sample, EVALUATED))
  evaluated = {}
  for name, of_method in described.items():
    gain = _nll_gain(described[UNCALIBRATED], of_method, level)
    metrics = _resampling.estimates(of_method, level) | {"nll_gain": gain}
    evaluated[name] = metrics, of_method
  temperature = _resampling.estimates(temperatures, level)["temperature"]
  return evaluated, temperature, first


def _fit(
  method: str, sample: Sample, columns: int
) -> tuple[Recalibrator, Callable]:
  """Returns a recalibrator, and the same as a function of NumPy logits."""
  dtype = np.promote_types(sample.logits.dtype, np.float32)
  dtype = jax.dtypes.canonicalize_dtype(dtype)
  put = lambda x: jax.device_put(np.asarray(x, dtype))  # compiles nothing
  if method == "temperature":
    t = sample.temperature
    return Temperature(put(t), columns=columns), lambda z: z / t
  # A fit to all examples would take minutes. Use every second, or every tenth.
  most = min(MAX_TO_FIT[0], MAX_TO_FIT[1] // sample.logits.shape[1])
  step = math.ceil(sample.examples / most)
  logits, labels = sample.logits[::step], sample.labels[::step]
  if method == "isotonic":
    p = special.softmax(logits.astype(np.float64), axis=1).astype(dtype)
    x, y = map(put, _fits.isotonic_knots(p, labels))
    fitted = Isotonic(x, y, columns=columns)
    serve = fitted.export()
    return fitted, lambda z: np.log(serve(z))
  kind = Platt if method == "platt" else VectorScaling
  scale, bias = _fit_affine(logits, labels, shared=method == "platt")
  fitted = kind(put(scale), put(bias), columns=columns)
  return fitted, lambda z: z * scale + bias


def _fit_affine(logits, labels, shared) -> tuple[np.ndarray, np.ndarray]:
  """Minimizes the NLL of scale · logits + bias, by L-BFGS in float64."""
  z = logits.astype(np.float64)
  examples, classes = z.shape
  if not np.isfinite(z).all():
    return np.full(classes, np.nan), np.full(classes, np.nan)
  size = np.std(z)
  size = size if size > 1e-9 * np.abs(z).max() else 1.0
  z /= size
  rows = np.arange(examples)

  def loss(parameters):
    scale, bias = parameters[:-classes], parameters[-classes:]
    p = z * scale + bias
    p -= p.max(axis=1, keepdims=True)
    own = p[rows, labels]
    np.exp(p, out=p)
    total = p.sum(axis=1, keepdims=True)
    value = np.mean(np.log(total[:, 0]) - own)
    p /= total
    p[rows, labels] -= 1
    slopes = np.einsum("ij,ij->j", p, z)
    slopes = slopes.sum(keepdims=True) if shared else slopes
    return value, np.concatenate([slopes, p.sum(axis=0)]) / examples

  start = np.concatenate([np.ones(1 if shared else classes), np.zeros(classes)])
  options = {"maxiter": 200, "ftol": 1e-13, "gtol": 1e-7}
  fitted = optimize.minimize(
    loss, start, jac=True, method="L-BFGS-B", options=options
  ).x
  scale, bias = fitted[:-classes], fitted[-classes:]
  return np.broadcast_to(scale, classes) / size, bias - bias.mean()


def _nll_gain(before, after, level) -> Estimate:
  """Returns the fall of the NLL, paired over draws or over seeds."""
  values = [
    a.values["nll"] - b.values["nll"]
    for a, b in zip(before, after, strict=True)
  ]
  if len(values) > 1:
    return Estimate.of(_intervals.seeds_interval(values, level))
  with np.errstate(invalid="ignore"):  # infinite losses
    draws = before[0].draws["nll"] - after[0].draws["nll"]
  return Estimate.of(_intervals.basic_interval(values[0], draws, level))


def is_always_right(temperature: Estimate | None) -> bool:
  """Returns whether every prediction to fit on is correct, so that T → 0."""
  return temperature is not None and temperature.value <= 100 * MIN_TEMPERATURE


def best(evaluated, temperature, p_calibrated, level) -> str | None:
  """Returns the first method that no later method beats significantly."""
  if not evaluated or p_calibrated >= SIGNIFICANT:
    return None
  if is_always_right(temperature):
    return None
  found = UNCALIBRATED
  for name, (_, described) in evaluated.items():
    if _nll_gain(evaluated[found][1], described, level).low > 0:
      found = name
  return None if found == UNCALIBRATED else found
