"""Functions as commands: their docstrings are the help, arguments stand by."""

import argparse
from collections.abc import Callable, Mapping
import pathlib
from typing import Any

PATH: Any = pathlib.Path  # for `type=`

# By topic, "" for none, and name: what to call, and with which arguments.
COMMANDS: dict[tuple[str, str], tuple[Callable[[Any], None], Any]] = {}


def argument(*names: str, **options: Any) -> tuple[Any, Any]:
  return names, options


def command(*arguments: Any, topic: str = "") -> Callable[[Any], Any]:
  """Makes a command of a function; its docstring is the help."""

  def add(function: Callable[[Any], None]) -> Callable[[Any], None]:
    name = function.__name__.removeprefix(f"{topic}_").rstrip("_")
    COMMANDS[topic, name.replace("_", "-")] = function, arguments
    return function

  return add


def make_parser(
  description: str, examples: str, topics: Mapping[str, tuple[str, str]]
) -> argparse.ArgumentParser:
  """The parser of all commands; what it parses has the function as `run`.

  Args:
    description: of all.
    examples: likewise.
    topics: of each a line about it and its description.
  """
  raw: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter}
  parser = argparse.ArgumentParser(
    "python -m experiments", description=description, epilog=examples, **raw
  )
  parsers = {"": parser.add_subparsers(required=True, metavar="COMMAND")}
  for topic, (about, text) in topics.items():
    its = parsers[""].add_parser(topic, help=about, description=text, **raw)
    parsers[topic] = its.add_subparsers(required=True, metavar="COMMAND")
  for (topic, name), (function, arguments) in COMMANDS.items():
    text = " ".join((function.__doc__ or "").split())
    one = parsers[topic].add_parser(name, help=text, description=text)
    one.set_defaults(run=function)
    for names, options in arguments:
      one.add_argument(*names, **options)
  return parser
