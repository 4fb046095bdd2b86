"""Inputs that are small, and ask for more than there is.

As a program, it reads all of them, and prints what that took, as JSON.
"""

import ctypes
import gc
import gzip
import io
import json
import os
import pathlib
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback

import PIL.Image
import small_cifar

from experiments.datasets import archives, npz, published
from faults import inputs, library
from faults.figures import Figures

TESTS = pathlib.Path(__file__).parents[1]
# Of each: memory beyond what the process has before, and CPU time.
MOST_MEGABYTES, MOST_SECONDS = 40, 10


def cases(folder: pathlib.Path, files: dict[str, bytes]):
  """Names, and what reads each."""
  fetch = lambda path: inputs.fetched(path, folder / "cache")
  for kind in small_cifar.BOMBS:
    path = small_cifar.bomb(folder / f"{kind}.tar.gz", kind, files)
    yield f"archive: {kind}", lambda path=path: fetch(path)
  path = folder / "zeros.tar.gz"
  with gzip.open(path, "wb", compresslevel=1) as file:
    info = tarfile.TarInfo("data_batch_1.bin")
    info.size = 600_000_000
    file.write(info.tobuf())
    for _ in range(600):
      file.write(bytes(1_000_000))
  yield "archive: 600 MB of zeros", lambda: fetch(path)
  picture = io.BytesIO()
  PIL.Image.new("1", (8, 8)).save(picture, "PNG")
  header = bytearray(picture.getvalue())
  header[16:24] = (2**20).to_bytes(4, "big") * 2
  yield (
    "picture: 2^40 pixels",
    lambda: archives.read_picture(bytes(header), "x", 1024, 10_000),
  )
  jpeg = io.BytesIO()
  PIL.Image.new("L", (1024, 10_000)).save(jpeg, "JPEG", progressive=True)
  *_, scan = jpeg.getvalue()[:-2].split(b"\xff\xda")
  scans = jpeg.getvalue()[:-2] + 10**5 * (b"\xff\xda" + scan)
  yield (
    "picture: 100,000 scans",
    lambda: archives.read_picture(scans, "x", 1024, 10_000),
  )
  batches = folder / "cifar-10-batches-bin"
  batches.mkdir()
  for name in files:
    (batches / name).touch()
    os.truncate(batches / name, 2**40)
  yield "files of 1 TB", lambda: fetch(batches)
  arrays = folder / "CIFAR-10-C"
  arrays.mkdir()
  header = b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little")
  for name in ("labels", "fog"):
    (arrays / f"{name}.npy").write_bytes(header)
    os.truncate(arrays / f"{name}.npy", 2**32)
  yield "array: a header of 4 GB", lambda: published.load(arrays, "fog", 1)
  yield from library.bombs(folder)
  for path in sorted(folder.glob("*.npz")):
    read = lambda path=path: npz.read(npz.pin(str(path)))
    yield f"own images: {path.name}", read


def reset() -> None:
  """Gives unused memory back, and begins to measure the peak anew."""
  gc.collect()
  if sys.platform == "linux":
    ctypes.CDLL(None).malloc_trim(0)
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def peak() -> float:
  """Returns the largest memory so far, in MB: on Linux, since the reset."""
  if sys.platform == "linux":
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) / 1e3
  most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return most / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
  figures = {"refused": 0, "wrong": [], "seconds": 0.0, "megabytes": 0.0}
  with tempfile.TemporaryDirectory() as folder, inputs.small() as files:
    for name, read in cases(pathlib.Path(folder), files):
      reset()
      before, begin = peak(), time.process_time()
      try:
        outcome, _ = inputs.attempt(read)
      except Exception:
        outcome = traceback.format_exc(limit=-3)
      seconds, megabytes = time.process_time() - begin, peak() - before
      figures["seconds"] = max(figures["seconds"], seconds)
      figures["megabytes"] = max(figures["megabytes"], megabytes)
      little = seconds < MOST_SECONDS and megabytes < MOST_MEGABYTES
      if outcome == "refused" and little:
        figures["refused"] += 1
      else:
        took = f"{seconds:.0f} s, {megabytes:.0f} MB"
        figures["wrong"].append(f"{name}: {took}: {outcome[:2000]}")
  print(json.dumps(figures))


def run() -> list[Figures]:
  done = subprocess.run(
    [sys.executable, "-m", "faults.hostile"],
    env=os.environ | {"PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"},
    capture_output=True,
    text=True,
  )
  figures = Figures("hostile archives, pictures and arrays")
  if done.returncode:
    figures.wrong.append(done.stderr)
    return [figures]
  result = json.loads(done.stdout.splitlines()[-1])
  figures.outcomes["refused"] = result["refused"]
  figures.outcomes["not refused"] = len(result["wrong"])
  figures.wrong += result["wrong"]
  took = "{seconds:.1f} s each, and {megabytes:.0f} MB".format(**result)
  figures.what += f" (at most {took})"
  return [figures]


if __name__ == "__main__":
  main()
