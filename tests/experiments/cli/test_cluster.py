"""Jobs are followed until each has ended, and submitted again if lost."""

import contextlib
import os
import pathlib
import subprocess
import sys
import types

import pytest
from submitit.core.utils import FailedJobError

from experiments import __main__ as command_line
from experiments import rows
from experiments.cli import cluster
from experiments.files import UserError

ROOT = pathlib.Path(__file__).parents[3]


class Job:
  """Runs twice; then it has a result, an error, or is gone."""

  def __init__(self, number, end, folder):
    self.job_id, self.end, self.looks = str(number), end, 0
    paths = {"result_pickle": folder / f"{number}.pkl", "stderr": "a.log"}
    self.paths = types.SimpleNamespace(**paths)

  @property
  def state(self):
    self.looks += 1
    if self.looks < 3:
      return "RUNNING"
    if self.end != "gone":
      self.paths.result_pickle.touch()
    return "FINISHED"

  def exception(self):
    text = "Traceback\nError: no such study\n-----"
    return RuntimeError(text) if self.end == "error" else None


class Executor:
  cluster, parameters, batch = "local", {}, contextlib.nullcontext

  def __init__(self, ends, folder):
    self.ends, self.folder, self.commands = list(ends), folder, []

  def submit(self, share):
    self.commands.append(share.command)
    return Job(len(self.commands), self.ends.pop(0), self.folder)


def test_jobs(tmp_path):
  """Two shares. The second is lost once."""
  executor, said = Executor(["done", "gone", "done"], tmp_path), []
  cluster.train(executor, [["a"], ["b"]], said.append, every=0)
  assert executor.commands == [["a"], ["b"], ["b"]]
  assert said[0] == "0 of 2 shares have ended, 2 run, 0 wait"
  assert "job 2 of share 2 got lost: submits it again" in said
  assert said[-1] == "2 of 2 shares have ended, 0 run, 0 wait"


def test_a_job_that_is_requeued(tmp_path):
  """Its error, of the command that requeues it, is not the end."""
  (tmp_path / "1.pkl").touch()
  said = []
  cluster.train(Executor(["done"], tmp_path), [["a"]], said.append, every=0)
  assert said == [
    "0 of 1 shares have ended, 1 run, 0 wait",
    "1 of 1 shares have ended, 0 run, 0 wait",
  ]


def test_gpus_of_local_jobs(tmp_path):
  """Each job has its own."""
  executor = Executor(["done", "done"], tmp_path)
  executor.parameters = {"gpus_per_node": 2}
  cluster.train(executor, [["a"], ["b"]], print, every=0)
  assert executor.commands == [
    ["env", "CUDA_VISIBLE_DEVICES=0,1", "a"],
    ["env", "CUDA_VISIBLE_DEVICES=2,3", "b"],
  ]


def test_jobs_that_slurm_refuses(tmp_path):
  executor = Executor([], tmp_path)

  @contextlib.contextmanager
  def refuse():
    yield
    raise FailedJobError("invalid partition specified: wrong")

  executor.batch = refuse
  with pytest.raises(UserError, match="sbatch refuses .* partition .*: wrong"):
    cluster.train(executor, [], print, every=0)


def test_jobs_that_fail(tmp_path):
  executor = Executor(["error", "done"], tmp_path)
  message = r"1 of 2 .*\n  share 1 \(log: a.log\): Error: no such study$"
  with pytest.raises(UserError, match=message):
    cluster.train(executor, [["a"], ["b"]], print, every=0)
  executor = Executor(["gone"] * 5, tmp_path / "again")
  with pytest.raises(UserError, match="its jobs got lost 5 times"):
    cluster.train(executor, [["a"]], print, every=0)


@pytest.mark.parametrize(
  ("text", "reason"),
  [
    (
      "x.CalledProcessError: 1\ny.FailedError: a\nError: busy\n\n",
      "Error: busy",
    ),
    (
      "CalledProcessError: a died with <SIGKILL>.\nb: c\n",
      "died with <SIGKILL>.",
    ),
    ("Traceback\nlost connection\n-----\n", "lost connection"),
    ("", ""),
  ],
)
def test_the_reason_of_a_failure(text, reason):
  assert cluster._last_line(text) == reason


@pytest.mark.parametrize(
  ("listed", "running", "pending"),
  [
    ("1_0 RUNNING\n1_1 PENDING\n7 RUNNING\n", {"1_0"}, {"1_1"}),
    ("", set(), set()),
    (None, set(), {"1_0", "1_1"}),  # SLURM doesn't answer
  ],
)
def test_states(monkeypatch, listed, running, pending):
  def run(command, **options):
    code = 1 if listed is None else 0
    return subprocess.CompletedProcess(command, code, listed or "")

  monkeypatch.setattr(cluster.subprocess, "run", run)
  jobs = [Job(f"1_{i}", "done", pathlib.Path()) for i in range(2)]
  assert cluster._alive("slurm", jobs) == (running, pending)


def test_a_study_without_chosen_settings_is_not_submitted(
  tmp_path, monkeypatch
):
  path = tmp_path / "mine.py"
  path.write_text(
    "from experiments.config import SGD, Study\n"
    "import dataclasses\n"
    "untuned = dataclasses.replace(SGD, name='sgd_untuned')\n"
    "STUDY = Study(name='mine', methods=(untuned,))\n"
  )
  output = tmp_path / "runs"
  options = ["--cluster", "local", "--jobs", "2", "--output", str(output)]
  monkeypatch.setattr(sys, "argv", ["", "run", str(path), *options])
  with pytest.raises(SystemExit, match="mine has .*: sgd_untuned. Run its tun"):
    command_line.main()
  assert not output.exists()


@pytest.mark.slow
def test_local_processes(tmp_path):
  command = [sys.executable, "-m", "experiments", "run", "quick"]
  for setting in ("seeds=2", "epochs=1", "per_class=2", "batch_size=16"):
    command += ["--set", setting]
  options = ("--cluster", "local", "--jobs", "2", "--output", str(tmp_path))
  variables = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
  done = subprocess.run(
    [*command, *options],
    cwd=ROOT,
    env=os.environ | variables,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert "Submits 2 jobs to local" in done.stdout
  assert "4 of 4 runs are complete" in done.stdout
  seeds = [row["seed"] for row in rows.read(tmp_path / "rows.jsonl")]
  assert sorted(seeds) == [0] * 4 + [1] * 4
