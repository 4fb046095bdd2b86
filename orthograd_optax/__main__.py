"""The command line: ``python -m orthograd_optax report predictions.npz``."""

import argparse
import importlib.resources
import importlib.util
import json
import logging
import os
import pathlib
import sys
from typing import Any

import numpy as np

from orthograd_optax import _files

_log = logging.getLogger("orthograd_optax")


def main(arguments: list[str] | None = None) -> int:
  """Runs the command, and returns its exit status."""
  parser = _parser()
  args = parser.parse_args(arguments)
  if args.command is None:
    parser.print_help()
    return 0
  if sys.stderr.isatty():
    _log.handlers, _log.level = [logging.StreamHandler()], logging.INFO
  try:
    # Check what can go wrong before JAX is imported, which takes a second.
    output = _output(args)
    result = (_report if args.command == "report" else _compare)(args)
    page = ""
    if output is not None:
      _log.info("Drawing the page")
      page = result.html()
    if args.json:
      print(json.dumps(result.to_dict(), allow_nan=False, ensure_ascii=False))
    else:
      print(result)
    if output is not None:
      from orthograd_optax.calibration import _saving

      _saving.write_text(output, page)
      print(f"Wrote {output}", file=sys.stderr)
  except (ImportError, OSError, TypeError, ValueError) as error:
    print(f"error: {_shown(str(error))}", file=sys.stderr)
    return 2
  return 0


def _shown(text: str) -> str:
  """Returns a message without control characters, and not too long a one."""
  if len(text) > 1000:  # A file may have names of any length.
    text = f"{text[:500]} … {text[-500:]}"
  return "".join(
    c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text
  )


def _parser() -> argparse.ArgumentParser:
  layout = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(
    prog="python -m orthograd_optax",
    description="Can I trust my model's confidence? Reads a file of "
    "predictions, of any\nframework, and writes a page with the answer.",
    epilog="Start with: python -m orthograd_optax report --help",
    formatter_class=layout,
  )
  commands = parser.add_subparsers(dest="command")
  folder = importlib.resources.files("orthograd_optax")
  report = commands.add_parser(
    "report",
    help="report on one model",
    description="Prints a table and writes a page: can the confidence of a "
    "model be trusted?",
    epilog=folder.joinpath("report_help.txt").read_text("utf-8"),
    formatter_class=layout,
  )
  add = report.add_argument
  add("predictions", help="a .npz, .csv, .parquet or .npy file")
  add("--name", help="name of the model on the page")
  compare = commands.add_parser(
    "compare",
    help="compare two models on the same examples",
    description="Compares two models on the same examples, in pairs.",
    epilog=folder.joinpath("compare_help.txt").read_text("utf-8"),
    formatter_class=layout,
  )
  add = compare.add_argument
  add("old", help="predictions of the old model")
  add("new", help="predictions of the new model")
  add("--names", nargs=2, metavar=("OLD", "NEW"), help="names of the models")
  for command, page in ((report, "PREDICTIONS"), (compare, "OLD_or_NEW")):
    add = command.add_argument
    add("--labels", help="labels as .npy, if the predictions are .npy")
    add(
      "--output",
      metavar="PAGE.html",
      help=f"path of the page (default: {page}.html in the current folder, "
      "named after the predictions file; with --json, no page)",
    )
    text = "print all numbers as JSON instead of the table"
    add("--json", action="store_true", help=text)
    text = "number of bins of confidence (default: 10)"
    add("--bins", type=int, default=10, help=text)
    text = "number of bootstrap resamples (default: 1000)"
    add("--resamples", type=int, default=1000, help=text)
  return parser


def _output(args: argparse.Namespace) -> pathlib.Path | None:
  """Returns the path of the page, or None, and checks that it is writable."""
  if args.output is None and args.json:
    return None
  report = args.command == "report"
  files = [args.predictions] if report else [args.old, args.new]
  default = "_or_".join(pathlib.Path(file).stem for file in files) + ".html"
  path = pathlib.Path(default if args.output is None else args.output)
  if path.suffix.lower() not in (".html", ".htm"):
    raise ValueError(f"--output must end in .html, but is {path}.")
  if not path.parent.is_dir():
    raise ValueError(
      f"--output is {path}, but there is no folder {path.parent}. Make it "
      "first."
    )
  if path.is_dir() or not os.access(path.parent, os.W_OK):
    raise ValueError(
      f"--output must be a file in a writable folder, but {path} is not. "
      "Choose another one with --output."
    )
  if importlib.util.find_spec("matplotlib") is None:
    raise ImportError(
      "The page needs matplotlib. Run pip install matplotlib, or pass --json."
    )
  return path


def _logits(content: dict[str, Any]) -> Any:
  from orthograd_optax.calibration import _predictions

  return _predictions.to_logits(content.pop("predictions"), content.pop("kind"))


def _options(args: argparse.Namespace) -> dict[str, Any]:
  for name in ("bins", "resamples"):
    if (value := getattr(args, name)) < 1:
      raise ValueError(f"--{name} must be at least 1, but is {value}.")
  return {"num_bins": args.bins, "resamples": args.resamples}


def _report(args: argparse.Namespace) -> Any:
  options = _options(args)
  content = _files.read(args.predictions, args.labels)
  from orthograd_optax import calibration

  name = args.name or pathlib.Path(args.predictions).stem
  return calibration.report(_logits(content), **content, name=name, **options)


def _compare(args: argparse.Namespace) -> Any:
  options = _options(args)
  paths = args.old, args.new
  old, new = both = [_files.read(path, args.labels) for path in paths]
  columns = [list(x["classes"] or ()) for x in both]
  if columns[0] != columns[1]:
    same = sorted(columns[0]) == sorted(columns[1])
    raise ValueError(
      f"{paths[0]} and {paths[1]} must have the same classes in the same "
      f"order, but {'the order differs' if same else 'the classes differ'}: "
      f"{','.join(columns[0])} and {','.join(columns[1])}. "
      f"{'Reorder the columns of one.' if same else 'Keep what both have.'}"
    )
  for key in ("labels", "seeds"):
    # Files without seeds compare as equal.
    a, b = (np.asarray([] if x[key] is None else x[key]) for x in both)
    if a.shape != b.shape:
      raise ValueError(
        f"{paths[0]} and {paths[1]} must have the same examples in the same "
        f"order, but have {a.size} and {b.size} {key}."
      )
    if not np.array_equal(a, b):
      row = int(np.argmax(a != b)) if a.ndim else 0
      a, b = a.ravel(), b.ravel()
      raise ValueError(
        f"{key}[{row}] is {a[row]} in {paths[0]} and {b[row]} in {paths[1]}, "
        "but both must have the same examples in the same order."
      )
  for path, content in zip(paths, both, strict=True):
    if content["fit"] is not None:
      raise ValueError(
        f"{path} has a split, but compare fits nothing. Keep the examples of "
        "test only."
      )
  names = args.names or [pathlib.Path(path).stem for path in paths]
  if names[0] == names[1]:
    names = paths

  from orthograd_optax import calibration

  return calibration.compare(
    _logits(old),
    _logits(new),
    old["labels"],
    names=(names[0], names[1]),
    classes=old["classes"],
    seeds=old["seeds"],
    **options,
  )


if __name__ == "__main__":
  sys.exit(main())
