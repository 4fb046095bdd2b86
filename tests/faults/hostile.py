"""Inputs that are small, and ask for more than there is.

As a program, it reads all of them, and prints what that took, as JSON.
"""

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
import zipfile

import PIL.Image
import small_cifar

from experiments.cifar import archives, frost
from faults import inputs
from faults.figures import Figures

TESTS = pathlib.Path(__file__).parents[1]
# Of memory beyond what the modules take, and of time for each.
MOST_MEGABYTES, MOST_SECONDS = 500, 10


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
  for name, content in small_cifar.PICKLES.items():
    batch = b"\x80\x02" + content
    yield f"pickle: {name}", lambda b=batch: archives._batch(b, "x")
  picture = io.BytesIO()
  PIL.Image.new("1", (8, 8)).save(picture, "PNG")
  header = bytearray(picture.getvalue())
  header[16:24] = (2**20).to_bytes(4, "big") * 2
  yield "picture: 2^40 pixels", lambda: archives._picture(bytes(header), "x")
  batches = folder / "cifar-10-batches-bin"
  batches.mkdir()
  for name in files:
    (batches / name).touch()
    os.truncate(batches / name, 2**40)
  yield "files of 1 TB", lambda: fetch(batches)
  wheel = folder / "x.whl"
  with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
    for name in frost.TEXTURES:
      with archive.open(f"imagecorruptions/frost/{name}", "w") as file:
        for _ in range(200):
          file.write(bytes(1_000_000))
  yield "wheel: 200 MB of zeros", lambda: frost._from_wheel(wheel)


def megabytes() -> float:
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak / (1e6 if sys.platform == "darwin" else 1e3)


def main() -> None:
  found = {"refused": 0, "wrong": [], "seconds": 0.0}
  with tempfile.TemporaryDirectory() as folder, inputs.small() as files:
    hostile = list(cases(pathlib.Path(folder), files))
    before = megabytes()
    for name, read in hostile:
      begin = time.monotonic()
      try:
        outcome, _ = inputs.attempt(read)
      except Exception:
        outcome = traceback.format_exc(limit=-3)
      seconds = time.monotonic() - begin
      found["seconds"] = max(found["seconds"], seconds)
      if outcome == "refused" and seconds < MOST_SECONDS:
        found["refused"] += 1
      else:
        found["wrong"].append(f"{name}: {seconds:.0f} s: {outcome}")
    found["megabytes"] = megabytes() - before
  print(json.dumps(found))


def run() -> list[Figures]:
  done = subprocess.run(
    [sys.executable, "-m", "faults.hostile"],
    env=os.environ | {"PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"},
    capture_output=True,
    text=True,
  )
  found = Figures("hostile archives, pickles, pictures, files and wheels")
  if done.returncode:
    found.wrong.append(done.stderr)
    return [found]
  result = json.loads(done.stdout.splitlines()[-1])
  found.outcomes["refused"] = result["refused"]
  found.outcomes["not refused"] = len(result["wrong"])
  found.wrong += result["wrong"]
  if result["megabytes"] > MOST_MEGABYTES:
    found.wrong.append(f"{result['megabytes']:.0f} MB")
  took = "{seconds:.1f} s each, and {megabytes:.0f} MB".format(**result)
  found.what += f" (at most {took})"
  return [found]


if __name__ == "__main__":
  main()
