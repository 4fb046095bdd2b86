"""Makes a command of a function: its docstring is the command's help."""

import argparse
from collections.abc import Callable, Iterable, Mapping
import pathlib
import textwrap
from typing import Any, NamedTuple

PATH: Any = pathlib.Path  # for `type=`
PROGRAM = "python -m experiments"


class Command(NamedTuple):
  """A function of parsed arguments, what they are, and an example of them."""

  function: Callable[[Any], None]
  arguments: tuple[Any, ...]
  example: tuple[str, str]


# The keys are (topic, name); a command without a topic has topic "".
COMMANDS: dict[tuple[str, str], Command] = {}


def argument(
  words: str, help: str | None = None, **options: Any
) -> tuple[str, dict[str, Any]]:
  """Returns what `ArgumentParser.add_argument` takes: a name, and options.

  Examples:
    >>> argument("--jobs N", "number of jobs", type=int)[0]
    '--jobs'
  """
  name, _, metavar = words.partition(" ")
  metavar = {"metavar": metavar} if metavar else {}
  return name, metavar | {"help": help} | options


def given(args: argparse.Namespace, arguments: Iterable[Any]) -> list[str]:
  """Returns the words of a command line that set parsed options again."""
  words = []
  for name, options in arguments:
    value = getattr(args, name.lstrip("-").replace("-", "_"))
    if options.get("action") == "store_true":
      words += [name] if value else []
    elif options.get("action") == "append":
      words += [f"{name}={one}" for one in value or ()]
    elif value != options.get("default"):
      words.append(f"{name}={value}")
  return words


def command(
  *arguments: Any, example: tuple[str, str], topic: str = ""
) -> Callable[[Any], Any]:
  """Decorates a function that is a command.

  Args:
    *arguments: arguments of the command.
    example: its arguments, and what it does; the help ends in it.
    topic: the command that this one is a part of, such as "data".
  """

  def add(function: Callable[[Any], None]) -> Callable[[Any], None]:
    name = function.__name__.removeprefix(f"{topic}_").rstrip("_")
    key = topic, name.replace("_", "-")
    COMMANDS[key] = Command(function, arguments, example)
    return function

  return add


def make_parser(
  description: str, examples: str, topics: Mapping[str, tuple[str, str]]
) -> argparse.ArgumentParser:
  """Makes the parser of all commands. A parsed command's function is `run`.

  `topics` has, for each topic, one line about it and its description.
  """
  raw: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter}
  parser = argparse.ArgumentParser(
    PROGRAM, description=description, epilog=examples, **raw
  )
  parsers = {"": parser.add_subparsers(required=True, metavar="COMMAND")}
  for topic, (about, text) in topics.items():
    group = parsers[""].add_parser(topic, help=about, description=text, **raw)
    parsers[topic] = group.add_subparsers(required=True, metavar="COMMAND")
  for (topic, name), (function, arguments, example) in COMMANDS.items():
    summary, *details = (function.__doc__ or "").split("\n\n")
    paragraphs = [" ".join(text.split()) for text in (summary, *details)]
    one = parsers[topic].add_parser(
      name,
      help=paragraphs[0],
      description="\n\n".join(textwrap.fill(text) for text in paragraphs),
      epilog=f"example:\n  {PROGRAM} {example[0]}\n      {example[1]}",
      **raw,
    )
    one.set_defaults(run=function)
    for argument_name, options in arguments:
      one.add_argument(argument_name, **options)
  return parser
