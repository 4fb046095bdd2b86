"""Measures how well confidence ranks correct above wrong predictions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from orthograd_optax.calibration import _inputs
from orthograd_optax.calibration._sample import kept_examples


@_inputs.checked()
def confidence_correlation(
  logits: Any, labels: Any, *, where: Any = None
) -> jax.Array:
  """Computes Pearson's correlation between confidence and correctness.

  Args:
    logits, labels, where: as for :func:`ece`.

  Returns:
    A number from -1 to 1. NaN if all examples are correct, if none is, or if
    all confidences are equal.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> print(f"{calibration.confidence_correlation(logits, [0, 0, 0]):.4f}")
    1.0000
  """
  return correlation(logits)


@_inputs.checked()
def aurc(logits: Any, labels: Any, *, where: Any = None) -> jax.Array:
  r"""Computes the area under the risk–coverage curve (AURC).

  Sort the examples by confidence, the most confident first. The AURC is the
  mean error rate of the first k, over all k:

  .. math:: \frac{1}{n} \sum_{k=1}^n \frac{\mathrm{errors}(k)}{k}

  It depends on the order of confidences only. Examples are ranked by the
  log-odds of their confidence, so that even confidences that round to 1 differ.
  Ties count as if in random order.

  Args:
    logits, labels, where: as for :func:`ece`.

  Returns:
    A number from 0 to 1. Lower is better.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = [-9.0, -5.0, -1.0, -0.5]  # of the second class
    >>> print(f"{calibration.aurc(logits, [0, 0, 1, 0]):.4f}")
    0.1458

  References:
    `Geifman et al, 2019 <https://arxiv.org/abs/1805.08206>`_
  """
  expected, counts = _expected_errors(logits)
  kept = jnp.arange(1, logits.size + 1, dtype=logits.dtype)
  number = jnp.asarray(logits.number, logits.dtype)
  return jnp.sum(expected / kept, where=counts) / number


@_inputs.checked("coverage")
def selective_risk(
  logits: Any, labels: Any, coverage: float, *, where: Any = None
) -> jax.Array:
  """Computes the error rate of the most confident examples.

  Examples are ranked as for :func:`aurc`, which is the mean of this metric over
  all coverages.

  Args:
    logits, labels, where: as for :func:`ece`.
    coverage: the share of examples to keep, above 0 and at most 1. It is
      rounded up to a whole number of examples.

  Returns:
    A number from 0 to 1.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = [-9.0, -5.0, -1.0, -0.5]  # of the second class
    >>> print(calibration.selective_risk(logits, [0, 0, 1, 0], 1.0))
    0.25

  References:
    `Geifman and El-Yaniv, 2017 <https://arxiv.org/abs/1705.08500>`_
  """
  rule = "coverage must be above 0 and at most 1"
  advice = "Give the share of examples to keep."
  _inputs.require(0 < coverage <= 1, rule, coverage, advice)
  # In NumPy's float64, for every number of examples that may count.
  kept = kept_examples(coverage, np.arange(logits.size + 1))
  kept = jnp.asarray(kept, jnp.int32)[logits.number]
  expected, _ = _expected_errors(logits)
  return expected[kept - 1] / kept.astype(logits.dtype)


@_inputs.checked()
def auroc(logits: Any, labels: Any, *, where: Any = None) -> jax.Array:
  """Computes the area under the ROC curve (AUROC) of confidence.

  It is the probability that a correct prediction has a higher confidence than a
  wrong one. Ties count half. Examples are ranked as for :func:`aurc`.

  Args:
    logits, labels, where: as for :func:`ece`.

  Returns:
    A number from 0 to 1; 0.5 is chance. NaN if all examples are correct, or if
    none is.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = [-9.0, -5.0, -1.0, -0.5]  # of the second class
    >>> print(f"{calibration.auroc(logits, [0, 0, 1, 0]):.4f}")
    0.6667

  References:
    `Hendrycks and Gimpel, 2017 <https://arxiv.org/abs/1610.02136>`_
  """
  right, errors, first, last = _by_doubt(logits)
  # For each correct prediction, count the wrong ones of lower confidence.
  below = errors[-1] - (errors[first] + errors[last]) / 2
  number = jnp.sum(right, dtype=logits.dtype)
  return jnp.sum(jnp.where(right, below / errors[-1], 0)) / number


def correlation(examples: _inputs.Examples) -> jax.Array:
  """Returns Pearson's correlation between confidence and correctness."""
  keep, mean = examples.keep, examples.mean
  first = 0 if keep is None else jnp.argmax(keep)

  def deviations(x):
    # Exactly zero if all confidences, or all outcomes, are equal.
    x = x - x[first]
    return x - mean(x)

  x = deviations(examples.confidence)
  y = deviations(examples.correct.astype(x.dtype))
  size = lambda x: jnp.sqrt(examples.sum(x**2))
  return examples.sum(x * y) / (size(x) * size(y))


def _by_doubt(examples: _inputs.Examples) -> tuple[jax.Array, ...]:
  """Returns, by falling confidence: correct, errors so far, ends of ties.

  Examples that don't count are last, and neither correct nor errors.
  """
  doubts, right, wrong = examples.doubt, examples.correct, ~examples.correct
  if (keep := examples.keep) is not None:
    doubts = jnp.where(keep, doubts, jnp.inf)
    right, wrong = right & keep, wrong & keep
  order = jnp.argsort(doubts)
  doubts, right, wrong = doubts[order], right[order], wrong[order]
  errors = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(wrong)])
  first = jnp.searchsorted(doubts, doubts, side="left")
  last = jnp.searchsorted(doubts, doubts, side="right")
  return right, errors.astype(examples.dtype), first, last


def _expected_errors(examples: _inputs.Examples) -> tuple[jax.Array, jax.Array]:
  """Returns expected errors among the k most confident, and whether k counts.

  k is from 1 to the number of all examples.
  """
  _, errors, first, last = _by_doubt(examples)
  # Ties, from first to last, share their errors evenly.
  kept = jnp.arange(1, examples.size + 1)
  share = ((kept - first) / (last - first)).astype(examples.dtype)
  expected = errors[first] + share * (errors[last] - errors[first])
  return expected, kept <= examples.number
