"""Trains the shares of a study as jobs, on SLURM or as local processes."""

import argparse
from collections.abc import Callable, Sequence
import pathlib
import re
import subprocess
import time

import submitit
from submitit.core.utils import FailedJobError
from submitit.helpers import Checkpointable, CommandFunction

from experiments.files import UserError

# Submissions of a share, if its jobs end without a result.
ATTEMPTS = 5


class Share(CommandFunction, Checkpointable):
  """A command. SLURM runs it again if it is preempted or out of time."""


def make_executor(
  args: argparse.Namespace, logs: pathlib.Path, name: str
) -> submitit.AutoExecutor:
  """Returns what submits jobs of a name, by the options of `run`.

  The folder of the logs also has the scripts. All machines must share it.
  """
  sbatch = dict(text.partition("=")[::2] for text in args.sbatch)
  if not all(sbatch.values()):
    raise UserError(f"Expected --sbatch KEY=VALUE, got {args.sbatch}.")
  try:
    executor = submitit.AutoExecutor(
      logs, cluster=args.cluster, slurm_max_num_timeout=ATTEMPTS
    )
  except RuntimeError as error:
    raise UserError(
      f"Expected SLURM on this machine, but there is none: {error} Use a login "
      "node, or --cluster local."
    ) from error
  executor.update_parameters(
    name=name,
    timeout_min=args.minutes,
    gpus_per_node=args.gpus,
    slurm_partition=args.partition,
    slurm_additional_parameters={"requeue": True} | sbatch,
  )
  return executor


def train(
  executor: submitit.AutoExecutor,
  commands: Sequence[list[str]],
  say: Callable[[str], object],
  every: float = 5.0,
) -> None:
  """Submits each share's command, waits, and submits again what got lost.

  Looks at the jobs every few seconds.

  Raises:
    UserError: if a command fails, or if its jobs get lost `ATTEMPTS` times.
  """
  try:
    with executor.batch():
      jobs = [_submit(executor, i, words) for i, words in enumerate(commands)]
  except FailedJobError as error:
    raise UserError(f"sbatch refuses the jobs: {error}") from error
  attempts, last = [1] * len(jobs), ""
  waiting, gone = set(range(len(jobs))), set()
  problems: dict[int, str] = {}
  while waiting:
    running, pending = _alive(executor.cluster, jobs)
    for i in sorted(waiting):
      # A job that is requeued may have left an error: SLURM can end the command
      # that asks for it. So the result counts only when the job has left.
      if jobs[i].job_id in running | pending:
        gone.discard(i)
      elif jobs[i].paths.result_pickle.exists():
        waiting.remove(i)
        if (error := jobs[i].exception()) is not None:
          problems[i] = str(error)
      elif i not in gone:
        gone.add(i)  # Its result may still be on its way.
      elif attempts[i] < ATTEMPTS:
        gone.remove(i)
        attempts[i] += 1
        say(f"job {jobs[i].job_id} of share {i + 1} got lost: submits it again")
        jobs[i] = _submit(executor, i, commands[i])
      else:
        waiting.remove(i)
        problems[i] = f"its jobs got lost {ATTEMPTS} times"
    now = {jobs[i].job_id for i in waiting}
    line = (
      f"{len(jobs) - len(waiting)} of {len(jobs)} shares have ended, "
      f"{len(now & running)} run, {len(now & pending)} wait"
    )
    if line != last:
      say(line)
    last = line
    time.sleep(every if waiting else 0)
  if problems:
    lines = [
      f"share {i + 1} (log: {jobs[i].paths.stderr}): {_last_line(problem)}"
      for i, problem in problems.items()
    ]
    raise UserError(
      f"{len(problems)} of {len(jobs)} shares failed. The same command trains "
      "what they lack.\n  " + "\n  ".join(lines)
    )


def _submit(executor, number: int, words: list[str]) -> submitit.Job[str]:
  gpus = executor.parameters.get("gpus_per_node", 0)
  if executor.cluster == "local" and gpus:
    mine = ",".join(map(str, range(number * gpus, (number + 1) * gpus)))
    words = ["env", f"CUDA_VISIBLE_DEVICES={mine}", *words]
  return executor.submit(Share(words))


def _alive(
  cluster: str, jobs: Sequence[submitit.Job[str]]
) -> tuple[set[str], set[str]]:
  """Returns the jobs that run, and those that wait.

  `sacct`, which submitit asks, needs a data base that not every cluster has.
  """
  ids = {job.job_id for job in jobs}
  if cluster == "local":
    return {job.job_id for job in jobs if job.state == "RUNNING"}, set()
  command = ["squeue", "--me", "--noheader", "--array", "--format=%i %T"]
  listed = subprocess.run(command, capture_output=True, text=True)
  if listed.returncode:  # SLURM doesn't answer: look again later.
    return set(), ids
  states = dict(line.split()[:2] for line in listed.stdout.splitlines())
  running = {job for job, state in states.items() if state == "RUNNING"}
  return running & ids, states.keys() & ids - running


def _last_line(text: str) -> str:
  """Returns the command's own error, or how it ended, or its last line."""
  for pattern in (r"(?<!\w)Error: .*", r"died with .*", r"\S.*(?=[\s-]*\Z)"):
    if match := re.search(pattern, text):
      return match[0]
  return text
