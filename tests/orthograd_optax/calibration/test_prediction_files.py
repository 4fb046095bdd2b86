"""Files of predictions: their keys, columns and damage."""

import importlib.util
import io
import json
import pathlib
import re
import zipfile

import jax
import numpy as np
import pytest
from small_reports import EXAMPLES, overconfident, run

from orthograd_optax import _files, calibration
from orthograd_optax.calibration import _predictions


def test_keys_of_npz(folder):
  logits, labels = overconfident()
  split = np.where(np.arange(EXAMPLES) % 2, "test", "validation")
  np.savez(
    "x.npz", logits=logits, labels=labels, group=split, split=split, seed=labels
  )
  content = _files.read("x.npz")
  np.testing.assert_array_equal(content["fit"], split != "test")
  upper = {"split": np.char.upper(split), "class_names": ["a", "b", "c"]}
  np.savez("y.npz", logits=logits, labels=labels, **upper)
  again = _files.read("y.npz")
  np.testing.assert_array_equal(again["fit"], content["fit"])
  assert again["classes"] == ["a", "b", "c"]
  np.testing.assert_array_equal(content["groups"], split)
  np.testing.assert_array_equal(content["seeds"], labels)


def test_brief():
  assert _files.brief("a\x1b[2J\nb") == "a [2J b"
  assert _files.brief(10**6 * "x") == 300 * "x" + "…"


def test_errors_do_not_quote_the_file(folder):
  logits, labels = overconfident()
  np.savez("x.npz", logits=logits, labels=labels)
  raw = bytearray(pathlib.Path("x.npz").read_bytes())
  header = raw.rindex(b"PK\x03\x04")
  raw[header + 26 : header + 28] = b"\xff\x0f"  # The name has 4,095 bytes.
  pathlib.Path("x.npz").write_bytes(raw)
  with pytest.raises(ValueError, match="by its array labels: .*…") as error:
    _files.read("x.npz")
  assert len(str(error.value)) < 600


def test_keys_of_a_wrong_length(folder, capsys):
  logits, labels = overconfident()
  np.savez("x.npz", logits=logits, labels=labels, split=["test"] * 3)
  _, _, err = run(capsys, "report", "x.npz")
  assert (
    "a split for each of its 400 labels, but the split has shape (3,)" in err
  )
  np.savez("x.npz", logits=logits, labels=labels, classes=["a", "b", "a"])
  assert "'a' more than once" in run(capsys, "report", "x.npz")[2]
  np.savez("x.npz", logits=logits, labels=labels, seed=labels * np.nan)
  assert "seeds[0] is NaN" in run(capsys, "report", "x.npz")[2]
  many = ["a"] * (logits.size + 2)
  for name in ("classes", "split", "labels"):
    np.savez("x.npz", **({"logits": logits, "labels": labels} | {name: many}))
    err = run(capsys, "report", "x.npz")[2]
    assert f"{name} for each example or class, but has 1,202" in err


def test_only_known_keys_are_read(folder, capsys, monkeypatch):
  logits, labels = overconfident()
  np.savez("x.npz", logits=logits, labels=labels, unused=np.zeros(10**6))
  limit = logits.nbytes + labels.nbytes + 1000
  monkeypatch.setattr(_files, "MAX_BYTES", limit)
  assert run(capsys, "report", "x.npz", "--json")[0] == 0
  monkeypatch.setattr(_files, "MAX_BYTES", limit - 2000)
  status, _, err = run(capsys, "report", "x.npz")
  assert status == 2 and f"at most {limit - 2000:,} bytes" in err
  assert "MAX_BYTES" in err


def damaged(kind):
  """An .npz file that NumPy does not write."""
  logits, labels = overconfident()
  content = {}
  for name, array in (("logits", logits), ("labels", labels)):
    out = io.BytesIO()
    np.save(out, array)
    content[name] = out.getvalue()
  if kind == "huge":
    tera = b"(999999999999, 2), }"
    header = content["logits"].replace(b"(400, 3), }" + b" " * 9, tera)
    assert len(header) == len(content["logits"]) and tera in header
    content["logits"] = header
  elif kind == "open":
    content["logits"] = content["logits"].replace(b"3), }", b"3(, }")
  methods = {"bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA}
  with zipfile.ZipFile(
    "x.npz", "w", methods.get(kind, zipfile.ZIP_STORED)
  ) as z:
    for name, data in content.items():
      z.writestr(f"{name}.npy", data)
  raw = bytearray(pathlib.Path("x.npz").read_bytes())
  if kind == "flipped":
    raw[2000] ^= 255
  elif kind == "cut":
    raw = raw[:-500]
  elif kind == "encrypted":
    for mark in (b"PK\x01\x02", b"PK\x03\x04"):
      at, offset = 0, 8 if mark == b"PK\x01\x02" else 6
      while (at := raw.find(mark, at)) >= 0:
        raw[at + offset] |= 1
        at += 4
  pathlib.Path("x.npz").write_bytes(raw)


@pytest.mark.parametrize(
  ("kind", "message"),
  [
    ("huge", r"damaged: .* bytes can't have shape \(999999999999, 2\)"),
    ("open", "multi-line statement"),
    ("flipped", "CRC"),
    ("cut", "not a zip"),
    ("encrypted", "is encrypted"),
    ("bzip2", "must be stored or deflated"),
    ("lzma", "must be stored or deflated"),
  ],
)
def test_damaged_and_hostile_npz(kind, message, folder, capsys):
  damaged(kind)
  status, out, err = run(capsys, "report", "x.npz")
  assert status == 2 and out == "" and re.search(message, err), err
  assert err.startswith("error: x.npz is not an .npz file")


def test_two_classes_of_csv(folder):
  """A column of scores is of the class that it is named after."""
  (folder / "x.csv").write_text(
    "label,probability_benign\nbenign,0.9\nmalignant,0.2\nmalignant,0.6\n"
  )
  content = _files.read("x.csv")
  assert content["classes"] == ["malignant", "benign"]
  assert content["labels"].tolist() == [1, 0, 0]
  assert content["kind"] == "probabilities"
  logits = _predictions.to_logits(content["predictions"], content["kind"])
  accuracy = calibration.accuracy(logits, content["labels"])
  assert accuracy == pytest.approx(2 / 3)


def test_rounded_probabilities(folder, capsys):
  """Ten probabilities of two decimals sum to 0.97 to 1.03."""
  random = np.random.default_rng(0)
  logits = random.normal(size=(500, 10))
  labels = np.argmax(logits + random.gumbel(size=logits.shape), axis=1)
  p = np.asarray(jax.nn.softmax(logits)).round(2)
  assert np.ptp(p.sum(axis=1)) > 0.04
  exact = p / p.sum(axis=1, keepdims=True)
  expected = float(
    calibration.ece(calibration.from_probabilities(exact), labels)
  )
  for prefix in ("", "p_"):
    lines = [",".join(["label", *(f"{prefix}{c}" for c in range(10))])]
    lines += [
      ",".join(map(str, (y, *row))) for y, row in zip(labels, p, strict=True)
    ]
    (folder / "x.csv").write_text("\n".join(lines) + "\n\n")  # a blank line
    status, out, _ = run(capsys, "report", "x.csv", "--json")
    assert status == 0
    # Rounding may move a confidence to the next bin.
    assert json.loads(out)["ece"]["value"] == pytest.approx(expected, abs=2e-3)
  np.savez("x.npz", logits=p, labels=labels)
  status, _, err = run(capsys, "report", "x.npz")
  assert status == 2 and "look like probabilities" in err


@pytest.mark.parametrize(
  "note",
  [
    {"index_columns": ["a"], "columns": [{}], "column_indexes": []},
    {
      "index_columns": [],
      "columns": [],
      "column_indexes": [{"pandas_type": "uni#ode", "numpy_type": "object"}],
    },
    {"index_columns": [], "columns": "abc", "column_indexes": []},
    "[" * 200_000,
  ],
)
def test_parquet_with_damaged_notes_of_pandas(note, folder, capsys):
  pyarrow = pytest.importorskip("pyarrow")
  parquet = pytest.importorskip("pyarrow.parquet")
  table = pyarrow.table({"a": [0.1, 0.9], "b": [0.9, 0.1], "label": ["a", "b"]})
  text = note if isinstance(note, str) else json.dumps(note)
  table = table.replace_schema_metadata({"pandas": text})
  parquet.write_table(table, "x.parquet")
  status, out, err = run(capsys, "report", "x.parquet")
  assert status == 2 and out == "", err
  assert err.startswith("error: x.parquet is not a .parquet file"), err


def test_parquet_whose_text_is_not_utf_8(folder, capsys):
  pyarrow = pytest.importorskip("pyarrow")
  parquet = pytest.importorskip("pyarrow.parquet")
  latin = pyarrow.array(["à".encode("latin-1"), b"b"]).view(pyarrow.string())
  table = pyarrow.table({"a": [0.1, 0.9], "b": [0.9, 0.1], "label": latin})
  parquet.write_table(table, "x.parquet")
  status, out, err = run(capsys, "report", "x.parquet")
  assert status == 2 and out == "" and err.startswith("error: "), err


@pytest.mark.parametrize(
  "header",
  [
    "{'descr': (), 'fortran_order': False, 'shape': (400, 3), }",
    f"{{'descr': '<f8', 'fortran_order': False, 'shape': (0, {2**70}), }}",
  ],
)
def test_npz_with_impossible_headers(header, folder, capsys):
  head = header.encode().ljust(117) + b"\n"
  with zipfile.ZipFile("x.npz", "w") as archive:
    start = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    archive.writestr("logits.npy", start)
    archive.writestr("labels.npy", start)
  status, _, err = run(capsys, "report", "x.npz")
  assert status == 2 and err.startswith("error: x.npz is not an .npz file"), err


def test_compare_files_of_other_shapes(folder, capsys):
  logits, labels = overconfident()
  for name, shape in (("a.npz", (2, EXAMPLES // 2)), ("b.npz", (EXAMPLES,))):
    np.savez(name, logits=logits, labels=labels.reshape(shape))
  status, _, err = run(capsys, "compare", "a.npz", "b.npz")
  assert status == 2 and err.startswith("error: "), err
  for name, change in (("a.npz", 0), ("b.npz", 1)):
    its = (labels + change).reshape(2, EXAMPLES // 2)
    np.savez(name, logits=logits, labels=its)
  status, _, err = run(capsys, "compare", "a.npz", "b.npz")
  assert status == 2 and "labels[0] is" in err, err


@pytest.mark.parametrize("name", ["", "id", "Index", "Unnamed: 0", "age"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_an_index_is_not_a_class(name, kind, folder, capsys):
  logits, labels = overconfident()
  words = np.array(["cat", "dog", "yak"])
  columns = {name: np.arange(EXAMPLES, dtype=float)}
  columns |= dict(zip(words, logits.T.astype(float), strict=True))
  if kind == "npz":
    table = np.stack(list(columns.values()), axis=1)
    keys = {"classes": list(columns), "labels": words[labels]}
    np.savez("x.npz", logits=table, **keys)
    if name == "age":
      return  # The classes are given by name.
  elif kind == "csv":
    lines = [",".join(["label", *columns])]
    lines += [
      ",".join([words[y], *map(str, row)])
      for y, *row in zip(labels, *columns.values(), strict=True)
    ]
    (folder / "x.csv").write_text("\n".join(lines))
  else:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(columns | {"label": words[labels]})
    frame.to_parquet("x.parquet")
  status, _, err = run(capsys, "report", f"x.{kind}")
  assert status == 2 and repr(name) in err
  remedy = f"logit_{name} or p_{name}" if name == "age" else "index=False"
  assert remedy in err


BAD_FILES = {
  "nothing.npz": (None, "no file nothing.npz. Make one with np.savez"),
  "text.npz": ("hello", "text.npz is not an .npz file"),
  "x.txt": ("hello", r"ends in '.txt'.*np.savez"),
  "x.npy": ("hello", "no labels. Add --labels labels.npy"),
  "empty.csv": ("", "empty.csv has no rows"),
  "header.csv": ("label,a,b\n", "header.csv has no rows"),
  "short.csv": (
    "label,p_a,p_b\n0,0.5,0.5\n1,0.5\n",
    "line 3 must have 3 cells",
  ),
  "word.csv": (
    "label,p_a,p_b\n0,0.5,0.5\n1,x,0.5\n",
    "line 3, column p_a: 'x' is not",
  ),
  "twice.csv": ("label,a,a\n0,0.5,0.5\n", "two columns of the same name"),
  "nolabel.csv": ("a,b\n0.5,0.5\n", "must have a column label"),
  "missing.csv": ("label,0,1\n0,1,2\n,1,2\n", "line 3 has no label"),
  "semicolons.csv": ("label;0;1\n0;1;2\n", "Separate columns by commas"),
  "sum.csv": (
    "label,prob_a,prob_b\na,0.5,0.5\nb,0.5,0.9\n",
    r"probabilities\[1\] is 1.4",
  ),
  "name.csv": (
    "label,p_a,p_b\na,0.5,0.5\nc,0.5,0.5\n",
    r"labels\[1\] is 'c', but the classes are 'a', 'b'",
  ),
  "range.csv": (
    "label,logit_a,logit_b\n0,1.5,0.5\n7,2,-3\n",
    r"labels\[1\] is 7",
  ),
  "nan.csv": ("label,0,1\n0,1.5,0.5\n1,nan,2\n", r"logits\[1\] has no softmax"),
  "one.csv": ("label,score\nyes,0.5\nno,0.2\n", "Name the column after"),
  "cell.csv": (f"label,p_a\n0,{'1' * 140_000}\n", "line 2 is not valid CSV"),
  "digits.csv": (
    f"label,p_a,p_b\n{'1' * 400},0.5,0.5\n",
    r"labels\[0\] is '11",
  ),
  "twins.csv": ("label,p_a,logit_a\n0,0.5,0.5\n", "'a' more than once"),
  "split.csv": ("label,0,1,split\n0,1,2,train\n", "must have the split test"),
  "screen.csv": ("a,\x1b[2J\n0,1\n", r"has the columns a, \\x1b\[2J,"),
  "long.csv": (f"a{'x' * 10**5},b\n0,1\n", r"^.{500,1100}$"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(name, folder, capsys):
  """The row, the rule and the remedy; and nothing is written."""
  content, message = BAD_FILES[name]
  if content is not None:
    (folder / name).write_text(content)
  before = sorted(folder.iterdir())
  status, out, err = run(capsys, "report", name)
  assert status == 2 and out == ""
  assert err.startswith("error: ") and re.search(message, err)
  assert "Traceback" not in err
  assert sorted(folder.iterdir()) == before


def test_bad_keys_and_outputs(folder, capsys):
  logits, labels = overconfident()
  np.savez("x.npz", scores=logits, labels=labels)
  _, _, err = run(capsys, "report", "x.npz")
  assert "must have the key labels, and either logits or" in err
  assert "['scores', 'labels']" in err
  np.savez("x.npz", logits=logits, probabilities=logits, labels=labels)
  _, _, err = run(capsys, "report", "x.npz")
  assert "not both" in err
  np.savez("x.npz", logits=logits, labels=labels.astype(str).astype(object))
  _, _, err = run(capsys, "report", "x.npz")
  assert "astype(str)" in err
  np.savez("x.npz", logits=logits, labels=np.array(["a", "b", "c"])[labels])
  _, _, err = run(capsys, "report", "x.npz")
  assert "classes=model.classes_" in err
  np.savez("x.npz", logits=logits, labels=labels)
  for output, message in (("page.pdf", ".html"), ("no/x.html", "folder no")):
    status, _, err = run(capsys, "report", "x.npz", "--output", output)
    assert status == 2 and message in err
  status, _, err = run(capsys, "report", "x.npz", "--labels", "labels.npy")
  assert status == 2 and "no file labels.npy" in err
  status, _, err = run(capsys, "report", "x.npz", "--labels", "x.npz")
  assert status == 2 and "x.npz is not needed" in err
  monkeypatch = pytest.MonkeyPatch()
  with monkeypatch.context() as patch:
    patch.setattr(importlib.util, "find_spec", lambda _: None)
    status, _, err = run(capsys, "report", "x.npz")
  assert status == 2 and "pip install matplotlib" in err
  assert [p.name for p in folder.iterdir()] == ["x.npz"]
