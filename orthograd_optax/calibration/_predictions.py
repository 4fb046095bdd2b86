"""Checked predictions of one seed or several: the input of a report."""

from collections import Counter
from collections.abc import Sequence
import reprlib
from typing import Any, NamedTuple

import jax
from jax.core import Tracer
import numpy as np

from orthograd_optax.calibration import _fits, _inputs
from orthograd_optax.calibration._sample import Sample

MIN_TO_FIT = 10  # examples in each half


class Run(NamedTuple):
  """The predictions of one seed. Pairs are (logits, labels)."""

  logits: np.ndarray  # of shape (examples, classes)
  labels: np.ndarray
  rows: np.ndarray  # the row of each example in the input, if that is flat
  groups: np.ndarray | None  # the index of each example's group
  to_fit: tuple[np.ndarray, np.ndarray] | None  # None: too few examples
  held_out: tuple[np.ndarray, np.ndarray] | None


class Predictions(NamedTuple):
  """Checked predictions: a run for each seed, and names."""

  runs: list[Run]
  classes: list[str]
  groups: list[str]
  columns: int  # number of columns that were given; 1 for binary scores

  def samples(self, options: tuple[int, int, int]) -> list[Sample]:
    return [Sample(run.logits, run.labels, *options) for run in self.runs]


def check_all(
  logits: Any,
  labels: Any,
  classes: Sequence[Any] | None = None,
  seeds: Any = None,
  groups: Any = None,
  fit: Any = None,
  split_seed: int = 0,
  where: Any = None,
) -> Predictions:
  """Checks the arguments of :func:`report`, and divides them into runs."""
  logits = _inputs.as_array(logits)
  if isinstance(logits, Tracer):
    raise TypeError(
      "logits are traced, but a report is made on the host. Call it outside of "
      "jit and vmap."
    )
  counts = Counter(map(_inputs.as_name, () if classes is None else classes))
  for name, number in counts.items():
    if number > 1:
      raise ValueError(
        "classes must have a different name for each column, but has "
        f"{reprlib.repr(name)} more than once. Rename one."
      )
  labels = _named(labels, classes)
  of_seeds = logits.ndim == 3 and labels.ndim == 1
  if of_seeds:
    if seeds is not None or len(logits) == 0:
      raise ValueError(
        f"logits of shape {logits.shape} have seeds on their first axis. Give "
        "at least one seed, and leave out the argument seeds."
      )
  pairs = [
    as_numpy(one, labels, where) for one in (logits if of_seeds else [logits])
  ]
  columns = logits.shape[-1] if logits.ndim > 1 else 1
  for of_seed, _ in pairs:
    _inputs.refuse_probabilities(of_seed[:, -columns:])
  keep = np.ones(labels.shape, bool) if where is None else np.asarray(where)
  rows = np.flatnonzero(keep)
  places = [slice(None)] * len(pairs)
  if seeds is not None:
    seeds = _per_example("seeds", seeds, keep, "the seed of each row")
    places = _by_seed(seeds, rows)
    [(z, y)] = pairs
    pairs = [(z[i], y[i]) for i in places]
  group_names = []
  if groups is not None:
    content = "the name of each example's group"
    groups = _per_example("groups", groups, keep, content).astype(str)
    group_names, groups = np.unique(groups, return_inverse=True)
  if fit is not None:
    fit = _per_example("fit", fit, keep, "True for the examples to fit on")
  runs = []
  for (of_seed, its_labels), place in zip(pairs, places, strict=True):
    if not (defined := has_softmax(of_seed)).all():
      row = int(np.argmin(defined))
      raise ValueError(
        f"logits[{rows[place][row]}] has no softmax: it has "
        f"{_reason(of_seed[row])}. Logits must be below ∞, and not all −∞ in "
        "a row. Find out where the row comes from, or leave it out."
      )
    its_groups, to_fit = (
      None if x is None else x[place] for x in (groups, fit)
    )
    runs.append(
      _run(of_seed, its_labels, rows[place], its_groups, to_fit, split_seed)
    )
  number = runs[0].logits.shape[1]
  given = range(number) if classes is None else classes
  names = list(map(_inputs.as_name, given))
  if len(names) != number:
    raise ValueError(
      f"classes must have one name for each of the {number} columns of logits, "
      f"in order, but has {len(names)} names."
    )
  return Predictions(
    runs, names, list(map(_inputs.as_name, group_names)), columns
  )


def as_numpy(
  logits: Any, labels: Any, where: Any = None
) -> tuple[np.ndarray, np.ndarray]:
  """Checks the arguments, and returns the examples that count in NumPy.

  Logits have the shape (examples, classes), also if labels have several axes.
  """
  logits, labels = _inputs.as_array(logits), np.asarray(labels)
  where = None if where is None else np.asarray(where)
  # Trace the check: it then compiles nothing.
  jax.eval_shape(lambda z: _inputs.check_pair(z, labels, where), logits)
  if where is not None and not where.any():
    raise ValueError("where must be True for some examples, but is all False.")
  logits, labels = _inputs.rows(logits, labels, where)
  return logits, labels.astype(np.int64)


def to_logits(values: np.ndarray, kind: str) -> Any:
  """Converts the predictions of a file, of a kind that it names, to logits."""
  numbers = values.dtype.kind in "fiu" and values.size and values.ndim
  if kind == "logits" or not numbers:
    return values
  plausible = _inputs.look_like_probabilities(values)
  if not plausible and kind != "probabilities":
    return values
  if plausible and values.ndim == 2 and values.shape[1] > 1:
    # Rounding may have changed the sums of rows.
    values = values / values.sum(axis=1, dtype=np.float64, keepdims=True)
  return np.asarray(_inputs.from_probabilities(values))


def check_draws(resamples: Any, level: Any) -> None:
  if not isinstance(resamples, int | np.integer) or resamples < 1:
    raise ValueError(
      f"resamples must be a whole number > 0, but is {resamples}. 1000 is "
      "typical."
    )
  if not 0 < level < 1:
    raise ValueError(f"level must be between 0 and 1, but is {level}.")


def _run(logits, labels, rows, groups, fit, split_seed) -> Run:
  if fit is not None:
    if not fit.any() or fit.all():
      raise ValueError(
        "fit must leave some examples to fit on and some to evaluate on, but "
        f"has {int(fit.sum())} of {fit.size} examples."
      )
    pairs = [(logits[m], labels[m]) for m in (fit, ~fit)]
    (logits, labels), rows = pairs[1], rows[~fit]
    groups = None if groups is None else groups[~fit]
  elif len(labels) >= 2 * MIN_TO_FIT:
    halves = _fits.split(labels, random_seed=split_seed)
    pairs = [(logits[i], labels[i]) for i in halves]
  else:
    pairs = None
  if pairs is None or len(pairs[0][1]) < MIN_TO_FIT:
    pairs = None, None
  return Run(logits, labels, rows, groups, *pairs)


def _named(labels: Any, classes: Sequence[Any] | None) -> Any:
  """Turns names into indices. Numbers are names if all classes are numbers."""
  labels = labels if isinstance(labels, jax.Array) else np.asarray(labels)
  if labels.ndim != 1 or classes is None:
    return labels
  numbers = all(isinstance(c, int | np.integer) for c in classes)
  if labels.dtype.kind not in ("OUSTiu" if numbers else "OUST"):
    return labels
  index = {str(c): i for i, c in enumerate(classes)}
  names = [str(y) for y in np.asarray(labels)]
  for row, name in enumerate(names):
    if name not in index:
      raise ValueError(
        f"labels[{row}] is {reprlib.repr(name)}, but the classes are "
        f"{', '.join(map(reprlib.repr, index))}. Add it to the classes, in the "
        "order of the columns, or leave the example out."
      )
  return np.array([index[name] for name in names])


def _per_example(
  name: str, x: Any, keep: np.ndarray, content: str
) -> np.ndarray:
  """Checks x, and returns its values for the examples that count."""
  x = np.asarray(x)
  if x.shape != keep.shape or (name == "fit" and x.dtype != np.bool_):
    dtypes = (f" and dtype {x.dtype}", "booleans of shape ")
    given, expected = dtypes if name == "fit" else ("", "")
    raise ValueError(
      f"{name} has shape {x.shape}{given}, but must be {expected}"
      f"{keep.shape}. Give {content}."
    )
  return x[keep]


def _by_seed(seeds: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
  """Returns the places of each seed's examples among those that count."""
  if (seeds != seeds).any():  # NaN and NaT differ from themselves.
    raise ValueError(
      f"seeds[{rows[np.argmax(seeds != seeds)]}] is NaN. Give the seed of "
      "each row, or leave the row out."
    )
  return [np.flatnonzero(seeds == s) for s in np.unique(seeds)]


def _reason(row: np.ndarray) -> str:
  if np.isnan(row).any():
    return "a NaN"
  return "∞" if (row == np.inf).any() else "only −∞"


def has_softmax(logits: np.ndarray) -> np.ndarray:
  """Returns whether each row is below ∞, and not −∞ in all classes."""
  return np.all(logits < np.inf, axis=1) & np.any(logits > -np.inf, axis=1)
