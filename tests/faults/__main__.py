"""Runs the campaign, and prints its figures: `make test-faults`."""

import argparse
import concurrent.futures
import multiprocessing
import os
import pathlib
import platform
import random
import shutil
import signal
import sys
import tempfile
import time

import jax

from experiments.rows import provenance
from faults import (
  damage,
  hostile,
  index,
  library,
  mounts,
  processes,
  studies,
  surroundings,
)
from faults.figures import Figures, table


def campaign(folder: pathlib.Path, seed: int, share: float) -> list[Figures]:
  """Returns what came of each kind of fault."""
  begin, figures = time.monotonic(), []
  say = lambda text: print(
    f"{time.monotonic() - begin:4.0f} s  {text}", flush=True
  )
  say("studies …")
  figures += studies.run(folder, seed, share)
  say("checkpoints …")
  chance = random.Random(f"checkpoints {seed}")
  figures += damage.damage_checkpoints(folder / "whole", share, chance)
  # Meanwhile, indexes let their clients wait, and processes each other.
  spawn = multiprocessing.get_context("spawn")
  end = signal.signal, (signal.SIGINT, signal.SIG_DFL)
  with concurrent.futures.ProcessPoolExecutor(3, spawn, *end) as others:
    indexes = others.submit(index.run, share)
    several = others.submit(
      processes.run, folder / "processes", folder / "whole"
    )
    fuse = others.submit(mounts.run, folder / "mounts", seed, folder / "whole")
    say("data, rows and JSON; several processes; indexes; file systems …")
    figures += damage.run(folder / "damage", seed, share)
    say("the library's inputs …")
    figures += library.run(folder / "library", seed, share)
    say("locks, clocks, clones, names and study files …")
    figures += surroundings.run(folder / "surroundings", folder / "whole")
    say("hostile inputs …")
    figures += hostile.run()
    say("what several processes and package indexes still do …")
    figures += fuse.result()
    return [*figures, *several.result(), *indexes.result()]


def end_processes(folder: pathlib.Path) -> list[int]:
  """Kills and returns the processes whose commands name the folder."""
  ended = []
  while pids := processes.listed(str(folder)):
    for pid in pids:
      processes.kill(pid)
    ended += pids
    time.sleep(0.1)
  return ended


def main() -> None:
  parser = argparse.ArgumentParser("faults", description=__doc__)
  parser.add_argument("--seed", type=int, default=0, help="of the faults (0)")
  parser.add_argument(
    "--share", type=float, default=1.0, help="of the number of cases (1)"
  )
  args = parser.parse_args()
  begin, commit = time.monotonic(), provenance.commit()
  with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
    folder = pathlib.Path(temporary)
    # Also for what libraries leave there.
    os.environ["TMPDIR"] = tempfile.tempdir = temporary

    def stop(*_) -> None:
      """Ends all processes: threads would go on, and start further ones."""
      for worker in multiprocessing.active_children():
        worker.kill()
      mounts.wait_until_unmounted(folder)
      end_processes(folder)
      shutil.rmtree(folder, ignore_errors=True)
      os._exit(130)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    every = campaign(folder, args.seed, args.share)
    tempfile.tempdir = None
    left = end_processes(folder)
  wrong = [text for one in every for text in one.wrong]
  wrong += [f"{len(left)} processes were left behind"] * bool(left)
  for text in wrong:
    print(f"WRONG: {text}\n")
  minutes = (time.monotonic() - begin) / 60
  cpu = sum(os.times()[:4]) / 60  # of this process and those that it started
  print(
    f"\nSeed {args.seed}, share {args.share:g}, commit {commit}, jax "
    f"{jax.__version__}, Python {platform.python_version()}, {os.cpu_count()} "
    f"cores of {platform.machine()}: {minutes:.1f} minutes, {cpu:.1f} minutes "
    f"of CPU time, {len(wrong)} wrong\n\n{table(every)}"
  )
  sys.exit(bool(wrong))


if __name__ == "__main__":
  main()
