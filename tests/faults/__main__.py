"""Runs the campaign, and prints its figures: `make test-faults`."""

import argparse
import concurrent.futures
import multiprocessing
import os
import pathlib
import random
import sys
import tempfile
import time

from faults import (
  damage,
  hostile,
  index,
  library,
  processes,
  studies,
  surroundings,
)
from faults.figures import table


def main() -> None:
  parser = argparse.ArgumentParser("faults", description=__doc__)
  parser.add_argument("--seed", type=int, default=0, help="of the faults (0)")
  parser.add_argument(
    "--share", type=float, default=1.0, help="of the number of cases (1)"
  )
  args = parser.parse_args()
  begin, found = time.monotonic(), []
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    say = lambda text: print(f"{time.monotonic() - begin:4.0f} s  {text}")
    say("studies …")
    found += studies.run(folder, args.seed, args.share)
    say("checkpoints …")
    chance = random.Random(f"checkpoints {args.seed}")
    found += damage.damage_checkpoints(folder / "whole", args.share, chance)
    # Meanwhile, indexes let their clients wait, and processes each other.
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, spawn) as others:
      indexes = others.submit(index.run, args.share)
      several = others.submit(
        processes.run, folder / "processes", folder / "whole"
      )
      say("data, rows and JSON; several processes; package indexes …")
      found += damage.run(folder / "damage", args.seed, args.share)
      say("the library's inputs …")
      found += library.run(folder / "library", args.seed, args.share)
      say("file systems, clocks, clones, names and study files …")
      found += surroundings.run(folder / "surroundings", folder / "whole")
      say("hostile inputs …")
      found += [*hostile.run(), *several.result(), *indexes.result()]
  wrong = [text for figures in found for text in figures.wrong]
  for text in wrong:
    print(f"WRONG: {text}\n")
  minutes = (time.monotonic() - begin) / 60
  cpu = sum(os.times()[:4]) / 60  # of this process and those that it started
  print(
    f"\nSeed {args.seed}, {minutes:.1f} minutes, {cpu:.1f} of CPU time\n\n"
    f"{table(found)}"
  )
  sys.exit(bool(wrong))


if __name__ == "__main__":
  main()
