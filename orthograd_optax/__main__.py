"""The command line: ``python -m orthograd_optax report predictions.npz``."""

import argparse
import importlib.util
import json
import pathlib
import sys
from typing import Any

_DESCRIPTION = """\
Can I trust my model's confidence? Reads a file of predictions, of any
framework, and writes a page with the answer."""
_REPORT = """\
Examples:

  In Python, save the predictions for a test set, and its labels:

    np.savez("predictions.npz", logits=logits, labels=labels)
    np.savez("predictions.npz", probabilities=probabilities, labels=labels)

  Then run one of:

    python -m orthograd_optax report predictions.npz
    python -m orthograd_optax report predictions.npz --output page.html
    python -m orthograd_optax report predictions.npz --json > numbers.json
    python -m orthograd_optax report predictions.csv
    python -m orthograd_optax report logits.npy labels.npy

Files:

  logits and probabilities have shape (examples, classes). For two classes, one
  column or a vector is enough: that of the second class. labels have shape
  (examples,): the index of each example's class, or its name.

  An .npz file may also have these keys:

    classes  names of the classes, in the order of the columns
    group    group of each example; the page then has a table of groups
    seed     seed of each row; intervals are then over seeds
    split    "test" or another word; recalibrators are fitted on the other
             examples, and all numbers are of "test"

  A .csv file has a header, and a line for each example. Its columns are label,
  one for each class, and if you like group, seed and split:

    label,cat,dog
    cat,0.9,0.1
    dog,0.4,0.6

  A .parquet file has the same columns, and needs pandas."""
_COMPARE = """\
Examples:

    python -m orthograd_optax compare old.npz new.npz
    python -m orthograd_optax compare old.npz new.npz --output page.html
    python -m orthograd_optax compare old.npz new.npz --json

  Both files have the form that report --help describes, and the same examples
  in the same order. Differences are paired: over seeds if both files have a key
  seed, otherwise over examples. With fewer than five seeds, there are numbers
  but no verdict."""


def main(arguments: list[str] | None = None) -> int:
  """Runs the command, and returns its exit status."""
  args = _parser().parse_args(arguments)
  try:
    output = _output(args)
    result = _report(args) if args.command == "report" else _compare(args)
    page = "" if output is None else result.html()
  except (ImportError, OSError, TypeError, ValueError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  if args.json:
    print(json.dumps(result.to_dict(), allow_nan=False, ensure_ascii=False))
  else:
    print(result)
  if output is not None:
    from orthograd_optax.calibration import _writing

    try:
      _writing.write_text(output, page)
    except OSError as error:
      print(f"error: {error}", file=sys.stderr)
      return 2
    print(f"Wrote {output}", file=sys.stderr)
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
    help="report on one model",
    description="Prints a table and writes a page: can the confidence of a "
    "model be trusted?",
    epilog=_REPORT,
    formatter_class=layout,
  )
  report.add_argument("predictions", help="a .npz, .csv, .parquet or .npy file")
  report.add_argument(
    "labels", nargs="?", help="a second .npy file, if the first is one"
  )
  report.add_argument("--name", help="name of the model on the page")
  compare = commands.add_parser(
    "compare",
    help="compare two models on the same examples",
    description="Compares two models on the same examples, in pairs.",
    epilog=_COMPARE,
    formatter_class=layout,
  )
  compare.add_argument("first", help="predictions of one model")
  compare.add_argument("second", help="predictions of the other model")
  compare.add_argument(
    "--labels", help="a .npy file, if the predictions are .npy files"
  )
  compare.add_argument(
    "--names", nargs=2, metavar=("A", "B"), help="names of the models"
  )
  for command, page in ((report, "PREDICTIONS"), (compare, "FIRST_or_SECOND")):
    command.add_argument(
      "--output",
      metavar="PAGE.html",
      help=f"path of the page (default: {page}.html in the current folder, by "
      "the predictions' names; with --json, no page)",
    )
    command.add_argument(
      "--json",
      action="store_true",
      help="print all numbers as JSON, and no table",
    )
    command.add_argument(
      "--bins",
      type=int,
      default=10,
      help="number of bins of confidence (default: 10)",
    )
    command.add_argument(
      "--replicates",
      type=int,
      default=1000,
      help="number of bootstrap replicates (default: 1000)",
    )
  return parser


def _output(args: argparse.Namespace) -> pathlib.Path | None:
  """The path of the page, or None. Checks it before the work starts."""
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
      f"--output is {path}, but must end in .html, because it is a page."
    )
  if not path.parent.is_dir():
    raise ValueError(
      f"--output is {path}, but there is no folder {path.parent}. Make it "
      "first."
    )
  if importlib.util.find_spec("matplotlib") is None:
    raise ImportError(
      "The page needs matplotlib. Run pip install 'orthograd-optax[plots]', or "
      "use --json, which needs none."
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
    # Files without seeds compare as equal.
    a, b = (
      np.asarray([] if x[key] is None else x[key]) for x in (first, second)
    )
    if a.shape != b.shape:
      raise ValueError(
        f"{paths[0]} and {paths[1]} have {a.size} and {b.size} {key}, but must "
        "have the same examples in the same order."
      )
    if not np.array_equal(a, b):
      row = int(np.argmax(a != b))
      raise ValueError(
        f"{key}[{row}] is {a[row]} in {paths[0]} and {b[row]} in {paths[1]}, "
        "but both must have the same examples in the same order."
      )
  for path, content in zip(paths, (first, second), strict=True):
    if content["fit"] is not None:
      raise ValueError(
        f"{path} has a split, but compare fits nothing. Keep the examples of "
        "test only."
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
