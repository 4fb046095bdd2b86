"""Recalibrators, fitted on some examples and evaluated on others."""

import math

from orthograd_optax.calibration import (
  _bootstrap,
  _fits,
  _resampling,
)
from orthograd_optax.calibration._bootstrap import Estimate
from orthograd_optax.calibration._recalibrators import Recalibrator

JUDGED = ("accuracy", "nll", "brier", "ece")
NOT_RECALIBRATED = "as it is"
LEAST_TEMPERATURE = 1e-6
MAX_TO_FIT = 50_000  # examples, for methods other than temperature


def judge(runs, level, options):
  """Fits each method, and evaluates it on the other examples.

  Returns:
    By method, its metrics and its description, with the draws of the NLL; the
    temperature of the examples to fit on; and the recalibrators of the first
    seed, by method.
  """
  if any(run.to_fit is None for run in runs):
    return {}, None, {}
  methods = ["temperature", "vector", "isotonic"]
  if runs[0].logits.shape[1] == 2:
    methods.insert(1, "platt")
  described = {name: [] for name in (NOT_RECALIBRATED, *methods)}
  first, halves = {}, []
  for run in runs:
    fits = {m: _fit(m, run.to_fit) for m in methods}
    first = first or fits
    logits, labels = run.to_judge
    for name, of_method in described.items():
      recalibrate = fits.get(name, lambda z: z)
      of_method.append(
        _resampling.describe(recalibrate(logits), labels, brief=True, **options)
      )
    halves.append(_resampling.describe_temperature(*run.to_fit, **options))
  judged = {}
  for name, of_method in described.items():
    estimates = _resampling.estimates(of_method, level)
    gain = _nll_gain(described[NOT_RECALIBRATED], of_method, level)
    metrics = {k: Estimate.of(estimates[k]) for k in JUDGED} | {
      "nll_gain": gain
    }
    judged[name] = metrics, of_method
  temperature = _resampling.estimates(halves, level)["temperature"]
  return judged, Estimate.of(temperature), first


def _fit(method, pair) -> Recalibrator:
  logits, labels = pair
  # Fit a temperature to all examples: that is quick. Other methods would take
  # minutes, so fit them to every second example, or every tenth.
  many = len(labels) if method != "temperature" else 0
  step = max(1, math.ceil(many / MAX_TO_FIT))
  return _fits.fit(logits[::step], labels[::step], method)


def _nll_gain(before, after, level) -> Estimate:
  """The fall of the NLL, paired over draws of examples or over seeds."""
  gain = lambda a, b: a["nll"] - b["nll"]
  values = [
    gain(a.values, b.values) for a, b in zip(before, after, strict=True)
  ]
  if len(values) > 1:
    return Estimate.of(_bootstrap.seeds_interval(values, level))
  draws = gain(before[0].draws, after[0].draws)
  return Estimate.of(_bootstrap.basic_interval(values[0], draws, level))


def is_always_right(temperature: Estimate) -> bool:
  """Whether every answer is right on the examples to fit on: T goes to 0."""
  return temperature.value < LEAST_TEMPERATURE


def best(judged, temperature, p_calibrated, level) -> str | None:
  """The first method that no later method beats significantly."""
  if not judged or p_calibrated >= 0.05 or is_always_right(temperature):
    return None
  chosen = NOT_RECALIBRATED
  for name, (_, described) in judged.items():
    if _nll_gain(judged[chosen][1], described, level).low > 0:
      chosen = name
  return None if chosen == NOT_RECALIBRATED else chosen
