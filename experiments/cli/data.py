"""What the commands on data do; `parser.py` has their options and help."""

import argparse
from collections.abc import Mapping
from typing import Any

from experiments import datasets
from experiments.datasets import frost, published, sheet, sources
from experiments.datasets.cache import Files
from experiments.files import UserError


def do_fetch(args: argparse.Namespace) -> None:
  sources.fetch(_find(args.name), args.source)


do_frost = do_fetch


def do_status(args: argparse.Namespace) -> None:
  for files in [_find(args.name)] if args.name else _known().values():
    print(files.status())


def do_verify(args: argparse.Namespace) -> None:
  remedy = f"`python -m experiments data fetch {args.name}` replaces them."
  problems = _find(args.name).verify()
  _report(problems, f"Files are missing or damaged: {remedy}")


def do_published(args: argparse.Namespace) -> None:
  problems = published.verify(args.folder)
  _report(problems, f"{args.folder} is not the published CIFAR-10-C.")


def do_sheet(args: argparse.Namespace) -> None:
  sheet.draw(args.image, args.output, args.seed)
  print(f"Wrote {args.output}.")


def _known() -> dict[str, Files]:
  """Returns the files of each data set that has any, by name."""
  sets = (data.files for data in datasets.DATASETS.values() if data.files)
  return {files.name: files for files in (*sets, frost.FROST)}


def _find(name: str) -> Files:
  """Returns the files of a data set."""
  known = _known()
  if name not in known:
    raise UserError(
      f"Expected one of {', '.join(known)}, got {name!r}. The sample comes "
      "with the code, and an .npz file stays where it is."
    )
  return known[name]


def _report(problems: Mapping[Any, str | None], error: str) -> None:
  """Prints each problem, or that there is none. Raises if there is any."""
  for name, problem in problems.items():
    print(f"{name}: {problem or 'intact'}")
  if any(problems.values()):
    raise UserError(error)
