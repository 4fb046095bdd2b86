"""Predictions and recalibrators, which the library reads.

An error must be one that the command line prints: it names the file.
"""

from collections.abc import Iterator
import contextlib
import io
import json
import math
import pathlib
import random
import struct
from typing import Any
import zipfile

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet

from experiments.files import UserError
from faults import damage, inputs
from faults.figures import Case, Figures, each
from faults.inputs import NAMES, Reader
from orthograd_optax import __main__ as command
from orthograd_optax import _files, calibration

EXAMPLES, CLASSES = 60, 3
HEAD = {"format": "orthograd-optax recalibrator", "dtype": "float32"}
RECALIBRATORS: dict[str, dict[str, Any]] = {
  "temperature": {"columns": 3, "temperature": 2.5},
  "vector": {"columns": 3, "scale": [1, 2, 3], "bias": [0, 0.5, 1]},
  "platt": {"columns": 3, "scale": [2, 2, 0], "bias": [0, 0.5, 1]},
  "isotonic": {
    "columns": 1,
    "probability": [[0.1, 0.2], [0.8, 0.9]],
    "calibrated": [[0.2, 0.3], [0.7, 0.8]],
  },
}
# Numbers, in JSON's own words, that no recalibrator has.
NUMBERS = ("NaN", "Infinity", "1e999", "-1e999", "1" * 400, "[" * 200_000)


@contextlib.contextmanager
def _named(path: pathlib.Path) -> Iterator[None]:
  """Makes the library's errors the user's, if they name the file."""
  try:
    yield
  except ValueError as error:
    if str(path) not in str(error) or len(str(error)) > 1000:
      raise
    raise UserError(str(error)) from error


def load(path: pathlib.Path) -> None:
  """Loads a recalibrator, and checks what was let pass."""
  with _named(path):
    loaded = calibration.load(path)
  arrays = {
    name: np.asarray(value, np.float64)
    for name, value in vars(loaded).items()
    if name != "columns"
  }
  assert arrays and all(np.isfinite(x).all() for x in arrays.values())
  if loaded.method == "temperature":
    assert arrays["temperature"].shape == () and arrays["temperature"] > 0
  elif loaded.method == "isotonic":
    p, calibrated = arrays["probability"], arrays["calibrated"]
    assert p.shape == calibrated.shape
    for values in (p, calibrated):
      assert (np.diff(values) >= 0).all()
      assert 0 <= values.min() <= values.max() <= 1
  else:
    shape = (max(loaded.columns, 2),)
    assert arrays["scale"].shape == arrays["bias"].shape == shape
    assert loaded.method == "vector" or len({*arrays["scale"]} - {0}) <= 1


def recalibrators(folder: pathlib.Path) -> list[Reader]:
  readers = []
  for method, content in RECALIBRATORS.items():
    path = folder / f"{method}.json"
    text = json.dumps(HEAD | {"method": method} | content).encode()
    read = lambda path=path: load(path)
    readers.append(Reader(f"recalibrator: {method}", path, text, read))
  return readers


def number(content: bytes, chance: random.Random) -> bytes:
  """One of a recalibrator's numbers is one that it can't have."""
  parts = json.dumps(json.loads(content)).split(" ")
  places = [i for i, part in enumerate(parts) if part.strip("[],}").strip(".")]
  places = [i for i in places if parts[i].strip("[],}")[0].isdigit()]
  place = chance.choice(places)
  inner = parts[place].strip("[],}")
  parts[place] = parts[place].replace(inner, chance.choice(NUMBERS))
  return " ".join(parts).encode()


def predictions(folder: pathlib.Path) -> list[Reader]:
  """Of each kind of file that `report` and `compare` read."""
  chance = np.random.default_rng(0)
  logits = chance.normal(size=(EXAMPLES, CLASSES))
  labels = np.arange(EXAMPLES) % CLASSES
  table = pandas.DataFrame(logits, columns=["logit_a", "logit_b", "logit_c"])
  table["label"] = [*"abc"] * (EXAMPLES // 3)
  np.savez_compressed(folder / "deflated.npz", logits=logits, labels=labels)
  np.savez(folder / "stored.npz", logits=logits, labels=labels)
  np.save(folder / "logits.npy", logits)
  np.save(folder / "labels.npy", labels)
  table.to_csv(folder / "table.csv", index=False)
  table.to_parquet(folder / "table.parquet")

  def read(path: pathlib.Path, labels: pathlib.Path | None) -> str:
    with _named(path):
      figures = _files.read(path, labels)
    return repr({k: np.asarray(v).tolist() for k, v in figures.items()})

  readers = []
  for path in sorted(folder.iterdir()):
    if path.name == "labels.npy":
      continue
    labels_path = folder / "labels.npy" if path.suffix == ".npy" else None
    # Zip archives have checksums; the others' numbers may change unseen.
    readers.append(
      Reader(
        f"predictions: {path.name}",
        path,
        path.read_bytes(),
        lambda path=path, labels=labels_path: read(path, labels),
        same=path.suffix == ".npz",
      )
    )
  return readers


def bombs(folder: pathlib.Path) -> Iterator[Case]:
  """Predictions that ask for more than there is, and what reads each."""

  def read(path: pathlib.Path, labels: pathlib.Path | None = None) -> None:
    with _named(path):
      _files.read(path, labels)

  def save(path: pathlib.Path, method: int, **members: bytes) -> pathlib.Path:
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
      for name, content in members.items():
        archive.writestr(f"{name}.npy", content)
    return path

  def array(shape: tuple[int, ...], size: int = 0, dtype: str = "<f8") -> bytes:
    out = io.BytesIO()
    form = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(out, form)
    return out.getvalue() + bytes(size)

  def npz(name: str, **changes: bytes) -> pathlib.Path:
    form, arrays = zipfile.ZIP_DEFLATED, {"logits": three, "labels": three}
    return save(folder / f"{name}.npz", form, **(arrays | changes))

  large, claimed, three = 10**12, 3 * 2**30, array((3,), 24)
  for name, method in (
    ("bzip2", zipfile.ZIP_BZIP2),
    ("LZMA", zipfile.ZIP_LZMA),
  ):
    path = save(folder / f"{name}.npz", method, logits=bytes(50_000_000))
    yield f"npz: {name}", lambda path=path: read(path)
  form = zipfile.ZIP_DEFLATED
  path = save(folder / "unused.npz", form, unused=bytes(200_000_000))
  yield "npz: an unused array", lambda path=path: read(path)
  shape = array((large, 2), 80)
  path = npz("shape", logits=shape, labels=shape)
  yield "npz: a shape of 16 TB", lambda path=path: read(path)
  path = npz("power", labels=array((0, 2**70)))
  yield "npz: a shape of 2^70", lambda path=path: read(path)
  path = npz("form", labels=array((3,), 24).replace(b"'<f8'", b"()   "))
  yield "npz: an empty dtype", lambda path=path: read(path)
  path = npz("texts", classes=array((3 * 10**8,), dtype="<U0"))
  yield "npz: 3e8 classes of no length", lambda path=path: read(path)
  for name in ("classes", "split"):
    path = npz(name, **{name: array((10**7,), 10**7, "|u1")})
    yield f"npz: 1e7 entries of {name}", lambda path=path: read(path)
  path = folder / "list.npz"
  with path.open("wb") as file:
    file.seek(200_000_000)
    end = b"PK\5\6", 0, 0, 1, 1, 200_000_000, 0, 0
    file.write(struct.pack("<4s4H2LH", *end))
  yield "npz: a list of 200 MB", lambda path=path: read(path)
  # The list of files, and not only the header, claims 3 GiB and 6 GiB.
  for most, count in (("3 GiB", 1), ("6 GiB", 2)):
    path = folder / f"{most}.npz"
    one = array((claimed // 8,), 80)
    names = ("logits", "labels")[:count]
    save(path, form, **dict.fromkeys(names, one))
    size, more = (struct.pack("<I", x) for x in (len(one), claimed))
    path.write_bytes(path.read_bytes().replace(size, more))
    yield f"npz: claims {most}", lambda path=path: read(path)
  for suffix in (".csv", ".parquet", ".npy"):
    path = folder / f"large{suffix}"
    with path.open("wb") as file:
      file.truncate(large)
    yield f"{suffix} of 1 TB", lambda path=path: read(path, None)
  path = folder / "line.csv"
  with path.open("wb") as file:
    file.truncate(300_000_000)
  yield ".csv: a line of 300 MB", lambda path=path: read(path)
  path = folder / "text.parquet"
  texts = pyarrow.array([0] * 1000), pyarrow.array([10**6 * "x"])
  labels = pyarrow.DictionaryArray.from_arrays(*texts)
  table = pyarrow.table({"label": labels, "p_a": [0.5] * 1000})
  pyarrow.parquet.write_table(table, path)
  yield ".parquet: 1,000 labels of 1 MB", lambda path=path: read(path)
  path = folder / "header.npy"
  with path.open("wb") as file:
    file.write(b"\x93NUMPY\x02\x00" + (2**32 - 1).to_bytes(4, "little"))
    file.truncate(4 * 2**30 - 1)
  labels = folder / "labels.npy"
  np.save(labels, np.arange(3))
  yield ".npy: a header of 4 GB", lambda path=path: read(path, labels)


def commands(folder: pathlib.Path) -> Iterator[Case]:
  """Files that `report` refuses: one line, and no other output."""

  def attempt(path: pathlib.Path) -> None:
    out, errors = io.StringIO(), io.StringIO()
    before = sorted(folder.iterdir())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
      page = str(folder / "page.html")
      status = command.main(["report", str(path), "--output", page])
    text = errors.getvalue()
    assert status == 2 and not out.getvalue() and text.startswith("error: "), (
      status,
      text,
    )
    assert len(text) < 1100 and text[:-1].isprintable(), text
    assert sorted(folder.iterdir()) == before

  labels = np.arange(EXAMPLES) % CLASSES
  logits = np.zeros((EXAMPLES, CLASSES))
  odd = {
    "NaN seeds": {"seeds": labels * np.nan},
    "a split of another length": {"split": np.array(["test"] * 3)},
    "two classes of one name": {"classes": np.array(["a", "b", "a"])},
    "NaN logits": {"logits": logits * np.nan},
    "labels out of range": {"labels": labels + 7},
    "negative labels": {"labels": labels - 1},
    "labels of 400 digits": {"labels": np.array(["1" * 400] * EXAMPLES)},
    "no examples": {"logits": logits[:0], "labels": labels[:0]},
    "a single number": {"logits": np.array(1.0), "labels": np.array(1)},
    "complex logits": {"logits": logits + 1j},
    "dates": {"labels": labels.astype("M8[s]")},
    "structures": {"labels": np.zeros(EXAMPLES, [("x", "i4")])},
    "both kinds": {"probabilities": logits + 1 / 3},
  }
  for number, (name, changes) in enumerate(odd.items()):
    path = folder / f"{number}.npz"
    arrays: dict[str, Any] = {"logits": logits, "labels": labels}
    np.savez(path, **(arrays | changes))
    yield f"npz: {name}", lambda path=path: attempt(path)
  path = folder / "cut.npz"
  path.write_bytes((folder / "0.npz").read_bytes()[:300])
  yield "npz: cut", lambda path=path: attempt(path)
  for name, text in {
    "a cell of 140,000 characters": f"label,p_a\n0,{'1' * 140_000}\n",
    "a label of 400 digits": f"label,p_a,p_b\n{'1' * 400},0.5,0.5\n",
    "no UTF-8": "label,p_a\n\udcff,1\n",
    "NUL": "label,p_a,p_b\n\0,0.5,0.5\n",
    "escape sequences": "label,p_a,p_b\n\x1b[2J\x07,0.5,0.5\n",
    "names that clear the screen": "a,\x1b[2J\n0,1\n",
    "a name of 100,000 characters": f"a,{10**5 * 'x'}\n0,1\n",
    "an open quote": 'label,p_a,p_b\n"0,0.5,0.5\n',
  }.items():
    path = folder / f"{name}.csv"
    path.write_text(text, errors="surrogateescape")
    yield f"csv: {name}", lambda path=path: attempt(path)


def pages(folder: pathlib.Path) -> Iterator[Case]:
  """Odd names on pages. None may become code."""
  chance = np.random.default_rng(0)
  labels = np.arange(200) % len(NAMES)
  logits = chance.normal(size=(2, len(labels), len(NAMES)))
  logits[:, np.arange(200), labels] += 2
  groups = np.array([NAMES[i % 3 - 3] for i in range(200)])

  def check(result: Any) -> None:
    str(result)
    text = result.save(folder / "page.html").read_text("utf-8")
    assert "<script>" not in text and "<svg" in text

  def report(name: str) -> None:
    check(
      calibration.report(
        logits[0],
        labels,
        classes=NAMES,
        groups=groups,
        name=name,
        resamples=50,
      )
    )

  def compare(one: str, other: str) -> None:
    check(
      calibration.compare(
        *logits, labels, names=(one, other), classes=NAMES, resamples=50
      )
    )

  yield "report", lambda: report(NAMES[-1])
  for one, other in zip(NAMES[::2], NAMES[1::2], strict=True):
    name = f"compare {one!r} and {other!r}"
    yield name, lambda one=one, other=other: compare(one, other)


def run(folder: pathlib.Path, seed: int, share: float) -> list[Figures]:
  """Runs the library's cases."""
  chance = random.Random(f"library {seed}")
  times = lambda n: max(math.ceil(n * share), 1)
  for name in ("saved", "predictions", "commands", "pages"):
    (folder / name).mkdir(parents=True)
  saved, files = (
    recalibrators(folder / "saved"),
    predictions(folder / "predictions"),
  )
  figures = []
  for readers, what, how, count in (
    (saved, "recalibrators with impossible numbers", number, 100),
    (saved, "recalibrators of another shape", inputs.reshape, 500),
    (saved, "garbled recalibrators (fuzz)", inputs.garble, 500),
    (files, "a flipped bit in predictions", inputs.flip, 200),
    (files, "predictions truncated", inputs.truncate, 50),
    (files, "garbled predictions (fuzz)", inputs.garble, 200),
  ):
    figures.append(damage.each(readers, what, how, times(count), chance))
  what = "predictions that `report` refuses in one line"
  figures.append(each(what, commands(folder / "commands")))
  what = "reports and comparisons with odd names"
  return [*figures, each(what, pages(folder / "pages"))]
