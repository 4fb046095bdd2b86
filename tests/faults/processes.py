"""Studies of several processes: some are killed, and others write meanwhile."""

from collections.abc import Iterator
import concurrent.futures
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from experiments import files, rows
from experiments.engine import merging
from faults import studies
from faults.figures import Case, Figures, each
from faults.surroundings import refused

# Seconds after which a process must have ended whose partner was killed: jax
# misses its heartbeats for 100 seconds.
PATIENCE = 200
# Settings of studies that are killed after any epoch, but before the last one.
LONGER = ("epochs=24", "evaluate_every=12")


def trained(folder: pathlib.Path) -> int:
  """Returns the epoch of the last checkpoint in a study's folder, or 0."""
  states = folder.glob("checkpoints/*/state/*")
  return max((int(p.name) for p in states if p.name.isdecimal()), default=0)


def _wait(folder: pathlib.Path, epoch: int, process: subprocess.Popen) -> None:
  while process.poll() is None and trained(folder) < epoch:
    time.sleep(0.02)


def _end(process: subprocess.Popen, seconds: float) -> str:
  """Returns what a process prints until it ends, which it must in time."""
  try:
    return process.communicate(timeout=seconds)[0]
  except subprocess.TimeoutExpired:
    process.kill()
    raise AssertionError(f"it hung: {process.communicate()[0]}") from None


# Processes that train together.


def pair(folder: pathlib.Path) -> list[subprocess.Popen]:
  """Starts two processes that train together."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
  options = ["--distributed", "--coordinator", address, "--processes", "2"]
  return [
    studies.start(folder, None, LONGER, [*options, "--process", str(i)])
    for i in range(2)
  ]


def distributed(folder: pathlib.Path) -> Iterator[Case]:
  """One of two processes is killed, and the other one must end, too.

  The same commands must then end in the bits of two that were left alone.
  """

  def finish(path: pathlib.Path) -> dict:
    outputs = [_end(process, 600) for process in pair(path)]
    assert "Traceback" not in "".join(outputs), outputs
    return studies.results(path)

  def attempt(victim: int) -> None:
    path = folder / f"without {victim}"
    processes = pair(path)
    _wait(path, 2, processes[0])
    processes[victim].kill()
    output = _end(processes[1 - victim], PATIENCE)
    processes[victim].communicate()
    status = processes[1 - victim].returncode
    assert status and ": complete," not in output, (status, output)
    assert finish(path) == expected

  expected = finish(folder / "whole")
  yield "process 0", lambda: attempt(0)
  yield "process 1", lambda: attempt(1)


# Shares as local processes of a cluster.


def listed(*words: str) -> dict[int, int]:
  """Returns processes whose commands have all of these words, and parents."""
  command = ["ps", "-eww", "-o", "pid=,ppid=,args="]
  lines = subprocess.run(command, capture_output=True, text=True).stdout
  split = (line.split(None, 2) for line in lines.splitlines())
  return {
    int(pid): int(parent)
    for pid, parent, args in (x for x in split if len(x) == 3)
    if all(word in args for word in words)
  }


def kill(pid: int) -> None:
  with contextlib.suppress(ProcessLookupError):
    os.kill(pid, signal.SIGKILL)


def shares(folder: pathlib.Path) -> Iterator[Case]:
  """Kills what trains a share: its process, its job, the leader, or both.

  The same command must then end in the bits of a study without shares.
  """
  options = ("--cluster", "local", "--jobs", "2")
  settings = (*LONGER, "seeds=2")
  alone = folder / "alone"
  status, output, _ = studies.finish(alone, settings, ("--group-size", "2"))
  assert not status, output
  expected = studies.results(alone)

  def share(path: pathlib.Path) -> pathlib.Path:
    return path / "shares" / "1-of-2"

  def start(path: pathlib.Path, epoch: int) -> subprocess.Popen:
    """Starts the leader, and waits for an epoch of the first share."""
    process = studies.start(path, None, settings, options)
    _wait(share(path), epoch, process)
    return process

  def kill_share(path: pathlib.Path, job: bool = False) -> None:
    """Kills the process of the first share; and its job, two processes."""
    ((process, parent),) = listed("-m experiments", f"{share(path)}").items()
    parents = listed(f"{path}/shares/logs")
    for pid in (parents[parent], parent, process) if job else (process,):
      kill(pid)

  def rest(path: pathlib.Path) -> None:
    """Waits for the processes that a leader left behind."""
    end = time.monotonic() + PATIENCE
    while listed(f"{path}/shares/"):
      assert time.monotonic() < end, "shares without a leader don't end"
      time.sleep(0.2)

  def complete(path: pathlib.Path, output: str) -> None:
    assert "4 of 4 runs are complete" in output, output
    assert "Traceback" not in output, output
    assert studies.results(path) == expected

  def leader_and_share() -> None:
    path = folder / "leader and share"
    leader = start(path, 1)
    leader.kill()
    kill_share(path)
    leader.communicate()
    rest(path)
    before = trained(share(path))
    # The same command: its share is killed, and says so.
    leader = start(path, before + 1)
    kill_share(path)
    output = _end(leader, 600)
    assert leader.returncode and "1 of 2 shares failed" in output, output
    assert "Traceback" not in output, output
    # With its job, as if a machine died: it is submitted again.
    leader = start(path, trained(share(path)) + 1)
    kill_share(path, job=True)
    output = _end(leader, 600)
    assert "got lost: submits it again" in output, output
    complete(path, output)

  def leader_alone() -> None:
    path = folder / "leader"
    leader = start(path, 1)
    leader.kill()
    leader.wait()
    # Its shares go on. If they have not ended, a second leader is refused.
    status, output, _ = studies.finish(path, settings, options)
    if status:
      assert "Another process is at work" in output, output
      assert "Traceback" not in output, output
    leader.communicate()
    rest(path)
    status, output, _ = studies.finish(path, settings, options)
    assert not status, output
    complete(path, output)

  yield "leader and share", leader_and_share
  yield "leader", leader_alone


# Merging.


def write(folder: str, source: str, first: str) -> None:
  """Adds rows of 60 seeds to a share, as a process of its own does."""
  share = rows.Rows(pathlib.Path(folder, "rows.jsonl"))
  kept = list(rows.read(pathlib.Path(source, "rows.jsonl")))
  for seed in range(int(first), 120, 2):
    share.append(row | {"seed": seed} for row in kept)


def merges(folder: pathlib.Path, whole: pathlib.Path) -> Iterator[Case]:
  """Merges two shares again and again while both are being written."""

  def begin(name: str) -> list[pathlib.Path]:
    settings = json.loads((whole / "study.json").read_text()) | {"seeds": 120}
    folders = [folder / name / f"{number}" for number in (1, 2)]
    for path in folders:
      path.mkdir(parents=True)
      (path / "study.json").write_text(json.dumps(settings))
      kept = list(rows.read(whole / "rows.jsonl"))
      seed = 119 + int(path.name)  # so that no file is empty
      rows.write(path / "rows.jsonl", (x | {"seed": seed} for x in kept))
    return folders

  def writers(folders: list[pathlib.Path]) -> list[subprocess.Popen]:
    command = [sys.executable, "-m", "faults.processes"]
    return [
      subprocess.Popen([*command, str(path), str(whole), f"{i}"])
      for i, path in enumerate(folders)
    ]

  def check(output: pathlib.Path, folders: list[pathlib.Path]) -> int:
    merged = studies.results(output)
    sources: dict = {}
    for path in folders:
      sources |= studies.results(path)
    assert merged.items() <= sources.items()
    return len(merged)

  def written() -> None:
    folders, output = begin("writing"), folder / "writing" / "all"
    processes, counts = writers(folders), [0]
    while any(process.poll() is None for process in processes):
      merging.merge(folders, output)
      counts.append(check(output, folders))
    assert not any(process.returncode for process in processes)
    assert counts == sorted(counts)  # no merge loses rows of the one before
    merging.merge(folders, output)
    count = len(list(rows.read(whole / "rows.jsonl")))
    assert check(output, folders) == 122 * count > counts[0]

  def torn() -> None:
    """A share that is being written, seen at each byte of its last row."""
    folders = begin("torn")
    path = folders[0] / "rows.jsonl"
    content = path.read_bytes()
    start = content[:-1].rfind(b"\n") + 1
    for length in {start, start + 1, len(content) - 1, len(content)}:
      path.write_bytes(content[:length])
      output = folder / "torn" / f"{length}"
      merging.merge(folders, output)
      check(output, folders)

  def busy() -> None:
    """The folder to merge into is a study's that is being trained."""
    folders, output = begin("busy"), folder / "busy" / "all"
    output.mkdir()
    with files.locked(output, lambda: None):
      merge = lambda: merging.merge(folders, output)
      refused(merge, "Another process is at work")
    assert not list(output.glob("*.jsonl"))

  yield "while both are written", written
  yield "with a torn last row", torn
  yield "into a folder that is in use", busy


def run(folder: pathlib.Path, whole: pathlib.Path) -> list[Figures]:
  """Runs all cases, with the folder of a complete study."""
  kinds = {
    "two processes that train together, one of them killed": distributed,
    "killed leaders, shares and jobs of a cluster": shares,
    "merging while shares are written": lambda path: merges(path, whole),
  }
  paths = [folder / f"{number}" for number in range(len(kinds))]
  for path in paths:
    path.mkdir(parents=True)
    (path / "programs").symlink_to(whole.parent / "programs")
  with concurrent.futures.ThreadPoolExecutor() as threads:
    cases = [
      make(path) for make, path in zip(kinds.values(), paths, strict=True)
    ]
    return list(threads.map(each, kinds, cases))


if __name__ == "__main__":
  write(*sys.argv[1:])
