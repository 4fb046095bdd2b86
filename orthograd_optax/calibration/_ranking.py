"""Measures how well confidence ranks correct above wrong predictions."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp

from orthograd_optax.calibration import _inputs
from orthograd_optax.calibration._sample import kept_examples


@_inputs.checked()
def confidence_correlation(logits: Any, labels: Any) -> jax.Array:
  """Computes Pearson's correlation between confidence and correctness.

  Args:
    logits, labels: as for :func:`ece`.

  Returns:
    A number from -1 to 1. NaN if all examples are correct, if none is, or if
    all confidences are equal.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> print(f"{calibration.confidence_correlation(logits, [0, 0, 0]):.4f}")
    1.0000
  """
  confidence = _inputs.confidence(logits)
  correct = (_inputs.rank(logits, labels) < 1).astype(logits.dtype)
  # Exactly zero if all confidences, or all outcomes, are equal.
  x, y = confidence - confidence[0], correct - correct[0]
  x, y = x - jnp.mean(x), y - jnp.mean(y)
  deviations = jnp.sqrt(jnp.sum(x**2)) * jnp.sqrt(jnp.sum(y**2))
  return jnp.sum(x * y) / deviations


@_inputs.checked()
def aurc(logits: Any, labels: Any) -> jax.Array:
  r"""Computes the area under the risk–coverage curve (AURC).

  Sort the examples by confidence, the most confident first. The AURC is the
  mean error rate of the first k, over all k:

  .. math:: \frac{1}{n} \sum_{k=1}^n \frac{\mathrm{errors}(k)}{k}

  It depends on the order of confidences only. Examples are ranked by the
  log-odds of their confidence, so that even confidences that round to 1 differ.
  Ties count as if in random order.

  Args:
    logits, labels: as for :func:`ece`.

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
  expected = _expected_errors(logits, labels)
  kept = jnp.arange(1, logits.shape[0] + 1, dtype=logits.dtype)
  return jnp.mean(expected / kept)


@_inputs.checked("coverage")
def selective_risk(logits: Any, labels: Any, coverage: float) -> jax.Array:
  """Computes the error rate of the most confident examples.

  Examples are ranked as for :func:`aurc`, which is the mean of this metric over
  all coverages.

  Args:
    logits, labels: as for :func:`ece`.
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
  kept = kept_examples(coverage, logits.shape[0])
  return _expected_errors(logits, labels)[kept - 1] / kept


@_inputs.checked()
def auroc(logits: Any, labels: Any) -> jax.Array:
  """Computes the area under the ROC curve (AUROC) of confidence.

  It is the probability that a correct prediction has a higher confidence than a
  wrong one. Ties count half. Examples are ranked as for :func:`aurc`.

  Args:
    logits, labels: as for :func:`ece`.

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
  wrong, errors, first, last = _by_doubt(logits, labels)
  # For each correct prediction, count the wrong ones of lower confidence.
  below = errors[-1] - (errors[first] + errors[last]) / 2
  correct = logits.shape[0] - errors[-1]
  return jnp.sum(jnp.where(wrong, 0, below / errors[-1])) / correct


def doubt(logits):
  """Returns log((1 − p) / p), where p is the confidence."""
  ascending = jnp.sort(logits, axis=1)
  return logsumexp(ascending[:, :-1] - ascending[:, -1:], axis=1)


def _by_doubt(logits, labels):
  """Returns, by falling confidence: wrong, errors so far, ends of ties."""
  doubts = doubt(logits)
  order = jnp.argsort(doubts)
  doubts, wrong = doubts[order], (_inputs.rank(logits, labels) > 0)[order]
  errors = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(wrong)])
  first = jnp.searchsorted(doubts, doubts, side="left")
  last = jnp.searchsorted(doubts, doubts, side="right")
  return wrong, errors.astype(logits.dtype), first, last


def _expected_errors(logits, labels):
  """Returns expected errors among the k most confident, for all k."""
  _, errors, first, last = _by_doubt(logits, labels)
  # Ties, from first to last, share their errors evenly.
  kept = jnp.arange(1, logits.shape[0] + 1)
  share = ((kept - first) / (last - first)).astype(logits.dtype)
  return errors[first] + share * (errors[last] - errors[first])
