"""Runs the commands of a study's shares, on SLURM or as local processes."""

from collections.abc import Iterable, Sequence
import os
import pathlib
import shlex
import subprocess

from experiments.files import UserError

# SLURM sends USR2 before a job runs out of time, or before it is preempted. The
# job then goes back into the queue, and its share resumes.
SCRIPT = """#!/bin/bash
trap 'scontrol requeue $SLURM_JOB_ID; wait' USR2
case $SLURM_ARRAY_TASK_ID in
{cases}
esac
wait $!
"""
OPTIONS = ("--wait", "--requeue", "--signal=B:USR2@90", "--open-mode=append")


def run_locally(
  commands: Iterable[Sequence[str]], logs: pathlib.Path, gpus: int
) -> None:
  """Runs commands as processes, with GPUs of their own, until all have ended.

  The output of the first one is 1.log, and so on.
  """
  running = []
  for i, words in enumerate(commands):
    mine = ",".join(map(str, range(i * gpus, (i + 1) * gpus)))
    visible = {"CUDA_VISIBLE_DEVICES": mine} if gpus else {}
    path = logs / f"{i + 1}.log"
    path.unlink(missing_ok=True)  # a process of before may still write to it
    with path.open("ab") as log:
      process = subprocess.Popen(
        words, stdout=log, stderr=log, env=os.environ | visible
      )
    running.append((process, path))
  for process, path in running:
    if process.wait() < 0:
      with path.open("a") as log:
        log.write(f"The process was killed by signal {-process.returncode}.\n")


def run_on_slurm(
  commands: Sequence[Sequence[str]], logs: pathlib.Path, options: Iterable[str]
) -> None:
  """Runs commands as an array of jobs, until all of them have ended.

  All machines must share the folder of logs. Options are sbatch's.
  """
  array = [f"--array=1-{len(commands)}", f"--output={logs.resolve()}/%a.log"]
  cases = [f"{i}) {shlex.join(it)} & ;;" for i, it in enumerate(commands, 1)]
  try:
    subprocess.run(
      ["sbatch", *OPTIONS, *array, *options],
      input=SCRIPT.format(cases="\n".join(cases)),
      text=True,
    )
  except FileNotFoundError as error:
    raise UserError(
      f"Expected SLURM on this machine, but there is none: {error}. Use a "
      "login node, or --cluster local."
    ) from error


def last_line(log: pathlib.Path) -> str:
  """Returns the last line of a log, which says how its command ended."""
  text = log.read_text("utf-8", "replace") if log.exists() else "it is missing"
  return text.strip().rpartition("\n")[2]
