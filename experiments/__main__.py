"""The command line of the experiments: `python -m experiments --help`."""
# ruff: noqa: E402

import signal

if __name__ == "__main__":
  # Ctrl-C ends the imports below at once; `stop` replaces this handler.
  signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import os
import pkgutil
import sys
from typing import Any, NoReturn

from experiments.cli import parser
from experiments.files import UserError


def main() -> None:
  args = parser.MAIN.parse_args()
  try:
    pkgutil.resolve_name(f"experiments.cli.{args.function}")(args)
    sys.stdout.flush()
  except BrokenPipeError:
    os._exit(1)  # The reader, such as `head`, has closed.
  except UserError as error:
    sys.exit(f"Error: {error}")
  except OSError as error:
    remedy = (
      ". Check that the path exists, its permissions and its disk. Then repeat "
      "the command, or give another folder."
    )
    sys.exit(f"Error: {error}{'' if error.filename is None else remedy}")


def leave(message: str, status: int) -> NoReturn:
  """Prints a message and ends the process, whatever its threads do."""
  with contextlib.suppress(Exception):
    sys.stdout.flush()
  os.write(2, f"{message}\n".encode())
  os._exit(status)


def stop(*_: Any) -> NoReturn:
  """Ends the process on Ctrl-C, at once.

  An exception could get lost in an import or in garbage collection. The next
  command removes files that are half written.
  """
  line = "\n" if os.isatty(2) else ""
  leave(f"{line}Stopped. Run the same command to resume.", 130)


if __name__ == "__main__":
  signal.signal(signal.SIGINT, stop)
  try:
    main()
  except SystemExit as end:
    if isinstance(end.code, str):
      leave(end.code, 1)
    raise
