"""Checked predictions of one seed or several: the input of a report."""

from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
from jax.core import Tracer
import jax.numpy as jnp
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
    to_judge: (logits, labels) to evaluate recalibrators on, or None.
  """

  logits: jax.Array
  labels: jax.Array
  rows: np.ndarray
  groups: np.ndarray | None
  to_fit: tuple[jax.Array, jax.Array] | None
  to_judge: tuple[jax.Array, jax.Array] | None


@dataclasses.dataclass(frozen=True)
class Predictions:
  """Checked predictions.

  Attributes:
    runs: one :class:`Run` for each seed.
    classes: names of the classes.
    groups: names of the groups.
  """

  runs: list[Run]
  classes: list[str]
  groups: list[str]


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
  labels = _named(labels, classes)
  if logits.ndim == 3:
    if seeds is not None or len(logits) == 0:
      raise ValueError(
        f"logits has shape {logits.shape}, whose first axis is the seeds. "
        "There must be at least one seed, and the argument seeds must be left "
        "out."
      )
    places = [np.arange(logits.shape[1])] * len(logits)
    pairs = [_inputs.check(one, labels) for one in logits]
  else:
    pair: Any = _inputs.check(logits, labels)
    places = _by_seed(seeds, len(pair[1]))
    pairs = [tuple(x[i] for x in pair) for i in places]
  examples = logits.shape[-2] if logits.ndim == 3 else len(logits)
  names, groups = _grouped(groups, examples)
  fit = _mask(fit, examples)
  runs = []
  for (of_seed, its_labels), place in zip(pairs, places, strict=True):
    _check_finite(of_seed, place)
    runs.append(_run(of_seed, its_labels, place, groups, fit, split_seed))
  number = runs[0].logits.shape[1]
  classes = range(number) if classes is None else classes
  names_of_classes = [str(c) for c in classes]
  if len(names_of_classes) != number:
    raise ValueError(
      f"classes has {len(names_of_classes)} names, but logits has {number} "
      "columns. Give one name for each column, in order."
    )
  return Predictions(runs, names_of_classes, names)


def _run(logits, labels, place, groups, fit, split_seed) -> Run:
  groups = None if groups is None else groups[place]
  if fit is not None:
    of_fit = fit[place]
    pairs = [(logits[m], labels[m]) for m in (of_fit, ~of_fit)]
    if not of_fit.any() or of_fit.all():
      raise ValueError(
        f"fit has {int(of_fit.sum())} of {of_fit.size} examples, but must "
        "leave some to fit on and some to judge by."
      )
    logits, labels = pairs[1]
    place = place[~of_fit]
    groups = None if groups is None else groups[~of_fit]
  elif len(labels) < 2 * MIN_TO_FIT:
    pairs = None
  else:
    halves = _fits.split(np.asarray(labels), random_seed=split_seed)
    pairs = [(logits[i], labels[i]) for i in halves]
  if pairs is not None and len(pairs[0][1]) < MIN_TO_FIT:
    pairs = None
  return Run(logits, labels, place, groups, *(pairs or (None, None)))


def _named(labels: Any, classes: Sequence[Any] | None) -> Any:
  """Turns names into indices. The metrics check all other labels.

  Numbers are names if the classes are numbers, too, such as 1, 2 and 3.
  """
  labels = labels if isinstance(labels, jax.Array) else np.asarray(labels)
  if labels.ndim != 1 or classes is None:
    return labels
  numbers = all(isinstance(c, int | np.integer) for c in classes)
  if labels.dtype.kind not in ("OUSTiu" if numbers else "OUST"):
    return labels
  index = {str(c): i for i, c in enumerate(classes)}
  names = [str(y) for y in labels]
  for row, name in enumerate(names):
    if name not in index:
      raise ValueError(
        f"labels[{row}] is {name!r}, but the classes are "
        f"{', '.join(map(repr, index))}. Add it to the classes, in the order "
        "of the columns, or leave the example out."
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


def _check_finite(logits: jax.Array, place: np.ndarray) -> None:
  """Raises where metrics would be NaN."""
  any_possible = jnp.any(logits > -jnp.inf, axis=1)
  defined = np.asarray(any_possible & jnp.all(logits < jnp.inf, axis=1))
  if not defined.all():
    row = int(np.argmin(defined))
    raise ValueError(
      f"logits[{place[row]}] has no softmax: {np.asarray(logits[row])}. Logits "
      "must be below ∞, and not all −∞ in a row. Find out where the row comes "
      "from, or leave it out."
    )
