"""Fitted recalibrators: functions of logits that can be saved and served."""

import abc
from collections.abc import Callable
import dataclasses
import json
import os
import pathlib
import reprlib
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from orthograd_optax.calibration import _saving

_FORMAT = "orthograd-optax recalibrator"
_DTYPES = ("float32", "float64")
_MAX_BYTES = 2**27
_MAX_LISTS = 2**20  # A list takes 30 times the memory of its brackets.
_LIMIT = f"a file must have at most {_MAX_BYTES >> 20} MiB"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Recalibrator(abc.ABC):
  """A function from logits to calibrated logits. :func:`fit` returns one.

  It is a pytree of arrays: call it inside ``jax.jit``, or pass it to a jitted
  function. :meth:`save` writes it as JSON, and :func:`load` reads it.

  Attributes:
    columns: number of logit columns that it was fitted to; 1 for scores, the
      logits of the second of two classes.
  """

  method: ClassVar[str]
  columns: int = dataclasses.field(kw_only=True, metadata={"static": True})

  def __call__(self, logits: Any) -> jax.Array:
    """Calibrates logits.

    Args:
      logits: array of shape (..., classes). If fitted to scores, scores of
        shape (examples,) or (..., 1).

    Returns:
      Logits of shape (..., classes), with two columns for scores.
    """
    logits = jnp.asarray(logits)
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    return self._calibrate(self._as_columns(logits.astype(dtype), jnp))

  @abc.abstractmethod
  def _calibrate(self, z: Any) -> Any:
    """Calibrates logits of shape (..., classes)."""

  @abc.abstractmethod
  def _check(self) -> None:
    """Raises an error that names a rule if finite arrays break it."""

  def export(self) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function from logits to probabilities, in float64 NumPy."""
    exported: Any = jax.tree.map(np.asarray, self)

    def recalibrate(logits):
      z = self._as_columns(np.asarray(logits, np.float64), np)
      return special.softmax(exported._calibrate(z), axis=-1)

    return recalibrate

  def save(self, path: str | os.PathLike) -> pathlib.Path:
    """Writes the recalibrator as JSON, and returns the path.

    An existing file is replaced only once the new one is complete.
    """
    values = self._checked_arrays()
    content = {
      "format": _FORMAT,
      "method": self.method,
      "dtype": str(next(iter(values.values())).dtype),
      "columns": self.columns,
      # repr of a float64 has all digits, so load() returns the same numbers.
      **{k: v.astype(np.float64).tolist() for k, v in values.items()},
    }
    text = json.dumps(content) + "\n"
    _require(len(text) <= _MAX_BYTES, _LIMIT)
    return _saving.write_text(path, text)

  def __repr__(self) -> str:
    show = lambda x: f"{x.dtype}{list(x.shape)}" if np.ndim(x) else str(x)
    shown = self._arrays() | {"columns": self.columns}
    fields = [f"{name}={show(x)}" for name, x in shown.items()]
    return f"{type(self).__name__}({', '.join(fields)})"

  @property
  def _classes(self) -> int:
    return max(self.columns, 2)

  def _arrays(self) -> dict[str, Any]:
    return {name: x for name, x in vars(self).items() if name != "columns"}

  def _checked_arrays(self) -> dict[str, np.ndarray]:
    arrays = {name: np.asarray(x) for name, x in self._arrays().items()}
    for name, x in arrays.items():
      _require(np.isfinite(x).all(), f"{name} must be finite", x.tolist())
    self._check()
    return arrays

  def _as_columns(self, z: Any, numpy: Any) -> Any:
    """Returns logits of shape (..., classes)."""
    shape, scores = z.shape, self.columns == 1
    if scores and z.ndim < 2:
      z = z[..., None]
    one_column = z.shape[-1:] == (1,) and (scores or z.ndim > 1)
    if one_column and self._classes == 2:
      z = numpy.concatenate([numpy.zeros_like(z), z], axis=-1)
    if z.shape[-1:] != (self._classes,):
      shapes = {1: "(n,) or (n, 1)", 2: "(..., 2) or (n, 1)"}
      expected = shapes.get(self.columns, f"(..., {self.columns})")
      raise ValueError(
        f"logits must have the shape {expected}, because the recalibrator was "
        f"fitted to {self._classes} classes, but has {shape}."
      )
    return z


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Temperature(Recalibrator):
  """Calibrates as ``logits / temperature``.

  Attributes:
    temperature: a positive number. Above 1, it lowers confidence.
  """

  method: ClassVar[str] = "temperature"
  temperature: jax.Array

  def _calibrate(self, z: Any) -> Any:
    numpy = np if isinstance(z, np.ndarray) else jnp
    return z / numpy.asarray(self.temperature, z.dtype)

  def _check(self) -> None:
    value = np.asarray(self.temperature)
    # JAX takes smaller numbers, which are denormal, for 0.
    positive = value.shape == () and value >= np.finfo(value.dtype).tiny
    _require(positive, "temperature must be a positive number", value.tolist())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class VectorScaling(Recalibrator):
  """Calibrates as ``scale * logits + bias``.

  Attributes:
    scale: array of shape (classes,).
    bias: array of shape (classes,), with mean zero.
  """

  method: ClassVar[str] = "vector"
  scale: jax.Array
  bias: jax.Array

  def _calibrate(self, z: Any) -> Any:
    shape = (1,) * (z.ndim - 1) + self.scale.shape
    return z * self.scale.reshape(shape) + self.bias.reshape(shape)

  def _check(self) -> None:
    shape = (self._classes,)
    for name, x in self._arrays().items():
      rule = f"the shape of {name} must be {shape}"
      _require(x.shape == shape, rule, x.shape)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Platt(VectorScaling):
  """Calibrates as ``scale * logits + bias``, with the same scale for all.

  This is a temperature with a bias for each class. With two classes, it is
  Platt's sigmoid(a z + b), where z is the difference between the logits.

  Attributes:
    scale: array of shape (classes,); each entry is 1 / temperature, or 0 for a
      class whose logits hardly vary.
    bias: array of shape (classes,), with mean zero.
  """

  method: ClassVar[str] = "platt"

  def _check(self) -> None:
    super()._check()
    scale = np.asarray(self.scale)
    shared = np.unique(scale[scale != 0]).size <= 1
    rule = "scale must be the same number for all classes, or 0 for some"
    _require(shared, rule, scale.tolist())


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Isotonic(Recalibrator):
  """Calibrates by a non-decreasing function of each class's probability.

  Attributes:
    probability: probabilities in ascending order, of shape (classes, knots).
    calibrated: their calibrated values, of shape (classes, knots).
  """

  method: ClassVar[str] = "isotonic"
  probability: jax.Array
  calibrated: jax.Array

  def _calibrate(self, z: Any) -> Any:
    if isinstance(z, np.ndarray):
      # Round to the dtype of the knots, so that equal numbers stay equal.
      p = special.softmax(z, axis=-1).astype(self.probability.dtype)
      p = np.moveaxis(p, -1, 0)
      rows = zip(p, self.probability, self.calibrated, strict=True)
      return np.log(np.stack([np.interp(*row) for row in rows], axis=-1))
    columns = jax.nn.softmax(z).reshape(-1, z.shape[-1])
    interpolate = jax.vmap(jnp.interp, in_axes=(1, 0, 0), out_axes=1)
    values = interpolate(columns, self.probability, self.calibrated)
    return jax.nn.log_softmax(jnp.log(values).reshape(z.shape))

  def _check(self) -> None:
    x, y = np.asarray(self.probability), np.asarray(self.calibrated)
    fits = x.ndim == 2 and x.size > 0 and len(x) == self._classes
    rule = f"the shape of both arrays must be ({self._classes}, knots)"
    _require(fits and x.shape == y.shape, rule, (x.shape, y.shape))
    for name, z in (("probability", x), ("calibrated", y)):
      _require(((z >= 0) & (z <= 1)).all(), f"{name} must be from 0 to 1")
      ascending = np.all(np.diff(z, axis=1) >= 0)
      _require(ascending, f"{name} must ascend in each row")
    _require(np.all(y > 0), "calibrated must be above 0")


KINDS: dict[str, Any] = {
  kind.method: kind for kind in (Temperature, Platt, VectorScaling, Isotonic)
}


def load(path: str | os.PathLike) -> Recalibrator:
  """Reads a recalibrator that :meth:`Recalibrator.save` wrote.

  Args:
    path: path of the file.

  Returns:
    The recalibrator. Its results equal the saved one's, bit for bit. If the
    file breaks a rule, the ``ValueError`` names it.

  Examples:
    >>> import pathlib, tempfile
    >>> from orthograd_optax import calibration
    >>> recalibrate = calibration.fit([-4.0, 4.0, -4.0], [0, 1, 1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   path = recalibrate.save(pathlib.Path(folder, "temperature.json"))
    ...   served = calibration.load(path)
    >>> print(served.method, f"{served.temperature:.4f}")
    temperature 5.7708
  """
  with pathlib.Path(path).open("rb") as file:
    text = file.read(_MAX_BYTES + 1)
  try:
    return _parse(text)
  except (ValueError, RecursionError) as error:
    raise ValueError(
      f"{path} is not a valid recalibrator: {error}. Pass a file that save() "
      "wrote."
    ) from error


def _parse(text: bytes) -> Recalibrator:
  _require(len(text) <= _MAX_BYTES, _LIMIT)
  lists = text.count(b"[") + text.count(b"{")
  _require(lists <= _MAX_LISTS, f"it must have at most {_MAX_LISTS:,} lists")
  content: Any = json.loads(text)
  known = isinstance(content, dict) and content.get("format") == _FORMAT
  _require(known, f'it must be a JSON object with the format "{_FORMAT}"')
  method: Any = content.get("method")
  rule = f"method must be one of {list(KINDS)}"
  _require(isinstance(method, str) and method in KINDS, rule, method)
  names = [f.name for f in dataclasses.fields(KINDS[method])]
  keys, given = sorted(["format", "method", "dtype", *names]), sorted(content)
  _require(given == keys, f"the list of keys must be {keys}", given)
  columns, dtype = content["columns"], content["dtype"]
  _require(dtype in _DTYPES, f"dtype must be one of {_DTYPES}", dtype)
  positive = type(columns) is int and 0 < columns < 2**31
  _require(positive, "columns must be a positive integer", columns)
  arrays = {}
  for name in (x for x in names if x != "columns"):
    try:
      array = np.array(content[name])
    except ValueError:  # rows of different lengths
      array = np.array(None)
    rule = f"{name} must be a number, or rows of equally many numbers"
    _require(array.dtype.kind in "iuf", rule, content[name])
    with np.errstate(over="ignore"):
      arrays[name] = jnp.asarray(array.astype(dtype))
  recalibrator = KINDS[method](**arrays, columns=columns)
  recalibrator._checked_arrays()
  return recalibrator


def _require(holds: Any, rule: str, *given: Any) -> None:
  if not holds:
    shown = "".join(f", but is {reprlib.repr(x)}" for x in given)
    raise ValueError(rule + shown)
