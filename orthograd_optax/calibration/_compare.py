"""Comparison of two models on the same examples."""

from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from orthograd_optax.calibration import (
  _bins,
  _inputs,
  _page,
  _predictions,
  _resampling,
  _text,
)
from orthograd_optax.calibration._intervals import Estimate
from orthograd_optax.calibration._results import Comparison, plain
from orthograd_optax.calibration._sample import Sample
from orthograd_optax.calibration._table import METRICS

if TYPE_CHECKING:
  from matplotlib.figure import Figure

MIN_SEEDS, MIN_EXAMPLES = 5, 20  # for a verdict


@dataclasses.dataclass(frozen=True)
class ModelComparison(Comparison, _page.Page):
  """The result of :func:`compare`. Print it, or ``save`` it as a page.

  Attributes:
    names: names of the old and the new model.
    examples: number of examples.
    seeds: number of seeds of each model.
    level: confidence level of all intervals.
    old: metrics of the old model, by name.
    new: metrics of the new model, by name.
    difference: new − old, paired, by name.
    verdicts: which model is better, by name; empty if that can't be said.
    reliabilities: :class:`Reliability` of each model, for the diagram.
    notes: remarks for the reader.
  """

  def __str__(self) -> str:
    return _text.comparison_table(self)

  def to_dict(self) -> dict[str, Any]:
    """Returns numbers of seven digits, and None for NaN and infinities."""
    fields = vars(self).items()
    return plain({k: v for k, v in fields if k != "reliabilities"})

  def plot(self) -> "Figure":
    """Draws both reliability diagrams side by side. Needs matplotlib."""
    return _page.plots().reliability_diagram(self.reliabilities)

  def html(self) -> str:
    """Returns the page as HTML. Needs matplotlib."""
    return _page.comparison_page(self)


@_inputs.suggesting
def compare(
  old: Any,
  new: Any,
  labels: Any,
  *,
  names: tuple[str, str] = ("old", "new"),
  classes: Sequence[Any] | None = None,
  seeds: Any = None,
  where: Any = None,
  num_bins: int = 10,
  resamples: int = 1000,
  level: float = 0.95,
  random_seed: int = 0,
) -> ModelComparison:
  """Compares two models on the same examples, in pairs: new − old.

  With one seed, the bootstrap draws the same examples for both models, so that
  examples that are hard for both cancel. With several seeds, the i-th seeds of
  both models form a pair, and intervals are over seeds.

  Args:
    old: logits of the old model, as for :func:`report`.
    new: logits of the new model, of the same shape.
    labels: as for :func:`report`.
    names: names of the old and the new model.
    classes: names of the classes, in the order of the columns.
    seeds: training seed of each row, as for :func:`report`.
    where: examples that count, as for :func:`report`.
    num_bins: number of bins of the ECEs and of the diagrams.
    resamples: number of bootstrap resamples.
    level: confidence level of all intervals.
    random_seed: seed of the resamples.

  Returns:
    A :class:`ModelComparison`. With two to four seeds, or fewer than 20
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
    -0.11 (-0.18 to -0.06)
    >>> print(comparison.verdicts["ece"])
    new is better
  """
  _predictions.check_draws(resamples, level)
  _bins.check_bins(num_bins)
  names = _inputs.as_name(names[0]), _inputs.as_name(names[1])
  if names[0] == names[1]:
    raise ValueError(f"names must differ, but both are {names[0]!r}.")
  shapes = [_inputs.as_array(x).shape for x in (old, new)]
  if shapes[0] != shapes[1]:
    raise ValueError(
      "Both models must have logits for the same examples, classes and seeds, "
      f"but the shapes are {shapes[0]} and {shapes[1]}. Keep what both have."
    )
  options = num_bins, resamples, random_seed
  samples = [
    _predictions.check_all(x, labels, classes, seeds, where=where).samples(
      options
    )
    for x in (old, new)
  ]
  described = [[_resampling.describe(s) for s in model] for model in samples]
  before, after = (_resampling.summary(model, level) for model in described)
  difference = {
    k: _resampling.difference(k, described[0], described[1], level)
    if np.isfinite(before[k].value - after[k].value)
    else Estimate(np.nan, np.nan, np.nan)
    for k in METRICS
  }
  number, examples = len(samples[0]), samples[0][0].examples
  notes = []
  if 1 < number < MIN_SEEDS:
    notes.append(
      f"{number} seeds are too few for a verdict: use at least {MIN_SEEDS}."
    )
  if examples < MIN_EXAMPLES:
    notes.append(
      f"{examples} examples are too few for a verdict: use at least "
      f"{MIN_EXAMPLES}, preferably several hundred."
    )
  return ModelComparison(
    names=names,
    examples=examples,
    seeds=number,
    level=level,
    old=before,
    new=after,
    difference=difference,
    verdicts={
      k: "" if notes else _verdict(k, d, names) for k, d in difference.items()
    },
    reliabilities=dict(zip(names, map(_reliability, samples), strict=True)),
    notes=notes,
  )


def _verdict(name, difference, names) -> str:
  value, low, high = difference
  if value == 0 or low <= 0 <= high:
    return "no difference shown"
  if not np.isfinite(value + low + high):
    return ""
  old, new = names
  direction = METRICS[name].direction * (1 if value > 0 else -1)
  if direction == 0:
    return f"higher in {new if value > 0 else old}"
  return f"{new if direction > 0 else old} is better"


def _reliability(samples: list[Sample]) -> _bins.Reliability:
  """Returns the reliability of each seed, with a leading axis if several."""
  count, right, confidence = (
    np.array([sample.bins[name][0] for sample in samples])
    for name in ("count", "correct", "confidence")
  )
  number = np.maximum(count, 1)
  fields: Any = count.astype(int), confidence / number, right / number
  return _bins.Reliability(*(x[0] if len(x) == 1 else x for x in fields))
