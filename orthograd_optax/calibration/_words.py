"""A report in words: its table, its answers, and what to do next."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

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
  "selective_risk": "error rate of the surest 90 %",
  "entropy": "entropy, nats",
  "temperature": "best temperature",
}
METHODS = {
  "as it is": "as it is",
  "temperature": "temperature",
  "platt": "temperature and intercept (Platt)",
  "vector": "vector scaling",
  "isotonic": "isotonic regression",
}


class Answer(NamedTuple):
  """To one question of the page."""

  question: str
  text: str


def table(report: "Report") -> str:
  """The metrics, one a line, and what follows from them."""
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
      f"p-value of “it is calibrated”: {p_value(report.p_calibrated)}",
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
  """Of a table: the value, and the interval."""
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
  # No p-value is below one in the number of draws.
  return f"{p:.3f}" if p > 0.001 else "at most 0.001"


def percent(estimate: Estimate, unit: str = "%", form: str = ".1f") -> str:
  value, low, high = (100 * x for x in estimate)
  text = f"{value:{form}} {unit}"
  if np.isfinite(low + high):
    text += f" ({low:{form}} to {high:{form}})"
  return text.replace("-", "−")


def points(estimate: Estimate) -> str:
  """Of a difference of percentages."""
  return percent(estimate, "points", "+.1f")


def answers(report: "Report") -> dict[str, Answer]:
  """The questions of the page, in their order."""
  return {
    "right": Answer("How often is it right?", _right(report)),
    "sure": Answer("How sure is it?", _sure(report)),
    "same": Answer("Are the two the same?", _same(report)),
    "scale": Answer("Is it a matter of scale?", _scale(report)),
    "worst": Answer("Where is it worst?", _worst(report)),
    "noise": Answer("Is it more than noise?", _noise(report)),
  }


def _right(report: "Report") -> str:
  over = "over seeds" if report.seeds > 1 else "over examples"
  return (
    f"In {percent(report.metrics['accuracy'])} of {report.examples:,} cases. "
    f"The range in brackets is where the number lies with {_level(report)} "
    f"confidence; all ranges on this page are {over}."
  )


def _sure(report: "Report") -> str:
  auroc = report.metrics["auroc"]
  text = f"Its mean confidence is {percent(report.metrics['confidence'])}. "
  if not np.isfinite(auroc.value):
    return text + "Its answers are all right, or all wrong."
  return (
    f"{text}Of a right and a wrong answer, it is surer of the right one in "
    f"{percent(auroc)} of pairs; 50 % would be chance. If it may leave out the "
    "tenth it is least sure of, it errs in "
    f"{percent(report.metrics['selective_risk'])} of the rest."
  )


def _same(report: "Report") -> str:
  gap = report.metrics["overconfidence"]
  if gap.low > 0:
    verdict = "No: it is surer than it is right"
  elif gap.high < 0:
    verdict = "No: it is right more often than it is sure"
  else:
    verdict = "On the whole, yes"
  return (
    f"{verdict}. Confidence less accuracy is {points(gap)}. "
    "Bin by bin the two differ by "
    f"{percent(report.metrics['ece'], 'points')} on average "
    "(the ECE). In the diagram, bars on the dashed line are calibrated; a "
    "calibrated model's bars end within the grey band."
  )


def _scale(report: "Report") -> str:
  if not report.recalibrated or report.temperature_half is None:
    return "There are too few examples to tell."
  fitted, low, high = report.temperature_half
  if not 1e-6 < fitted < 1e6:
    reason = (
      "every answer is right, so that surer is always better"
      if fitted < 1
      else "the logits say nothing about the labels, or the opposite"
    )
    return (
      f"There is no best temperature: on the examples to fit it on, {reason}. "
      "The methods below were fitted on the same examples, and are judged by "
      "the others."
    )
  ends = f" ({low:.3g} to {high:.3g})" if np.isfinite(low + high) else ""
  gain = report.recalibrated["temperature"]["nll_gain"]
  if gain.low > 0:
    verdict = "lowers the loss"
  elif gain.high < 0:
    verdict = "raises the loss"
  else:
    verdict = "makes no difference to the loss that shows"
  return (
    f"The best temperature is {fitted:.3g}{ends}; above 1, the model is too "
    "sure. It was fitted on some of the examples, as were the other methods "
    f"below, and is judged by the rest. Dividing the logits by it {verdict}: "
    f"there {_change(report, 'temperature')}."
  )


def _change(report: "Report", method: str) -> str:
  before, after = (report.recalibrated[k] for k in ("as it is", method))
  return (
    f"the NLL goes from {before['nll'].value:.3f} to {after['nll'].value:.3f}, "
    f"and the ECE from {100 * before['ece'].value:.1f} % to "
    f"{100 * after['ece'].value:.1f} %"
  )


def _worst(report: "Report") -> str:
  parts = [("predicted class", report.by_class), ("group", report.by_group)]
  texts = []
  for kind, found in parts:
    if not found:
      continue
    worst = found[0]
    if worst.gap.low > 0 or worst.gap.high < 0:
      too = "too sure" if worst.gap.value > 0 else "not sure enough"
      texts.append(
        f"In the {kind} “{worst.name}” it is {too}: confidence less accuracy "
        f"is {points(worst.gap)}."
      )
    else:
      texts.append(f"In no {kind} is it off by more than noise.")
  if report.confident_errors:
    texts.append("Its most confident errors are worth a look, one by one.")
  return " ".join(texts)


def _noise(report: "Report") -> str:
  p, limit = report.p_calibrated, 100 * report.ece_if_calibrated
  verdict = (
    "Yes. A calibrated model would hardly look like this"
    if p < 0.05
    else "That can't be said. A calibrated model can well look like this"
  )
  return (
    f"{verdict}: p is {p_value(p)}. With as many examples, such a model's ECE "
    f"stays below {limit:.1f} % in 95 of 100 samples; here it is "
    f"{100 * report.metrics['ece'].value:.1f} %."
  )


def recommendation(report: "Report") -> tuple[str, str]:
  """What to do next, in words and in code."""
  if report.best is not None:
    return (
      f"Recalibrate: {METHODS[report.best]}. On examples that it was not "
      f"fitted to, {_change(report, report.best)}.",
      "import jax\n"
      "from orthograd_optax import calibration\n\n"
      "# Of examples that the model was not trained on. If you have\n"
      "# probabilities p, logits = calibration.from_probabilities(p).\n"
      f'recalibrate = calibration.fit(logits, labels, "{report.best}")\n'
      'recalibrate.save("recalibrator.json")  # calibration.load reads it\n'
      "probabilities = jax.nn.softmax(recalibrate(new_logits))",
    )
  if report.examples < 100:
    return (
      f"Get more examples. {report.examples} say too little: a few hundred "
      "are the least.",
      "",
    )
  if report.p_calibrated >= 0.05:
    return (
      "Leave it as it is. Nothing here says that the confidence is off, and a "
      "recalibrator would fit noise. Make this report again on new data.",
      "",
    )
  return (
    "Don't recalibrate: no method lowers the loss on examples that it was not "
    "fitted to. Look at the classes, the groups and the most confident errors, "
    "or train with a loss that calibrates.",
    "from orthograd_optax import calibration\n"
    "loss = calibration.focal(logits, labels).mean()",
  )


def _level(report: "Report") -> str:
  return f"{100 * report.level:g} %"
