"""Two models on the same examples: whose confidence can be trusted?"""

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

FEWEST_SEEDS = 5  # for a verdict
HIGHER_IS_BETTER = ("accuracy", "auroc")
# More of these is neither better nor worse by itself.
NEUTRAL = ("confidence", "overconfidence", "entropy", "temperature")


@dataclasses.dataclass(frozen=True)
class ModelComparison(_writing.Page):
  """What :func:`compare` found; print it, or ``save`` it as a page.

  Attributes:
    names: of the two models.
    examples: number of examples.
    seeds: number of seeds of each model.
    level: confidence level of all intervals.
    a: the first model's metrics, by name.
    b: the second model's.
    difference: the first less the second, paired.
    verdicts: what each difference says, or nothing.
    reliabilities: of each model, for the diagram.
    notes: what to know when reading this.
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
    seeds = f"{self.seeds} seeds of each, " if self.seeds > 1 else ""
    return f"{seeds}{self.examples:,} examples, the same for both"

  def summary(self) -> str:
    """The scores that count right answers and honesty together, in a line."""
    nll, ece = (self.verdicts[name] or "no verdict" for name in ("nll", "ece"))
    return (
      f"By the NLL, which counts right answers and honesty together: {nll}. By "
      f"the ECE, honesty alone: {ece}."
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
    """Every number, as Python's own; NaN and infinities are None."""
    names = ("names", "examples", "seeds", "level", "a", "b", "difference")
    content = {name: getattr(self, name) for name in names}
    content["names"] = list(self.names)
    content |= {"verdicts": self.verdicts, "notes": self.notes}
    return _report.plain(content)

  def plot(self) -> "Figure":
    """Reliability diagrams, side by side; needs matplotlib."""
    from orthograd_optax import plots

    return plots.reliability_diagram(self.reliabilities)

  def html(self) -> str:
    """The page, as text; needs matplotlib."""
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
  """Compares two models by their logits on the same examples, in pairs.

  Draws of examples are the same for both models, so that examples which are
  hard for both add nothing to the interval of the difference. With several
  seeds, the differences of the i-th seeds are compared, and the interval is
  over seeds.

  Args:
    a: logits of the first model, as for :func:`report`; several seeds are a
      stack, (seeds, examples, classes).
    b: logits of the second model, of the same shape.
    labels: as for :func:`report`.
    names: what the models are called.
    classes: the names of the classes, in the order of the columns.
    seeds: which seed each row is of, of shape (examples,).
    num_bins: number of bins of the ECEs and of the diagrams.
    replicates: number of bootstrap draws.
    level: confidence level of all intervals.
    seed: which draws.

  Returns:
    A :class:`ModelComparison`: ``print`` it, ``save`` it as a page, or take
    the numbers of ``to_dict()``. With two to four seeds it has numbers and no
    verdict. Intervals are of one metric at a time: among many metrics, some
    difference is likely to be one of chance.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = 3.0 * jax.random.normal(jax.random.key(0), (400, 3))
    >>> labels = jax.random.categorical(jax.random.key(1), logits / 2.5)
    >>> found = calibration.compare(logits, logits / 2.5, labels)
    >>> value, low, high = found.difference["ece"]
    >>> print(f"{value:.2f} ({low:.2f} to {high:.2f})")
    0.11 (0.06 to 0.19)
    >>> print(found.verdicts["ece"])
    B is better
  """
  _bootstrap.check_draws(replicates, level)
  _bins.check_bins(num_bins)
  shapes = tuple(_inputs.as_array(x).shape for x in (a, b))
  if shapes[0] != shapes[1]:
    raise ValueError(
      f"The models' logits have the shapes {shapes[0]} and {shapes[1]}, but "
      "must be of the same examples, classes and seeds: keep those that both "
      "have."
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
  found = [_resampling.estimates(model, level) for model in described]
  estimates = [
    {k: Estimate.of(one[k]) for k in _report.METRICS} for one in found
  ]
  first, second = described
  difference = {
    k: _difference(k, first, second, level) for k in _report.METRICS
  }
  number = len(both[0])
  notes = []
  if 1 < number < FEWEST_SEEDS:
    notes.append(
      f"{number} seeds are too few for a verdict: take at least {FEWEST_SEEDS}."
    )
  return ModelComparison(
    names=(str(names[0]), str(names[1])),
    examples=len(both[0][0].rows),
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
    found = _bootstrap.seeds_interval(values, level)
  else:
    draws = a[0].draws[name] - b[0].draws[name]
    found = _bootstrap.basic_interval(values[0], draws, level)
  return Estimate.of(found)


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
  found = [_bins.reliability(r.logits, r.labels, num_bins) for r in runs]
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *found)
  return found[0] if len(found) == 1 else stacked
