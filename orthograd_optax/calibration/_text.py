"""The text of reports and comparisons: tables, answers, recommendations."""

from collections.abc import Callable, Sequence
import math
from typing import NamedTuple

import numpy as np

from orthograd_optax.calibration import _results, _selection, _table
from orthograd_optax.calibration._intervals import Estimate
from orthograd_optax.calibration._results import Comparison, Results

METHODS = {
  "uncalibrated": "uncalibrated",
  "temperature": "temperature",
  "platt": "temperature and bias (Platt)",
  "vector": "vector scaling",
  "isotonic": "isotonic regression",
}
Cell = str | tuple[str, str]  # a text, or a value and its interval
P_VALUE = "p-value of “the model is calibrated”"


class Answer(NamedTuple):
  """A question of the page, and its answer."""

  question: str
  text: str


def report_table(report: Results) -> str:
  """Returns the answer, the metrics, one per line, and what to do next."""
  rows = [("all examples", "value", f"{100 * report.level:g} % interval")]
  rows += [(_table.label(k), *cells(k, v)) for k, v in report.metrics.items()]
  action, code = recommendation(report)
  return "\n".join(
    [
      f"{report.name}: {size(report)}",
      f"Can its confidence be trusted? {answer(report)}",
      "",
      *_aligned(rows, str.rjust),
      "",
      f"{P_VALUE}: {p_value(report.p_calibrated)}",
      *(f"Note: {note}" for note in report.notes),
      "",
      f"Next: {action}",
      *(f"  {line}" for line in code.splitlines()),
    ]
  )


def comparison_table(comparison: Comparison) -> str:
  """Returns the metrics of both models, one per line, and the verdicts."""
  rows = [
    [x if isinstance(x, str) else " ".join(x).rstrip() for x in row]
    for row in comparison_rows(comparison)
  ]
  notes = [f"Note: {note}" for note in comparison.notes]
  head, summary = comparison_size(comparison), comparison_summary(comparison)
  return "\n".join([head, "", *_aligned(rows, str.ljust), "", summary, *notes])


def _aligned(rows: Sequence[Sequence[str]], justify: Callable) -> list[str]:
  first, *others = zip(*rows, strict=True)
  pad = lambda column, way: [way(x, max(map(len, column))) for x in column]
  columns = pad(first, str.ljust), *(pad(column, justify) for column in others)
  return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def comparison_rows(comparison: Comparison) -> list[list[Cell]]:
  """Returns the table of both models, with its header."""
  old, new = comparison.names
  header = "", old, new, f"difference ({new} − {old})", "verdict"
  rows: list[list[Cell]] = [list(header)]
  for key, difference in comparison.difference.items():
    both = (cells(key, x[key]) for x in (comparison.old, comparison.new))
    verdict = comparison.verdicts[key]
    rows.append([_table.label(key), *both, cells("", difference), verdict])
  return rows


def comparison_size(comparison: Comparison) -> str:
  seeds = f"{comparison.seeds} seeds of each, " if comparison.seeds > 1 else ""
  return f"{seeds}{comparison.examples:,} examples, the same for both"


def comparison_summary(comparison: Comparison) -> str:
  """Returns the verdicts of NLL and ECE, in one line."""
  nll, ece = (comparison.verdicts[k] or "no verdict" for k in ("nll", "ece"))
  return (
    f"NLL (accuracy and calibration together): {nll}. "
    f"ECE (calibration alone): {ece}."
  )


def size(report: Results) -> str:
  seeds = f"{report.seeds} seeds, " if report.seeds > 1 else ""
  return f"{seeds}{examples(report.examples)}, {len(report.classes)} classes"


def examples(number: int) -> str:
  return f"{number:,} example{'s' if number > 1 else ''}"


def cells(name: str, estimate: Estimate) -> tuple[str, str]:
  """Returns the cells of a metric: value and interval."""
  value, low, high = estimate
  form = lambda x: f"{x:{'.4f' if abs(x) < 1000 else '.4g'}}".replace("-", "−")
  if name == "temperature" and np.isnan(value):
    return "none helps", ""
  if not np.isfinite(value):
    return ("—" if np.isnan(value) else "∞"), ""
  if not np.isfinite(low + high):
    return form(value), "—"
  return form(value), f"({form(low)}, {form(high)})"


def p_value(p: float) -> str:
  # With 1000 resamples, no p-value is below 0.001.
  return f"{p:.3f}" if p > 0.001 else "at most 0.001"


def percent(estimate: Estimate, unit: str = "%", form: str = ".1f") -> str:
  value, low, high = (100 * x for x in estimate)
  text = f"{value:{form}} {unit}"
  if np.isfinite(low + high):
    text += f" ({low:{form}} to {high:{form}})"
  return text.replace("-", "−")


def points(estimate: Estimate) -> str:
  """Returns a difference of percentages, in points."""
  return percent(estimate, "points", "+.1f")


def direction(report: Results) -> str:
  """Returns over- or underconfident if that is shown, else an empty string."""
  gap = report.metrics["overconfidence"]
  if report.p_calibrated >= _results.SIGNIFICANT or not (
    gap.low > 0 or gap.high < 0
  ):
    return ""
  return "overconfident" if gap.value > 0 else "underconfident"


def answer(report: Results) -> str:
  """Answers the title: can the confidence be trusted?"""
  if report.p_calibrated >= _results.SIGNIFICANT:
    return (
      "There is no evidence against it: a calibrated model could easily "
      f"produce these predictions (p = {p_value(report.p_calibrated)})."
    )
  text = direction(report)
  if text:
    by = 100 * abs(report.metrics["overconfidence"].value)
    text = f"No. It is {text} by {by:.1f} points."
  else:
    ece = 100 * report.metrics["ece"].value
    text = f"No. Its confidence is off by {ece:.1f} points on average (ECE)."
  return f"{text} {_gain(report, report.best)}" if report.best else text


def _gain(report: Results, method: str) -> str:
  """Returns what a method does to the ECE, or else to the NLL."""
  start = METHODS[method].capitalize()
  if method == "temperature" and report.fitted_temperature is not None:
    start = f"Dividing the logits by {report.fitted_temperature.value:.3g}"
  was, now = (report.recalibrated[k]["ece"] for k in ("uncalibrated", method))
  nll, ece = _changes(report, method)
  change = f"ECE {ece}" if now.value < was.value else f"NLL {nll}"
  held_out = f"{report.held_out_examples:,} held-out examples"
  return f"{start} lowers {change} on {held_out}."


def _changes(report: Results, method: str) -> tuple[str, str]:
  """Returns the changes of NLL and ECE on the held-out examples."""
  before, after = (report.recalibrated[k] for k in ("uncalibrated", method))
  nll, ece = ([x[k].value for x in (before, after)] for k in ("nll", "ece"))
  return (
    f"from {nll[0]:.3f} to {nll[1]:.3f}",
    f"from {100 * ece[0]:.1f} % to {100 * ece[1]:.1f} %",
  )


def answers(report: Results) -> dict[str, Answer]:
  """Returns the questions of the page, in order."""
  return {
    "accuracy": Answer("How accurate is it?", _accuracy(report)),
    "confidence": Answer("How confident is it?", _confidence(report)),
    "gap": Answer("Does confidence match accuracy?", _gap(report)),
    "scale": Answer("Does a temperature fix it?", _scale(report)),
    "worst": Answer("Where is it worst?", _worst(report)),
    "noise": Answer("Is it more than noise?", _noise(report)),
  }


def _accuracy(report: Results) -> str:
  return (
    f"It is correct in {percent(report.metrics['accuracy'])} of "
    f"{report.examples:,} cases. Numbers in brackets are the ends of a "
    f"{100 * report.level:g} % interval. All intervals on this page are over "
    f"{'seeds' if report.seeds > 1 else 'examples'}."
  )


def _confidence(report: Results) -> str:
  auroc = report.metrics["auroc"]
  text = f"Its mean confidence is {percent(report.metrics['confidence'])}. "
  if not np.isfinite(auroc.value):
    return text + "Its predictions are all correct, or all wrong."
  return (
    f"{text}In {percent(auroc)} of pairs, a correct prediction has a higher "
    "confidence than a wrong one (AUROC); 50 % is chance. Without the least "
    "confident tenth of its predictions, it is wrong in "
    f"{percent(report.metrics['selective_risk'])} of cases."
  )


def _gap(report: Results) -> str:
  gap, bias = report.metrics["overconfidence"], direction(report)
  if bias:
    verdict = f"No: it is {bias}"
  elif report.p_calibrated < _results.SIGNIFICANT:
    verdict = "On average, yes, but not at every confidence"
  else:
    verdict = "There is no evidence that it does not"
  return (
    f"{verdict}. Confidence minus accuracy is {points(gap)}. The ECE, the mean "
    "difference over bins, is "
    f"{percent(report.metrics['ece'], 'points')}. In the diagram, a bar that "
    "ends on the dashed line is calibrated. For a calibrated model, bars end "
    "within the grey band."
  )


def _scale(report: Results) -> str:
  fitted = report.fitted_temperature
  if not report.recalibrated or fitted is None:
    return "There are too few examples to tell."
  where = (
    f"All methods below are fitted on {report.fit_examples:,} examples, and "
    f"evaluated on the {report.held_out_examples:,} held-out examples."
  )
  if not math.isfinite(sum(fitted)):
    reason = "the logits are uninformative, or anti-correlated with the labels"
    if _selection.is_always_right(fitted):
      reason = (
        "every prediction is correct, so more confidence is always better"
      )
    return (
      f"No temperature helps. On the {report.fit_examples:,} examples to fit "
      f"on, {reason}. {where}"
    )
  gain = report.recalibrated["temperature"]["nll_gain"]
  verdict = "makes no significant difference to the loss"
  if gain.low > 0 or gain.high < 0:
    verdict = f"{'lowers' if gain.low > 0 else 'raises'} the loss"
  value, low, high = fitted
  side = "not clearly different from 1"
  if low > 1 or high < 1:
    side = f"so the model is {'over' if low > 1 else 'under'}confident"
  nll, ece = _changes(report, "temperature")
  return (
    f"{where} The fitted temperature is {value:.3g} ({low:.3g} to {high:.3g}), "
    f"{side}. On the held-out examples, it {verdict}: the NLL goes "
    f"{nll}, and the ECE {ece}."
  )


def _worst(report: Results) -> str:
  texts = []
  for kind, plural, parts in (
    ("predicted class", "predicted classes", report.by_class),
    ("group", "groups", report.by_group),
  ):
    number = sum(part.p_value < _results.SIGNIFICANT for part in parts)
    if number:  # The worst is first.
      verdict = "overconfident" if parts[0].gap.value > 0 else "underconfident"
      texts.append(
        f"In the {kind} “{parts[0].name}”, it is {verdict}: confidence minus "
        f"accuracy is {points(parts[0].gap)}, adjusted p is "
        f"{p_value(parts[0].p_value)}. The gap is significant in {number} of "
        f"{len(parts)} {plural}."
      )
    elif parts:
      texts.append(
        f"No {kind} is off by more than noise (smallest adjusted p: "
        f"{p_value(parts[0].p_value)})."
      )
  texts.append(
    "p-values are adjusted for all classes and groups by Holm’s method."
  )
  if report.confident_errors:
    texts.append("Look at the most confident errors one by one.")
  return " ".join(texts)


def _noise(report: Results) -> str:
  verdict = "Yes. A calibrated model would rarely look like this"
  if report.p_calibrated >= _results.SIGNIFICANT:
    verdict = (
      "There is no evidence of that: a calibrated model could easily produce "
      "this"
    )
  return (
    f"{verdict}: p is {p_value(report.p_calibrated)}. With as many examples, "
    "the ECE of a calibrated model stays below "
    f"{100 * report.ece_if_calibrated:.1f} % in 95 of 100 samples. Here it is "
    f"{100 * report.metrics['ece'].value:.1f} %."
  )


_RECALIBRATE = """\
import jax
from orthograd_optax import calibration

# Use examples that the model was not trained on. If you have
# probabilities p, logits = calibration.from_probabilities(p).
recalibrate = calibration.fit(logits, labels, "{method}")
recalibrate.save("recalibrator.json")  # calibration.load reads it
probabilities = jax.nn.softmax(recalibrate(new_logits))"""
_TRAIN = """\
from orthograd_optax import calibration
loss = calibration.focal(logits, labels).mean()"""


def recommendation(report: Results) -> tuple[str, str]:
  """Returns what to do next, in words and in code."""
  code = ""
  if report.best is not None:
    nll, ece = _changes(report, report.best)
    text = (
      f"Recalibrate: {METHODS[report.best]}. On the "
      f"{report.held_out_examples:,} held-out examples, the NLL goes {nll}, "
      f"and the ECE {ece}."
    )
    code = _RECALIBRATE.format(method=report.best)
  elif report.examples < 100:
    text = (
      f"Get more examples: {report.examples} are too few. Use at least a few "
      "hundred."
    )
  elif _selection.is_always_right(report.fitted_temperature):
    text = (
      "Leave the model unchanged. Every prediction to fit on is correct, so a "
      "recalibrator would raise the confidence without limit. Use examples "
      "with some wrong predictions."
    )
  elif report.p_calibrated >= _results.SIGNIFICANT:
    text = (
      "Leave the model unchanged. There is no evidence that its confidence is "
      "off, and a recalibrator would fit noise. Repeat this report on new "
      "data."
    )
  else:
    text = (
      "Don't recalibrate: no method lowers the loss on the held-out examples. "
      "Look at the classes, the groups and the most confident errors, or train "
      "with a loss that calibrates."
    )
    code = _TRAIN
  return text, code
