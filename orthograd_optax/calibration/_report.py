"""The calibration report of one model."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import itertools
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from orthograd_optax.calibration import (
  _bins,
  _inputs,
  _intervals,
  _page,
  _predictions,
  _resampling,
  _results,
  _selection,
  _table,
  _text,
)
from orthograd_optax.calibration._intervals import Estimate
from orthograd_optax.calibration._results import ConfidentError, Part
from orthograd_optax.calibration._sample import Sample
from orthograd_optax.stats import holm

if TYPE_CHECKING:
  from matplotlib.figure import Figure

MAX_ERRORS = 10
_log = logging.getLogger("orthograd_optax")


@dataclasses.dataclass(frozen=True)
class Report(_results.Results, _page.Page):
  """The result of :func:`report`. Print it, or ``save`` it as a page.

  Attributes:
    name: name of the model.
    examples: number of examples of one seed.
    seeds: number of seeds. With several, intervals are over seeds.
    classes: names of the classes.
    level: confidence level of all intervals.
    metrics: an :class:`Estimate` of each metric, by name. The temperature is
      NaN if none helps.
    bins: a :class:`Part` for each bin of confidence.
    band: array of shape (2, bins): the range of each bin's accuracy, in a share
      ``level`` of samples, if the model were calibrated.
    p_calibrated: p-value of "the model is calibrated", by consistency
      resampling of the ECE; for several seeds, twice the median.
    ece_if_calibrated: 95 % quantile of the ECE of a calibrated model.
    fit_examples: number of examples that recalibrators were fitted on.
    held_out_examples: number of examples that they were evaluated on.
    fitted_temperature: the best temperature of the examples to fit on; None if
      there are too few.
    recalibrated: metrics of each method, and of the "uncalibrated" model, on
      the held-out examples, with ``nll_gain``, the fall of the NLL.
    recalibrators: the recalibrator of each method, fitted to the first seed.
    by_class: a :class:`Part` for each predicted class: significant gaps first,
      by size, then the others, by p-value.
    by_group: a :class:`Part` for each group, in the same order.
    confident_errors: the most confident errors, as :class:`ConfidentError`.
    best: the recommended method of recalibration, or None.
    notes: remarks for the reader.
  """

  def __str__(self) -> str:
    return _text.report_table(self)

  def to_dict(self) -> dict[str, Any]:
    """Returns all numbers as Python numbers of seven significant digits.

    Metrics come first, as ``{"value": ..., "low": ..., "high": ...}``. NaN and
    infinities become None.
    """
    content = dict(vars(self))
    metrics, band = content.pop("metrics"), content.pop("band").T.tolist()
    del content["recalibrators"]
    content["bins"] = [
      vars(one) | {"band": ends}
      for one, ends in zip(self.bins, band, strict=True)
    ]
    action, code = _text.recommendation(self)
    content |= {"answer": _text.answer(self), "recommendation": action}
    return _results.plain(metrics | content | {"code": code})

  def plot(self) -> "Figure":
    """Draws the reliability diagram. Needs matplotlib."""
    return _page.plots().report_diagram(self)

  def html(self) -> str:
    """Returns the page as HTML. Needs matplotlib."""
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
  where: Any = None,
  metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
  num_bins: int = 10,
  resamples: int = 1000,
  level: float = 0.95,
  random_seed: int = 0,
  name: str = "model",
) -> Report:
  """Reports whether a model's confidence can be trusted, with intervals.

  Args:
    logits: array of shape (examples, classes), or (seeds, examples, classes)
      for several seeds. For two classes, the logit of the second class is
      enough, of shape (examples,) or (examples, 1). If you have probabilities,
      pass ``from_probabilities(probabilities)``. For tokens, logits of shape
      (batch, tokens, classes) with labels of shape (batch, tokens): each token
      is an example, and intervals take tokens as independent.
    labels: the index of each example's class, of shape (examples,); or its
      name, if you give ``classes``.
    classes: names of the classes, in the order of the columns.
    groups: name of each example's group, in the shape of the labels.
    seeds: training seed of each row, in the shape of the labels. With several
      seeds, numbers are means over seeds, and intervals are over seeds.
    fit: booleans in the shape of the labels: ``True`` for examples to fit
      recalibrators on, such as a validation set. All numbers then describe the
      other examples. By default, recalibrators are fitted on one half of the
      examples and evaluated on the other; other numbers describe all examples.
    where: booleans in the shape of the labels: ``False`` for examples to leave
      out, such as padding.
    metrics: more metrics to report, by name: functions of (logits, labels),
      called once for each resample.
    num_bins: number of bins of the ECEs and of the diagram.
    resamples: number of resamples, and of samples of a calibrated model.
    level: confidence level of all intervals.
    random_seed: seed of the resamples and of the split into halves.
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
  _predictions.check_draws(resamples, level)
  least = round(1 / _results.SIGNIFICANT)
  if resamples < least:
    raise ValueError(
      f"resamples must be at least {least} for a report, but is {resamples}: "
      f"no p-value would be below {_results.SIGNIFICANT}. 1000 is typical."
    )
  _bins.check_bins(num_bins)
  _check_metrics(metrics)
  predictions = _predictions.check_all(
    logits, labels, classes, seeds, groups, fit, random_seed, where
  )
  options = num_bins, resamples, random_seed
  runs, samples = predictions.runs, predictions.samples(options)
  _log.info("Computing metrics of %s examples", f"{samples[0].examples:,}")
  described = [_resampling.describe(sample) for sample in samples]
  estimates = _resampling.summary(described, level)
  for key, metric in (metrics or {}).items():
    _log.info("Resampling %s", key)
    estimates[key] = _own_metric(metric, samples, level, options)
  p, limit, band = _consistency(samples, described, level, options)
  _log.info("Fitting recalibrators")
  evaluated, temperature, recalibrators = _selection.evaluate(
    predictions, level, options
  )
  by_class, by_group = _classes_and_groups(samples, predictions, level)
  bin_indices = [sample.bin_index for sample in samples]
  size = lambda pair: 0 if pair is None else len(pair[1])
  return Report(
    name=_inputs.as_name(name),
    examples=len(runs[0].rows),
    seeds=len(runs),
    classes=predictions.classes,
    level=level,
    metrics=estimates,
    bins=_parts(samples, bin_indices, _bin_names(num_bins), level),
    band=band,
    p_calibrated=p,
    ece_if_calibrated=limit,
    fit_examples=size(runs[0].to_fit),
    held_out_examples=size(runs[0].held_out),
    fitted_temperature=temperature,
    recalibrated={k: v for k, (v, _) in evaluated.items()},
    recalibrators=recalibrators,
    by_class=by_class,
    by_group=by_group,
    confident_errors=_confident_errors(predictions, samples),
    best=_selection.best(evaluated, temperature, p, level),
    notes=_notes(predictions, samples[0], estimates["accuracy"].high),
  )


def _check_metrics(metrics: Mapping[str, Any] | None) -> None:
  fields = [field.name for field in dataclasses.fields(Report)]
  taken = {*_table.METRICS, *fields, "answer", "recommendation", "code"}
  for name, metric in (metrics or {}).items():
    text = isinstance(name, str) and name == _inputs.as_name(name)
    if not text or name in taken or not callable(metric):
      raise ValueError(
        "metrics must have functions of (logits, labels) by new names, but has "
        f"{name!r}: {metric!r}. Choose a name that the report does not have."
      )


def _own_metric(metric, samples, level, options) -> Estimate:
  pairs = [(sample.logits, sample.labels) for sample in samples]
  if len(pairs) > 1:
    values = [float(metric(*pair)) for pair in pairs]
    return Estimate.of(_intervals.seeds_interval(values, level))
  return _resampling.resampled(metric, *pairs[0], level, *options[1:])


def _consistency(samples, described, level, options):
  """Returns p-value, ECE limit and bands of a calibrated model."""
  p_values, limits, bands = [], [], []
  ends = [(1 - level) / 2, (1 + level) / 2]
  for sample, one in zip(samples, described, strict=True):
    confidence = sample.each["confidence"]
    errors, accuracies = _resampling.consistency(confidence, *options)
    above = np.sum(errors >= one.values["ece"] - 1e-9)
    p_values.append((1 + above) / (1 + len(errors)))
    limits.append(np.quantile(errors, 0.95))
    bands.append(np.quantile(accuracies, ends, axis=0))
  return _joint_p(p_values), float(np.mean(limits)), np.mean(bands, axis=0)


def _joint_p(p_values: Any) -> float:
  """Combines dependent p-values: twice the median is a valid p-value."""
  known = np.asarray(p_values)[~np.isnan(p_values)]
  factor = 1 if len(known) == 1 else 2
  return float(min(factor * np.median(known), 1)) if known.size else np.nan


def _parts(samples, indices, names, level) -> list[Part]:
  """Describes bins, classes or groups. Parts without examples are NaN."""
  pairs = list(zip(samples, indices, strict=True))
  count, right, total = (
    np.array([np.bincount(i, s.each[key], len(names)) for s, i in pairs])
    for key in ("count", "correct", "confidence")
  )
  with np.errstate(invalid="ignore"):
    accuracies, gaps = right / count, (total - right) / count
    confidence = total.sum(axis=0) / count.sum(axis=0)
  if len(samples) == 1:
    accuracy = _intervals.wilson_interval(right[0], count[0], level)
    value, low, high = accuracy
    gap = confidence - value, confidence - high, confidence - low
  else:
    accuracy = _intervals.seeds_interval(accuracies, level, (0.0, 1.0))
    gap = _intervals.seeds_interval(gaps, level)
  return [
    Part(
      name,
      float(count[:, i].mean()),
      Estimate.of([x[i] for x in accuracy]),
      float(confidence[i]),
      Estimate.of([x[i] for x in gap]),
    )
    for i, name in enumerate(names)
  ]


def _classes_and_groups(samples, predictions, level):
  """Returns the parts of predicted classes and groups, with p-values."""
  kinds = [([s.each["predicted"] for s in samples], predictions.classes)]
  if predictions.groups:
    groups = [run.groups for run in predictions.runs]
    kinds.append((groups, predictions.groups))
  tables, p_values = [], []
  for indices, names in kinds:
    # Bonferroni's intervals: they hold for all parts together.
    joint = 1 - (1 - level) / len(np.unique(np.concatenate(indices)))
    of_seeds = [
      _resampling.gap_p_values(s, i, len(names))
      for s, i in zip(samples, indices, strict=True)
    ]
    parts = _parts(samples, indices, names, joint)
    tables.append([part for part in parts if part.count])
    of_parts = zip(parts, np.transpose(of_seeds), strict=True)
    p_values += [_joint_p(p) for part, p in of_parts if part.count]
  adjusted = map(float, holm(p_values))
  for parts in tables:
    parts[:] = [
      dataclasses.replace(part, p_value=next(adjusted)) for part in parts
    ]
    parts.sort(key=_order)
  return tables[0], tables[1] if predictions.groups else []


def _order(part: Part) -> tuple:
  significant = part.p_value < _results.SIGNIFICANT
  return not significant, 0 if significant else part.p_value, -abs(part.gap[0])


def _confident_errors(predictions, samples) -> list[ConfidentError]:
  errors, classes = [], predictions.classes
  for run, sample in zip(predictions.runs, samples, strict=True):
    confidence, predicted = sample.each["confidence"], sample.each["predicted"]
    wrong = np.flatnonzero(predicted != run.labels)
    order = np.argsort(-confidence[wrong], kind="stable")[:MAX_ERRORS]
    errors += [
      ConfidentError(
        row=int(run.rows[i]),
        label=classes[run.labels[i]],
        predicted=classes[predicted[i]],
        confidence=float(confidence[i]),
      )
      for i in wrong[order]
    ]
  return sorted(errors, key=lambda e: -e.confidence)[:MAX_ERRORS]


def _notes(predictions, first: Sample, highest_accuracy: float) -> list[str]:
  classes, number = predictions.classes, first.examples
  notes = []
  if highest_accuracy < 1 / len(classes):
    notes += [
      "The accuracy is below chance. Check that the columns are in the order "
      "of the classes."
    ]
  if number < 100:
    size = _text.examples(number)
    notes += [f"{size} can only reveal a large miscalibration."]
  if len(classes) == 2:
    notes += [
      "With two classes, the confidence is the probability of the predicted "
      "class, from 0.5 to 1. The classwise ECE uses the probability of "
      f"{classes[1]}."
    ]
  occurring = {c for run in predictions.runs for c in np.unique(run.labels)}
  absent = [name for c, name in enumerate(classes) if c not in occurring]
  if absent:
    names = ", ".join(absent[:5]) + (", …" if len(absent) > 5 else "")
    share = f"{len(absent)} of {len(classes)} classes"
    notes += [f"{share} never occur as a label: {names}."]
  if impossible := int(np.sum(first.each["nll"] > 69)):
    notes += [
      f"The label of {_text.examples(impossible)} has a probability below "
      "1e-30. Each adds more than 69 to the sum of losses, and dominates the "
      "NLL."
    ]
  if predictions.runs[0].to_fit is None:
    notes += [
      f"{number} examples are too few to fit a recalibrator on one half and "
      f"evaluate it on the other. Use at least {2 * _predictions.MIN_TO_FIT}."
    ]
  return notes


def _bin_names(num_bins: int) -> list[str]:
  edges = [f"{i / num_bins:.3g}" for i in range(num_bins + 1)]
  return [f"{low}–{high}" for low, high in itertools.pairwise(edges)]
