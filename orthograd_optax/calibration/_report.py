"""Can I trust my model's confidence? All that answers it, in one object."""

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

# In the order of tables.
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
MOST_ERRORS = 10


@dataclasses.dataclass(frozen=True)
class Part:
  """The examples of one bin, predicted class or group.

  Attributes:
    name: of the class or group; of a bin, its ends.
    count: how many examples, on average over seeds.
    accuracy: the share of them that is correct.
    confidence: their mean confidence.
    gap: confidence less accuracy; NaN in a bin of none. Its interval is that of
      the accuracy: confidences are given.
  """

  name: str
  count: float
  accuracy: Estimate
  confidence: float
  gap: Estimate


@dataclasses.dataclass(frozen=True)
class ConfidentError:
  """A wrong answer.

  Attributes:
    row: the example's index in what was given.
    label: its class's name.
    predicted: the name of the class that the model took it for.
    confidence: how sure it was.
  """

  row: int
  label: str
  predicted: str
  confidence: float


@dataclasses.dataclass(frozen=True)
class Report(_writing.Page):
  """What :func:`report` found; print it, or ``save`` it as a page.

  Attributes:
    name: the model's.
    examples: number of examples, of one seed.
    seeds: number of seeds; with several, intervals are over these.
    classes: the classes' names.
    level: confidence level of all intervals.
    metrics: by name, an :class:`Estimate` of each.
    bins: a :class:`Part` for each bin of confidence.
    band: what the accuracy of each bin would be, if the model were calibrated,
      in a share ``level`` of samples, of shape (2, bins).
    p_calibrated: p-value of "the model is calibrated", by consistency
      resampling of its ECE; twice the median of several seeds'.
    ece_if_calibrated: the ECE that a calibrated model would stay below in 95 %
      of samples as large as this one.
    temperature_half: fitted on the examples that recalibrators are fitted on.
    recalibrated: for each method, the metrics on the examples that it was not
      fitted to, with ``nll_gain``, by how much it lowers the NLL there. Empty
      if there are too few.
    recalibrators: for each method, what was fitted to the first seed.
    by_class: a :class:`Part` for each class that was predicted, the worst gap
      first.
    by_group: a :class:`Part` for each group, likewise.
    confident_errors: the errors of which the model was surest.
    best: the method that the numbers speak for, or None.
    notes: what to know when reading this.
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
    """Every number, as Python's own; NaN and infinities are None.

    Metrics are at the top, as ``{"value": ..., "low": ..., "high": ...}``.
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
    """The reliability diagram; needs matplotlib."""
    from orthograd_optax import plots

    return plots.report_diagram(self)

  def html(self) -> str:
    """The page, as text; needs matplotlib."""
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
  """Can I trust my model's confidence? All that answers it.

  Args:
    logits: array of shape (examples, classes), or the logit of the second of
      two classes, of shape (examples,) or (examples, 1); or a stack of these
      over seeds, (seeds, examples, classes). If you have probabilities, pass
      ``from_probabilities(probabilities)``.
    labels: of shape (examples,): the index of each example's class, or its
      name, if ``classes`` are given.
    classes: the names of the classes, in the order of the columns.
    groups: the name of each example's group, of shape (examples,).
    seeds: which seed's model each row is of, of shape (examples,). With
      several, numbers are means over seeds, and intervals are over seeds.
    fit: booleans of shape (examples,): the examples to fit recalibrators on,
      such as a validation set. All numbers are of the other examples. By
      default all numbers are of all examples, but for recalibrators, which are
      fitted on one half and judged by the other.
    num_bins: number of bins of the ECEs and of the diagram.
    replicates: number of bootstrap draws, and of draws of a calibrated model.
    level: confidence level of all intervals.
    seed: of the draws and of the halves.
    name: what the page calls the model.

  Returns:
    A :class:`Report`: ``print`` it, ``save`` it as a page, ``plot`` it, or take
    the numbers of ``to_dict()``. A notebook shows it by itself.

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
  given = _predictions.check(
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
      num_groups=len(given.groups),
      **options,
    )
    for run in given.runs
  ]
  found = _resampling.estimates(described, level)
  p, limit, band = _consistency(given.runs, described, level, options)
  judged, temperature, recalibrators = _judging.judge(
    given.runs, level, options
  )
  first = given.runs[0]
  return Report(
    name=name,
    examples=len(first.rows),
    seeds=len(given.runs),
    classes=given.classes,
    level=level,
    metrics={k: Estimate.of(found[k]) for k in METRICS},
    bins=_parts("bin", found, described, _bin_names(num_bins)),
    band=band,
    p_calibrated=p,
    ece_if_calibrated=limit,
    temperature_half=temperature,
    recalibrated={k: v for k, (v, _) in judged.items()},
    recalibrators=recalibrators,
    by_class=_worst(_parts("class", found, described, given.classes)),
    by_group=_worst(_parts("group", found, described, given.groups)),
    confident_errors=_confident_errors(given),
    best=_judging.best(judged, p, level),
    notes=_notes(given, found["accuracy"][2]),
  )


def _consistency(runs, described, level, options):
  """A p-value, the ECE to expect of a calibrated model, and bands of bins."""
  p_values, limits, bands = [], [], []
  for run, one in zip(runs, described, strict=True):
    confidence = np.asarray(_inputs.confidence(run.logits))
    errors, accuracies = _resampling.consistency(confidence, **options)
    above = np.sum(errors >= one.values["ece"] - 1e-7)
    p_values.append((1 + above) / (1 + len(errors)))
    limits.append(np.quantile(errors, 0.95))
    ends = [(1 - level) / 2, (1 + level) / 2]
    bands.append(np.quantile(accuracies, ends, axis=0))
  # Twice the median is a p-value, whatever the seeds have in common.
  p = float(np.median(p_values)) * (1 if len(runs) == 1 else 2)
  return min(p, 1.0), float(np.mean(limits)), np.mean(bands, axis=0)


def _parts(kind, found, described, names) -> list[Part]:
  if f"{kind}_gap" not in found:
    return []
  counts = np.array([one.values[f"{kind}_count"] for one in described])
  means = np.array([one.values[f"{kind}_confidence"] for one in described])
  count = counts.mean(axis=0)
  total = np.nan_to_num(means) * counts
  confidence = total.mean(axis=0) / np.where(count, count, np.nan)
  pick = lambda key, i: Estimate.of([x[i] for x in found[f"{kind}_{key}"]])
  return [
    Part(name, float(n), pick("accuracy", i), float(c), pick("gap", i))
    for i, (name, n, c) in enumerate(zip(names, count, confidence, strict=True))
  ]


def _worst(parts: list[Part]) -> list[Part]:
  """Those with examples, first those whose gap is the surest to be large."""

  def at_least(part):
    gap = part.gap
    return max(gap.low, -gap.high, 0.0), abs(gap.value)

  known = [part for part in parts if np.isfinite(part.gap.value)]
  return sorted(known, key=at_least, reverse=True)


def _confident_errors(given: _predictions.Predictions) -> list[ConfidentError]:
  errors = []
  for run in given.runs:
    confidence = np.asarray(_inputs.confidence(run.logits))
    predicted = np.asarray(run.logits).argmax(axis=1)
    labels = np.asarray(run.labels)
    wrong = np.flatnonzero(predicted != labels)
    surest = wrong[np.argsort(-confidence[wrong], kind="stable")[:MOST_ERRORS]]
    errors += [
      ConfidentError(
        row=int(run.rows[i]),
        label=given.classes[labels[i]],
        predicted=given.classes[predicted[i]],
        confidence=float(confidence[i]),
      )
      for i in surest
    ]
  errors.sort(key=lambda e: -e.confidence)
  return errors[:MOST_ERRORS]


def _notes(given: _predictions.Predictions, highest_accuracy) -> list[str]:
  notes = []
  if highest_accuracy < 1 / len(given.classes):
    notes.append(
      "The model is right less often than by guessing. Are the columns in the "
      "order of the classes?"
    )
  first = given.runs[0]
  labels = np.asarray(first.labels)
  if len(labels) < 100:
    notes.append(
      f"{len(labels)} example{'s' if len(labels) > 1 else ''} can't tell a "
      "calibrated model from one that is not, unless it is far off."
    )
  if len(given.classes) == 2:
    notes.append(
      "With two classes, the confidence is that of the predicted one, from 0.5 "
      f"to 1. The classwise ECE is of the probability of {given.classes[1]}."
    )
  absent = [
    name
    for c, name in enumerate(given.classes)
    if not any((np.asarray(run.labels) == c).any() for run in given.runs)
  ]
  if absent:
    shown = ", ".join(absent[:5]) + (", …" if len(absent) > 5 else "")
    notes.append(
      f"{len(absent)} of {len(given.classes)} classes never occur as a label: "
      f"{shown}."
    )
  impossible = int(np.sum(_impossible(first.logits, first.labels)))
  if impossible:
    notes.append(
      f"The label of {impossible} examples had a probability below 1e-30. Each "
      "of these adds more than 69 to the sum of losses: they dominate the NLL."
    )
  if first.to_fit is None:
    notes.append(
      f"{len(labels)} examples are too few to fit a recalibrator on one half "
      f"and judge it by the other: {2 * _predictions.LEAST_TO_FIT} are the "
      "least."
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
  """As JSON has it."""
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
