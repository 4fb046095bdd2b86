"""Files of rows that are joined."""

from measured import row
import pytest

from experiments.rows import RowsError, join, read, write


def test_shares_of_a_study(tmp_path):
  a, b, whole = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
  write(a, [row(3), row(1)])
  write(b, [row(2, commit="unknown"), row(0)])
  join([a, b], whole)
  actual = list(read(whole))
  assert [each["seed"] for each in actual] == [0, 1, 2, 3]
  assert actual[2]["commit"] == "unknown"
  join([b, a], tmp_path / "d.jsonl")
  assert (tmp_path / "d.jsonl").read_bytes() == whole.read_bytes()


def test_files_that_can_not_be_joined(tmp_path):
  a, b, whole = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
  write(a, [row(0)])
  write(b, [row(0, time="later")])
  message = "both have a row of sgd, seed 0, after epoch 1 on clean. Join"
  with pytest.raises(RowsError, match=message):
    join([a, b], whole)
  b.write_bytes(a.read_bytes().replace(b"0.25", b"0.26"))
  with pytest.raises(RowsError, match=r"Line 2 of .*b.jsonl was changed"):
    join([b], whole)
  with pytest.raises(RowsError, match="have no rows"):
    join([tmp_path / "nowhere.jsonl"], whole)
  assert not whole.exists()
