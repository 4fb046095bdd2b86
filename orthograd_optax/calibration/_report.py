"""The calibration report of one model."""

from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from orthograd_optax.calibration import (
  _bins,
  _bootstrap,
  _inputs,
  _judging,
  _predictions,
  _resampling,
  _writing,
)
from orthograd_optax.calibration._bootstrap import Estimate
from orthograd_optax.calibration._recalibrators import Recalibrator

if TYPE_CHECKING:
  from matplotlib.figure import Figure

# In the order of the tables.
METRICS = (
  "accuracy",
  "confidence",
  "overconfidence",
  "nll",
  "brier",
  "ece",
  "ece_equal_mass",
  "classwise_ece",
  "rms_calibration_error",
  "ks_calibration_error",
  "auroc",
  "aurc",
  "selective_risk",
  "entropy",
  "temperature",
)
MAX_ERRORS = 10


@dataclasses.dataclass(frozen=True)
class Part:
  """The examples of one bin, predicted class or group.

  Attributes:
    name: name of the class or group, or the edges of the bin.
    count: number of examples, a mean over seeds.
    accuracy: share of correct examples.
    confidence: mean confidence.
    gap: confidence − accuracy; NaN without examples. Its interval is that of
      the accuracy, because confidences are given.
  """

  name: str
  count: float
  accuracy: Estimate
  confidence: float
  gap: Estimate


@dataclasses.dataclass(frozen=True)
class ConfidentError:
  """A wrong prediction.

  Attributes:
    row: row of the example in the input.
    label: name of its class.
    predicted: name of the predicted class.
    confidence: confidence of the prediction.
  """

  row: int
  label: str
  predicted: str
  confidence: float


@dataclasses.dataclass(frozen=True)
class Report(_writing.Page):
  """The result of :func:`report`. Print it, or ``save`` it as a page.

  Attributes:
    name: name of the model.
    examples: number of examples, of one seed.
    seeds: number of seeds. With several, intervals are over seeds.
    classes: names of the classes.
    level: confidence level of all intervals.
    metrics: an :class:`Estimate` of each metric, by name.
    bins: a :class:`Part` for each bin of confidence.
    band: lower and upper end of the accuracy of each bin, if the model were
      calibrated, in a share ``level`` of samples; of shape (2, bins).
    p_calibrated: p-value of "the model is calibrated", by consistency
      resampling of the ECE. With several seeds, twice the median of their
      p-values.
    ece_if_calibrated: the 95 % quantile of the ECE of a calibrated model, in
      samples of this size.
    temperature_half: the best temperature of the examples to fit on, by default
      one half of all.
    recalibrated: metrics of each method, and of the model "as it is", on the
      examples that no method was fitted to. ``nll_gain`` is the fall of the NLL
      there. Empty if there are too few examples.
    recalibrators: the recalibrator of each method, fitted to the first seed.
    by_class: a :class:`Part` for each predicted class, the worst gap first.
    by_group: a :class:`Part` for each group, the worst gap first.
    confident_errors: the wrong predictions of highest confidence, each a
      :class:`ConfidentError`.
    best: the recommended method of recalibration, or None.
    notes: remarks for the reader.
  """

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
  temperature_half: Estimate | None
  recalibrated: dict[str, dict[str, Estimate]]
  recalibrators: dict[str, Recalibrator]
  by_class: list[Part]
  by_group: list[Part]
  confident_errors: list[ConfidentError]
  best: str | None
  notes: list[str]

  def __str__(self) -> str:
    from orthograd_optax.calibration import _words

    return _words.table(self)

  def to_dict(self) -> dict[str, Any]:
    """All numbers, as Python numbers. NaN and infinities become None.

    Metrics come first, as ``{"value": ..., "low": ..., "high": ...}``.
    """
    from orthograd_optax.calibration import _words

    action, code = _words.recommendation(self)
    own = ("metrics", "band", "recalibrators")
    fields = [f.name for f in dataclasses.fields(self) if f.name not in own]
    content = {name: getattr(self, name) for name in fields}
    content["bins"] = [
      plain(one) | {"band": band}
      for one, band in zip(self.bins, self.band.T.tolist(), strict=True)
    ]
    content |= {"recommendation": action, "code": code}
    return plain(self.metrics | content)

  def plot(self) -> "Figure":
    """Draws the reliability diagram. Needs matplotlib."""
    from orthograd_optax import plots

    return plots.report_diagram(self)

  def html(self) -> str:
    """The page as HTML. Needs matplotlib."""
    from orthograd_optax.calibration import _page

    return _page.report_page(self)


@_inputs.suggesting
def report(
  logits: Any,
  labels: Any,
  *,
  classes: Sequence[Any] | None = None,
  groups: Any = None,
  seeds: Any = None,
  fit: Any = None,
  num_bins: int = 10,
  replicates: int = 1000,
  level: float = 0.95,
  seed: int = 0,
  name: str = "model",
) -> Report:
  """Can I trust my model's confidence? Computes the answer, with intervals.

  Args:
    logits: array of shape (examples, classes), or (seeds, examples, classes)
      for several seeds. For two classes, the logit of the second class will do,
      of shape (examples,) or (examples, 1). If you have probabilities, pass
      ``from_probabilities(probabilities)``.
    labels: the index of each example's class, of shape (examples,); or its
      name, if you give ``classes``.
    classes: names of the classes, in the order of the columns.
    groups: name of each example's group, of shape (examples,).
    seeds: seed of each row, of shape (examples,). With several seeds, numbers
      are means over seeds, and intervals are over seeds.
    fit: booleans of shape (examples,): ``True`` for examples to fit
      recalibrators on, such as a validation set. All numbers are then of the
      other examples. By default, all numbers are of all examples, except that
      recalibrators are fitted on one half and evaluated on the other.
    num_bins: number of bins of the ECEs and of the diagram.
    replicates: number of bootstrap replicates, and of samples of a calibrated
      model.
    level: confidence level of all intervals.
    seed: seed of the draws, and of the halves.
    name: name of the model on the page.

  Returns:
    A :class:`Report`. ``print`` it, ``save`` it as a page, ``plot`` it, or take
    the numbers of ``to_dict()``. A notebook displays it as a page.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = 3.0 * jax.random.normal(jax.random.key(0), (400, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), logits / 2.5)
    >>> report = calibration.report(logits, labels)
    >>> value, low, high = report.metrics["ece"]
    >>> print(f"{value:.2f} ({low:.2f} to {high:.2f})")
    0.15 (0.11 to 0.19)
    >>> print(report.best)
    temperature
    >>> recalibrate = report.recalibrators["temperature"]  # to call with logits
  """
  _bootstrap.check_draws(replicates, level)
  _bins.check_bins(num_bins)
  predictions = _predictions.check(
    logits,
    labels,
    classes=classes,
    groups=groups,
    seeds=seeds,
    fit=fit,
    split_seed=seed,
  )
  options: Any = {
    "num_bins": num_bins,
    "replicates": replicates,
    "seed": seed,
  }
  described = [
    _resampling.describe(
      run.logits,
      run.labels,
      groups=run.groups,
      num_groups=len(predictions.groups),
      **options,
    )
    for run in predictions.runs
  ]
  estimates = _resampling.estimates(described, level)
  p, limit, band = _consistency(predictions.runs, described, level, options)
  judged, temperature, recalibrators = _judging.judge(
    predictions.runs, level, options
  )
  first = predictions.runs[0]
  return Report(
    name=name,
    examples=len(first.rows),
    seeds=len(predictions.runs),
    classes=predictions.classes,
    level=level,
    metrics={k: Estimate.of(estimates[k]) for k in METRICS},
    bins=_parts("bin", estimates, described, _bin_names(num_bins)),
    band=band,
    p_calibrated=p,
    ece_if_calibrated=limit,
    temperature_half=temperature,
    recalibrated={k: v for k, (v, _) in judged.items()},
    recalibrators=recalibrators,
    by_class=_worst(_parts("class", estimates, described, predictions.classes)),
    by_group=_worst(_parts("group", estimates, described, predictions.groups)),
    confident_errors=_confident_errors(predictions),
    best=_judging.best(judged, temperature, p, level),
    notes=_notes(predictions, estimates["accuracy"][2]),
  )


def _consistency(runs, described, level, options):
  """The p-value, the ECE limit and the bands, of a calibrated model."""
  p_values, limits, bands = [], [], []
  for run, one in zip(runs, described, strict=True):
    confidence = np.asarray(_inputs.confidence(run.logits))
    errors, accuracies = _resampling.consistency(confidence, **options)
    above = np.sum(errors >= one.values["ece"] - 1e-7)
    p_values.append((1 + above) / (1 + len(errors)))
    limits.append(np.quantile(errors, 0.95))
    ends = [(1 - level) / 2, (1 + level) / 2]
    bands.append(np.quantile(accuracies, ends, axis=0))
  # Twice the median of dependent p-values is a valid p-value.
  p = float(np.median(p_values)) * (1 if len(runs) == 1 else 2)
  return min(p, 1.0), float(np.mean(limits)), np.mean(bands, axis=0)


def _parts(kind, estimates, described, names) -> list[Part]:
  if f"{kind}_gap" not in estimates:
    return []
  counts = np.array([one.values[f"{kind}_count"] for one in described])
  means = np.array([one.values[f"{kind}_confidence"] for one in described])
  count = counts.mean(axis=0)
  total = np.nan_to_num(means) * counts
  confidence = total.mean(axis=0) / np.where(count, count, np.nan)
  pick = lambda key, i: Estimate.of([x[i] for x in estimates[f"{kind}_{key}"]])
  return [
    Part(name, float(n), pick("accuracy", i), float(c), pick("gap", i))
    for i, (name, n, c) in enumerate(zip(names, count, confidence, strict=True))
  ]


def _worst(parts: list[Part]) -> list[Part]:
  """Parts with examples, sorted by the lower bound of their absolute gap."""

  def lower_bound(part):
    gap = part.gap
    return max(gap.low, -gap.high, 0.0), abs(gap.value)

  known = [part for part in parts if np.isfinite(part.gap.value)]
  return sorted(known, key=lower_bound, reverse=True)


def _confident_errors(
  predictions: _predictions.Predictions,
) -> list[ConfidentError]:
  errors = []
  for run in predictions.runs:
    confidence = np.asarray(_inputs.confidence(run.logits))
    predicted = np.asarray(run.logits).argmax(axis=1)
    labels = np.asarray(run.labels)
    wrong = np.flatnonzero(predicted != labels)
    order = np.argsort(-confidence[wrong], kind="stable")[:MAX_ERRORS]
    errors += [
      ConfidentError(
        row=int(run.rows[i]),
        label=predictions.classes[labels[i]],
        predicted=predictions.classes[predicted[i]],
        confidence=float(confidence[i]),
      )
      for i in wrong[order]
    ]
  errors.sort(key=lambda e: -e.confidence)
  return errors[:MAX_ERRORS]


def _notes(
  predictions: _predictions.Predictions, highest_accuracy
) -> list[str]:
  notes = []
  if highest_accuracy < 1 / len(predictions.classes):
    notes.append(
      "The accuracy is below chance. Check that the columns are in the order "
      "of the classes."
    )
  first = predictions.runs[0]
  labels = np.asarray(first.labels)
  if len(labels) < 100:
    notes.append(
      f"{len(labels)} example{'s' if len(labels) > 1 else ''} can only reveal "
      "a large miscalibration."
    )
  if len(predictions.classes) == 2:
    notes.append(
      "With two classes, the confidence is that of the predicted class, from "
      "0.5 to 1. The classwise ECE is that of the probability of "
      f"{predictions.classes[1]}."
    )
  absent = [
    name
    for c, name in enumerate(predictions.classes)
    if not any((np.asarray(run.labels) == c).any() for run in predictions.runs)
  ]
  if absent:
    shown = ", ".join(absent[:5]) + (", …" if len(absent) > 5 else "")
    notes.append(
      f"{len(absent)} of {len(predictions.classes)} classes never occur as a "
      f"label: {shown}."
    )
  impossible = int(np.sum(_impossible(first.logits, first.labels)))
  if impossible:
    notes.append(
      f"The label of {impossible} example{'s' if impossible > 1 else ''} has a "
      "probability below 1e-30. Each adds more than 69 to the sum of losses, "
      "and dominates the NLL."
    )
  if first.to_fit is None:
    notes.append(
      f"{len(labels)} examples are too few to fit a recalibrator on one half "
      "and evaluate it on the other. Use at least "
      f"{2 * _predictions.MIN_TO_FIT}."
    )
  return notes


@jax.jit
def _impossible(logits, labels):
  return _inputs.nll(logits, labels) > 69


def _bin_names(num_bins: int) -> list[str]:
  return [
    f"{i / num_bins:.3g}–{(i + 1) / num_bins:.3g}" for i in range(num_bins)
  ]


def plain(x: Any) -> Any:
  """Converts to what JSON can hold."""
  if isinstance(x, Estimate):
    return {name: plain(float(v)) for name, v in x._asdict().items()}
  if isinstance(x, dict):
    return {k: plain(v) for k, v in x.items()}
  if isinstance(x, list):
    return [plain(v) for v in x]
  if isinstance(x, float):
    return float(x) if np.isfinite(x) else None
  if isinstance(x, Part | ConfidentError):
    return plain(dict(vars(x)))
  return x
