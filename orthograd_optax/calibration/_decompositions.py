"""Decomposes proper scores into calibration and refinement."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from orthograd_optax.calibration import _bins, _fits, _inputs


class Decomposition(NamedTuple):
  """A score as the sum of two parts. Lower is better.

  Attributes:
    calibration: the part due to miscalibration. Recalibration can remove it.
    refinement: the rest, because the model can't tell some examples apart.
  """

  calibration: jax.Array
  refinement: jax.Array


@_inputs.checked("num_bins", "binning")
def brier_decomposition(
  logits: Any, labels: Any, num_bins: int = 10, binning: _bins.Binning = "width"
) -> Decomposition:
  r"""Splits the Brier score into calibration plus refinement.

  For each class, bin the examples by its probability. With the mean probability
  :math:`\bar p_b` and the frequency of the class :math:`\bar y_b` in a bin,

  .. math::
    \mathrm{calibration} = \sum_{\text{classes}} \sum_b \frac{n_b}{n} \,
      (\bar p_b - \bar y_b)^2 .

  The refinement is the rest: uncertainty minus resolution, in Murphy's words.
  Variation within bins counts as resolution.

  Args:
    logits, labels, num_bins, binning: as for :func:`ece`.

  Returns:
    A :class:`Decomposition` whose sum is :func:`brier`. Neither part is
    negative. Noise raises the calibration part, as in :func:`ece`.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> parts = calibration.brier_decomposition(logits, [0, 1, 1])
    >>> print(f"{parts.calibration:.3f} + {parts.refinement:.3f}")
    0.273 + 0.333

  References:
    Stephenson et al, Two extra components in the Brier score decomposition,
    2008
  """
  bins = _bins.by_class(logits, labels, num_bins, binning)
  calibration = jnp.sum(_bins.mean_gap(bins, power=2))
  score = jnp.mean(_inputs.brier(logits, labels))
  return Decomposition(calibration, score - calibration)


@_inputs.checked()
def nll_decomposition(logits: Any, labels: Any) -> Decomposition:
  r"""Splits the negative log-likelihood into calibration plus refinement.

  The refinement is the loss at the best temperature. The calibration is what
  that temperature saves:

  .. math::
    \mathrm{refinement} = \min_T \mathrm{nll}(z / T, y), \qquad
    \mathrm{calibration} = \mathrm{nll}(z, y) - \mathrm{refinement} .

  It has no bins, unlike :func:`brier_decomposition`: the loss of many classes
  is not a sum over classes.

  Args:
    logits, labels: as for :func:`ece`.

  Returns:
    A :class:`Decomposition`, whose sum is :func:`nll`. Neither part is
    negative. The temperature is fitted to these same examples.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from orthograd_optax import calibration
    >>> logits = 3.0 * jax.random.normal(jax.random.key(0), (10_000, 10))
    >>> labels = jax.random.categorical(jax.random.key(1), logits / 2.5)
    >>> parts = calibration.nll_decomposition(logits, labels)
    >>> print(f"{parts.calibration:.2f} + {parts.refinement:.2f}")
    0.54 + 1.80

  References:
    `Berta et al, 2025 <https://arxiv.org/abs/2501.19195>`_
  """
  score = jnp.mean(_inputs.nll(logits, labels))
  temperature = _fits.fit_temperature(logits, labels)
  best = jnp.mean(_inputs.nll(logits / temperature, labels))
  # Rounding may put the best loss a little above the score.
  refinement = jnp.minimum(best, score)
  return Decomposition(score - refinement, refinement)
