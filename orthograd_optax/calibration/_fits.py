"""Fits recalibrators: temperature, Platt and vector scaling, isotonic."""

from typing import Any, Literal

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from orthograd_optax.calibration import _inputs
from orthograd_optax.calibration._recalibrators import KINDS, Recalibrator
from orthograd_optax.calibration._sample import MAX_TEMPERATURE, MIN_TEMPERATURE

Method = Literal["temperature", "vector", "isotonic", "platt"]


@_inputs.suggesting
def fit(
  logits: Any,
  labels: Any,
  method: Method = "temperature",
  *,
  where: Any = None,
) -> Recalibrator:
  r"""Fits a recalibrator: a function from logits to calibrated logits.

  Fit it on examples that the model was not trained on, and evaluate it on other
  examples: see :func:`split`. Start with a temperature. The other methods are
  more flexible, need more examples, and can change predictions.

  ``"temperature"`` divides the logits by one number: see
  :func:`fit_temperature`. ``"platt"`` adds a bias for each class; with two
  classes, this is Platt scaling. ``"vector"`` has a scale and a bias for each
  class. For both, L-BFGS minimizes :math:`\mathrm{nll}(a \odot z + b, y)`. If
  the logits can separate the classes, scales grow without limit, and the fit
  stops where the loss is flat. If logits vary only by rounding, scales are 0,
  and the biases give the frequencies of the classes.

  ``"isotonic"`` is, for each class c, the isotonic regression of "the label is
  c" on the softmax probability of c, linear between examples. Probabilities are
  then divided by their sum. Before that, each is at least 1 / (2 · examples),
  so that the loss on other examples is finite. It needs many examples.

  Fits of ``"platt"``, ``"vector"`` and ``"isotonic"`` run on the host: call
  them outside of ``jit`` and ``vmap``.

  Args:
    logits, labels, where: as for :func:`ece`.
    method: one of the names above.

  Returns:
    A :class:`Recalibrator`. Call it with logits, also inside ``jax.jit``, and
    take the softmax. ``save`` it as JSON, or ``export`` it to NumPy. Logits
    that are not finite make parameters NaN; isotonic regression refuses them.

  Examples:
    >>> import jax
    >>> from orthograd_optax import calibration
    >>> logits = 3.0 * jax.random.normal(jax.random.key(0), (10_000, 10))
    >>> labels = jax.random.categorical(jax.random.key(1), logits / 2.5)
    >>> fit, test = calibration.split(labels)
    >>> recalibrate = calibration.fit(logits[fit], labels[fit])
    >>> print(f"{recalibrate.temperature:.2f}")
    2.55
    >>> print(f"{calibration.ece(recalibrate(logits[test]), labels[test]):.2f}")
    0.02

  References:
    Platt, Probabilistic Outputs for Support Vector Machines, 1999;
    Zadrozny and Elkan, Transforming classifier scores into accurate multiclass
    probability estimates, 2002 (isotonic regression);
    `Guo et al, 2017 <https://arxiv.org/abs/1706.04599>`_ (vector scaling);
    `Alexandari et al, 2020 <https://arxiv.org/abs/1901.06852>`_ (biases)
  """
  rule = f"method must be one of {', '.join(map(repr, KINDS))}"
  _inputs.require(method in KINDS, rule, repr(method))
  values = _inputs.as_array(logits)
  floating = jnp.issubdtype(values.dtype, jnp.floating)
  if (
    floating and values.ndim and values.size and not _inputs.is_unknown(values)
  ):
    _inputs.refuse_probabilities(values)
  if method == "temperature":
    parameters = [fit_temperature(logits, labels, where=where)]
  else:
    parameters = _fit_on_host(logits, labels, where, method)
  columns = values.shape[-1] if values.ndim > 1 else 1
  return KINDS[method](*parameters, columns=columns)


@_inputs.checked()
def fit_temperature(
  logits: Any, labels: Any, *, where: Any = None
) -> jax.Array:
  r"""Fits the temperature that minimizes the loss.

  .. math:: T = \arg\min_{T > 0} \; \mathrm{nll}(z / T, y)

  Apply it as ``logits / temperature``, which changes no prediction. Evaluate it
  on held-out examples: see :func:`split`. The loss is convex in 1/T, so its
  derivative changes sign once. Bisection from 1e-8 to 1e8 finds T to the
  precision of the dtype: about 1e-6 in float32, unless the logits are almost
  independent of the labels. ``jax.grad`` treats T as a constant.

  Args:
    logits, labels, where: as for :func:`ece`.

  Returns:
    A positive number. T is 1e-8 if the loss keeps decreasing as T → 0, usually
    because every prediction is correct. T is 1e8 if the loss keeps decreasing
    as T → ∞, usually because the logits are uninformative, or anti-correlated
    with the labels. T is 1 if all logits of each example are equal. T is NaN if
    the loss is not finite at any T.

  Examples:
    >>> from orthograd_optax import calibration
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> print(f"{calibration.fit_temperature(logits, [0, 1, 1]):.2f}")
    6.06

  References:
    `Guo et al, 2017 <https://arxiv.org/abs/1706.04599>`_
  """
  return best_temperature(logits)


def best_temperature(examples: _inputs.Examples) -> jax.Array:
  """Returns the temperature that minimizes the loss."""
  dtype, gap = examples.dtype, examples.gap

  def halve(_, interval):
    cold, hot = interval
    middle = jnp.sqrt(cold * hot)
    # With β = 1/T, the loss is the mean of logsumexp(β z) − β z_y. If its
    # derivative with respect to β is positive, the loss falls as T grows.
    # The condition holds. It keeps XLA from preparing all logits before the
    # loop, which would take as much memory again.
    z = jnp.where(middle > 0, examples.given, 0).astype(dtype)
    shifted = z - examples.high
    weights = jnp.exp(shifted / middle)
    # In units of this scale, products are from −1 to 0.
    scale = jnp.minimum(middle, examples.unit)
    far = jnp.finfo(dtype).min
    products = weights * jnp.maximum(shifted / scale, far)
    total, product = _inputs.sums((0, 0), weights, products)
    slopes = scale[..., 0] * product / total + gap
    too_cold = examples.sum(slopes.ravel()) > 0
    return jnp.where(too_cold, middle, cold), jnp.where(too_cold, hot, middle)

  bounds = jnp.asarray((MIN_TEMPERATURE, MAX_TEMPERATURE), dtype)
  steps = 6 + jnp.finfo(dtype).nmant
  cold, hot = jax.lax.fori_loop(0, steps, halve, tuple(bounds))
  # If the upper bound never moved, it is the answer.
  temperature = jnp.where(hot == MAX_TEMPERATURE, hot, cold)
  alike, impossible = examples.flat, (gap == jnp.inf).ravel()
  if examples.keep is not None:
    alike, impossible = alike | ~examples.keep, impossible & examples.keep
  temperature = jnp.where(jnp.all(alike), 1, temperature)
  return jnp.where(jnp.any(impossible), jnp.nan, temperature)


def loss_at(examples: _inputs.Examples, temperature: jax.Array) -> jax.Array:
  """Returns the mean loss at a temperature."""
  where = examples.keep
  if where is not None:
    where = where.reshape(examples.logits.shape[:-1])
  logits = examples.logits / temperature
  scaled = _inputs.Examples(logits, examples.labels, where)
  return scaled.mean(scaled.nll)


def _fit_on_host(
  logits: Any, labels: Any, where: Any, method: str
) -> list[jax.Array]:
  if any(isinstance(x, Tracer) for x in (logits, labels, where)):
    raise TypeError(
      f"fit(…, {method!r}) runs on the host, but logits or labels are traced. "
      "Call it outside of jit and vmap. You may call its result inside."
    )
  z, y = _inputs.rows(*_inputs.check_pair(logits, labels, where))
  if method != "isotonic":
    fitted = affine(z, y, shared=method == "platt")
  elif np.isnan(probabilities := np.asarray(jax.nn.softmax(z))).any():
    raise ValueError(
      "Isotonic regression must rank all logits, but some are NaN. Leave those "
      "examples out."
    )
  else:
    fitted = isotonic_knots(probabilities, y)
  return [jnp.asarray(x, z.dtype) for x in fitted]


def affine(
  logits: np.ndarray, labels: np.ndarray, shared: bool
) -> tuple[np.ndarray, np.ndarray]:
  """Fits a shared scale, or one for each class, and biases, by L-BFGS."""
  z = logits.astype(np.float64)
  examples, classes = z.shape
  if not np.isfinite(z).all():
    return np.full(classes, np.nan), np.full(classes, np.nan)
  # Shift each class to a mean of 0, and scale all to a size of 1.
  mean = z.mean(axis=0)
  z -= mean
  spread = z.std(axis=0)
  eps = np.finfo(np.promote_types(logits.dtype, np.float32)).eps
  noise = 128 * eps * np.abs(logits).max(axis=0).astype(np.float64)
  resolved = spread[spread > noise]
  size = np.sqrt(np.mean(resolved**2)) if resolved.size else 0.0
  # Fit a bias only where a scale would magnify rounding errors.
  z = np.where(noise < size, z / (size or 1), 0)
  rows = np.arange(examples)

  def loss(parameters):
    scale, bias = parameters[:-classes], parameters[-classes:]
    p = z * scale + bias
    p -= p.max(axis=1, keepdims=True)
    own = p[rows, labels]
    np.exp(p, out=p)
    total = p.sum(axis=1, keepdims=True)
    value = np.mean(np.log(total[:, 0]) - own)
    p /= total
    p[rows, labels] -= 1
    slopes = np.einsum("ij,ij->j", p, z)
    slopes = slopes.sum(keepdims=True) if shared else slopes
    return value, np.concatenate([slopes, p.sum(axis=0)]) / examples

  start = np.concatenate([np.ones(1 if shared else classes), np.zeros(classes)])
  options = {"maxiter": 200, "ftol": 1e-13, "gtol": 1e-7}
  fitted = optimize.minimize(
    loss, start, jac=True, method="L-BFGS-B", options=options
  ).x
  scale = np.where(noise < size, fitted[:-classes] / (size or 1), 0)
  bias = fitted[-classes:] - scale * mean
  return scale, bias - bias.mean()


def isotonic_knots(
  probabilities: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns both arrays of an :class:`Isotonic`."""
  examples, classes = probabilities.shape
  fits = []
  for c in range(classes):
    # Merge equal probabilities into one point, and add their weights.
    x, inverse = np.unique(probabilities[:, c], return_inverse=True)
    weights = np.bincount(inverse).astype(float)
    means = np.bincount(inverse, labels == c) / weights
    fit = optimize.isotonic_regression(means, weights=weights).x
    # Drop knots inside a constant piece.
    knots = np.ones(fit.size, bool)
    knots[1:-1] = (fit[1:-1] != fit[:-2]) | (fit[1:-1] != fit[2:])
    fits.append((x[knots], fit[knots]))
  # Pad all classes to the same number of knots, by repeating the last.
  longest = max(len(knots) for knots, _ in fits)
  pad = lambda x: np.pad(x, (0, longest - len(x)), "edge")
  x, y = (np.stack(list(map(pad, rows))) for rows in zip(*fits, strict=True))
  return x, np.maximum(y, 1 / (2 * examples)).astype(x.dtype)


def split(
  labels: Any,
  fraction: float = 0.5,
  *,
  random_seed: int = 0,
  in_sample: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
  """Splits examples at random: some to fit on, the others to evaluate on.

  The split is stratified by class. It is the same on every platform and in
  every version.

  Args:
    labels: integer array of shape (examples,).
    fraction: the share of examples to fit on, between 0 and 1.
    random_seed: seed of the split.
    in_sample: whether to fit *and* evaluate on all examples, as "OrthoGrad
      Improves Neural Calibration" does. A temperature hardly overfits 10,000
      examples; other methods do, and look better than they are.

  Returns:
    Two integer arrays: indices of examples, in ascending order.

  Examples:
    >>> import numpy as np
    >>> from orthograd_optax import calibration
    >>> fit, test = calibration.split(np.arange(100) % 10, 0.2)
    >>> print(len(fit), len(test), np.intersect1d(fit, test))
    20 80 []
  """
  labels = np.asarray(labels)
  if labels.ndim != 1 or labels.dtype.kind not in "iu":
    raise ValueError(
      "labels must be integers of shape (examples,), but have the shape "
      f"{labels.shape} and dtype {labels.dtype}."
    )
  all_examples = np.arange(labels.size)
  if in_sample:
    return all_examples, all_examples
  advice = "To fit and evaluate on the same examples, pass in_sample=True."
  rule = "fraction must be between 0 and 1"
  _inputs.require(0 < fraction < 1, rule, fraction, advice)
  # NumPy guarantees that the stream of RandomState never changes.
  shuffled = np.random.RandomState(random_seed).permutation(labels.size)
  by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
  # In the order of classes, take the given fraction evenly.
  due = np.floor(fraction * (all_examples + 1) + 0.5)
  chosen = np.diff(due, prepend=np.floor(0.5)) > 0
  fit, test = np.sort(by_class[chosen]), np.sort(by_class[~chosen])
  if fit.size == 0 or test.size == 0:
    raise ValueError(
      f"Both parts must have at least one example, but of {labels.size}, a "
      f"fraction of {fraction} leaves {fit.size} to fit on and {test.size} to "
      "evaluate on. Give more examples, or another fraction."
    )
  return fit, test
