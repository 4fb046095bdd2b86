"""`python -m experiments`: train, plan, list, show, keep and report studies."""

import argparse
from collections.abc import Callable
import os
import pathlib
import re
import shlex
import signal
import sys
from typing import Any

from experiments.cli.command import PATH, argument, command, given
from experiments.files import UserError


def matching(pattern: str, expected: str) -> Callable[[str], tuple[int, ...]]:
  """Returns a function that reads the integers of texts of a form."""

  def parse(text: str) -> tuple[int, ...]:
    if not re.fullmatch(pattern, text):
      raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return tuple(map(int, re.findall(r"\d+", text)))

  return parse


whole_numbers = matching(r"\d+(,\d+)*", "integers such as 100,101")
share = matching(r"\d+/\d+", "a share such as 3/16")


def positive(text: str) -> int:
  return matching("0*[1-9][0-9]*", "a positive integer")(text)[0]


FOLDER = argument("folder", "study folder, such as runs/quick", type=PATH)
SET = argument(
  "--set KEY=VALUE",
  "override a setting, such as seeds=3 or methods=sgd,sam; repeat it for "
  "several; an unknown key lists all keys",
  action="append",
)
STUDY_OPTIONS = (
  argument(
    "study",
    "a name that `python -m experiments list` prints, or the path of a study "
    "file such as mine.py",
  ),
  SET,
  argument(
    "--output FOLDER",
    "folder for rows and checkpoints (runs/STUDY, or the folder of the study "
    "whose models it uses)",
    type=PATH,
  ),
  argument(
    "--share I/N",
    "only share I of N, into runs/STUDY/shares/I-of-N: the same runs on any "
    "machine; `merge` joins the shares",
    type=share,
  ),
)
GROUP_OPTIONS = (
  argument(
    "--convolutions",
    "how the convolutions of many runs are computed (auto)",
    default="auto",
    choices=["auto", "direct", "mixed", "pallas", "patches"],
  ),
  argument(
    "--batch-devices N",
    "devices that share each batch (1); runs are spread over the others",
    type=positive,
    default=1,
  ),
  argument(
    "--group-size N",
    "runs that train together (10 a device, or as many as fit)",
    type=positive,
  ),
)
RUN_OPTIONS = (
  *GROUP_OPTIONS,
  argument(
    "--checkpoint-every N",
    "epochs between checkpoints (10, or 5 %% of all if that is more)",
    type=positive,
  ),
  argument("--logits", "keep the logits, as .npy files", action="store_true"),
  argument(
    "--corrupted FOLDER",
    "folder of the published CIFAR-10-C, used instead of making it",
    type=PATH,
  ),
  argument(
    "--deterministic",
    "bitwise reproducible on a GPU too, but slower there",
    action="store_true",
  ),
  argument(
    "--distributed",
    "run this process as one of several that train together; under SLURM, "
    "Open MPI and on TPUs, jax finds the others",
    action="store_true",
  ),
  argument(
    "--coordinator HOST:PORT",
    "elsewhere, for --distributed: address of process 0, the same for all",
  ),
  argument(
    "--processes N", "for --distributed: number of processes", type=positive
  ),
  argument(
    "--process I", "for --distributed: number of this process, from 0", type=int
  ),
)
CLUSTER_OPTIONS = (
  argument(
    "--cluster",
    "train shares as jobs of SLURM, or as local processes, and merge them",
    choices=["slurm", "local"],
  ),
  argument(
    "--jobs N",
    "for --cluster: number of jobs, one for each share",
    type=positive,
  ),
  argument(
    "--gpus N",
    "for --cluster: GPUs of each job (0: train on the CPU)",
    type=int,
    default=0,
  ),
  argument(
    "--minutes N",
    "for --cluster: time limit of a job (1440); longer ones resume",
    type=positive,
    default=1440,
  ),
  argument("--partition NAME", "for --cluster slurm: its partition"),
  argument(
    "--sbatch KEY=VALUE",
    "for --cluster slurm: option of sbatch, such as mem=16G; repeat it for "
    "several",
    action="append",
  ),
)


@command(
  *STUDY_OPTIONS,
  argument(
    "--kept",
    "copy kept rows from experiments/results to a new folder, and train only "
    "missing runs",
    action="store_true",
  ),
  *RUN_OPTIONS,
  *CLUSTER_OPTIONS,
  example=(
    "run quick --set epochs=2 --set per_class=20 --output runs/try",
    "trains a shrunk study in a folder of its own",
  ),
)
def run(args: argparse.Namespace) -> None:
  """train and evaluate the runs that a study's folder lacks

  Ctrl-C stops it, and the same command resumes it. Give other settings another
  folder with --output: a folder's page shows one set of settings."""
  import jax

  from experiments import engine, report, tuning

  if args.cluster or args.jobs:
    return _run_jobs(args)
  if args.share:
    # SLURM sends it to all processes of a job that it preempts. The job's first
    # process answers.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
  _prepare_devices(args)
  study, folder = _study(args)
  tuning.check_chosen(study)
  if changes := _changes(study, args):
    engine.Progress()(f"{study.name}: {changes}")
  if args.kept and args.share:
    raise UserError("--kept and --share exclude each other: leave one out.")
  if args.kept and jax.process_index() == 0:
    if rows := report.begin(study, folder):
      engine.Progress()(f"{study.name}: starts with {rows:,} kept rows")
  engine.run_study(study, folder, _options(args))
  _say_next(study, folder)


@command(
  FOLDER,
  *RUN_OPTIONS,
  example=("resume runs/quick", "completes the study that runs/quick is of"),
)
def resume(args: argparse.Namespace) -> None:
  """resume the study saved in FOLDER, with its settings"""
  from experiments import config, engine

  _prepare_devices(args)
  study = config.load_settings(args.folder)
  engine.run_study(study, args.folder, _options(args))
  _say_next(study, args.folder)


@command(
  *STUDY_OPTIONS,
  *GROUP_OPTIONS,
  example=("plan table1", "says how long table1 takes on this machine"),
)
def plan(args: argparse.Namespace) -> None:
  """measure a few steps; print a study's time and memory"""
  from experiments import engine
  from experiments.engine import planning

  _keep_programs()
  study, folder = _study(args)
  options = engine.Options(
    args.convolutions, args.batch_devices, args.group_size
  )
  text = planning.plan(study, folder, options)
  changes = _changes(study, args)
  print("\n".join([text, f"settings   {changes}"] if changes else [text]))


@command(example=("list", "lists every study with its number of runs"))
def list_(args: argparse.Namespace) -> None:
  """list the studies"""
  from experiments import config

  del args
  names = config.study_names()
  width = max(map(len, names))
  for name in names:
    try:
      study, text = config.describe(name)
      about = f"{len(study.runs):3} runs  {text.splitlines()[0]}"
    except config.ConfigError as error:
      about = f"Error: {error}"
    print(f"{name:{width}} {about}")


@command(
  argument("folder", "folders of shares", type=PATH, nargs="+"),
  argument(
    "--output FOLDER", "folder for all of their rows", type=PATH, required=True
  ),
  example=(
    "merge runs/quick/shares/*-of-4 --output runs/quick",
    "joins four shares of quick",
  ),
)
def merge(args: argparse.Namespace) -> None:
  """join the rows of a study's shares in one folder

  Settings must match, no row may be in two folders, and every check must hold.
  Checkpoints and logits stay in the shares."""
  _merge(args.folder, args.output)


@command(
  FOLDER,
  example=("show runs/quick", "prints accuracy, loss, ECE and more, by method"),
)
def show(args: argparse.Namespace) -> None:
  """print a table of the results in a study's folder"""
  from experiments import report

  print(report.show(args.folder))
  _print_left_out(args.folder)


@command(
  argument("folder", "one or more study folders", type=PATH, nargs="+"),
  example=("keep runs/table1", "then `report` includes the rows of table1"),
)
def keep(args: argparse.Namespace) -> None:
  """copy rows to experiments/results, which `report` reads"""
  from experiments import report

  for path in report.keep(args.folder):
    print(f"Wrote {path}.")
  for folder in args.folder:
    if (folder / "study.json").exists():  # grokking has none
      _print_left_out(folder)


@command(
  argument(
    "folder",
    "study folder, such as runs/quick (without it: all kept rows)",
    type=PATH,
    nargs="?",
  ),
  argument(
    "--output FOLDER",
    "folder for pages and pictures, if no study folder is given "
    "(experiments/results)",
    type=PATH,
  ),
  example=("report runs/quick", "writes runs/quick/report.html"),
)
def report_(args: argparse.Namespace) -> None:
  """write the page of a study's folder, or of all kept rows

  With a folder: its page, report.html, which compares the study's methods. It
  needs two seeds of each of two methods.

  Without a folder: the replication of the paper, and a page for each study of
  PLAN.md, from the rows in experiments/results."""
  from experiments import report
  from experiments.cli import folders

  if args.folder is None:
    for path in report.write_pages(args.output):
      print(f"Wrote {path}.")
  elif args.output is not None:
    raise UserError(
      f"--output is {args.output}, but a study's page is written to the "
      f"study's own folder, {args.folder}: leave --output out."
    )
  else:
    folders.check_folder(args.folder)
    print(report.write_study(args.folder))
    _print_left_out(args.folder)


@command(
  argument(
    "--rates",
    "train at three learning rates instead, each with its own pilot, and with "
    "StableMax",
    action="store_true",
  ),
  argument(
    "--output FOLDER",
    "folder for rows (runs/grokking)",
    type=PATH,
    default=pathlib.Path("runs", "grokking"),
  ),
  argument(
    "--steps N", "training steps (500; with --rates 2000)", type=positive
  ),
  argument(
    "--seeds LIST",
    "such as 100,101 (100 to 109; with --rates 110 to 119)",
    type=whole_numbers,
  ),
  example=(
    "grokking --output runs/try --steps 20 --seeds 1,2",
    "tries it out on two seeds",
  ),
)
def grokking(args: argparse.Namespace) -> None:
  """train AdamW and ⊥AdamW on addition mod 113

  Prints when each of them generalizes, without and with weight decay. It takes
  half an hour on two cores and needs no data. The same command resumes it. For
  the page, `keep` the rows, then `report --output FOLDER`."""
  from experiments import grokking

  said = grokking.run_and_describe(
    args.output, args.rates, args.steps, args.seeds
  )
  print(said)


@command(
  argument(
    "--output FOLDER",
    "folder for rows (runs/language)",
    type=PATH,
    default=pathlib.Path("runs", "language"),
  ),
  argument("--seeds LIST", "such as 100,101 (100 to 104)", type=whole_numbers),
  argument(
    "--small",
    "try it out: a tiny transformer and 20 steps, in a minute",
    action="store_true",
  ),
  example=(
    "language --output runs/try --small --seeds 1,2",
    "tries it out on two seeds",
  ),
)
def language(args: argparse.Namespace) -> None:
  """train AdamW and ⊥AdamW on the text of this Python's packages

  A transformer of 11 M parameters predicts bytes. Chooses learning rates on
  held-out packages first. Prints bits per byte and ECE of the test packages,
  before and after temperature scaling. It needs a GPU and no download. The same
  command resumes it."""
  from experiments import language

  _keep_programs()
  recipe = language.SMALL if args.small else language.Recipe()
  rows = language.run(args.output, recipe, args.seeds or language.SEEDS)
  print(language.result_text(rows))


def _study(args: argparse.Namespace) -> tuple[Any, pathlib.Path]:
  """Returns the study that the arguments name, and its folder."""
  from experiments import config

  study = config.load_study(args.study).override(args.set or [])
  if args.share:
    study = study.replace(share=args.share)
  return study, args.output or study.folder


def _changes(study: Any, args: argparse.Namespace) -> str:
  """Returns the settings that `--set` changes, and their values before."""
  from experiments import config

  before = config.load_study(args.study)
  old = before.settings()
  return ", ".join(
    f"{name}={value} instead of {old[name] or 'none'}"
    for name, value in config.differences(study, before).items()
  )


def _run_jobs(args: argparse.Namespace) -> None:
  """Trains the study's shares as jobs, and merges them."""
  from experiments import engine, tuning

  if not (args.cluster and args.jobs):
    raise UserError(
      "Expected --cluster with --jobs, such as --cluster slurm --jobs 16."
    )
  if args.share or args.kept or args.distributed:
    raise UserError("--cluster excludes --share, --kept and --distributed.")
  try:
    from experiments.cli import cluster
  except ImportError as error:
    raise UserError(
      f"--cluster needs submitit ({error}): pip install -e '.[cluster]'."
    ) from error
  settings = dict(text.partition("=")[::2] for text in args.sbatch or ())
  if not all(settings.values()):
    raise UserError(f"Expected --sbatch KEY=VALUE, got {args.sbatch}.")
  study, folder = _study(args)
  tuning.check_chosen(study)
  if (folder / "rows.jsonl").exists() and not (folder / "shares").exists():
    raise UserError(
      f"{folder} has rows already. Give --output a new folder, then `merge` "
      "both."
    )
  shares = [study.replace(share=(i + 1, args.jobs)) for i in range(args.jobs)]
  folders = [folder / it.folder.relative_to(study.folder) for it in shares]
  command = [sys.executable, "-m", "experiments", "run", args.study]
  command += given(args, (SET, *RUN_OPTIONS))
  words = [
    [*command, f"--share={i}/{args.jobs}", f"--output={path}"]
    for i, path in enumerate(folders, 1)
  ]
  logs = folder / "shares" / "logs"
  executor = cluster.make_executor(
    args.cluster,
    logs,
    study.name,
    args.minutes,
    args.gpus,
    args.partition,
    settings,
  )
  print(
    f"Submits {args.jobs} jobs to {args.cluster}, each with {args.gpus} GPUs "
    f"and at most {args.minutes} minutes. Logs: {logs}. The first job:\n  "
    f"{shlex.join(words[0])}",
    flush=True,
  )
  cluster.train(executor, words, engine.Progress())
  _merge(folders, folder)


def _merge(folders: list[pathlib.Path], output: pathlib.Path) -> None:
  from experiments.engine import merging

  study, complete = merging.merge(folders, output)
  print(
    f"Merged {len(folders)} folders into {output}: {complete} of "
    f"{len(study.runs)} runs are complete."
  )
  _say_next(study, output)


def _say_next(study: Any, folder: pathlib.Path) -> None:
  import jax

  from experiments.cli import folders

  if jax.process_index() == 0:
    print(folders.next_step(study, folder))


def _print_left_out(folder: pathlib.Path) -> None:
  from experiments.cli import folders

  for line in folders.left_out(folder):
    print(line)


def _options(args: argparse.Namespace) -> Any:
  from experiments import engine

  return engine.Options(
    convolutions=args.convolutions,
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
  processes = args.coordinator, args.processes, args.process
  if args.distributed:
    _join_processes(*processes)
  elif processes != (None, None, None):
    raise UserError(
      "--coordinator, --processes and --process need --distributed."
    )
  _keep_programs()


def _join_processes(
  coordinator: str | None, count: int | None, number: int | None
) -> None:
  """Connects this process with the others, as options or a launcher say."""
  import jax

  try:
    jax.distributed.initialize(coordinator, count, number)
  except (TypeError, ValueError) as error:
    raise UserError(
      f"jax can't find the other processes: {error} Start all of them under a "
      "launcher that jax knows, such as SLURM's srun, or give each of them "
      "--coordinator HOST:PORT (of process 0), --processes N and --process I, "
      f"from 0 to N - 1. Got --coordinator {coordinator}, --processes {count} "
      f"and --process {number}."
    ) from error


def _keep_programs() -> None:
  """Caches compiled programs beside the data, for the next command."""
  import jax

  from experiments.datasets import cache

  if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # which jax reads itself
    programs = str(cache.cache_folder() / "programs")
    jax.config.update("jax_compilation_cache_dir", programs)
