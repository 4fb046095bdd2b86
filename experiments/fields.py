"""Settings of a dataclass: parsed from text, checked by rules.

A field's rule is in its metadata.
"""

import dataclasses
import itertools
import operator
from typing import Any, Self

from experiments.files import UserError, is_name

RULES = {
  "at_least": operator.ge,
  "above": operator.gt,
  "below": operator.lt,
  "at_most": operator.le,
  "one_of": lambda value, allowed: value in allowed,
}


class ConfigError(UserError, ValueError):
  """A setting is unknown or not allowed. The message says what is allowed."""


class Settings:
  """A dataclass whose copies can have other values."""

  def replace(self, **changes: Any) -> Self:
    """Returns a copy with these values."""
    settings: Any = self
    return dataclasses.replace(settings, **changes)


def field(default: Any, **rule: Any) -> Any:
  """Creates a field of the default's type, with a rule for its values.

  Args:
    default: the default; None for a float that the recipe has.
    **rule: ``at_least``, ``above``, ``below``, ``at_most`` or ``one_of``. For a
      tuple, the rule is for each entry, and ``each`` is the entries' type.
  """
  return dataclasses.field(default=default, metadata={"rule": rule})


def settable(of: Any) -> dict[str, dataclasses.Field]:
  """Returns the fields of a dataclass that have a rule, by name."""
  return {f.name: f for f in dataclasses.fields(of) if f.metadata}


def kind(field: dataclasses.Field) -> type:
  """Returns the type of a field's values."""
  return float if field.default is None else type(field.default)


def parse(field: dataclasses.Field, text: str) -> Any:
  """Returns a field's value from text. The value is not checked yet."""
  type_ = kind(field)
  try:
    if type_ is bool:
      return {"true": True, "false": False}[text.lower()]
    if type_ is tuple:
      rule = field.metadata["rule"]
      if text == "all" and "one_of" in rule:
        return tuple(rule["one_of"])
      return tuple(map(rule.get("each", str), filter(None, text.split(","))))
    return type_(text)
  except (KeyError, ValueError):
    names = {bool: "true or false", tuple: "whole numbers"}
    name = names.get(type_, f"of type {type_.__name__}")
    raise _error(field, text, name) from None


def _error(field: dataclasses.Field, value: Any, rule: str) -> ConfigError:
  return ConfigError(f"{field.name} is {value!r}, but must be {rule}.")


def unparse(value: Any) -> str:
  """Returns the text that :func:`parse` reads a value from.

  Examples:
    >>> print(unparse(True), unparse(("fog", "jpeg")), unparse(0.5))
    true fog,jpeg 0.5
  """
  if isinstance(value, bool):
    return str(value).lower()
  if isinstance(value, tuple):
    return ",".join(map(str, value))
  return str(value)


def check_fields(config: Any) -> None:
  """Raises a ConfigError if a field of a dataclass breaks its rule."""
  for field in dataclasses.fields(config):
    value = getattr(config, field.name)
    if not field.metadata or (value is None and field.default is None):
      continue
    allowed = (float, int) if kind(field) is float else (kind(field),)
    if type(value) not in allowed:
      raise _error(field, value, f"of type {kind(field).__name__}")
    values = value if isinstance(value, tuple) else (value,)
    rules = field.metadata["rule"].items()
    for (rule, limit), v in itertools.product(rules, values):
      if rule in RULES and not RULES[rule](v, limit):
        limit = ", ".join(limit) if rule == "one_of" else limit
        raise _error(field, v, f"{rule.replace('_', ' ')} {limit}")
    check_distinct(field.name, values)


def check_name(what: str, value: Any) -> None:
  if not is_name(value):
    raise ConfigError(
      f"{what} is {value!r}, but must be allowed in a file's name: no slash, "
      "and no dot at the start."
    )


def check_distinct(name: str, values: tuple[Any, ...]) -> None:
  if len(set(values)) < len(values):
    listed = ", ".join(map(str, values))
    raise ConfigError(f"{name} has an entry twice: {listed}.")
