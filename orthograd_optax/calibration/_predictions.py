"""Checked predictions of one seed or several: the input of a report."""

from collections import Counter
from collections.abc import Sequence
import dataclasses
import reprlib
from typing import Any

import jax
from jax.core import Tracer
import numpy as np

from orthograd_optax.calibration import _fits, _inputs

MIN_TO_FIT = 10  # examples in each half


@dataclasses.dataclass(frozen=True)
class Run:
  """The predictions of one seed.

  Attributes:
    logits: array of shape (examples, classes).
    labels: integer array of shape (examples,).
    rows: the row of each example in the input.
    groups: the index of each example's group, or None.
    to_fit: (logits, labels) to fit recalibrators on, or None if there are too
      few examples.
    held_out: (logits, labels) to evaluate recalibrators on, or None.
  """

  logits: np.ndarray
  labels: np.ndarray
  rows: np.ndarray
  groups: np.ndarray | None
  to_fit: tuple[np.ndarray, np.ndarray] | None
  held_out: tuple[np.ndarray, np.ndarray] | None


@dataclasses.dataclass(frozen=True)
class Predictions:
  """Checked predictions.

  Attributes:
    runs: one :class:`Run` for each seed.
    classes: names of the classes.
    groups: names of the groups.
    columns: number of columns that were given; 1 for binary scores.
  """

  runs: list[Run]
  classes: list[str]
  groups: list[str]
  columns: int


def check(
  logits: Any,
  labels: Any,
  *,
  classes: Sequence[Any] | None = None,
  groups: Any = None,
  seeds: Any = None,
  fit: Any = None,
  split_seed: int = 0,
) -> Predictions:
  """Checks the arguments of :func:`report`, and divides them into runs."""
  logits = _inputs.as_array(logits)
  if isinstance(logits, Tracer):
    raise TypeError(
      "logits are traced, but a report is made on the host. Call it outside of "
      "jit and vmap."
    )
  _check_classes(classes)
  labels = _named(labels, classes)
  if logits.ndim == 3:
    if seeds is not None or len(logits) == 0:
      raise ValueError(
        f"logits has shape {logits.shape}, whose first axis is the seeds. "
        "There must be at least one seed, and the argument seeds must be left "
        "out."
      )
    places = [np.arange(logits.shape[1])] * len(logits)
    pairs = [as_numpy(one, labels) for one in logits]
  else:
    pair = as_numpy(logits, labels)
    places = _by_seed(seeds, len(pair[1]))
    pairs = [(pair[0][i], pair[1][i]) for i in places]
  _refuse_probabilities(logits)
  examples = logits.shape[-2] if logits.ndim == 3 else len(logits)
  names, groups = _grouped(groups, examples)
  fit = _mask(fit, examples)
  runs = []
  for (of_seed, its_labels), place in zip(pairs, places, strict=True):
    _check_softmax(of_seed, place)
    runs.append(_run(of_seed, its_labels, place, groups, fit, split_seed))
  number = runs[0].logits.shape[1]
  classes = range(number) if classes is None else classes
  names_of_classes = [str(c) for c in classes]
  if len(names_of_classes) != number:
    raise ValueError(
      f"classes must have one name for each of the {number} columns of logits, "
      f"in order, but has {len(names_of_classes)} names."
    )
  columns = logits.shape[-1] if logits.ndim > 1 else 1
  return Predictions(runs, names_of_classes, names, columns)


def as_numpy(logits: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
  """Checks both, and returns them as NumPy arrays; logits have two axes."""
  logits, labels = _inputs.as_array(logits), np.asarray(labels)
  # Trace the check: it then compiles nothing.
  jax.eval_shape(lambda z: _inputs.check(z, labels), logits)
  logits = np.asarray(logits)
  if logits.dtype.kind in "iu":
    logits = logits.astype(np.float64)
  if logits.ndim == 1 or logits.shape[1] == 1:
    scores = logits.ravel()
    logits = np.stack([np.zeros_like(scores), scores], axis=1)
  return logits, labels.astype(np.int64)


def to_logits(values: np.ndarray, kind: str) -> Any:
  """Converts the predictions of a file, of a kind that it names, to logits.

  Probabilities are divided by the sums of their rows, which rounding may have
  changed.
  """
  numbers = values.dtype.kind in "fiu" and values.size and values.ndim
  if kind == "logits" or not numbers:
    return values
  if _inputs.look_like_probabilities(values):
    if values.ndim == 2 and values.shape[1] > 1:
      values = values / values.sum(axis=1, dtype=np.float64, keepdims=True)
    return np.asarray(_inputs.from_probabilities(values))
  if kind == "probabilities":
    return np.asarray(_inputs.from_probabilities(values))  # It raises.
  return values


def _refuse_probabilities(logits: Any) -> None:
  if _inputs.look_like_probabilities(logits):
    column = logits.ndim == 1 or logits.shape[-1] == 1
    rule = "" if column else " and rows sum to 0.8 to 1.2"
    remedy = (
      "np.stack([0 * logits, logits], axis=1)" if column else "logits - 1"
    )
    raise ValueError(
      "logits must be logits, but look like probabilities: all are from 0 to 1"
      f"{rule}. Pass calibration.from_probabilities(probabilities); in a file, "
      f"name them probabilities. If they really are logits, pass {remedy}, "
      "which has the same softmax."
    )


def check_draws(resamples: Any, level: Any) -> None:
  if not isinstance(resamples, int | np.integer) or resamples < 1:
    raise ValueError(
      f"resamples must be a whole number > 0, but is {resamples}. 1000 is "
      "typical."
    )
  if not 0 < level < 1:
    raise ValueError(f"level must be between 0 and 1, but is {level}.")


def _check_classes(classes: Sequence[Any] | None) -> None:
  names = Counter(map(str, () if classes is None else classes))
  repeated = [name for name, number in names.items() if number > 1]
  if repeated:
    raise ValueError(
      "classes must have a different name for each column, but has "
      f"{reprlib.repr(repeated[0])} more than once. Rename one."
    )


def _run(logits, labels, place, groups, fit, split_seed) -> Run:
  groups = None if groups is None else groups[place]
  if fit is not None:
    of_fit = fit[place]
    pairs = [(logits[m], labels[m]) for m in (of_fit, ~of_fit)]
    if not of_fit.any() or of_fit.all():
      raise ValueError(
        "fit must leave some examples to fit on and some to evaluate on, but "
        f"has {int(of_fit.sum())} of {of_fit.size} examples."
      )
    logits, labels = pairs[1]
    place = place[~of_fit]
    groups = None if groups is None else groups[~of_fit]
  elif len(labels) < 2 * MIN_TO_FIT:
    pairs = None
  else:
    halves = _fits.split(labels, random_seed=split_seed)
    pairs = [(logits[i], labels[i]) for i in halves]
  if pairs is not None and len(pairs[0][1]) < MIN_TO_FIT:
    pairs = None
  return Run(logits, labels, place, groups, *(pairs or (None, None)))


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


def _by_seed(seeds: Any, examples: int) -> list[np.ndarray]:
  if seeds is None:
    return [np.arange(examples)]
  seeds = np.asarray(seeds)
  if seeds.shape != (examples,):
    raise ValueError(
      f"seeds has shape {seeds.shape}, but must be {(examples,)}. Give the "
      "seed of each row."
    )
  if seeds.dtype.kind == "f" and np.isnan(seeds).any():
    raise ValueError(
      f"seeds[{int(np.argmax(np.isnan(seeds)))}] is NaN. Give the seed of each "
      "row, or leave the row out."
    )
  return [np.flatnonzero(seeds == s) for s in np.unique(seeds)]


def _grouped(groups: Any, examples: int) -> tuple[list[str], Any]:
  if groups is None:
    return [], None
  groups = np.asarray(groups)
  if groups.shape != (examples,):
    raise ValueError(
      f"groups has shape {groups.shape}, but must be {(examples,)}. Give the "
      "name of each example's group."
    )
  names, index = np.unique(groups.astype(str), return_inverse=True)
  return names.tolist(), index


def _mask(fit: Any, examples: int) -> np.ndarray | None:
  if fit is None:
    return None
  fit = np.asarray(fit)
  if fit.dtype != np.bool_ or fit.shape != (examples,):
    raise ValueError(
      f"fit has shape {fit.shape} and dtype {fit.dtype}, but must be booleans "
      f"of shape {(examples,)}. Give True for the examples to fit on."
    )
  return fit


def has_softmax(logits: np.ndarray) -> np.ndarray:
  """Returns whether each row is below ∞, and not −∞ in all classes."""
  return np.all(logits < np.inf, axis=1) & np.any(logits > -np.inf, axis=1)


def _check_softmax(logits: np.ndarray, place: np.ndarray) -> None:
  defined = has_softmax(logits)
  if not defined.all():
    row = int(np.argmin(defined))
    raise ValueError(
      f"logits[{place[row]}] has no softmax: {logits[row]}. Logits must be "
      "below ∞, and not all −∞ in a row. Find out where the row comes from, or "
      "leave it out."
    )
