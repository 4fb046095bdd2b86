"""Shares run as jobs, of a SLURM that is made up or as local processes."""

import os
import pathlib
import subprocess
import sys

import pytest

from experiments import __main__ as command_line
from experiments import rows
from experiments.cli import cluster
from experiments.files import UserError

ROOT = pathlib.Path(__file__).parents[2]
SBATCH = """#!/bin/sh
echo "$@" > {folder}/options
cat > {folder}/script
for i in 1 2; do
  SLURM_ARRAY_TASK_ID=$i bash {folder}/script > {folder}/$i.log 2>&1
done
"""


def test_jobs_of_slurm(tmp_path, monkeypatch):
  sbatch = tmp_path / "sbatch"
  sbatch.write_text(SBATCH.format(folder=tmp_path))
  sbatch.chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
  commands = [["echo", "a file"], ["sh", "-c", "echo $0 >&2; exit 1", "b"]]
  cluster.run_on_slurm(commands, tmp_path, ["--mem=16G"])
  options = (tmp_path / "options").read_text()
  assert "--array=1-2" in options and options.endswith(" --mem=16G\n")
  assert f"--output={tmp_path}/%a.log" in options and "--requeue" in options
  lines = [cluster.last_line(tmp_path / f"{i}.log") for i in (1, 2, 3)]
  assert lines == ["a file", "b", "it is missing"]


def test_without_slurm(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path))
  with pytest.raises(UserError, match="Use a login node, or --cluster local"):
    cluster.run_on_slurm([["true"]], tmp_path, [])


def test_gpus_of_local_jobs(tmp_path):
  """Each job has its own."""
  words = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
  cluster.run_locally([words, words], tmp_path, gpus=2)
  lines = [cluster.last_line(tmp_path / f"{i}.log") for i in (1, 2)]
  assert lines == ["0,1", "2,3"]


def test_a_local_job_that_is_killed(tmp_path):
  (tmp_path / "1.log").write_text("of an earlier command\n")
  words = ["sh", "-c", "echo begins; kill -9 $$"]
  cluster.run_locally([words], tmp_path, gpus=0)
  said = (tmp_path / "1.log").read_text()
  assert said == "begins\nThe process was killed by signal 9.\n"


def test_shares_that_fail(tmp_path, monkeypatch):
  words = ["", "run", "quick", "--cluster", "local", "--jobs", "2"]
  monkeypatch.setattr(sys, "argv", [*words, "--output", str(tmp_path)])

  def run(commands, logs, gpus):
    (logs / "1.log").write_text("Traceback\nError: no such device\n\n")

  monkeypatch.setattr(cluster, "run_locally", run)
  message = r"2 of 2 .*\n  share 1 \(log: .*/1.log\): Error: no such device\n"
  with pytest.raises(SystemExit, match=message):
    command_line.main()


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
  assert "Starts 2 jobs (local)" in done.stdout
  assert "4 of 4 runs are complete" in done.stdout
  seeds = [row["seed"] for row in rows.read(tmp_path / "rows.jsonl")]
  assert sorted(seeds) == [0] * 4 + [1] * 4
