"""The page of one study."""

import dataclasses
import json

import pytest

from experiments import report
from experiments.engine.rows import RowsError
from experiments.report import study
from experiments.studies import table1
from orthograd_optax import stats


def table(b):
  """Loss is what is given, and accuracy the same."""
  a = {"loss": [1.0, 1.1, 1.3, 1.2], "accuracy, %": [75.0, 76.0, 77.0, 75.0]}
  b = {"loss": b, "accuracy, %": [76.0, 75.0, 75.0, 77.0]}
  return stats.compare_table(a, b, paired=True, names=("SGD", "⊥Grad"))


@pytest.mark.parametrize(
  ("b", "text"),
  [
    (
      [0.5, 0.7, 0.8, 0.75],
      "Over 4 seeds, ⊥Grad has lower loss than SGD (p < 0.05 after Holm's "
      "adjustment). Not significantly different: accuracy.",
    ),
    (
      [1.5, 1.7, 1.8, 1.75],
      "Over 4 seeds, ⊥Grad has higher loss than SGD (p < 0.05 after Holm's "
      "adjustment). Not significantly different: accuracy.",
    ),
    (
      [1.1, 1.0, 1.2, 1.3],
      "Over 4 seeds, ⊥Grad has no metric that differs from SGD's at p < 0.05. "
      "Not significantly different: loss, accuracy.",
    ),
  ],
)
def test_verdict(b, text):
  assert study.verdict(table(b)) == text


def test_verdict_of_both_kinds():
  found = table([0.5, 0.7, 0.8, 0.75])
  rows = {"loss": found.rows["loss"], "ECE": found.rows["loss"]}
  rows["entropy"] = table([1.5, 1.7, 1.8, 1.75]).rows["loss"]
  found = stats.ComparisonTable(found.names, rows, dict.fromkeys(rows, 0.01))
  assert study.verdict(found) == (
    "Over 4 seeds, ⊥Grad has lower loss, ECE and higher entropy than SGD "
    "(p < 0.05 after Holm's adjustment)."
  )


def test_page_and_table(kept, tmp_path):
  settings = dataclasses.asdict(table1.STUDY)
  (tmp_path / "study.json").write_text(json.dumps(settings))
  path = tmp_path / "rows.jsonl"
  write = lambda rows: path.write_text("\n".join(map(json.dumps, rows)) + "\n")
  some = [row for row in kept if row["study"] == "table1" and row["seed"] < 3]
  write(some)
  said = report.write_study(tmp_path)
  assert "Over 3 seeds, ⊥Grad has " in said and "report.html" in said
  page = (tmp_path / "report.html").read_text("utf-8")
  assert "<title>SGD and ⊥Grad: the study table1</title>" in page
  assert page.count("<svg") == 2 and "learning_rate 0.01, " in page
  assert f"commit {some[-1]['commit']}" in page
  # Rows may be of code outside of git, such as a downloaded archive.
  write([row | {"commit": None} for row in some])
  report.write_study(tmp_path)
  assert "commit unknown" in (tmp_path / "report.html").read_text("utf-8")
  write(some)
  # One run diverged, and another is at its beginning.
  gone = {"dataset": "diverged", "epoch": 7, "seed": 3, "metrics": {}}
  early = {"epoch": 20, "seed": 4}
  (first,) = (
    row
    for row in some
    if row["seed"] == 0
    and row["epoch"] == 20
    and (row["optimizer"], row["dataset"]) == ("sgd", "clean")
  )
  write([*some, some[0] | gone, first | early])
  shown = report.show(tmp_path)
  assert f"{some[0]['optimizer']}, seed 3: diverged in epoch 7\n" in shown
  assert "\n\nThe test set after the last epoch:\n\n|" in shown
  assert "Over 3 seeds" in report.write_study(tmp_path)
  write([row for row in some if row["seed"] == 0])
  assert "The test set" not in report.show(tmp_path)
  with pytest.raises(RowsError, match="not enough to compare"):
    report.write_study(tmp_path)
