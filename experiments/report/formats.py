"""Formats names and numbers. Templates use these functions as filters.

A number that is missing or not finite is an error.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

import numpy as np

from experiments import config, registry
from experiments.report import paper

# Parts of the parameters that ⊥Grad is put on.
PARTS = {
  "head": "the head",
  "body": "all but the head",
  "norms": "norms",
  "normed_kernels": "kernels before a norm",
  "unnormed": "all but kernels before a norm",
}
DECAYS = {"0": "0", "0.0001": "1e-4", "0.002": "2e-3"}
# Methods whose names in rows are not what they are called.
NAMES = {
  **{name: part.label for name, part in registry.OPTIMIZERS.items()},
  **{name: part.label for name, part in registry.LOSSES.items()},
  "cosine": "SGD, cosine",
  "orthograd": "⊥Grad",
  "orthograd_cosine": "⊥Grad, cosine",
  "orthograd_unnormalized": "⊥Grad, not renormalized",
  "sam": "SAM",
  "average": "averaging",
  "head_decay_4": "SGD, the head’s decay × 4",
  "head_decay_16": "SGD, the head’s decay × 16",
  "strength_0.25": "⊥Grad × ¼",
  "strength_0.5": "⊥Grad × ½",
  "strength_0.75": "⊥Grad × ¾",
  "ramped_in": "⊥Grad, ramped in",
  "ramped_out": "⊥Grad, ramped out",
  **{f"decay_{it}": f"SGD, decay {name}" for it, name in DECAYS.items()},
  **{
    f"orthograd_decay_{it}": f"⊥Grad, decay {name}"
    for it, name in DECAYS.items()
  },
  **PARTS,
  **{f"orthograd_{it}": f"⊥Grad on {name}" for it, name in PARTS.items()},
  **{
    f"orthograd_cosine_{it}": f"⊥Grad on {name}, cosine"
    for it, name in PARTS.items()
  },
}
# Labels of the metrics, in the order of the paper's tables.
METRICS = {
  "top1": "top-1 accuracy, %",
  "top5": "top-5 accuracy, %",
  "loss": "loss",
  "ece": "ECE",
  "brier": "Brier score",
  "entropy": "entropy",
  "max_softmax": "max softmax",
  "max_logit": "max logit",
  "logit_variance": "logit variance",
  "confidence_correlation": "confidence correlation",
  "temperature": "optimal temperature",
  "weight_norm": "norm of the weights",
}
# Digits after the point. The default is 2.
DIGITS = {
  "loss": 3,
  "ece": 4,
  "brier": 4,
  "entropy": 4,
  "max_softmax": 4,
  "confidence_correlation": 3,
  "wrong_confidence": 3,
}


def method_name(method: str) -> str:
  """The label of a method, by its name in rows.

  Examples:
    >>> print(method_name("orthograd"), method_name("orthograd_mixup"))
    ⊥Grad ⊥Grad, mixup
    >>> print(method_name("label_smoothing"))
    label smoothing
    >>> print(method_name("orthograd_cosine_head"))
    ⊥Grad on the head, cosine
    >>> print(method_name("orthograd_sam ensemble of 5"))
    ⊥Grad, SAM, ensemble of 5
  """
  method, size = config.split_ensemble(method)
  if size:
    return f"{method_name(method)}, ensemble of {size}"
  if method in NAMES:
    return NAMES[method]
  plain = method.removeprefix("orthograd_")
  words = NAMES.get(plain, plain.replace("_", " "))
  return words if plain == method else f"⊥Grad, {words}"


class NumberError(ValueError):
  """A number that is missing or not finite."""


def check(value: float | None) -> float:
  if value is None or not math.isfinite(value):
    raise NumberError(f"a number is {value}, but must be finite")
  return value


def form(value: float | None, spec: str) -> str:
  """Formats a number by a specification such as ".2f"."""
  return format(check(value), spec)


def number(value: float | None, metric: str = "") -> str:
  """Formats a number with the digits of its metric."""
  return form(value, f".{DIGITS.get(metric, 2)}f")


def power(value: float) -> str:
  """A weight decay, with one digit.

  Examples:
    >>> print(power(0.0001), power(0.0))
    1e-4 0
  """
  return f"{value:.0e}".replace("e-0", "e-") if value else "0"


def mean(runs: Sequence[float], metric: str = "") -> str:
  return number(np.mean(runs).item(), metric)


def spread(runs: Sequence[float], metric: str = "") -> str:
  """Mean ± standard deviation."""
  middle, std = mean(runs, metric), np.std(runs, ddof=1).item()
  return f"{middle} ± {number(std, metric)}"


def with_error(runs: Sequence[float], metric: str = "") -> str:
  """Mean ± standard error."""
  middle, std = mean(runs, metric), np.std(runs, ddof=1).item()
  return f"{middle} ± {number(std / math.sqrt(len(runs)), metric)}"


def signed(value: float | None, metric: str = "") -> str:
  """Formats a number with its sign and the digits of its metric."""
  return form(value, f"+.{DIGITS.get(metric, 2)}f")


def interval(ends: tuple[float, float], metric: str = "") -> str:
  return f"({signed(ends[0], metric)}, {signed(ends[1], metric)})"


def p_value(p: float | None) -> str:
  if check(p) >= 0.001:
    return form(p, ".3f")
  return form(p, ".2g").replace("e-0", "e-")


def label(key: str) -> str:
  """The label of a metric or of a corruption."""
  return METRICS.get(key) or key.replace("_", " ")


def bare(key: str) -> str:
  """A metric's label without its unit."""
  return label(key).removesuffix(", %")


class Printed(NamedTuple):
  """The paper's texts for a metric; "" for what it does not print.

  Its effect size has our sign: ⊥Grad less SGD.
  """

  sgd: str = ""
  orthograd: str = ""
  d: str = ""
  p: str = ""

  @property
  def pair(self) -> str:
    return f"{self.sgd} / {self.orthograd}".strip(" /")


def printed(row: paper.Row | None) -> Printed:
  """Formats a row of the paper, both values with the same digits."""
  if row is None:
    return Printed()
  pair = row.sgd, row.orthograd
  digits = max(len(f"{x}".partition(".")[2]) for x in pair)
  return Printed(
    *(form(x, f".{digits}f") for x in pair),
    d="" if row.d is None else signed(-row.d),
    p="" if row.p is None else p_value(row.p),
  )


FILTERS = {
  "bare": bare,
  "form": form,
  "interval": interval,
  "label": label,
  "mean": mean,
  "name": method_name,
  "number": number,
  "p_value": p_value,
  "power": power,
  "signed": signed,
  "spread": spread,
  "with_error": with_error,
}
