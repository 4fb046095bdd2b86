"""Checks of (logits, labels), shared by all that takes them."""

from collections.abc import Callable
import functools
import inspect
from typing import Any, ParamSpec, TypeVar

import jax
from jax.core import Tracer
import jax.numpy as jnp
import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def checked(*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
  """Jits a function of (logits, labels, ...), behind a check of these two.

  Args:
    *static: names of the arguments that are not arrays.

  Returns:
    A decorator. What it makes gets checked arrays: real floating logits of at
    least float32, and, if the function needs labels, int32 ones; where a label
    is out of range and could not be looked at, that row of logits is NaN.
    Where a row of logits has no softmax, floating results become NaN.
  """

  def decorate(function: Callable[P, R]) -> Callable[P, R]:
    body: Any = function

    def guarded(logits, labels, **options):
      # Not left to arithmetic: on some CPUs XLA's exp and max lose NaNs.
      nothing = jnp.all(logits == -jnp.inf, axis=1)
      undefined = jnp.any(nothing | jnp.any(~(logits < jnp.inf), axis=1))

      def guard(x):
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.where(undefined, jnp.nan, x) if floating else x

      return jax.tree.map(guard, body(logits, labels, **options))

    jitted = jax.jit(guarded, static_argnames=static)
    signature = inspect.signature(function)
    labels_default = signature.parameters["labels"].default
    needs_labels = labels_default is inspect.Parameter.empty

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
      arguments = signature.bind(*args, **kwargs).arguments
      for name in static:
        if isinstance(arguments.get(name), jax.Array):
          raise TypeError(
            f"{name} is an array, but must be known when jax compiles: give a "
            "Python number, and under jax.jit name it in static_argnames."
          )
      pair = arguments.pop("logits"), arguments.pop("labels", None)
      return jitted(*check(*pair, needs_labels), **arguments)

    return wrapper  # pyright: ignore[reportReturnType]

  return decorate


def check(logits: Any, labels: Any, needs_labels: bool = True):
  """Returns (logits, labels) as arrays, or raises if they are no such pair."""
  logits = jnp.asarray(logits)
  if logits.ndim != 2:
    raise ValueError(
      f"logits has shape {logits.shape}, but must be (images, classes). For a "
      "stack of these, use jax.vmap."
    )
  images, classes = logits.shape
  if images == 0 or classes < 2:
    raise ValueError(
      f"logits has shape {logits.shape}: there must be at least one image and "
      "two classes."
    )
  if jnp.iscomplexobj(logits) or logits.dtype == jnp.bool_:
    raise TypeError(f"logits must be real numbers, but are {logits.dtype}.")
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  if labels is None and not needs_labels:
    return logits, None

  # Labels of NumPy are checked before jax narrows them, and narrow ones widened
  # before they are compared with a number of classes that they can't hold.
  labels = labels if isinstance(labels, jax.Array) else np.asarray(labels)
  if not jnp.issubdtype(labels.dtype, jnp.integer):
    raise TypeError(
      f"labels must be integers, but are {labels.dtype}: give each image the "
      "index of its class."
    )
  if labels.shape != (images,):
    raise ValueError(
      f"labels has shape {labels.shape}, but for logits of shape "
      f"{logits.shape} it must be {(images,)}. If it is one-hot, use "
      "labels.argmax(-1)."
    )
  if labels.dtype.itemsize < 4:
    labels = labels.astype(np.int32)
  in_range = (labels >= 0) & (labels < classes)
  if not isinstance(in_range, Tracer) and not np.all(in_range):
    first = int(np.argmin(in_range))
    raise ValueError(
      f"labels[{first}] is {labels[first]}, but with {classes} classes labels "
      f"run from 0 to {classes - 1}."
    )
  logits = jnp.where(jnp.asarray(in_range)[:, None], logits, jnp.nan)
  return logits, jnp.asarray(labels).astype(jnp.int32)


# One number for each image.


def confidence(logits):
  return jnp.max(jax.nn.softmax(logits), axis=1)


def rank(logits, labels):
  """How many classes come before the label's, in the order of ``top_k``."""
  own = jnp.take_along_axis(logits, labels[:, None], axis=1)
  before = jnp.arange(logits.shape[1])[None] < labels[:, None]
  return jnp.sum((logits > own) | ((logits == own) & before), axis=1)


def loss(logits, labels):
  log_softmax = jax.nn.log_softmax(logits)
  return -jnp.take_along_axis(log_softmax, labels[:, None], axis=1)[:, 0]


def brier(logits, labels):
  own = jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype)
  return jnp.sum((jax.nn.softmax(logits) - own) ** 2, axis=1)


def entropy(logits):
  p, log_p = jax.nn.softmax(logits), jax.nn.log_softmax(logits)
  # A logit of −inf has p log p = 0.
  return -jnp.sum(jnp.where(p == 0, 0, p * log_p), axis=1)


def max_logit(logits):
  return jnp.max(jnp.abs(logits), axis=1)


def logit_variance(logits):
  return jnp.var(logits, axis=1, ddof=1)
