"""The fields of a row: what they mean, and which values are valid."""

from collections.abc import Callable, Mapping
import reprlib
from typing import Any, NamedTuple

from experiments.files import is_name

Key = tuple[str, str, int, int, str]


def _is_number(value: Any) -> bool:
  return value is None or type(value) in (int, float)


def _is_count(value: Any) -> bool:
  return type(value) is int and value >= 0


def _list_of(is_entry: Callable[[Any], bool]) -> Callable[[Any], bool]:
  return lambda value: isinstance(value, list) and all(map(is_entry, value))


def _mapping_to(is_entry: Callable[[Any], bool]) -> Callable[[Any], bool]:
  return lambda it: isinstance(it, dict) and all(map(is_entry, it.values()))


class Kind(NamedTuple):
  """What values a field may have."""

  name: str  # of a valid value
  is_valid: Callable[[Any], bool]


NAME = Kind("a name", is_name)
TEXT = Kind("text", lambda value: isinstance(value, str))
COUNT = Kind("a nonnegative integer", _is_count)
COUNTS = Kind("a list of nonnegative integers", _list_of(_is_count))
# JSON has no NaN and no infinities: null stands for them.
NUMBER = Kind("a number or null", _is_number)
NUMBERS = Kind("numbers or null by name", _mapping_to(_is_number))
LISTS = Kind("lists of numbers by name", _mapping_to(_list_of(_is_number)))
MAPPING = Kind("values by name", lambda value: isinstance(value, dict))


class Field(NamedTuple):
  """A field of a row."""

  kind: Kind
  meaning: str  # for the reader of a file
  required: bool = False


# Many rows have the same values of these: a file has them once, in a context.
SHARED = {
  # What was trained.
  "study": Field(NAME, "study that trained the network", True),
  "model": Field(TEXT, "network"),
  "config": Field(MAPPING, "recipe: settings that a study's runs share"),
  "config_hash": Field(TEXT, "hash of the recipe", True),
  "method": Field(TEXT, "name of the method, or of its ensembles", True),
  "settings": Field(MAPPING, "settings of the method"),
  # How it was computed.
  "precision": Field(TEXT, "precision of convolutions"),
  "convolutions": Field(TEXT, "how convolutions were computed"),
  "corruptions": Field(TEXT, "corrupted images: made, or published ones"),
  "runs_at_once": Field(COUNT, "number of networks trained together"),
  "versions": Field(MAPPING, "versions of Python and packages"),
  "device": Field(TEXT, "number and kind of devices"),
  "cores": Field(COUNT, "CPU cores, in studies of one file"),
  "sources": Field(TEXT, "hash of the source files"),
  "commit": Field(TEXT, "commit of the sources; -dirty if they differ"),
  "sets": Field(COUNT, "former runs: sets of images averaged over"),
}
# What was measured.
MEASURED = {
  "seed": Field(COUNT, "seed of the run; an ensemble's first", True),
  "members": Field(COUNTS, "seeds of an ensemble's networks"),
  "epoch": Field(COUNT, "epochs trained", True),
  "dataset": Field(
    TEXT, "images: train, clean, fog/3 …; diverged if training failed", True
  ),
  "metrics": Field(NUMBERS, "metrics by name, accuracies in %", True),
  "bins": Field(LISTS, "reliability diagram: bins of confidence"),
  "scaled": Field(NUMBERS, "metrics after T fitted to the same images"),
  "scaled_half": Field(
    NUMBERS, "metrics of one half of the images after T fitted to the other"
  ),
  "scaled_clean": Field(
    NUMBERS, "corrupted images: scaled_half, with T fitted to clean images"
  ),
  "scaled_crossed": Field(
    NUMBERS, "metrics of all images, each half after T fitted to the other"
  ),
  "scaled_members": Field(
    NUMBERS, "an ensemble: as scaled_crossed, each network with its own T"
  ),
  "scaled_own": Field(
    NUMBERS, "metrics after T fitted to training images that are left out"
  ),
  "train": Field(NUMBERS, "grokking: metrics of the training pairs"),
  "epoch_seconds": Field(NUMBER, "time of an epoch of the group, in seconds"),
  "wall_time": Field(NUMBER, "seconds since the group was started"),
  "time": Field(TEXT, "date and time at which the row was written"),
}
FIELDS = SHARED | MEASURED


def key(row: Mapping[str, Any]) -> Key:
  """Returns what identifies a row."""
  run = row["config_hash"], row["method"], row["seed"]
  return (*run, row["epoch"], row["dataset"])


def problem(row: Any, fields: Mapping[str, Field] = FIELDS) -> str | None:
  """Returns what is wrong with the form of a row or its part, or None."""
  if not isinstance(row, dict):
    return f"it is {reprlib.repr(row)}"
  for name, (kind, _, required) in fields.items():
    if name not in row:
      if required:
        return f"it has no {name}"
    elif not kind.is_valid(row[name]):
      return f"its {name} is {reprlib.repr(row[name])}, expected {kind.name}"
  if unknown := row.keys() - fields.keys():
    return (
      f"it has {reprlib.repr(min(unknown))}, which is not one of its fields: "
      f"{', '.join(fields)}"
    )
  return None
