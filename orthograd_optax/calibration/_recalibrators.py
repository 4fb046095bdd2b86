"""Fitted recalibrators: functions of logits that can be saved and served."""

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
  """A function from logits to calibrated logits. :func:`fit` returns one.

  It is a pytree of arrays: call it inside ``jax.jit``, or pass it to a jitted
  function. :meth:`save` writes it as JSON, and :func:`load` reads it.
  :meth:`export` returns a function that needs NumPy only.
  """

  method: ClassVar[str]

  @abc.abstractmethod
  def __call__(self, logits: Any) -> jax.Array:
    """Calibrates logits of shape (..., classes).

    One column is the logit of the second of two classes; the result then has
    two columns. For such logits of shape (examples,), pass ``logits[:, None]``:
    one axis alone is taken for the classes of one example.
    """

  @abc.abstractmethod
  def export(self) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function from logits to probabilities, as NumPy arrays.

    The function computes in float64, and does not need JAX.
    """

  def save(self, path: str | os.PathLike) -> pathlib.Path:
    """Writes the recalibrator as JSON. :func:`load` reads it.

    An existing file is replaced only once the new one is complete.

    Args:
      path: path of the file.

    Returns:
      The path.
    """
    fields = dataclasses.fields(self)  # pyright: ignore[reportArgumentType]
    values = {f.name: np.asarray(getattr(self, f.name)) for f in fields}
    for name, value in values.items():
      if not np.all(np.isfinite(value)):
        raise ValueError(
          f"{name} of this recalibrator is not finite, so it can't be saved. "
          "Fit it to finite logits."
        )
    content = {
      "format": _FORMAT,
      "method": self.method,
      "dtype": str(next(iter(values.values())).dtype),
      # repr of a float64 has all digits, so load() returns the same numbers.
      **{k: v.astype(np.float64).tolist() for k, v in values.items()},
    }
    return _writing.write_text(path, json.dumps(content) + "\n")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Temperature(Recalibrator):
  """Calibrates as ``logits / temperature``, for any number of classes.

  Attributes:
    temperature: a positive number. Above 1, it lowers confidence.
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
  """Calibrates as ``scale * logits + bias``.

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
  """Calibrates as ``scale * logits + bias``, with the same scale for all.

  This is a temperature with a bias for each class. With two classes, it is
  Platt's sigmoid(a z + b), where z is the difference of the logits.

  Attributes:
    scale: array of shape (classes,); each entry is 1 / temperature.
    bias: array of shape (classes,), of mean zero.
  """

  method: ClassVar[str] = "platt"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Isotonic(Recalibrator):
  """Calibrates by a non-decreasing function of each class's probability.

  Attributes:
    probability: array of shape (classes, knots): probabilities in ascending
      order.
    calibrated: array of shape (classes, knots): their calibrated values.
  """

  method: ClassVar[str] = "isotonic"
  probability: jax.Array
  calibrated: jax.Array

  def __call__(self, logits: Any) -> jax.Array:
    """Returns calibrated log-probabilities of shape (..., classes)."""
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
      # Round to the dtype of the knots, so that equal numbers stay equal.
      p = _softmax(_columns64(logits)).astype(x.dtype)
      p = np.moveaxis(p, -1, 0)
      values = [np.interp(*row) for row in zip(p, x, y, strict=True)]
      values = np.stack(values, axis=-1)
      return values / values.sum(axis=-1, keepdims=True)

    return recalibrate


def load(path: str | os.PathLike) -> Recalibrator:
  """Reads a recalibrator that :meth:`Recalibrator.save` wrote.

  Args:
    path: path of the file.

  Returns:
    The recalibrator. Its results equal those of the saved one, bit for bit.

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
    f"{path} is not a recalibrator. Give a file that save() wrote."
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
      f"logits has shape {logits.shape}, but this recalibrator was fitted to "
      f"{classes} classes. The last axis must have {classes} entries, or one "
      "for two classes."
    )
  return logits
