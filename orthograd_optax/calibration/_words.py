"""The words of a report: its table, its answers, its recommendation."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from orthograd_optax.calibration import _judging
from orthograd_optax.calibration._bootstrap import Estimate

if TYPE_CHECKING:
  from orthograd_optax.calibration._report import Report

LABELS = {
  "accuracy": "accuracy",
  "confidence": "mean confidence",
  "overconfidence": "confidence − accuracy",
  "nll": "NLL (log-loss), nats",
  "brier": "Brier score",
  "ece": "ECE",
  "ece_equal_mass": "ECE, bins of equal mass",
  "classwise_ece": "classwise ECE",
  "rms_calibration_error": "RMS calibration error",
  "ks_calibration_error": "KS calibration error",
  "auroc": "AUROC of confidence",
  "aurc": "AURC",
  "selective_risk": "error rate of the most confident 90 %",
  "entropy": "entropy, nats",
  "temperature": "best temperature",
}
METHODS = {
  "as it is": "as it is",
  "temperature": "temperature",
  "platt": "temperature and bias (Platt)",
  "vector": "vector scaling",
  "isotonic": "isotonic regression",
}


class Answer(NamedTuple):
  """A question of the page, and its answer."""

  question: str
  text: str


def table(report: "Report") -> str:
  """The metrics, one per line, and the recommendation."""
  rows = [(LABELS[k], *numbers(v)) for k, v in report.metrics.items()]
  rows.insert(0, ("", "value", f"{100 * report.level:g} % interval"))
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = [
    f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}".rstrip()
    for a, b, c in rows
  ]
  action, code = recommendation(report)
  return "\n".join(
    [
      f"{report.name}: {size(report)}",
      "",
      *lines,
      "",
      f"p-value of “the model is calibrated”: {p_value(report.p_calibrated)}",
      *(f"Note: {note}" for note in report.notes),
      "",
      f"Next: {action}",
      *(f"  {line}" for line in code.splitlines()),
    ]
  )


def size(report: "Report") -> str:
  seeds = f"{report.seeds} seeds, " if report.seeds > 1 else ""
  number = f"{report.examples:,} example{'s' if report.examples > 1 else ''}"
  return f"{seeds}{number}, {len(report.classes)} classes"


def numbers(estimate: Estimate) -> tuple[str, str]:
  """The cells of an estimate: value and interval."""
  value, low, high = estimate
  form = lambda x: (f"{x:.4f}" if abs(x) < 1000 else f"{x:.4g}").replace(
    "-", "−"
  )
  if not np.isfinite(value):
    return ("—" if np.isnan(value) else "∞"), ""
  if not np.isfinite(low + high):
    return form(value), "—"
  return form(value), f"({form(low)}, {form(high)})"


def p_value(p: float) -> str:
  # With 1000 draws, no p-value is below 0.001.
  return f"{p:.3f}" if p > 0.001 else "at most 0.001"


def percent(estimate: Estimate, unit: str = "%", form: str = ".1f") -> str:
  value, low, high = (100 * x for x in estimate)
  text = f"{value:{form}} {unit}"
  if np.isfinite(low + high):
    text += f" ({low:{form}} to {high:{form}})"
  return text.replace("-", "−")


def points(estimate: Estimate) -> str:
  """A difference of percentages, in points."""
  return percent(estimate, "points", "+.1f")


def answers(report: "Report") -> dict[str, Answer]:
  """The questions of the page, in order."""
  return {
    "accuracy": Answer("How often is it right?", _accuracy(report)),
    "confidence": Answer("How confident is it?", _confidence(report)),
    "gap": Answer("Does confidence match accuracy?", _gap(report)),
    "scale": Answer("Does a temperature fix it?", _scale(report)),
    "worst": Answer("Where is it worst?", _worst(report)),
    "noise": Answer("Is it more than noise?", _noise(report)),
  }


def _accuracy(report: "Report") -> str:
  over = "seeds" if report.seeds > 1 else "examples"
  return (
    f"It is right in {percent(report.metrics['accuracy'])} of "
    f"{report.examples:,} cases. Numbers in brackets are the ends of a "
    f"{100 * report.level:g} % interval. All intervals on this page are over "
    f"{over}."
  )


def _confidence(report: "Report") -> str:
  auroc = report.metrics["auroc"]
  text = f"Its mean confidence is {percent(report.metrics['confidence'])}. "
  if not np.isfinite(auroc.value):
    return text + "Its answers are all right, or all wrong."
  return (
    f"{text}In {percent(auroc)} of pairs, a right answer has a higher "
    "confidence than a wrong one (AUROC); 50 % is chance. Without the least "
    "confident tenth of its answers, it is wrong in "
    f"{percent(report.metrics['selective_risk'])} of cases."
  )


def _gap(report: "Report") -> str:
  gap = report.metrics["overconfidence"]
  if gap.low > 0:
    verdict = "No: it is overconfident"
  elif gap.high < 0:
    verdict = "No: it is underconfident"
  else:
    verdict = "On average, yes"
  return (
    f"{verdict}. Confidence minus accuracy is {points(gap)}. The ECE, the mean "
    "difference over bins, is "
    f"{percent(report.metrics['ece'], 'points')}. In the diagram, a bar that "
    "ends on the dashed line is calibrated. For a calibrated model, bars end "
    "within the grey band."
  )


def _scale(report: "Report") -> str:
  if not report.recalibrated or report.temperature_half is None:
    return "There are too few examples to tell."
  fitted, low, high = report.temperature_half
  always_right = _judging.is_always_right(report.temperature_half)
  if always_right or fitted > 1e6:
    reason = (
      "every answer is right, so more confidence is always better"
      if always_right
      else "the logits carry no information about the labels, or the wrong one"
    )
    return (
      f"There is no best temperature. On the examples to fit on, {reason}. The "
      "methods below are fitted on these examples, and evaluated on the others."
    )
  ends = f" ({low:.3g} to {high:.3g})" if np.isfinite(low + high) else ""
  gain = report.recalibrated["temperature"]["nll_gain"]
  if gain.low > 0:
    verdict = "lowers the loss"
  elif gain.high < 0:
    verdict = "raises the loss"
  else:
    verdict = "makes no significant difference to the loss"
  return (
    f"The best temperature is {fitted:.3g}{ends}. Above 1, the model is "
    "overconfident. All methods below are fitted on some of the examples, and "
    f"evaluated on the others. There, the temperature {verdict}: "
    f"{_change(report, 'temperature')}."
  )


def _change(report: "Report", method: str) -> str:
  before, after = (report.recalibrated[k] for k in ("as it is", method))
  return (
    f"the NLL goes from {before['nll'].value:.3f} to {after['nll'].value:.3f}, "
    f"and the ECE from {100 * before['ece'].value:.1f} % to "
    f"{100 * after['ece'].value:.1f} %"
  )


def _worst(report: "Report") -> str:
  kinds = [("predicted class", report.by_class), ("group", report.by_group)]
  texts = []
  for kind, parts in kinds:
    if not parts:
      continue
    worst = parts[0]
    if worst.gap.low > 0 or worst.gap.high < 0:
      verdict = "overconfident" if worst.gap.value > 0 else "underconfident"
      texts.append(
        f"In the {kind} “{worst.name}”, it is {verdict}: confidence minus "
        f"accuracy is {points(worst.gap)}."
      )
    else:
      texts.append(f"No {kind} is off by more than noise.")
  if report.confident_errors:
    texts.append("Look at the most confident errors one by one.")
  return " ".join(texts)


def _noise(report: "Report") -> str:
  p, limit = report.p_calibrated, 100 * report.ece_if_calibrated
  verdict = (
    "Yes. A calibrated model would rarely look like this"
    if p < 0.05
    else "Not shown. A calibrated model may well look like this"
  )
  return (
    f"{verdict}: p is {p_value(p)}. With as many examples, the ECE of a "
    f"calibrated model stays below {limit:.1f} % in 95 of 100 samples. Here it "
    f"is {100 * report.metrics['ece'].value:.1f} %."
  )


def recommendation(report: "Report") -> tuple[str, str]:
  """What to do next, in words and in code."""
  if report.best is not None:
    return (
      f"Recalibrate: {METHODS[report.best]}. On examples that it was not "
      f"fitted to, {_change(report, report.best)}.",
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
  half = report.temperature_half
  if half is not None and _judging.is_always_right(half):
    return (
      "Leave it as it is. On the examples to fit on every answer is right, so "
      "a recalibrator would raise the confidence without end. Use examples "
      "with some wrong answers.",
      "",
    )
  if report.p_calibrated >= 0.05:
    return (
      "Leave it as it is. Nothing here shows that the confidence is off, and a "
      "recalibrator would fit noise. Repeat this report on new data.",
      "",
    )
  return (
    "Don't recalibrate: no method lowers the loss on examples that it was not "
    "fitted to. Look at the classes, the groups and the most confident errors, "
    "or train with a loss that calibrates.",
    "from orthograd_optax import calibration\n"
    "loss = calibration.focal(logits, labels).mean()",
  )
