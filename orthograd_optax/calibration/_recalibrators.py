"""What a fit gives: a function of logits that can be kept and served."""

import abc
from collections.abc import Callable
import dataclasses
import json
import os
import pathlib
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from orthograd_optax.calibration import _writing

_FORMAT = "orthograd-optax recalibrator"


class Recalibrator(abc.ABC):
  """Turns logits into calibrated ones; what :func:`fit` returns.

  It is a pytree of arrays: call it inside ``jax.jit``, or pass it to a jitted
  function. :meth:`save` keeps it in a file of JSON, which :func:`load` reads,
  and :meth:`export` makes a function of it that needs NumPy alone.
  """

  method: ClassVar[str]

  @abc.abstractmethod
  def __call__(self, logits: Any) -> jax.Array:
    """Calibrated logits, of the same shape, (..., classes).

    One column is the logit of the second of two classes, and gives two.
    """

  @abc.abstractmethod
  def export(self) -> Callable[[np.ndarray], np.ndarray]:
    """A plain function of NumPy arrays: logits in, probabilities out.

    It has the numbers in it, and computes in float64 without JAX.
    """

  def save(self, path: str | os.PathLike) -> pathlib.Path:
    """Writes it as JSON, for :func:`load`.

    A file that was there is replaced at once, or left as it was.

    Args:
      path: the file's.

    Returns:
      The path.
    """
    fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
    values = {f.name: np.asarray(getattr(self, f.name)) for f in fields}
    for name, value in values.items():
      if not np.all(np.isfinite(value)):
        raise ValueError(
          f"{name} of this recalibrator is not finite, so that it can't be "
          "saved: it was fitted to logits that are not finite."
        )
    content = {
      "format": _FORMAT,
      "method": self.method,
      "dtype": str(next(iter(values.values())).dtype),
      # Floats are written with as many digits as tell them apart.
      **{k: v.astype(np.float64).tolist() for k, v in values.items()},
    }
    return _writing.write_text(path, json.dumps(content) + "\n")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Temperature(Recalibrator):
  """Calibrates logits as ``logits / temperature``, for any number of classes.

  Attributes:
    temperature: a positive number; above 1, confidence falls.
  """

  method: ClassVar[str] = "temperature"
  temperature: jax.Array

  def __call__(self, logits: Any) -> jax.Array:
    logits = _columns(logits)
    return logits / jnp.asarray(self.temperature, logits.dtype)

  def export(self) -> Callable[[np.ndarray], np.ndarray]:
    temperature = float(self.temperature)
    return lambda logits: _softmax(_columns64(logits) / temperature)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class VectorScaling(Recalibrator):
  """Calibrates logits as ``scale * logits + bias``.

  Attributes:
    scale: array of shape (classes,).
    bias: array of shape (classes,), of mean zero.
  """

  method: ClassVar[str] = "vector"
  scale: jax.Array
  bias: jax.Array

  def __call__(self, logits: Any) -> jax.Array:
    logits = _check_classes(logits, self.scale.shape[-1])
    shape = (1,) * (logits.ndim - 1) + self.scale.shape
    return logits * self.scale.reshape(shape) + self.bias.reshape(shape)

  def export(self) -> Callable[[np.ndarray], np.ndarray]:
    scale, bias = (np.asarray(x, np.float64) for x in (self.scale, self.bias))
    return lambda logits: _softmax(_columns64(logits) * scale + bias)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Platt(VectorScaling):
  """Calibrates logits as ``scale * logits + bias``, with one scale for all.

  That is a temperature with an intercept for each class. For two classes it is
  Platt's sigmoid(a z + b), of the difference of their logits.

  Attributes:
    scale: array of shape (classes,), of equal numbers, 1 / temperature.
    bias: array of shape (classes,), of mean zero.
  """

  method: ClassVar[str] = "platt"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Isotonic(Recalibrator):
  """Calibrates by a non-decreasing function of each class's probability.

  Attributes:
    probability: array of shape (classes, knots), of probabilities in ascending
      order.
    calibrated: array of that shape, of what they become.
  """

  method: ClassVar[str] = "isotonic"
  probability: jax.Array
  calibrated: jax.Array

  def __call__(self, logits: Any) -> jax.Array:
    """Calibrated log-probabilities, of the same shape, (..., classes)."""
    classes = self.probability.shape[0]
    logits = _check_classes(logits, classes)
    columns = jax.nn.softmax(logits).reshape(-1, classes)
    interpolate = jax.vmap(jnp.interp, in_axes=(1, 0, 0), out_axes=1)
    values = interpolate(columns, self.probability, self.calibrated)
    log_values = jnp.log(values).reshape(logits.shape)
    return jax.nn.log_softmax(log_values)

  def export(self) -> Callable[[np.ndarray], np.ndarray]:
    x, y = (np.asarray(a) for a in (self.probability, self.calibrated))

    def recalibrate(logits):
      # Rounded as what it was fitted to, for equal numbers to stay equal.
      p = _softmax(_columns64(logits)).astype(x.dtype)
      p = np.moveaxis(p, -1, 0)
      values = [np.interp(*row) for row in zip(p, x, y, strict=True)]
      values = np.stack(values, axis=-1)
      return values / values.sum(axis=-1, keepdims=True)

    return recalibrate


def load(path: str | os.PathLike) -> Recalibrator:
  """Reads what :meth:`Recalibrator.save` wrote.

  Args:
    path: the file's.

  Returns:
    The recalibrator. It gives the very numbers that the saved one gives.

  Examples:
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from orthograd_optax import calibration
    >>> logits = np.array([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0]], np.float32)
    >>> recalibrate = calibration.fit(logits, np.array([0, 1, 1]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   path = recalibrate.save(pathlib.Path(folder, "temperature.json"))
    ...   served = calibration.load(path)
    >>> print(served.method, f"{served.temperature:.4f}")
    temperature 5.7708
  """
  path = pathlib.Path(path)
  wrong = ValueError(
    f"{path} is no file of a recalibrator: give one that save() wrote."
  )
  try:
    content = json.loads(path.read_text("utf-8"))
  except (UnicodeDecodeError, json.JSONDecodeError) as error:
    raise wrong from error
  kinds = {k.method: k for k in (Temperature, VectorScaling, Platt, Isotonic)}
  if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
    raise wrong
  kind, dtype = kinds.get(content.pop("method", "")), content.pop("dtype", "")
  names = {f.name for f in dataclasses.fields(kind)} if kind else set()
  if kind is None or names != set(content) or dtype not in _DTYPES:
    raise wrong
  arrays = {k: jnp.asarray(np.array(v, dtype)) for k, v in content.items()}
  return kind(**arrays)


_DTYPES = ("float32", "float64")


def _columns64(logits: Any) -> np.ndarray:
  z = np.asarray(logits, np.float64)
  return np.concatenate([0 * z, z], axis=-1) if z.shape[-1] == 1 else z


def _softmax(z: np.ndarray) -> np.ndarray:
  p = np.exp(z - z.max(axis=-1, keepdims=True))
  return p / p.sum(axis=-1, keepdims=True)


def _columns(logits: Any) -> jax.Array:
  logits = jnp.asarray(logits)
  logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
  if logits.shape[-1:] != (1,):
    return logits
  return jnp.concatenate([jnp.zeros_like(logits), logits], axis=-1)


def _check_classes(logits: Any, classes: int) -> jax.Array:
  logits = _columns(logits)
  if logits.shape[-1:] != (classes,):
    raise ValueError(
      f"logits has shape {logits.shape}, but this was fitted to {classes} "
      "classes: the last axis must have as many, or, for two classes, one."
    )
  return logits
