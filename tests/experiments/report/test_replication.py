"""The report of the paper's experiments, from the rows that are kept."""

import dataclasses
import re

import pytest

from experiments import __main__ as command
from experiments.engine import rows
from experiments.report import kept as kept_rows
from experiments.report import replication
from experiments.report.page import Page
from experiments.studies import table1


def test_kept_report_is_current(page, tmp_path):
  page.write_markdown(tmp_path / "README.md")
  text = (tmp_path / "README.md").read_text("utf-8")
  assert text == (kept_rows.FOLDER / "README.md").read_text("utf-8"), (
    "run `python -m experiments report`"
  )
  for name in re.findall(r"\]\((.*?\.png)\)", text):
    assert (tmp_path / name).exists() and (kept_rows.FOLDER / name).exists()
  assert set(page.figures) == set(page.drawings)
  for line in text.splitlines():
    if line.startswith("|"):
      assert line.endswith("|")


def test_what_is_not_there_is_left_out(kept):
  some = [row for row in kept if row["study"] == "table1"]
  # Whichever of the studies that share the models made them.
  some = [row | {"study": "temperature"} for row in some]
  text = replication.make(some).markdown
  assert "Table 1" in text and "20 more seeds" not in text
  assert "CIFAR-10-C:" not in text and "Renormalized" not in text
  # Half of CIFAR-10-C is none, and another learning rate another study.
  half = [row for row in kept if not row["dataset"].startswith("jpeg")]
  text = replication.make(half).markdown
  assert "CIFAR-10-C:" not in text and "Renormalized" not in text
  other = dataclasses.replace(table1.STUDY.config, learning_rate=0.1)
  with pytest.raises(rows.RowsError, match="run table1"):
    replication.make([row | {"config_hash": other.hash} for row in kept])


def test_command(tmp_path, capsys, monkeypatch):
  page = Page("# Title\n\nText.", {})
  monkeypatch.setattr(replication, "make", lambda found: page)
  arguments = ["experiments", "report", "--output", str(tmp_path / "new")]
  monkeypatch.setattr("sys.argv", arguments)
  command.main()
  assert "report.html" in capsys.readouterr().out
  assert (tmp_path / "new" / "README.md").read_text() == "# Title\n\nText.\n"
