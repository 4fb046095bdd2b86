"""The text of reports and comparisons: tables, answers, recommendations."""

import math
from typing import NamedTuple

import numpy as np

from orthograd_optax.calibration import _selection, _table
from orthograd_optax.calibration._intervals import Estimate
from orthograd_optax.calibration._results import (
  SIGNIFICANT,
  ComparisonResults,
  ReportResults,
)

METHODS = {
  "uncalibrated": "uncalibrated",
  "temperature": "temperature",
  "platt": "temperature and bias (Platt)",
  "vector": "vector scaling",
  "isotonic": "isotonic regression",
}
P_VALUE = "p-value of “the model is calibrated”"


class Answer(NamedTuple):
  """A question of the page, and its answer."""

  question: str
  text: str


def report_table(report: ReportResults) -> str:
  """Returns the answer, the metrics, one per line, and what to do next."""
  rows = [("", "value", f"{100 * report.level:g} % interval")]
  rows += [(_table.label(k), *cells(k, v)) for k, v in report.metrics.items()]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = [
    f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}".rstrip()
    for a, b, c in rows
  ]
  action, code = recommendation(report)
  return "\n".join(
    [
      f"{report.name}: {size(report)}",
      f"Can its confidence be trusted? {answer(report)}",
      "",
      *lines,
      "",
      f"{P_VALUE}: {p_value(report.p_calibrated)}",
      *(f"Note: {note}" for note in report.notes),
      "",
      f"Next: {action}",
      *(f"  {line}" for line in code.splitlines()),
    ]
  )


def comparison_table(comparison: ComparisonResults) -> str:
  """Returns the metrics of both models, one per line, and the verdicts."""
  old, new = comparison.old, comparison.new
  rows = [comparison_header(comparison)]
  for key, difference in comparison.difference.items():
    pairs = cells(key, old[key]), cells(key, new[key]), cells("", difference)
    texts = [" ".join(pair).rstrip() for pair in pairs]
    rows.append((_table.label(key), *texts, comparison.verdicts[key]))
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = [
    "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
    for row in rows
  ]
  notes = [f"Note: {note}" for note in comparison.notes]
  head, summary = comparison_size(comparison), comparison_summary(comparison)
  return "\n".join([head, "", *lines, "", summary, *notes])


def comparison_header(comparison: ComparisonResults) -> tuple[str, ...]:
  old, new = comparison.names
  return "", old, new, f"difference ({new} − {old})", "verdict"


def comparison_size(comparison: ComparisonResults) -> str:
  seeds = f"{comparison.seeds} seeds of each, " if comparison.seeds > 1 else ""
  return f"{seeds}{comparison.examples:,} examples, the same for both"


def comparison_summary(comparison: ComparisonResults) -> str:
  """Returns the verdicts of NLL and ECE, in one line."""
  nll, ece = (
    comparison.verdicts[name] or "no verdict" for name in ("nll", "ece")
  )
  return (
    f"NLL (accuracy and calibration together): {nll}. "
    f"ECE (calibration alone): {ece}."
  )


def size(report: ReportResults) -> str:
  seeds = f"{report.seeds} seeds, " if report.seeds > 1 else ""
  number = f"{report.examples:,} example{'s' if report.examples > 1 else ''}"
  return f"{seeds}{number}, {len(report.classes)} classes"


def cells(name: str, estimate: Estimate) -> tuple[str, str]:
  """Returns the cells of a metric: value and interval."""
  value, low, high = estimate
  form = lambda x: (f"{x:.4f}" if abs(x) < 1000 else f"{x:.4g}").replace(
    "-", "−"
  )
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


def direction(report: ReportResults) -> str:
  """Returns over- or underconfident if that is shown, else an empty string."""
  gap = report.metrics["overconfidence"]
  if report.p_calibrated >= SIGNIFICANT or not (gap.low > 0 or gap.high < 0):
    return ""
  return "overconfident" if gap.value > 0 else "underconfident"


def answer(report: ReportResults) -> str:
  """Answers the title: can the confidence be trusted?"""
  if report.p_calibrated >= SIGNIFICANT:
    return (
      "There is no evidence against it: a calibrated model could easily "
      f"produce these predictions (p = {p_value(report.p_calibrated)})."
    )
  found = direction(report)
  by = 100 * abs(report.metrics["overconfidence"].value)
  ece = 100 * report.metrics["ece"].value
  text = (
    f"No. It is {found} by {by:.1f} points."
    if found
    else f"No. Its confidence is off by {ece:.1f} points on average (ECE)."
  )
  return f"{text} {_gain(report, report.best)}" if report.best else text


def _gain(report: ReportResults, method: str) -> str:
  """Returns what a method does to the ECE, or else to the NLL."""
  before, after = (report.recalibrated[k] for k in ("uncalibrated", method))
  start = METHODS[method].capitalize()
  if method == "temperature" and report.fitted_temperature is not None:
    start = f"Dividing the logits by {report.fitted_temperature.value:.3g}"
  change = f"NLL from {before['nll'].value:.3f} to {after['nll'].value:.3f}"
  if after["ece"].value < before["ece"].value:
    was, now = (100 * x["ece"].value for x in (before, after))
    change = f"ECE from {was:.1f} % to {now:.1f} %"
  return (
    f"{start} lowers {change} on {report.held_out_examples:,} held-out "
    "examples."
  )


def answers(report: ReportResults) -> dict[str, Answer]:
  """Returns the questions of the page, in order."""
  return {
    "accuracy": Answer("How often is it right?", _accuracy(report)),
    "confidence": Answer("How confident is it?", _confidence(report)),
    "gap": Answer("Does confidence match accuracy?", _gap(report)),
    "scale": Answer("Does a temperature fix it?", _scale(report)),
    "worst": Answer("Where is it worst?", _worst(report)),
    "noise": Answer("Is it more than noise?", _noise(report)),
  }


def _accuracy(report: ReportResults) -> str:
  over = "seeds" if report.seeds > 1 else "examples"
  return (
    f"It is right in {percent(report.metrics['accuracy'])} of "
    f"{report.examples:,} cases. Numbers in brackets are the ends of a "
    f"{100 * report.level:g} % interval. All intervals on this page are over "
    f"{over}."
  )


def _confidence(report: ReportResults) -> str:
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


def _gap(report: ReportResults) -> str:
  gap, found = report.metrics["overconfidence"], direction(report)
  if found:
    verdict = f"No: it is {found}"
  elif report.p_calibrated < SIGNIFICANT:
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


def _scale(report: ReportResults) -> str:
  fitted = report.fitted_temperature
  if not report.recalibrated or fitted is None:
    return "There are too few examples to tell."
  examples = f"{report.fit_examples:,} examples"
  others = f"the {report.held_out_examples:,} held-out examples"
  where = (
    f"All methods below are fitted on {examples}, and evaluated on {others}."
  )
  if not math.isfinite(sum(fitted)):
    reason = (
      "every prediction is correct, so more confidence is always better"
      if _selection.is_always_right(fitted)
      else "the logits are uninformative, or anti-correlated with the labels"
    )
    return (
      f"No temperature helps. On the {examples} to fit on, {reason}. {where}"
    )
  gain = report.recalibrated["temperature"]["nll_gain"]
  if gain.low > 0:
    verdict = "lowers the loss"
  elif gain.high < 0:
    verdict = "raises the loss"
  else:
    verdict = "makes no significant difference to the loss"
  value, low, high = fitted
  return (
    f"{where} The fitted temperature is {value:.3g} ({low:.3g} to {high:.3g}); "
    "above 1, the model is overconfident. On the held-out examples, it "
    f"{verdict}: {_change(report, 'temperature')}."
  )


def _change(report: ReportResults, method: str) -> str:
  before, after = (report.recalibrated[k] for k in ("uncalibrated", method))
  return (
    f"the NLL goes from {before['nll'].value:.3f} to {after['nll'].value:.3f}, "
    f"and the ECE from {100 * before['ece'].value:.1f} % to "
    f"{100 * after['ece'].value:.1f} %"
  )


def _worst(report: ReportResults) -> str:
  kinds = [
    ("predicted class", "predicted classes", report.by_class),
    ("group", "groups", report.by_group),
  ]
  texts = []
  for kind, plural, parts in kinds:
    if not parts:
      continue
    worst = parts[0]
    if worst.p_value < SIGNIFICANT:
      verdict = "overconfident" if worst.gap.value > 0 else "underconfident"
      number = sum(part.p_value < SIGNIFICANT for part in parts)
      texts.append(
        f"In the {kind} “{worst.name}”, it is {verdict}: confidence minus "
        f"accuracy is {points(worst.gap)}, adjusted p is "
        f"{p_value(worst.p_value)}. The gap is significant in {number} of "
        f"{len(parts)} {plural}."
      )
    else:
      texts.append(
        f"No {kind} is off by more than noise (smallest adjusted p: "
        f"{p_value(worst.p_value)})."
      )
  texts.append(
    "p-values are adjusted for all classes and groups by Holm’s method."
  )
  if report.confident_errors:
    texts.append("Look at the most confident errors one by one.")
  return " ".join(texts)


def _noise(report: ReportResults) -> str:
  p, limit = report.p_calibrated, 100 * report.ece_if_calibrated
  verdict = (
    "Yes. A calibrated model would rarely look like this"
    if p < SIGNIFICANT
    else "There is no evidence of that: a calibrated model could easily "
    "produce this"
  )
  return (
    f"{verdict}: p is {p_value(p)}. With as many examples, the ECE of a "
    f"calibrated model stays below {limit:.1f} % in 95 of 100 samples. Here it "
    f"is {100 * report.metrics['ece'].value:.1f} %."
  )


def recommendation(report: ReportResults) -> tuple[str, str]:
  """Returns what to do next, in words and in code."""
  if report.best is not None:
    return (
      f"Recalibrate: {METHODS[report.best]}. On the "
      f"{report.held_out_examples:,} held-out examples, "
      f"{_change(report, report.best)}.",
      "import jax\n"
      "from orthograd_optax import calibration\n\n"
      "# Use examples that the model was not trained on. If you have\n"
      "# probabilities p, logits = calibration.from_probabilities(p).\n"
      f'recalibrate = calibration.fit(logits, labels, "{report.best}")\n'
      'recalibrate.save("recalibrator.json")  # calibration.load reads it\n'
      "probabilities = jax.nn.softmax(recalibrate(new_logits))",
    )
  if report.examples < 100:
    return (
      f"Get more examples: {report.examples} are too few. Use at least a few "
      "hundred.",
      "",
    )
  if _selection.is_always_right(report.fitted_temperature):
    return (
      "Leave the model unchanged. Every prediction to fit on is correct, so a "
      "recalibrator would raise the confidence without limit. Use examples "
      "with some wrong predictions.",
      "",
    )
  if report.p_calibrated >= SIGNIFICANT:
    return (
      "Leave the model unchanged. There is no evidence that its confidence is "
      "off, and a recalibrator would fit noise. Repeat this report on new "
      "data.",
      "",
    )
  return (
    "Don't recalibrate: no method lowers the loss on the held-out examples. "
    "Look at the classes, the groups and the most confident errors, or train "
    "with a loss that calibrates.",
    "from orthograd_optax import calibration\n"
    "loss = calibration.focal(logits, labels).mean()",
  )
