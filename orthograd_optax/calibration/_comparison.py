"""Comparison of two models on the same examples."""

from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from orthograd_optax.calibration import (
  _bins,
  _bootstrap,
  _inputs,
  _predictions,
  _report,
  _resampling,
  _words,
  _writing,
)
from orthograd_optax.calibration._bootstrap import Estimate

if TYPE_CHECKING:
  from matplotlib.figure import Figure

# For a verdict.
MIN_SEEDS = 5
MIN_EXAMPLES = 20
HIGHER_IS_BETTER = ("accuracy", "auroc")
# Higher is neither better nor worse.
NEUTRAL = ("confidence", "overconfidence", "entropy", "temperature")


@dataclasses.dataclass(frozen=True)
class ModelComparison(_writing.Page):
  """The result of :func:`compare`. Print it, or ``save`` it as a page.

  Attributes:
    names: names of the two models.
    examples: number of examples.
    seeds: number of seeds of each model.
    level: confidence level of all intervals.
    a: metrics of the first model, by name.
    b: metrics of the second model, by name.
    difference: the first minus the second, paired, by name.
    verdicts: which model is better, by name; empty if that can't be said.
    reliabilities: :class:`Reliability` of each model, for the diagram.
    notes: remarks for the reader.
  """

  names: tuple[str, str]
  examples: int
  seeds: int
  level: float
  a: dict[str, Estimate]
  b: dict[str, Estimate]
  difference: dict[str, Estimate]
  verdicts: dict[str, str]
  reliabilities: dict[str, _bins.Reliability]
  notes: list[str]

  def size(self) -> str:
    """The number of seeds and examples, in words."""
    seeds = f"{self.seeds} seeds of each, " if self.seeds > 1 else ""
    return f"{seeds}{self.examples:,} examples, the same for both"

  def summary(self) -> str:
    """The verdicts of NLL and ECE, in one line."""
    nll, ece = (self.verdicts[name] or "no verdict" for name in ("nll", "ece"))
    return (
      f"NLL (accuracy and calibration together): {nll}. "
      f"ECE (calibration alone): {ece}."
    )

  def __str__(self) -> str:
    rows = [("", *self.names, "difference", "verdict")]
    rows += [
      (
        _words.LABELS[name],
        *(" ".join(_words.numbers(x[name])) for x in (self.a, self.b)),
        " ".join(_words.numbers(self.difference[name])),
        self.verdicts[name],
      )
      for name in self.difference
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
      "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
      for row in rows
    ]
    notes = [f"Note: {note}" for note in self.notes]
    return "\n".join([self.size(), "", *lines, "", self.summary(), *notes])

  def to_dict(self) -> dict[str, Any]:
    """All numbers, as Python numbers. NaN and infinities become None."""
    names = ("names", "examples", "seeds", "level", "a", "b", "difference")
    content = {name: getattr(self, name) for name in names}
    content["names"] = list(self.names)
    content |= {"verdicts": self.verdicts, "notes": self.notes}
    return _report.plain(content)

  def plot(self) -> "Figure":
    """Draws both reliability diagrams side by side. Needs matplotlib."""
    from orthograd_optax import plots

    return plots.reliability_diagram(self.reliabilities)

  def html(self) -> str:
    """The page as HTML. Needs matplotlib."""
    from orthograd_optax.calibration import _page

    return _page.comparison_page(self)


@_inputs.suggesting
def compare(
  a: Any,
  b: Any,
  labels: Any,
  *,
  names: tuple[str, str] = ("A", "B"),
  classes: Sequence[Any] | None = None,
  seeds: Any = None,
  num_bins: int = 10,
  replicates: int = 1000,
  level: float = 0.95,
  seed: int = 0,
) -> ModelComparison:
  """Compares two models on the same examples, in pairs.

  With one seed, the bootstrap draws the same examples for both models.
  Examples that are hard for both then cancel in the difference. With several
  seeds, the i-th seeds of both models form a pair, and intervals are over
  seeds.

  Args:
    a: logits of the first model, as for :func:`report`. With several seeds, of
      shape (seeds, examples, classes).
    b: logits of the second model, of the same shape.
    labels: as for :func:`report`.
    names: names of the two models.
    classes: names of the classes, in the order of the columns.
    seeds: the seed of each row, of shape (examples,).
    num_bins: number of bins of the ECEs and of the diagrams.
    replicates: number of bootstrap replicates.
    level: confidence level of all intervals.
    seed: seed of the draws.

  Returns:
    A :class:`ModelComparison`. ``print`` it, ``save`` it as a page, or take the
    numbers of ``to_dict()``. With two to four seeds, or fewer than 20
    examples, it has numbers but no verdict. Intervals are not adjusted for the
    number of metrics: expect some difference by chance.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = 3.0 * jax.random.normal(jax.random.key(0), (400, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), logits / 2.5)
    >>> comparison = calibration.compare(logits, logits / 2.5, labels)
    >>> value, low, high = comparison.difference["ece"]
    >>> print(f"{value:.2f} ({low:.2f} to {high:.2f})")
    0.11 (0.06 to 0.19)
    >>> print(comparison.verdicts["ece"])
    B is better
  """
  _bootstrap.check_draws(replicates, level)
  _bins.check_bins(num_bins)
  shapes = tuple(_inputs.as_array(x).shape for x in (a, b))
  if shapes[0] != shapes[1]:
    raise ValueError(
      f"The logits have the shapes {shapes[0]} and {shapes[1]}, but must be of "
      "the same examples, classes and seeds. Keep those that both models have."
    )
  both = [
    _predictions.check(x, labels, classes=classes, seeds=seeds).runs
    for x in (a, b)
  ]
  options: Any = {"num_bins": num_bins, "replicates": replicates, "seed": seed}
  described = [
    [_resampling.describe(r.logits, r.labels, **options) for r in runs]
    for runs in both
  ]
  intervals = [_resampling.estimates(model, level) for model in described]
  estimates = [
    {k: Estimate.of(model[k]) for k in _report.METRICS} for model in intervals
  ]
  first, second = described
  difference = {
    k: _difference(k, first, second, level) for k in _report.METRICS
  }
  number = len(both[0])
  notes = []
  if 1 < number < MIN_SEEDS:
    notes.append(
      f"{number} seeds are too few for a verdict: use at least {MIN_SEEDS}."
    )
  examples = len(both[0][0].rows)
  if examples < MIN_EXAMPLES:
    notes.append(
      f"Too few examples for a verdict, {examples}: use at least "
      f"{MIN_EXAMPLES}, better some hundred."
    )
  return ModelComparison(
    names=(str(names[0]), str(names[1])),
    examples=examples,
    seeds=number,
    level=level,
    a=estimates[0],
    b=estimates[1],
    difference=difference,
    verdicts={
      k: "" if notes else _verdict(k, d, names) for k, d in difference.items()
    },
    reliabilities={
      str(name): _reliability(runs, num_bins)
      for name, runs in zip(names, both, strict=True)
    },
    notes=notes,
  )


def _difference(name, a, b, level) -> Estimate:
  pairs = zip(a, b, strict=True)
  values = [x.values[name] - y.values[name] for x, y in pairs]
  if len(values) > 1:
    interval = _bootstrap.seeds_interval(values, level)
  else:
    draws = a[0].draws[name] - b[0].draws[name]
    interval = _bootstrap.basic_interval(values[0], draws, level)
  return Estimate.of(interval)


def _verdict(name, difference, names) -> str:
  if not np.isfinite(sum(difference)):
    return ""
  if difference.low <= 0 <= difference.high:
    return "no difference shown"
  higher = names[0] if difference.value > 0 else names[1]
  if name in NEUTRAL:
    return f"higher in {higher}"
  lower = names[1] if difference.value > 0 else names[0]
  return f"{higher if name in HIGHER_IS_BETTER else lower} is better"


def _reliability(runs, num_bins) -> _bins.Reliability:
  each = [_bins.reliability(r.logits, r.labels, num_bins) for r in runs]
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *each)
  return each[0] if len(each) == 1 else stacked
