"""The command line of the experiments: `python -m experiments --help`."""
# ruff: noqa: E402

import signal

if __name__ == "__main__":
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `stop` is there

import argparse
import contextlib
import os
import pathlib
import sys
from typing import Any, NoReturn

from experiments import data_commands
from experiments.command import PATH, argument, command, make_parser
from experiments.files import UserError

EXAMPLES = """
examples:
  python -m experiments list                     what there is to run
  python -m experiments run quick                a study of two minutes
  python -m experiments run table1 --set seeds=2 --set epochs=10
  python -m experiments run quick --set optimizers=sgd,label_smoothing,sam
  python -m experiments report runs/quick        its page
  python -m experiments grokking                 where ⊥Grad comes from, no data
  python -m experiments data fetch               CIFAR-10, for all other studies
"""


def positive(text: str) -> int:
  value = int(text)
  if value < 1:
    raise argparse.ArgumentTypeError(f"{value} is not at least 1")
  return value


def whole_numbers(text: str) -> list[int]:
  return [int(number) for number in text.split(",")]


FOLDER = argument("folder", type=PATH, help="of a study, such as runs/quick")
STUDY = (
  argument("study", help="one of `python -m experiments list`"),
  argument(
    "--set",
    action="append",
    metavar="KEY=VALUE",
    help="override a setting of the study, such as seeds=3 or epochs=10; an "
    "unknown key lists all",
  ),
  argument(
    "--output",
    type=PATH,
    metavar="FOLDER",
    help="of rows and checkpoints (runs/STUDY, or that of the study whose "
    "models it uses)",
  ),
)
HOW = (
  argument(
    "--method",
    default="auto",
    choices=["auto", "grouped", "mixed", "patches", "sequential", "unrolled"],
    help="how the convolutions of many runs are computed (auto)",
  ),
  argument(
    "--batch-devices",
    type=positive,
    default=1,
    metavar="N",
    help="devices that share each batch (1); the others have runs of their own",
  ),
  argument(
    "--group-size",
    type=positive,
    metavar="N",
    help="runs that train together (10 a device, or as many as fit)",
  ),
  argument(
    "--checkpoint-every",
    type=positive,
    metavar="N",
    help="epochs between checkpoints (10, or 5 %% of all)",
  ),
  argument(
    "--logits", action="store_true", help="keep the logits, as .npy files"
  ),
  argument(
    "--corrupted",
    type=PATH,
    metavar="FOLDER",
    help="of the published CIFAR-10-C, to use it instead of making it",
  ),
  argument(
    "--deterministic",
    action="store_true",
    help="the same bits every time on a GPU, too, at some cost of speed",
  ),
  argument(
    "--distributed",
    action="store_true",
    help="one of several processes (jax.distributed finds the others)",
  ),
)


@command(*STUDY, *HOW)
def run(args: argparse.Namespace) -> None:
  """train and evaluate what a study lacks"""
  from experiments import engine

  _prepare_devices(args)
  engine.run_study(*_study(args), _options(args))


@command(FOLDER, *HOW)
def resume(args: argparse.Namespace) -> None:
  """go on with a study, by its folder"""
  from experiments import config, engine

  _prepare_devices(args)
  study = config.load_settings(args.folder)
  engine.run_study(study, args.folder, _options(args))


@command(*STUDY, *HOW)
def plan(args: argparse.Namespace) -> None:
  """what a study will take, by a short measurement"""
  from experiments.engine import planning

  print(planning.plan(*_study(args), _options(args)))


@command()
def list_(args: argparse.Namespace) -> None:
  """list the studies"""
  from experiments import config

  del args
  found = config.studies()
  width = max(map(len, found))
  for name, (study, text) in sorted(found.items()):
    print(
      f"{name:{width}} {len(study.runs):3} runs  {text.strip().splitlines()[0]}"
    )


@command(FOLDER)
def show(args: argparse.Namespace) -> None:
  """a table of what a study's folder has"""
  from experiments import report

  print(report.show(args.folder))


@command(argument("folder", type=PATH, nargs="+", help="of studies"))
def keep(args: argparse.Namespace) -> None:
  """copy rows to experiments/results, for the report"""
  from experiments import report

  for path in report.keep(args.folder):
    print(f"Wrote {path}.")


@command(
  argument("folder", type=PATH, nargs="?", help="of a study"),
  argument(
    "--output",
    type=PATH,
    metavar="FOLDER",
    help="of the pages and pictures (experiments/results)",
  ),
)
def report_(args: argparse.Namespace) -> None:
  """write the replication of the paper and a page for each study of PLAN.md,
  from the rows that are kept; or, given a study's folder, its page"""
  from experiments import report

  if args.folder is None:
    print(report.write_replication(args.output))
    paths = report.write_kept_studies(args.output)
    for path in filter(None, [*paths, report.write_screen(args.output)]):
      print(f"Wrote {path}.")
    print(report.write_grokking(args.output))
    print(f"Wrote {report.write_answer(args.output)}.")
  else:
    print(report.write_study(args.folder))


@command(
  argument(
    "--pilot",
    action="store_true",
    help="train the pilot instead: AdamW alone, at five weight decays",
  ),
  argument(
    "--output",
    type=PATH,
    default=pathlib.Path("runs", "grokking"),
    metavar="FOLDER",
    help="of rows, page and picture (runs/grokking)",
  ),
  argument(
    "--steps", type=positive, default=500, metavar="N", help="of training (500)"
  ),
  argument(
    "--seeds",
    type=whole_numbers,
    metavar="LIST",
    help="which, such as 100,101 (100 to 109; 900 to 902 of the pilot)",
  ),
)
def grokking(args: argparse.Namespace) -> None:
  """train AdamW and ⊥AdamW, without and with weight decay, to add mod 113, and
  write a page of when they generalize; half an hour on two cores. What is
  there is not made again: the same command goes on. To try it out:
  --output runs/try --steps 20 --seeds 1,2"""
  from experiments import grokking, report

  recipe = grokking.Recipe(steps=args.steps)
  study = grokking.PILOT if args.pilot else grokking.STUDY
  rows = grokking.run(args.output, study, recipe, args.seeds)
  if args.pilot:
    print(grokking.pilot_text(rows, recipe))
  else:
    print(report.write_grokking(args.output, rows, recipe))


def _study(args: argparse.Namespace) -> tuple[Any, pathlib.Path]:
  """The study that is asked for, and its folder."""
  from experiments import config

  study = config.load_study(args.study).override(args.set or [])
  return study, args.output or study.folder


def _options(args: argparse.Namespace) -> Any:
  from experiments import engine

  return engine.Options(
    method=args.method,
    batch_devices=args.batch_devices,
    group_size=args.group_size,
    checkpoint_every=args.checkpoint_every,
    save_logits=args.logits,
    corrupted=args.corrupted and str(args.corrupted),
  )


def _prepare_devices(args: argparse.Namespace) -> None:
  if args.deterministic:
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true"
  import jax

  from experiments.cifar import cache

  if args.distributed:
    jax.distributed.initialize()
  # What was compiled once is found again by another study, or when one goes on.
  given = "JAX_COMPILATION_CACHE_DIR" in os.environ  # which jax reads itself
  if not given and jax.default_backend() != "cpu":
    programs = str(cache.cache_folder() / "programs")
    jax.config.update("jax_compilation_cache_dir", programs)


def main() -> None:
  topics = {"data": (data_commands.ABOUT, data_commands.DESCRIPTION)}
  parser = make_parser("The experiments of orthograd-optax.", EXAMPLES, topics)
  args = parser.parse_args()
  if getattr(args, "cache", None):
    os.environ["ORTHOGRAD_DATA"] = str(args.cache)
  try:
    args.run(args)
  except (UserError, OSError) as error:
    sys.exit(f"Error: {error}")


def leave(message: str, status: int) -> NoReturn:
  """Ends with a message, after which no thread has anything to say."""
  with contextlib.suppress(Exception):
    sys.stdout.flush()
  os.write(2, f"{message}\n".encode())
  os._exit(status)


def stop(number: int, frame: Any) -> NoReturn:
  """On Ctrl-C, at once: an exception can get lost in what is being imported or
  collected, and whatever is half written will be removed."""
  del number, frame
  line = "\n" if os.isatty(2) else ""
  leave(f"{line}Stopped; the same command goes on from what is there.", 130)


if __name__ == "__main__":
  signal.signal(signal.SIGINT, stop)
  try:
    main()
  except SystemExit as end:
    if isinstance(end.code, str):
      leave(end.code, 1)
    raise
