"""Checks logits and labels, and computes per-example quantities."""

from collections.abc import Callable
import difflib
import functools
import inspect
import math
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


def as_name(value: Any) -> str:
  r"""Returns a name as text that can be encoded and drawn.

  Python reads bytes that are not UTF-8, as in the names of files, as lone
  surrogates such as ``"\udc80"``. They become their escape sequences.
  """
  return str(value).encode(errors="backslashreplace").decode()


def checked(*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
  """Checks and jits a function of logits, labels, where and static arguments.

  In its body, ``logits`` is an :class:`Examples`, which has the other two. If a
  row of logits has no softmax, all floating results become NaN.
  """

  def decorate(function: Callable[P, R]) -> Callable[P, R]:
    body: Any = function

    def guarded(logits, labels, where, **options):
      examples = Examples(logits, labels, where)

      def guard(x):
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.where(examples.undefined, jnp.nan, x) if floating else x

      return jax.tree.map(guard, body(examples, labels, **options))

    jitted = jax.jit(guarded, static_argnames=static)
    signature = inspect.signature(function)
    needs_labels = signature.parameters["labels"].default is signature.empty

    @suggesting
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
      try:
        arguments = signature.bind(*args, **kwargs).arguments
      except TypeError as error:
        raise TypeError(f"{function.__name__}: {error}") from None
      for name in static:
        if isinstance(arguments.get(name), jax.Array):
          raise TypeError(
            f"{name} must be a Python number, but is an array. Under jax.jit, "
            "name it in static_argnames."
          )
      names = "logits", "labels", "where"
      pair = [arguments.pop(name, None) for name in names]
      arrays = check_pair(*pair, needs_labels=needs_labels)
      return jitted(*arrays, **arguments)

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


def check_pair(logits: Any, labels: Any, where: Any = None, needs_labels=True):
  """Returns logits, int32 labels and where, or raises.

  Labels are not checked where ``where`` is False. If the values of labels are
  not known, those out of range become −1.
  """
  logits = _check_logits(logits)
  if labels is None and not needs_labels:
    return logits, None, _check_where(where, logits.shape[:-1])
  scores = logits.ndim == 1
  classes = 2 if scores else max(logits.shape[-1], 2)
  shape = logits.shape if scores else logits.shape[:-1]
  labels = _check_labels(labels, shape, classes)
  if where is not None:
    where = _check_where(where, labels.shape)
    unknown = is_unknown(where) or is_unknown(labels)
    labels = (jnp if unknown else np).where(where, labels, 0)
  in_range = (labels >= 0) & (labels < classes)
  if is_unknown(in_range):
    labels = jnp.where(in_range, labels, -1)
  elif not np.all(in_range):
    first = np.unravel_index(np.argmin(in_range), labels.shape)
    advice = "Give the index of its class. For padding, pass where."
    if labels.min() == 1 and labels.max() == classes:
      advice = "If classes are numbered from 1, pass labels - 1."
    elif classes == 2 and set(np.unique(labels)) == {-1, 1}:
      advice = "If −1 is the first class, pass labels > 0."
    raise ValueError(
      f"With {classes} classes, labels must be from 0 to {classes - 1}, but "
      f"labels[{', '.join(map(str, first))}] is {labels[first]}. {advice}"
    )
  return logits, jnp.asarray(labels).astype(jnp.int32), where


def is_unknown(x: Any) -> bool:
  """Returns whether this process can't look at the values of an array."""
  if isinstance(x, Tracer):
    return True
  return isinstance(x, jax.Array) and not x.is_fully_addressable


def _check_where(where: Any, shape: tuple[int, ...]) -> Any:
  if where is None:
    return None
  where = where if isinstance(where, jax.Array) else np.asarray(where)
  if where.dtype != np.bool_ or where.shape != shape:
    raise ValueError(
      f"where must be booleans of shape {shape}, one for each row of logits, "
      f"but has the shape {where.shape} and dtype {where.dtype}."
    )
  return where


def _check_logits(logits: Any) -> jax.Array:
  logits = as_array(logits)
  if jnp.iscomplexobj(logits) or logits.dtype == jnp.bool_:
    raise TypeError(f"logits must be real numbers, but are {logits.dtype}.")
  if logits.ndim == 0 or logits.size == 0:
    raise ValueError(
      "logits must have at least one example and two classes, in the shape "
      "(..., classes), or (examples,) for two classes, but has the shape "
      f"{logits.shape}."
    )
  return jnp.asarray(logits)


def rows(logits: Any, labels: Any, where: Any) -> tuple[np.ndarray, np.ndarray]:
  """Returns the examples that count in NumPy: (examples, classes), (examples,).

  Integers become floats. Other dtypes stay, so that nothing is copied.
  """
  z, y = np.asarray(logits), np.asarray(labels)
  if z.dtype.kind in "iu":
    z = z.astype(np.float64)
  z, y = z.reshape(y.size, -1), y.ravel()
  if where is not None:
    keep = np.asarray(where).ravel()
    z, y = z[keep], y[keep]
  if z.shape[1] == 1:
    z = np.concatenate([np.zeros_like(z), z], axis=1)
  return z, y


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


def refuse_probabilities(logits: Any) -> None:
  if look_like_probabilities(logits):
    rule, remedy = " and rows sum to 0.8 to 1.2", "logits - 1"
    if logits.ndim == 1 or logits.shape[-1] == 1:
      rule, remedy = "", "np.stack([0 * logits, logits], axis=1)"
    raise ValueError(
      "logits must be logits, but look like probabilities: all are from 0 to 1"
      f"{rule}. Pass calibration.from_probabilities(probabilities); in a file, "
      f"name them probabilities. If they really are logits, pass {remedy}, "
      "which has the same softmax."
    )


def _check_labels(labels: Any, shape: tuple[int, ...], classes: int) -> Any:
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
  if labels.shape != shape:
    remedy = "Give one label for each row of logits."
    if labels.shape == (*shape, 1):
      remedy = "Use labels[:, 0]."
    elif labels.shape == (*shape, classes):
      remedy = f"If labels are one-hot, use labels.argmax({len(shape)})."
    elif labels.shape == (classes,):
      remedy = "If logits have the shape (classes, examples), pass logits.T."
    elif labels.ndim > len(shape) == 1:
      remedy = "Pass logits first, then labels."
    elif shape[1:] == labels.shape:
      remedy = "For several models on the same examples, use jax.vmap."
    raise ValueError(
      f"labels must have the shape {shape} for logits of shape "
      f"{(*shape, classes)}, but has {labels.shape}. {remedy}"
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


class Examples:
  """Checked logits inside jit, with quantities of each example.

  Quantities have shape (examples,), whatever the shape of the labels. They come
  from reductions over the classes, so that XLA needs no copy of the logits and
  gathers no sharded ones.

  Attributes:
    logits: array of shape (..., classes), of at least float32.
    keep: booleans of shape (examples,), or None to count all examples.
    number: number of examples that count.
    undefined: whether one of them has no softmax, or a label out of range.
    rank: the label's rank among the logits, in the order of ``top_k``.
    confidence: largest probability.
    flat: whether all logits of the example are equal.
    high, total: largest logit, and sum of exp(logit − high), of shape (..., 1).
    nll, brier, entropy, max_logit, logit_variance: as the metrics.
  """

  def __init__(self, logits: Any, labels: Any, where: Any):
    if logits.ndim == 1 or logits.shape[-1] == 1:
      second = logits[..., None] if logits.ndim == 1 else logits
      logits = jnp.concatenate([jnp.zeros_like(second), second], axis=-1)
    z = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    self.given = logits
    classes = z.shape[-1]
    self.logits, self.dtype, self.classes = z, z.dtype, classes
    self.keep = None if where is None else where.ravel()
    self.size = math.prod(z.shape[:-1])
    self.number = self.size if where is None else jnp.sum(where)
    self.labels = labels
    if labels is None:
      labels = jnp.full(z.shape[:-1], -1, jnp.int32)
    own = jnp.take_along_axis(z, jnp.maximum(labels, 0)[..., None], axis=-1)
    index = jax.lax.broadcasted_iota(jnp.int32, z.shape, z.ndim - 1)
    before = (z == own) & (index < labels[..., None])
    high, low, rank = _extremes(z, (z > own) | before)
    defined = (high < jnp.inf) & (high > -jnp.inf) & ~jnp.isnan(low)
    if self.labels is not None:
      defined &= labels >= 0
    self.undefined = jnp.any(~defined if where is None else ~defined & where)

    shifted = z - high[..., None]
    power = jnp.exp(shifted)
    spread = high - low
    unit = jnp.where((spread > 0) & (spread < jnp.inf), spread, 1)[..., None]
    position = jnp.maximum(shifted / unit, -1)
    # Without the 1 of the largest logit, sums stay accurate if they are small.
    rest, squares, products, first, second = sums(
      (1, 1, 0, 0, 0),
      power,
      power**2,
      power * jnp.maximum(shifted, jnp.finfo(z.dtype).min),
      position,
      position**2,
    )
    total, log_total = 1 + rest, jnp.log1p(rest)
    gap = high - own[..., 0]
    # The same sums, without the label.
    others = rest + (1 - jnp.exp(-gap))
    other_squares = squares + (1 - jnp.exp(-2 * gap))
    deviations = jnp.maximum(second - first**2 / classes, 0)
    variance = unit[..., 0] ** 2 * deviations / (classes - 1)
    self.high, self.total = high[..., None], total[..., None]
    self.rest, self.gap = rest, gap
    self.unit = jnp.where(spread < jnp.inf, unit[..., 0], jnp.inf)[..., None]
    self.rank = rank.ravel()
    self.confidence = jnp.ravel(1 / total)
    self.nll = jnp.ravel(log_total + gap)
    self.brier = jnp.ravel((other_squares + others**2) / total**2)
    self.entropy = jnp.ravel(log_total - products / total)
    self.max_logit = jnp.ravel(jnp.maximum(high, -low))
    self.logit_variance = jnp.ravel(
      jnp.where(spread < jnp.inf, variance, jnp.nan)
    )
    self.flat = jnp.ravel(high == low)

  @property
  def correct(self) -> Any:
    return self.rank < 1

  @functools.cached_property
  def doubt(self) -> Any:
    """Returns log((1 − p) / p), where p is the confidence."""
    z, high = self.logits, self.high
    below = z < high
    second, _, ties = _extremes(jnp.where(below, z, -jnp.inf), z == high)
    start = jnp.where(second == -jnp.inf, 0, second)[..., None]
    power = jnp.where(below, jnp.exp(jnp.minimum(z - start, 0)), 0)
    (rest,) = sums((1,), power)
    single = (second - high[..., 0]) + jnp.log1p(rest)
    return jnp.ravel(jnp.where(ties > 1, jnp.log(self.rest), single))

  def sum(self, values: Any) -> Any:
    """Returns the sum of one value for each example that counts."""
    kept = values if self.keep is None else jnp.where(self.keep, values, 0)
    return jnp.sum(kept, dtype=values.dtype)

  def mean(self, values: Any) -> Any:
    return self.sum(values) / jnp.asarray(self.number, values.dtype)


@jax.custom_jvp
def _extremes(z: Any, counted: Any) -> Any:
  """Returns maximum, minimum and number of ``counted``, over the last axis.

  Floats are compared as integers, because XLA vectorizes only these on a CPU,
  and loses NaNs in the maximum of floats. A NaN is an extreme.
  """
  integer = jnp.int32 if z.dtype.itemsize == 4 else jnp.int64
  limits = jnp.iinfo(integer)

  def flip(bits):  # its own inverse
    return bits ^ ((bits >> (limits.bits - 1)) & limits.max)

  keys = flip(jax.lax.bitcast_convert_type(z, integer))
  starts = (limits.min, limits.max, 0)
  high, low, count = jax.lax.reduce(
    (keys, keys, counted.astype(integer)),
    tuple(np.array(x, integer) for x in starts),
    lambda a, b: (
      jnp.maximum(a[0], b[0]),
      jnp.minimum(a[1], b[1]),
      a[2] + b[2],
    ),
    (z.ndim - 1,),
  )
  back = lambda x: jax.lax.bitcast_convert_type(flip(x), z.dtype)
  return back(high), back(low), count


@_extremes.defjvp
def _(primals, tangents):
  values = _extremes(*primals)
  plain = lambda z: (jnp.max(z, axis=-1), jnp.min(z, axis=-1))
  _, slopes = jax.jvp(plain, primals[:1], tangents[:1])
  return values, (*slopes, np.zeros(values[2].shape, jax.dtypes.float0))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def sums(less: tuple[int, ...], *terms: Any) -> tuple[Any, ...]:
  """Sums numbers from −1 to 1 over the last axis, and subtracts ``less``.

  The sums are of fixed-point integers. They are exact, hence the same in any
  order and sharding, and XLA vectorizes them on a CPU. A float32 sum of 50,000
  numbers would lose three digits there, and take three times as long.
  """
  return fixed_sums(terms, (terms[0].ndim - 1,), less)


@sums.defjvp
def _(less, primals, tangents):
  return sums(less, *primals), tuple(jnp.sum(t, axis=-1) for t in tangents)


def fixed_sums(terms: Any, axes: tuple[int, ...], less: Any) -> tuple[Any, ...]:
  """Sums numbers from −1 to 1 over axes, and subtracts ``less`` from each."""
  dtype = terms[0].dtype
  integer = jnp.int32 if dtype.itemsize == 4 else jnp.int64
  digits = 8 * dtype.itemsize - 2
  # Sum pieces of so few bits that the sums do not overflow.
  number = math.prod(terms[0].shape[axis] for axis in axes)
  width = digits + 1 - number.bit_length()
  starts = range(0, digits, width)
  pieces = []
  for term in terms:
    fixed = jnp.round(term * 2.0**digits).astype(integer)
    pieces += [(fixed >> at) & (2**width - 1) for at in starts[:-1]]
    pieces.append(fixed >> starts[-1])
  pieces = jax.lax.reduce(
    tuple(pieces),
    (np.zeros((), integer),) * len(pieces),
    lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)),
    axes,
  )
  totals = []
  for i, one in enumerate(less):
    *lower, last = pieces[i * len(starts) : (i + 1) * len(starts)]
    parts = *lower, last - (one << (digits - starts[-1]))
    total = jnp.zeros_like(last, dtype)
    for part, at in reversed(list(zip(parts, starts, strict=True))):
      total += part.astype(dtype) * 2.0 ** (at - digits)
    totals.append(total)
  return tuple(totals)
