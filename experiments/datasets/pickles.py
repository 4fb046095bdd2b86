"""Reads the batches of CIFAR-10's python version, which are pickles, safely.

`pickle` would call any function that a file names, and take as much time and
memory as the file asks for. This reader knows only the operations that the
batches need, and calls nothing.
"""

from collections.abc import Iterator
import pickletools
import reprlib
from typing import Any

import numpy as np

# A batch has about 30,000.
MOST_OPERATIONS = 200_000
NAMES = (
  "numpy ndarray",
  "numpy dtype",
  "numpy.core.multiarray _reconstruct",
  "numpy._core.multiarray _reconstruct",
)
IGNORED = ("PROTO", "FRAME")
CONSTANTS = (
  *("BININT", "BININT1", "BININT2"),
  *("BINSTRING", "SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE"),
  *("BINBYTES", "SHORT_BINBYTES"),
)
VALUES = {"NONE": None, "NEWFALSE": False, "NEWTRUE": True, "EMPTY_TUPLE": ()}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Call:
  """A call that `pickle` would make: name, arguments and state."""

  def __init__(self, name: Any, args: Any):
    self.name, self.args, self.state = name, args, None


def read_batch(content: bytes, most: int) -> bytes:
  """Converts a batch to records of the binary version.

  Args:
    content: the bytes of the file.
    most: the largest number of images in a batch.

  Raises:
    ValueError: or another exception, if it is not a batch.
  """
  batch = load(content)
  labels, array = batch["labels"], batch["data"]
  if not are_labels(labels):
    raise ValueError("its labels are not a list of integers from 0 to 9")
  if len(labels) > most:
    raise ValueError(f"expected at most {most:,} labels, got {len(labels):,}")
  _, shape, dtype, fortran, raw = array.state
  if dtype.args[0] not in (b"u1", "u1") or fortran:
    raise ValueError("its images are not bytes in C order")
  expected = len(labels), 3072
  if shape != expected:
    # Written out, a nested tuple of 400 bytes may never end.
    raise ValueError(
      f"expected images of shape {expected}, got {reprlib.repr(shape)}"
    )
  raw = _text(raw).encode("latin-1") if not isinstance(raw, bytes) else raw
  pixels = np.frombuffer(raw, np.uint8).reshape(expected)
  return np.column_stack([np.array(labels, np.uint8), pixels]).tobytes()


def are_labels(labels: Any) -> bool:
  """Returns whether a value is a list of integers from 0 to 9."""
  return isinstance(labels, list) and all(
    type(label) is int and 0 <= label <= 9 for label in labels
  )


def load(content: bytes) -> Any:
  """Returns the pickled value, with a :class:`Call` for each object."""
  stack: list[Any] = []
  marks: list[int] = []
  memo: dict[int, Any] = {}

  def since_mark() -> list[Any]:
    start = marks.pop()
    items = stack[start:]
    del stack[start:]
    return items

  operations: Iterator[Any] = pickletools.genops(content)
  for number, (operation, arg, _) in enumerate(operations):
    if number == MOST_OPERATIONS:
      raise ValueError(f"it has more than {MOST_OPERATIONS:,} operations")
    name = operation.name
    if name in CONSTANTS:
      stack.append(arg)
    elif name in VALUES:
      stack.append(VALUES[name])
    elif name == "EMPTY_LIST":
      stack.append([])
    elif name == "EMPTY_DICT":
      stack.append({})
    elif name == "MARK":
      marks.append(len(stack))
    elif name == "TUPLE":
      stack.append(tuple(since_mark()))
    elif name in TUPLES:
      items = stack[-TUPLES[name] :]
      del stack[-TUPLES[name] :]
      stack.append(tuple(items))
    elif name == "APPEND":
      item = stack.pop()
      stack[-1].append(item)
    elif name == "APPENDS":
      items = since_mark()
      stack[-1].extend(items)
    elif name == "SETITEM":
      value, key = stack.pop(), stack.pop()
      _set(stack[-1], [key, value])
    elif name == "SETITEMS":
      items = since_mark()
      _set(stack[-1], items)
    elif name in ("BINPUT", "LONG_BINPUT"):
      memo[arg] = stack[-1]
    elif name == "MEMOIZE":
      memo[len(memo)] = stack[-1]
    elif name in ("BINGET", "LONG_BINGET"):
      stack.append(memo[arg])
    elif name == "GLOBAL":
      stack.append(_known(arg))
    elif name == "STACK_GLOBAL":
      second, first = stack.pop(), stack.pop()
      stack.append(_known(f"{_text(first)} {_text(second)}"))
    elif name == "REDUCE":
      args, function = stack.pop(), stack.pop()
      stack.append(Call(function, args))
    elif name == "BUILD":
      state = stack.pop()
      stack[-1].state = state
    elif name == "STOP":
      return stack.pop()
    elif name not in IGNORED:
      raise ValueError(f"it has the operation {name} in it")
  raise ValueError("it has no end")


def _set(target: dict[str, Any], items: list[Any]) -> None:
  """Sets items. Keys must be text: hashing a nested tuple may never end."""
  for key, value in zip(items[::2], items[1::2], strict=True):
    target[key.decode() if isinstance(key, bytes) else _text(key)] = value


def _text(value: Any) -> str:
  if not isinstance(value, str):
    raise ValueError(f"expected text, got a {type(value).__name__}")
  return value


def _known(name: str) -> str:
  if name not in NAMES:
    raise ValueError(f"it has a {name.replace(' ', '.')} in it")
  return name
