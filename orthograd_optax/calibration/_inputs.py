"""Checks logits and labels, and computes per-example quantities."""

from collections.abc import Callable
import difflib
import functools
import inspect
from typing import Any, ParamSpec, TypeVar

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

# Rows of probabilities sum to 1 within 0.01 for each class, and within 0.2:
# enough for two decimals, rounded or cut off.
MAX_SUM_ERROR = 0.2


def checked(*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
  """Checks and jits a function of logits, labels and static arguments.

  The function gets the results of :func:`check`. If a row of logits has no
  softmax, all floating results become NaN.
  """

  def decorate(function: Callable[P, R]) -> Callable[P, R]:
    body: Any = function

    def guarded(logits, labels, **options):
      # Don't rely on arithmetic: on some CPUs, XLA's exp and max lose NaNs.
      all_impossible = jnp.all(logits == -jnp.inf, axis=1)
      undefined = jnp.any(all_impossible | jnp.any(~(logits < jnp.inf), axis=1))

      def guard(x):
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.where(undefined, jnp.nan, x) if floating else x

      return jax.tree.map(guard, body(logits, labels, **options))

    jitted = jax.jit(guarded, static_argnames=static)
    signature = inspect.signature(function)
    needs_labels = signature.parameters["labels"].default is signature.empty

    @suggesting
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
      arguments = signature.bind(*args, **kwargs).arguments
      for name in static:
        if isinstance(arguments.get(name), jax.Array):
          raise TypeError(
            f"{name} must be a Python number, but is an array. Under jax.jit, "
            "name it in static_argnames."
          )
      pair = arguments.pop("logits"), arguments.pop("labels", None)
      return jitted(*check_pair(*pair, needs_labels), **arguments)

    return wrapper  # pyright: ignore[reportReturnType]

  return decorate


def suggesting(function: Callable[P, R]) -> Callable[P, R]:
  """Adds a suggestion to the error for an unknown argument."""
  names = list(inspect.signature(function).parameters)

  @functools.wraps(function)
  def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
    for name in kwargs:
      if name not in names:
        close = difflib.get_close_matches(name, names, 1, 0.5)
        options = close or [x for x in names if x not in ("logits", "labels")]
        raise TypeError(
          f"{function.__name__} has no argument {name!r}. Did you mean "  # pyright: ignore
          f"{' or '.join(options) or 'to leave it out'}?"
        )
    return function(*args, **kwargs)

  return wrapper


def require(holds: Any, rule: str, given: Any, advice: str = "") -> None:
  if not holds:
    raise ValueError(f"{rule}, but is {given}. {advice}".rstrip())


def check_pair(logits: Any, labels: Any, needs_labels=True, where: Any = None):
  """Returns logits of at least float32 and int32 labels, or raises.

  Labels are not checked where ``where`` is False. If a traced label is out of
  range, its row of logits becomes NaN.
  """
  logits = _check_logits(logits)
  if labels is None and not needs_labels:
    return logits, None
  labels = _check_labels(labels, *logits.shape)
  classes = logits.shape[1]
  if where is not None:
    traced = isinstance(where, Tracer) or isinstance(labels, Tracer)
    labels = (jnp if traced else np).where(where, labels, 0)
  in_range = (labels >= 0) & (labels < classes)
  if not isinstance(in_range, Tracer) and not np.all(in_range):
    first = int(np.argmin(in_range))
    raise ValueError(
      f"With {classes} classes, labels must be from 0 to {classes - 1}, but "
      f"labels[{first}] is {labels[first]}. Give the index of its column."
    )
  logits = jnp.where(jnp.asarray(in_range)[:, None], logits, jnp.nan)
  return logits, jnp.asarray(labels).astype(jnp.int32)


def _check_logits(logits: Any) -> jax.Array:
  logits = as_array(logits)
  shape = logits.shape
  if jnp.iscomplexobj(logits) or logits.dtype == jnp.bool_:
    raise TypeError(f"logits must be real numbers, but are {logits.dtype}.")
  if len(shape) not in (1, 2) or 0 in shape:
    raise ValueError(
      "logits must have at least one example and two classes, in the shape "
      "(examples, classes), or (examples,) for two classes, but has the shape "
      f"{shape}. For several seeds, use jax.vmap."
    )
  logits = jnp.asarray(logits)
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  if len(shape) == 2 and shape[1] > 1:
    return logits
  second = logits.reshape(-1)
  return jnp.stack([jnp.zeros_like(second), second], axis=1)


def check_k(k: Any, classes: int) -> None:
  rule = f"k must be an integer from 1 to the number of classes, {classes}"
  require(isinstance(k, int | np.integer) and 1 <= k <= classes, rule, k)


def as_array(x: Any) -> Any:
  """Returns a NumPy or JAX array, also from a tensor of another framework."""
  if isinstance(x, jax.Array | np.ndarray):
    return x
  return np.asarray(x) if hasattr(x, "__array__") else jnp.asarray(x)


def look_like_probabilities(logits: Any) -> bool:
  """Returns whether values are in [0, 1] and rows, if several, sum to ~1."""
  several = logits.ndim > 1 and logits.shape[-1] > 1

  def fits(rows):
    rows = np.asarray(rows).astype(np.float32)
    sums = rows.sum(axis=-1) if several else np.ones(1)
    inside = np.all((rows >= 0) & (rows <= 1))
    return bool(inside and np.all(np.abs(sums - 1) <= MAX_SUM_ERROR))

  # Checking the first row usually suffices.
  return fits(logits[:1]) and fits(logits)


def _check_labels(labels: Any, examples: int, classes: int) -> Any:
  # Check NumPy labels before jax narrows them. Widen narrow labels before they
  # are compared with a number of classes that they can't hold.
  labels = labels if isinstance(labels, jax.Array) else np.asarray(labels)
  if labels.dtype.kind in "OUST":
    first = labels.ravel()[0] if labels.size else ""
    raise TypeError(
      f"labels must be integers, but are names such as {str(first)!r}. With "
      "the list of classes in the order of the columns (scikit-learn's "
      "model.classes_), use labels = [list(classes).index(y) for y in labels]."
    )
  if labels.dtype == np.bool_ and classes == 2:
    labels = labels.astype(np.int32)
  if labels.shape != (examples,):
    remedy = "Give one label for each row of logits."
    if labels.shape == (examples, 1):
      remedy = "Use labels[:, 0]."
    elif labels.shape == (examples, classes):
      remedy = "If labels are one-hot, use labels.argmax(1)."
    raise ValueError(
      f"labels must have the shape {(examples,)} for logits of shape "
      f"{(examples, classes)}, but has {labels.shape}. {remedy}"
    )
  if not jnp.issubdtype(labels.dtype, jnp.integer):
    raise TypeError(
      f"labels must be integers, but are {labels.dtype}. Give each example the "
      "index of its class. If all are whole numbers, use labels.astype(int)."
    )
  return labels.astype(np.int32) if labels.dtype.itemsize < 4 else labels


def from_probabilities(probabilities: Any) -> jax.Array:
  r"""Converts probabilities to logits: :math:`z = \log p`.

  Call it first if your model returns probabilities (scikit-learn's
  ``predict_proba``, a softmax, a sigmoid): every metric and recalibrator takes
  logits. Rows may be rounded to two decimals: softmax divides by their sum.

  A probability of zero becomes the smallest normal number of its dtype, 1e-38
  in float32 and 2e-308 in float64, so that no logit is infinite. An example
  whose label has probability zero adds 87 (float64: 708) to the sum of losses.

  Args:
    probabilities: array of shape (..., classes) whose rows sum to 1; or, for
      two classes, the probability of the second class, of shape (examples,) or
      (examples, 1).

  Returns:
    Logits of shape (..., classes). From one column, (examples, 2).

  Examples:
    >>> from orthograd_optax import calibration
    >>> print(calibration.from_probabilities([[0.9, 0.1, 0.0]]).round(1))
    [[ -0.1  -2.3 -87.3]]
    >>> scores = [0.9, 0.2, 0.6]  # of the second class
    >>> print(calibration.from_probabilities(scores).shape)
    (3, 2)
  """
  p = as_array(probabilities)
  if not isinstance(p, Tracer) and p.dtype.kind in "iub":
    p = p.astype(np.float32)
  real = jnp.issubdtype(p.dtype, jnp.floating)
  if not real or p.ndim == 0 or p.size == 0:
    raise (ValueError if real else TypeError)(
      "probabilities must be an array of real numbers with at least one "
      f"example, but have the shape {p.shape} and the dtype {p.dtype}."
    )
  if not isinstance(p, Tracer):
    _check_probabilities(np.asarray(p))
  numpy = np if isinstance(p, np.ndarray) else jnp
  if p.ndim == 1 or p.shape[1:] == (1,):
    p = p.reshape(-1)
    p = numpy.stack([1 - p, p], axis=1)
  p = p.astype(jnp.promote_types(p.dtype, jnp.float32))
  tiny = jnp.finfo(p.dtype).tiny
  return jnp.asarray(numpy.log(numpy.clip(p, tiny, 1)))


def _check_probabilities(p: np.ndarray) -> None:
  def require(holds, rule, what, values, advice):
    if not holds.all():
      place = np.argwhere(~holds)[0].tolist()
      raise ValueError(
        f"Probabilities must {rule}, but {what}{place} is "
        f"{values[tuple(place)]:.6g}. {advice}"
      )

  p = p.astype(np.promote_types(p.dtype, np.float32))
  inside = (p >= -1e-6) & (p <= 1 + 1e-6)
  advice = "Leave out NaNs. If these are logits, don't call from_probabilities."
  require(inside, "be from 0 to 1", "probabilities", p, advice)
  if p.ndim > 1 and p.shape[1:] != (1,):
    sums = p.sum(axis=-1, dtype=np.float64)
    tolerance = min(0.01 * p.shape[-1], MAX_SUM_ERROR)
    rule = f"sum to 1, or to 1 ± {tolerance:.2g} if rounded"
    advice = (
      "If a class has no column, add it. If the sum does not matter, divide by "
      "it: p / p.sum(axis=-1, keepdims=True)."
    )
    close = np.abs(sums - 1) <= tolerance
    require(close, rule, "the sum of probabilities", sums, advice)


# Per-example quantities, of shape (examples,).


def confidence(logits):
  return jnp.max(jax.nn.softmax(logits), axis=1)


def rank(logits, labels):
  """Returns the label's rank among the logits, in the order of ``top_k``."""
  own = jnp.take_along_axis(logits, labels[:, None], axis=1)
  before = jnp.arange(logits.shape[1])[None] < labels[:, None]
  return jnp.sum((logits > own) | ((logits == own) & before), axis=1)


def nll(logits, labels):
  log_softmax = jax.nn.log_softmax(logits)
  return -jnp.take_along_axis(log_softmax, labels[:, None], axis=1)[:, 0]


def brier(logits, labels):
  own = jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype)
  return jnp.sum((jax.nn.softmax(logits) - own) ** 2, axis=1)


def entropy(logits):
  p, log_p = jax.nn.softmax(logits), jax.nn.log_softmax(logits)
  # For a logit of −∞, p log p is 0.
  return -jnp.sum(jnp.where(p == 0, 0, p * log_p), axis=1)


def max_logit(logits):
  return jnp.max(jnp.abs(logits), axis=1)


def logit_variance(logits):
  return jnp.var(logits, axis=1, ddof=1)
