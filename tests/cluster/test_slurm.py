"""Shares of a study on a real SLURM: see `make test-cluster`.

slurmctld and two slurmd run in a temporary folder, as nodes n1 and n2.
"""

import contextlib
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
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue")
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
MISSING = [name for name in DAEMONS if shutil.which(name, path=PATH) is None]
pytestmark = [
  pytest.mark.skipif(
    "TEST_CLUSTER" not in os.environ, reason="`make test-cluster` runs it"
  ),
  pytest.mark.skipif(
    bool(MISSING),
    reason=f"SLURM is not installed: no {', '.join(MISSING)}; on Debian, "
    "apt-get install slurm-wlm munge",
  ),
]
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
SlurmdTimeout=15
KillWait=5
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1
PartitionName=all Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP
"""
EPOCHS = 12
SETTINGS = ("seeds=4", f"epochs={EPOCHS}", "per_class=10", "evaluate_every=6")
RUN = [sys.executable, "-m", "experiments", "run", "quick"]
RUN += [word for setting in SETTINGS for word in ("--set", setting)]
RUN += ["--group-size", "2", "--checkpoint-every", "1"]
# When and where, and what depends on it.
NOT_COMPARED = ("time", "wall_time", "epoch_seconds")


def free_ports(count):
  with contextlib.ExitStack() as stack:
    sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
    for one in sockets:
      one.bind(("127.0.0.1", 0))
    return [one.getsockname()[1] for one in sockets]


def processes(mark):
  """Yields pid and name of the processes with this text in their variables."""
  for path in pathlib.Path("/proc").glob("[0-9]*"):
    with contextlib.suppress(OSError):
      if mark.encode() in (path / "environ").read_bytes().split(b"\0"):
        yield int(path.name), (path / "comm").read_text().strip()


def kill(*marks):
  """Kills all processes with such variables, slurmstepd before its jobs."""
  actual = {pid: name for mark in marks for pid, name in processes(mark)}
  for pid in sorted(actual, key=lambda pid: actual[pid] != "slurmstepd"):
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, signal.SIGKILL)


def half_way(node):
  """Whether a share on a node has trained a third of its epochs."""
  for pid, _ in processes(f"SLURMD_NODENAME={node}"):
    with contextlib.suppress(OSError):
      words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
      for word in words:
        folder = pathlib.Path(word.removeprefix("--output="))
        states = folder.glob("checkpoints/*/state/*")
        epochs = [int(path.name) for path in states if path.name.isdecimal()]
        if word.startswith("--output=") and epochs:
          return EPOCHS // 3 < max(epochs) < EPOCHS
  return False


def wait_for(condition, seconds, what):
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, f"{what} took more than {seconds} s"
    time.sleep(0.5)


@pytest.fixture
def environment(tmp_path):
  """Variables of a cluster of two nodes."""
  folder = tmp_path / "slurm"
  folder.mkdir()
  conf = folder / "slurm.conf"
  user = subprocess.check_output(["id", "-un"], text=True).strip()
  conf.write_text(
    CONF.format(
      folder=folder, host=socket.gethostname(), ports=free_ports(3), user=user
    )
  )
  (folder / "munge.key").write_bytes(os.urandom(1024))
  (folder / "munge.key").chmod(0o600)
  variables = os.environ | {
    "PATH": PATH,
    "SLURM_CONF": str(conf),
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }
  variables.pop("CI", None)
  with contextlib.ExitStack() as stack:

    def start(name, *options, **more):
      log = stack.enter_context((folder / f"{name}.log").open("ab"))
      process = subprocess.Popen(
        [shutil.which(name, path=PATH) or name, *options],
        env=variables | more,
        stdout=log,
        stderr=log,
      )
      stack.callback(process.wait)
      stack.callback(process.kill)

    file = lambda name: f"{folder}/munge.{name}"
    start(
      *("munged", "--foreground", "--force", f"--key-file={file('key')}"),
      *(f"--socket={file('socket')}", f"--pid-file={file('pid')}"),
      *(f"--log-file={file('log')}", f"--seed-file={file('seed')}"),
    )
    wait_for(pathlib.Path(file("socket")).exists, 30, "munged")
    start("slurmctld", "-D")
    for node in ("n1", "n2"):
      (folder / f"spool-{node}").mkdir()
      start("slurmd", "-D", "-N", node, TEST_NODE=f"{folder}/{node}")
    stack.callback(kill, f"SLURM_CONF={conf}")

    def ready():
      command = ["sinfo", "--noheader", "--format=%T %D"]
      actual = subprocess.run(
        command, env=variables, capture_output=True, text=True
      )
      return actual.stdout.split() == ["idle", "2"]

    wait_for(ready, 60, "start of both nodes")
    yield variables


def contents(folder):
  """Returns rows by key, without when and where they were made."""
  return {
    rows.key(row): {k: v for k, v in row.items() if k not in NOT_COMPARED}
    for row in rows.read(folder / "rows.jsonl")
  }


def test_a_node_that_dies(environment, tmp_path):
  """And a job that is preempted: shares end in the rows of one process."""
  whole, shares = tmp_path / "whole", tmp_path / "shares of four"
  subprocess.run(
    [*RUN, "--output", whole], check=True, cwd=ROOT, env=environment
  )
  options = ("--cluster", "slurm", "--jobs", "4", "--partition", "all")
  command = subprocess.Popen(
    [*RUN, "--output", shares, *options],
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )

  def waits(node):
    assert command.poll() is None, command.communicate()[0]
    return half_way(node)

  squeue = ["squeue", "--noheader", "--array", "--format=%i", "--nodelist=n1"]
  try:
    wait_for(lambda: waits("n2"), 600, "half of the training on n2")
    folder = pathlib.Path(environment["SLURM_CONF"]).parent
    kill(f"TEST_NODE={folder}/n2", "SLURMD_NODENAME=n2")
    wait_for(lambda: waits("n1"), 600, "half of the training on n1")
    job = subprocess.check_output(squeue, env=environment, text=True).strip()
    scancel = ["scancel", "--signal=USR2", job]  # as SLURM does to preempt it
    with contextlib.suppress(subprocess.TimeoutExpired):
      # If the job is requeued meanwhile, scancel would repeat the signal.
      subprocess.run(scancel, env=environment, timeout=2)
    output, _ = command.communicate(timeout=900)
  finally:
    command.kill()
  assert command.returncode == 0, output
  assert "Submits 4 jobs to slurm" in output and "--share=1/4" in output
  assert "8 of 8 runs are complete" in output
  logs = sorted(shares.glob("shares/logs/*.err"))
  resumed = ["resumes after epoch" in path.read_text() for path in logs]
  assert sum(resumed) == 2, [path.read_text() for path in logs]
  actual, expected = contents(shares), contents(whole)
  assert len(actual) == 8 * 2 * 2 and actual == expected
