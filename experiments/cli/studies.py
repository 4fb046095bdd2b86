"""What the commands on studies do; `parser.py` has their options and help."""

import argparse
import os
import pathlib
import shlex
import signal
import sys
from typing import Any

import jax

from experiments import config, engine, grokking, language, report, tuning
from experiments.cli import folders
from experiments.cli.parser import without_cluster
from experiments.config import Study
from experiments.datasets import cache
from experiments.engine import merging, planning
from experiments.files import UserError


def do_run(args: argparse.Namespace) -> None:
  if args.cluster or args.jobs or args.partition or args.sbatch:
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
  _train(study, folder, args)


def do_resume(args: argparse.Namespace) -> None:
  _prepare_devices(args)
  _train(config.load_settings(args.folder), args.folder, args)


def do_plan(args: argparse.Namespace) -> None:
  _keep_programs()
  study, folder = _study(args)
  print(planning.plan(study, folder, _options(args)))
  if changes := _changes(study, args):
    print(f"settings   {changes}")


def do_merge(args: argparse.Namespace) -> None:
  _merge(args.folder, args.output)


def do_show(args: argparse.Namespace) -> None:
  print(report.show(args.folder))
  _print_left_out(args.folder)


def do_keep(args: argparse.Namespace) -> None:
  for path in report.keep(args.folder):
    print(f"Wrote {path}.")
  for folder in args.folder:
    if (folder / "study.json").exists():  # grokking has none
      _print_left_out(folder)


def do_report(args: argparse.Namespace) -> None:
  if args.folder is None:
    for path in report.write_pages(args.output):
      print(f"Wrote {path}.")
  elif args.output is not None:
    raise UserError(
      f"--output is {args.output}, but a study's page is written to the "
      f"study's own folder, {args.folder}: leave --output out."
    )
  elif lacking := folders.too_little(args.folder):
    raise UserError(lacking)
  else:
    print(report.write_study(args.folder))
    _print_left_out(args.folder)


def do_grokking(args: argparse.Namespace) -> None:
  its = args.output, args.rates, args.steps, args.seeds
  print(grokking.run_and_describe(*its))


def do_language(args: argparse.Namespace) -> None:
  _keep_programs()
  recipe = language.SMALL if args.small else language.Recipe()
  rows = language.run(args.output, recipe, args.seeds or language.SEEDS)
  print(report.language.text(rows))


def _study(args: argparse.Namespace) -> tuple[Study, pathlib.Path]:
  """Returns the study that the arguments name, and its folder."""
  study = config.load_study(args.study).override(args.set)
  study = study.replace(share=args.share or (1, 1))
  return study, args.output or study.folder


def _changes(study: Study, args: argparse.Namespace) -> str:
  """Returns the settings that `--set` changes, and their values before."""
  before = config.load_study(args.study)
  old = before.settings()
  return ", ".join(
    f"{name}={value} instead of {old[name] or 'none'}"
    for name, value in config.differences(study, before).items()
  )


def _options(args: argparse.Namespace, **more: Any) -> engine.Options:
  """Returns how to run a study, by default where an argument is None."""
  names = "convolutions", "batch_devices", "group_size"
  values = {name: getattr(args, name) for name in names} | more
  return engine.Options(**{k: v for k, v in values.items() if v is not None})


def _train(
  study: Study, folder: pathlib.Path, args: argparse.Namespace
) -> None:
  options = _options(
    args,
    checkpoint_every=args.checkpoint_every,
    save_logits=args.logits,
    corrupted=args.corrupted and str(args.corrupted),
  )
  engine.run_study(study, folder, options)
  if jax.process_index() == 0:
    print(folders.next_step(study, folder))


def _run_jobs(args: argparse.Namespace) -> None:
  """Trains the study's shares as jobs, and merges them."""
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
  study, folder = _study(args)
  tuning.check_chosen(study)
  if (folder / "rows.jsonl").exists() and not (folder / "shares").exists():
    raise UserError(
      f"{folder} has rows already. Give --output a new folder, then `merge` "
      "both."
    )
  shares = [study.replace(share=(i + 1, args.jobs)) for i in range(args.jobs)]
  outputs = [folder / it.folder.relative_to(study.folder) for it in shares]
  # The last --output counts.
  same = [sys.executable, "-m", "experiments", *without_cluster(sys.argv[1:])]
  commands = [
    [*same, f"--share={i}/{args.jobs}", f"--output={path}"]
    for i, path in enumerate(outputs, 1)
  ]
  logs = folder / "shares" / "logs"
  executor = cluster.make_executor(args, logs, study.name)
  print(
    f"Submits {args.jobs} jobs to {args.cluster}, each with {args.gpus} GPUs "
    f"and at most {args.minutes} minutes. Logs: {logs}. The first job:\n  "
    f"{shlex.join(commands[0])}",
    flush=True,
  )
  cluster.train(executor, commands, engine.Progress())
  _merge(outputs, folder)


def _merge(shares: list[pathlib.Path], output: pathlib.Path) -> None:
  study, complete = merging.merge(shares, output)
  print(
    f"Merged {len(shares)} folders into {output}: {complete} of "
    f"{len(study.runs)} runs are complete."
  )
  print(folders.next_step(study, output))


def _print_left_out(folder: pathlib.Path) -> None:
  for line in folders.left_out(folder):
    print(line)


def _prepare_devices(args: argparse.Namespace) -> None:
  if args.deterministic:
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true"
  coordinator, count, number = args.coordinator, args.processes, args.process
  if args.distributed:
    try:
      jax.distributed.initialize(coordinator, count, number)
    except (TypeError, ValueError, IndexError) as error:
      raise UserError(
        f"jax can't find the other processes: {error} Start all of them under "
        "a launcher that jax knows, such as SLURM's srun, or give each of them "
        "--coordinator HOST:PORT (of process 0), --processes N and --process "
        f"I, from 0 to N - 1. Got --coordinator {coordinator}, --processes "
        f"{count} and --process {number}."
      ) from error
  elif (coordinator, count, number) != (None, None, None):
    raise UserError(
      "--coordinator, --processes and --process need --distributed."
    )
  _keep_programs()


def _keep_programs() -> None:
  """Caches compiled programs beside the data, for the next command."""
  if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # which jax reads itself
    programs = str(cache.cache_folder() / "programs")
    jax.config.update("jax_compilation_cache_dir", programs)
