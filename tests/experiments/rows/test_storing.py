"""Files of rows: complete, resumable, and with checks of every byte."""

import dataclasses
import errno
import gzip
import hashlib
import json
import os
import re

from hypothesis import given
from hypothesis import strategies as st
from measured import row
import pytest

from experiments.config import SGD, Study
from experiments.rows import Rows, RowsError, read, write

# Two machines, two methods, numbers of all kinds.
ROWS = [
  row(seed, dataset, method=method, commit=commit, metrics={"loss": loss})
  for commit, loss in (("0123456789ab", 1e-9), ("ba9876543210-dirty", None))
  for method in ("sgd", "orthograd")
  for seed in ((0, 1) if loss else (2, 3))
  for dataset in ("clean", "größe/1")
]


def test_the_form_of_a_file(tmp_path):
  """By the rule in the module's docstring, written out."""
  path = tmp_path / "rows.jsonl"
  write(path, ROWS)
  check, contexts, actual = "", [], []
  for line in path.read_text("utf-8").splitlines():
    start, mark, end = line.rpartition(',"check":"')
    digest = hashlib.sha256(f"{check}{start}}}".encode()).hexdigest()
    check = digest[:16]
    assert mark and end == f'{check}"}}'
    content = json.loads(start + "}")
    number = content.pop("context")
    if "fields" in content:
      assert number == len(contexts)
      contexts.append(content["fields"])
    else:
      actual.append(contexts[number] | content)
  assert actual == ROWS == list(read(path))
  assert len(contexts) == 4
  assert {"study", "method", "versions", "commit"} <= contexts[0].keys()
  assert path.read_text("utf-8").count("3.12") == 4


def test_gzipped_files_are_reproducible(tmp_path):
  for name in ("a.jsonl.gz", "b.jsonl.gz"):
    write(tmp_path / name, ROWS)
  write(tmp_path / "rows.jsonl", ROWS)
  content = (tmp_path / "a.jsonl.gz").read_bytes()
  assert content == (tmp_path / "b.jsonl.gz").read_bytes()
  assert gzip.decompress(content) == (tmp_path / "rows.jsonl").read_bytes()
  # No name, no time, level 9, and no operating system, by RFC 1952.
  assert content[:10] == bytes([31, 139, 8, 0, 0, 0, 0, 0, 2, 255])
  assert list(read(tmp_path / "a.jsonl.gz")) == ROWS


def test_rows_are_added_once(tmp_path):
  path = tmp_path / "rows.jsonl"
  file = Rows(path)
  lost = row(metrics={"loss": float("nan")})
  file.append([lost, row(1)])
  file.append([row(1), row(2), row(2)])
  again = Rows(path)
  again.append([row(0)])
  again.append([row(3)])
  actual = list(read(path))
  assert [each["seed"] for each in actual] == [0, 1, 2, 3]
  assert actual[0]["metrics"]["loss"] is None
  # Also by a process that resumes, the context is written once.
  assert path.read_text("utf-8").count('"versions"') == 1


@given(st.data())
def test_any_byte_that_is_changed_is_noticed(tmp_path_factory, data):
  path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
  write(path, ROWS)
  content = bytearray(path.read_bytes())
  position = data.draw(st.integers(0, len(content) - 2))  # but the last newline
  content[position] ^= data.draw(st.integers(1, 255))
  number = path.read_bytes()[:position].count(b"\n") + 1
  path.write_bytes(content)
  with pytest.raises(RowsError, match=f"^Line {number} of .*Remove it and all"):
    list(read(path))


def test_rows_of_a_former_version(tmp_path):
  (tmp_path / "rows.jsonl").write_text(json.dumps(row()) + "\n")
  with pytest.raises(RowsError, match="has no check: perhaps a former version"):
    list(read(tmp_path / "rows.jsonl"))


@given(st.data())
def test_lines_that_are_moved_are_noticed(tmp_path_factory, data):
  path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
  write(path, ROWS)
  lines = path.read_bytes().splitlines(keepends=True)
  number = data.draw(st.integers(1, len(lines) - 1))
  removed = lines[: number - 1] + lines[number:]
  twice = lines[:number] + lines[number - 1 :]
  swapped = [*removed[:number], lines[number - 1], *removed[number:]]
  for changed, first in ((removed, number), (twice, number + 1)):
    path.write_bytes(b"".join(changed))
    with pytest.raises(RowsError, match=f"^Line {first} of .* was changed, or"):
      list(read(path))
  path.write_bytes(b"".join(swapped))
  with pytest.raises(RowsError, match=f"^Line {number} of "):
    list(read(path))


@given(st.data())
def test_a_torn_file_is_completed(tmp_path_factory, data):
  """Whatever a crash cuts off is written again, in the same bytes."""
  path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
  write(path, ROWS)
  whole = path.read_bytes()
  size = data.draw(st.integers(0, len(whole)))
  os.truncate(path, size)
  complete = whole[:size].count(b"\n")
  seen = list(read(path))
  assert seen == ROWS[: len(seen)]
  file = Rows(path)
  assert len(file.keys) == len(seen)
  assert path.read_bytes().count(b"\n") == complete
  file.append(ROWS)
  assert list(read(path)) == ROWS
  # The crash may have left a context without its first row.
  lines = [re.sub(rb',"check":".*', b"", x) for x in whole.splitlines()]
  again = path.read_bytes().splitlines()
  assert [re.sub(rb',"check":".*', b"", x) for x in again] == lines
  assert path.read_bytes() == whole


def test_a_row_twice(tmp_path):
  path = tmp_path / "rows.jsonl"
  write(path, [row(), row(time="later")])
  message = "Line 3 of .* same run, epoch and images as line 2.*Remove it"
  with pytest.raises(RowsError, match=message):
    Rows(path)


def test_rows_that_can_not_be_stored(tmp_path):
  file = Rows(tmp_path / "rows.jsonl")
  with pytest.raises(RowsError, match="its seed is -1, expected a nonnegative"):
    file.append([row(), row(-1)])
  assert not file.path.exists() and not file.keys
  file.append([row()])
  assert list(read(file.path)) == [row()]


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ({"context": 1, "fields": {}}, "has an unknown context, 1"),
    ({"context": 0, "seed": 1}, "has an unknown context, 0"),
    ({"context": 0, "fields": 3}, "is not a valid context: it is 3"),
    ({"context": 0, "fields": {}}, "is not a valid context: it has no study"),
    ({"seed": 0}, "has an unknown context, None"),
  ],
)
def test_lines_with_a_right_check_and_a_wrong_form(tmp_path, content, message):
  text = json.dumps(content)
  check = hashlib.sha256(text.encode()).hexdigest()[:16]
  path = tmp_path / "rows.jsonl"
  path.write_text(f'{text[:-1]},"check":"{check}"}}\n')
  with pytest.raises(RowsError, match=f"Line 1 of .*rows.jsonl {message}"):
    list(read(path))


def test_full_disk(tmp_path, monkeypatch):
  path = tmp_path / "rows.jsonl"
  file = Rows(path)
  file.append([row(0)])
  before = path.read_bytes()

  def full(handle):
    del handle
    raise OSError(errno.ENOSPC, "No space left on device")

  monkeypatch.setattr(os, "fsync", full)
  with monkeypatch.context() as patch:
    patch.setattr(os, "truncate", lambda path, size: full(path))
    with pytest.raises(RowsError, match="that it had are unchanged.*repeat"):
      file.append([row(1)])
  assert [each["seed"] for each in read(path)] == [0, 1]
  path.write_bytes(before)
  with pytest.raises(RowsError, match="No space left.*repeat the command"):
    file.append([row(1, commit="another context")])
  assert path.read_bytes() == before
  monkeypatch.undo()
  file.append([row(1), row(2, commit="another context")])
  assert len(list(read(path))) == 3


def test_damaged_gzipped_files(tmp_path):
  path = tmp_path / "x.jsonl.gz"
  write(path, ROWS)
  whole = path.read_bytes()
  flipped = bytearray(whole)
  flipped[30] ^= 255
  for content in (whole[:-20], b"x" + whole, bytes(flipped)):
    path.write_bytes(content)
    with pytest.raises(RowsError, match=r"x.jsonl.gz .*Restore it with git"):
      list(read(path))


def test_rows_from_before_a_setting(tmp_path):
  """Have its default: a new field of Method leaves older rows valid."""
  path, study = tmp_path / "rows.jsonl", Study("tiny", methods=(SGD,))
  settings = dataclasses.asdict(SGD)
  del settings["radius"]
  write(path, [row(config_hash=study.config.hash, settings=settings)])
  Rows(path).check_methods(study)
  changed = study.replace(methods=(SGD.replace(radius=0.1),))
  with pytest.raises(RowsError, match="rows of sgd with another radius"):
    Rows(path).check_methods(changed)
