"""A small study that is disturbed, again and again, and then left to end."""

from collections.abc import Callable, Sequence
import concurrent.futures
import contextlib
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from experiments import rows
from faults import inputs
from faults.figures import Figures

ROOT = pathlib.Path(__file__).parents[2]
SETTINGS = ("epochs=4", "seeds=1", "evaluate_every=2", "per_class=7")
STUDIES = 16
# What differs each time; the code may be worked on meanwhile.
WHEN = ("time", "wall_time", "epoch_seconds", "sources", "commit")


def start(
  folder: pathlib.Path,
  limit: int | None = None,
  settings: Sequence[str] = (),
  options: Sequence[str] = (),
) -> subprocess.Popen:
  """Starts the study in a process of its own.

  Args:
    folder: folder of the study.
    limit: bytes of the largest file that can be written, for a full disk.
    settings: settings besides the study's.
    options: further options of the command.
  """
  command = [sys.executable, "-m", "experiments", "run", "quick"]
  for setting in (*SETTINGS, "batch_size=16", *settings):
    command += ["--set", setting]
  command += ["--checkpoint-every", "1", "--output", str(folder), *options]
  if limit is not None:
    script = f'ulimit -f {-(-limit // 512)}; exec "$0" "$@"'
    command = [shutil.which("sh") or "sh", "-c", script, *command]
  environment = {k: v for k, v in os.environ.items() if k != "CI"} | {
    "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "programs"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PLATFORMS": "cpu",
    "PYTHONUNBUFFERED": "1",
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
  }
  return subprocess.Popen(
    command,
    cwd=ROOT,
    env=environment,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def finish(
  folder: pathlib.Path,
  settings: Sequence[str] = (),
  options: Sequence[str] = (),
) -> tuple[int, str, float]:
  """Returns status, output and seconds of the study left undisturbed."""
  begin = time.monotonic()
  process = start(folder, None, settings, options)
  output, _ = process.communicate(timeout=600)
  return process.returncode, output, time.monotonic() - begin


def results(folder: pathlib.Path) -> dict[rows.Key, dict]:
  """Returns what was found; `rows.read` refuses a row that is there twice."""
  return {
    rows.key(row): {k: row[k] for k in row if k not in WHEN}
    for row in rows.read(folder / "rows.jsonl")
  }


class Disturber:
  """Disturbs a study in ways and at moments that a seed chooses."""

  def __init__(self, folder: pathlib.Path, seconds: float, seed: str):
    self.folder, self.seconds = folder, seconds
    self.random = random.Random(seed)
    self.damaged = False

  def _wait(self, process: subprocess.Popen, least: float) -> None:
    """For a random moment: any, or one soon after a random checkpoint."""
    if self.random.random() < 0.3:
      time.sleep(self.random.uniform(least, 1) * self.seconds)
      return
    epoch = self.random.randint(1, 4)
    pattern = f"checkpoints/*/state/{epoch}"
    while process.poll() is None and not list(self.folder.glob(pattern)):
      time.sleep(0.02)
    time.sleep(self.random.uniform(0, 0.2) * self.seconds)

  def kill(self) -> str:
    process = start(self.folder)
    self._wait(process, least=0)
    process.send_signal(signal.SIGKILL)
    return process.communicate()[0]

  def interrupt(self) -> str:
    process = start(self.folder)
    # Python itself, before the first line of ours, has its own way.
    self._wait(process, least=0.1)
    for _ in range(self.random.randint(1, 3)):
      with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
      time.sleep(0.05)
    return process.communicate()[0]

  def hang_up(self) -> str:
    """As a terminal that is closed does."""
    process = start(self.folder)
    self._wait(process, least=0)
    process.send_signal(signal.SIGHUP)
    return process.communicate()[0]

  def fill_the_disk(self) -> str:
    process = start(self.folder, limit=512 * self.random.randint(1, 60))
    return process.communicate()[0]

  def flip(self) -> str | None:
    """One bit of the last checkpoint, or of each."""
    return self._damage(lambda content: inputs.flip(content, self.random))

  def truncate(self) -> str | None:
    """The last checkpoint, or each."""
    return self._damage(lambda content: inputs.truncate(content, self.random))

  def swap(self) -> str | None:
    """The last checkpoint is replaced by the one before, or another study's."""
    *before, last = [None, *self._states()]
    other = self.folder.parent / "other"
    sources = sorted(other.glob("checkpoints/*/state/[0-9]"))
    source = self.random.choice([*sources, *before[1:]])
    if last is None:
      return None
    last.unlink()
    shutil.copyfile(source, last)
    self.damaged = True
    return ""

  def link(self) -> str | None:
    """The last checkpoint is damaged, and a link to a file elsewhere."""
    if self.truncate() is None:
      return None
    last = self._states()[-1]
    elsewhere = pathlib.Path(tempfile.mkdtemp(dir=self.folder.parent))
    last.rename(elsewhere / "state")
    last.symlink_to(elsewhere / "state")
    return ""

  def divert(self) -> str | None:
    """The last checkpoint is a pipe, or a device that never ends."""
    if not (states := self._states()):
      return None
    states[-1].unlink()
    if self.random.random() < 0.5:
      os.mkfifo(states[-1])
    else:
      states[-1].symlink_to("/dev/zero")
    self.damaged = True
    return ""

  def _states(self) -> list[pathlib.Path]:
    states = self.folder.glob("checkpoints/*/state/*")
    return sorted(x for x in states if x.name.isdigit() and x.is_file())

  def tear(self) -> str | None:
    """The last line, as a crash of the machine would."""
    path = self.folder / "rows.jsonl"
    if not path.exists() or not (size := path.stat().st_size):
      return None
    os.truncate(path, size - self.random.randint(1, min(size, 300)))
    return ""

  def _damage(self, change: Callable[[bytes], bytes]) -> str | None:
    """Changes the last checkpoint, or each."""
    both = self._states()
    for path in both if self.random.random() < 0.3 else both[-1:]:
      path.write_bytes(change(path.read_bytes()))
    self.damaged = bool(both)
    return "" if both else None


KINDS: dict[str, Callable[[Disturber], str | None]] = {
  "studies killed (SIGKILL)": Disturber.kill,
  "… interrupted (SIGINT, up to three times)": Disturber.interrupt,
  "… hung up (SIGHUP)": Disturber.hang_up,
  "… out of disk": Disturber.fill_the_disk,
  "… with a flipped bit in a checkpoint": Disturber.flip,
  "… with a truncated checkpoint": Disturber.truncate,
  "… with a checkpoint of another epoch or study": Disturber.swap,
  "… with a link to a damaged checkpoint": Disturber.link,
  "… with a pipe or a device in place of a checkpoint": Disturber.divert,
  "… with a torn last line": Disturber.tear,
}


def disturb(folder, expected, seconds, seed):
  """One study; the kinds of its disturbances, and what was wrong."""
  one, kinds, wrong = Disturber(folder, seconds, seed), [], []
  names = list(KINDS)
  for _ in range(one.random.randint(1, 4)):
    # A process comes first: without it, there is nothing to damage.
    one.damaged = False
    for name in (
      one.random.choices(names[:4], (3, 1, 1, 1))[0],
      one.random.choice(names[4:]),
    ):
      output = KINDS[name](one)
      if output is None:  # There was nothing to damage yet.
        continue
      kinds.append(name)
      if "Traceback" in output:
        wrong.append(f"{seed}: {name}: {output}")
  status, output, _ = finish(folder)
  if status or "Traceback" in output:
    return kinds, [*wrong, f"{seed}: status {status}: {output}"]
  complete = "2 of 2 runs are complete" in output
  if one.damaged and not complete and "removed the damaged" not in output:
    wrong.append(f"{seed}: nothing is said of the damage: {output}")
  if (figures := results(folder)) != expected:
    other = [k for k in figures | expected if figures.get(k) != expected.get(k)]
    wrong.append(f"{seed}: after {kinds} others are {other}")
  leftovers = [
    str(path)
    for pattern in (
      ".*.part",
      "checkpoints/*/.*.part",
      "checkpoints/*/state/*.*",
    )
    for path in folder.glob(pattern)
  ]
  if leftovers:
    wrong.append(f"{seed}: left behind: {leftovers}")
  shutil.rmtree(folder)
  return kinds, wrong


def run(folder: pathlib.Path, seed: int, share: float) -> list[Figures]:
  """The campaign's studies, two at a time."""
  whole = folder / "whole"
  finish(whole)  # and compile
  shutil.rmtree(whole)
  status, output, seconds = finish(whole)
  assert not status, output
  expected = results(whole)
  finish(folder / "other", ["learning_rate=0.02"])
  figures = {name: Figures(name) for name in KINDS}
  ended = Figures("… left to end after 1 to 8 of these")
  with concurrent.futures.ThreadPoolExecutor(2) as threads:
    studies = [
      threads.submit(
        disturb, folder / f"study{i}", expected, seconds, f"{seed}-{i}"
      )
      for i in range(max(round(STUDIES * share), 1))
    ]
    for study in concurrent.futures.as_completed(studies):
      kinds, wrong = study.result()
      for name in kinds:
        figures[name].outcomes["inflicted"] += 1
      ended.outcomes["with other rows" if wrong else "in the same bits"] += 1
      ended.wrong += wrong
  return [*figures.values(), ended]
