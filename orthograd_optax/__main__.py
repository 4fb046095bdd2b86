"""Can I trust my model's confidence? ``python -m orthograd_optax report``."""

import argparse
import importlib.util
import json
import pathlib
import sys
from typing import Any

_DESCRIPTION = """\
Can I trust my model's confidence? Writes a page that answers it, from a file of
predictions, whatever framework the model is in."""
_REPORT = """\
Examples:

  In Python, save what your model says of a test set, and the right answers:

    np.savez("predictions.npz", logits=logits, labels=labels)
    np.savez("predictions.npz", probabilities=probabilities, labels=labels)

  Then:

    python -m orthograd_optax report predictions.npz
    python -m orthograd_optax report predictions.npz --output page.html
    python -m orthograd_optax report predictions.npz --json > numbers.json
    python -m orthograd_optax report predictions.csv
    python -m orthograd_optax report logits.npy labels.npy

  logits and probabilities have a row for each example and a column for each
  class; for two classes, one column or a vector will do, of the second class.
  labels have the index of each example's class, or its name.

  An .npz file can also have these keys:

    classes  the classes' names, in the order of the columns
    group    of each example: the page has a table of groups
    seed     which model each row is of: intervals are then over seeds
    split    "test" or another word: recalibrators are fitted on the other
             examples, and all numbers are of those of "test"

  A .csv file has a line of names, and a line for each example: label, if you
  like group, seed and split, and one column for each class:

    label,cat,dog
    cat,0.9,0.1
    dog,0.4,0.6

  .parquet files have the same columns, and need pandas."""
_COMPARE = """\
Examples:

    python -m orthograd_optax compare old.npz new.npz
    python -m orthograd_optax compare old.npz new.npz --output page.html
    python -m orthograd_optax compare old.npz new.npz --json

  Both files are as for report (see report --help), of the same examples in the
  same order. Differences are paired: over examples or, if both have a key seed,
  over seeds. With fewer than five seeds there are numbers and no verdict."""


def main(arguments: list[str] | None = None) -> int:
  """Runs the command; returns its exit status."""
  args = _parser().parse_args(arguments)
  try:
    output = _output(args)
    found = _report(args) if args.command == "report" else _compare(args)
    page = "" if output is None else found.html()
  except (ImportError, OSError, TypeError, ValueError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  if args.json:
    print(json.dumps(found.to_dict(), allow_nan=False, ensure_ascii=False))
  else:
    print(found)
  if output is not None:
    from orthograd_optax.calibration import _writing

    try:
      _writing.write_text(output, page)
    except OSError as error:
      print(f"error: {error}", file=sys.stderr)
      return 2
    print(f"The page is {output}", file=sys.stderr)
  return 0


def _parser() -> argparse.ArgumentParser:
  layout = argparse.RawDescriptionHelpFormatter
  parser = argparse.ArgumentParser(
    prog="python -m orthograd_optax",
    description=_DESCRIPTION,
    epilog="Start with: python -m orthograd_optax report --help",
    formatter_class=layout,
  )
  commands = parser.add_subparsers(dest="command", required=True)
  report = commands.add_parser(
    "report",
    help="one model: a page, and a table",
    description="Describes how far a model's confidence can be trusted.",
    epilog=_REPORT,
    formatter_class=layout,
  )
  report.add_argument("predictions", help="a .npz, .csv, .parquet or .npy file")
  report.add_argument("labels", nargs="?", help="a second .npy file")
  report.add_argument("--name", help="what the page calls the model")
  compare = commands.add_parser(
    "compare",
    help="two models on the same examples",
    description="Compares two models on the same examples, in pairs.",
    epilog=_COMPARE,
    formatter_class=layout,
  )
  compare.add_argument("first", help="predictions of one model")
  compare.add_argument("second", help="predictions of the other")
  compare.add_argument("--labels", help="a .npy file, if they are .npy files")
  compare.add_argument("--names", nargs=2, metavar=("A", "B"))
  for command in (report, compare):
    command.add_argument(
      "--output",
      metavar="PAGE.html",
      help="where to write the page (default: the name of the predictions, "
      "with .html, in the current folder; with --json, nowhere)",
    )
    command.add_argument(
      "--json", action="store_true", help="print all numbers as JSON"
    )
    command.add_argument(
      "--bins", type=int, default=10, help="bins of confidence (default: 10)"
    )
    command.add_argument(
      "--replicates",
      type=int,
      default=1000,
      help="draws of the bootstrap (default: 1000)",
    )
  return parser


def _output(args: argparse.Namespace) -> pathlib.Path | None:
  """Where the page goes, if it can."""
  if args.output is not None:
    path = pathlib.Path(args.output)
  elif args.json:
    return None
  elif args.command == "report":
    path = pathlib.Path(f"{pathlib.Path(args.predictions).stem}.html")
  else:
    names = (pathlib.Path(x).stem for x in (args.first, args.second))
    path = pathlib.Path(f"{'_or_'.join(names)}.html")
  if path.suffix.lower() not in (".html", ".htm"):
    raise ValueError(
      f"--output is {path}, but must end in .html: it is a page."
    )
  if not path.parent.is_dir():
    raise ValueError(
      f"--output is {path}, but there is no folder {path.parent}: make it."
    )
  if importlib.util.find_spec("matplotlib") is None:
    raise ImportError(
      "The page needs matplotlib: pip install 'orthograd-optax[plots]'. "
      "--json does without."
    )
  return path


def _report(args: argparse.Namespace) -> Any:
  from orthograd_optax import calibration
  from orthograd_optax.calibration import _files

  content = _files.read(args.predictions, args.labels)
  name = args.name or pathlib.Path(args.predictions).stem
  options = {"num_bins": args.bins, "replicates": args.replicates}
  return calibration.report(**content, name=name, **options)


def _compare(args: argparse.Namespace) -> Any:
  import numpy as np

  from orthograd_optax import calibration
  from orthograd_optax.calibration import _files

  paths = args.first, args.second
  first, second = (_files.read(path, args.labels) for path in paths)
  for key in ("labels", "seeds"):
    # Without seeds, there is nothing to compare.
    a, b = (
      np.asarray([] if x[key] is None else x[key]) for x in (first, second)
    )
    if a.shape != b.shape:
      raise ValueError(
        f"{paths[0]} and {paths[1]} have {a.size} and {b.size} {key}, but must "
        "be of the same examples in the same order."
      )
    if not np.array_equal(a, b):
      row = int(np.argmax(a != b))
      raise ValueError(
        f"{key}[{row}] is {a[row]} in {paths[0]} and {b[row]} in {paths[1]}, "
        "but both must be of the same examples in the same order."
      )
  for path, content in zip(paths, (first, second), strict=True):
    if content["fit"] is not None:
      raise ValueError(
        f"{path} has a split, but compare fits nothing: keep the examples of "
        "test alone."
      )
  names = args.names or [pathlib.Path(path).stem for path in paths]
  return calibration.compare(
    first["logits"],
    second["logits"],
    first["labels"],
    names=(names[0], names[1]),
    classes=first["classes"],
    seeds=first["seeds"],
    num_bins=args.bins,
    replicates=args.replicates,
  )


if __name__ == "__main__":
  sys.exit(main())
