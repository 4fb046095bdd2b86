"""The command line when it is stopped or can't go on: a message, no more."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from experiments import rows

ROOT = pathlib.Path(__file__).parents[2]
RUN = ("run", "quick", "--set", "epochs=4", "--set", "seeds=1")
SMALL = ("--set", "per_class=2", "--set", "batch_size=16")


def start(folder, *options, limit=None, more=()):
  command = [sys.executable, *options, "-m", "experiments", *RUN, *SMALL]
  command += ["--checkpoint-every", "1", "--output", str(folder), *more]
  if limit is not None:  # of the size of a file, in blocks of 512 bytes
    sh = shutil.which("sh")
    assert sh is not None
    command = [sh, "-c", f'ulimit -f {limit}; exec "$0" "$@"', *command]
  environment = {k: v for k, v in os.environ.items() if k != "CI"} | {
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    # Compiled programs would be files, too, and leave torn ones to other tests.
    "JAX_ENABLE_COMPILATION_CACHE": "false",
  }
  return subprocess.Popen(
    command,
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def assert_stopped(process, times):
  for _ in range(times):
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
  output, _ = process.communicate(timeout=60)
  assert process.returncode in (130, -signal.SIGINT), output
  assert "Traceback" not in output and "ignored" not in output
  if process.returncode == 130:  # or it had just begun
    *_, last = output.splitlines()
    assert last.startswith("Stopped. Run the same command")


@pytest.mark.parametrize("module", ["experiments.files", "jax._src.core"])
def test_stopped_while_importing(tmp_path, module):
  process = start(tmp_path, "-X", "importtime")
  assert process.stdout is not None
  for line in process.stdout:
    if line.rstrip().endswith(module):
      break
  assert_stopped(process, 1)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 3])
def test_stopped_while_training(tmp_path, times):
  process = start(tmp_path)
  assert process.stdout is not None
  for line in process.stdout:
    if "runs are complete" in line:
      break
  time.sleep(2)
  assert_stopped(process, times)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 8, 20, 40])
def test_a_disk_that_is_full(tmp_path, limit):
  """Each file up to a size, where a folder can't be made small."""
  output, _ = start(tmp_path, limit=limit).communicate(timeout=120)
  *others, last = output.splitlines()
  assert last.startswith("Error: ") and str(tmp_path) in last, output
  assert all(line.startswith("quick") for line in others), output


@pytest.mark.slow
def test_two_processes(tmp_path):
  """Train together, as the guide says; rows and words are written once."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
  two = ("--distributed", "--coordinator", address, "--processes", "2")
  processes = [
    start(tmp_path, more=[*two, "--process", str(i)]) for i in range(2)
  ]
  outputs = [process.communicate(timeout=300)[0] for process in processes]
  assert [process.returncode for process in processes] == [0, 0], outputs
  assert "0 of 2 runs are complete" in outputs[0]
  assert "quick: complete" in outputs[0] and "quick" not in outputs[1]
  actual = list(rows.read(tmp_path / "rows.jsonl"))
  assert len(actual) == 4  # train and clean, of two runs
  assert all(row["device"] == "2 × cpu" for row in actual)
