"""The pages of the paper's experiments, from the rows that are kept."""

import dataclasses
import re

import pytest
from reading import change_text, corrupted, paired

from experiments import __main__ as command
from experiments.engine import rows
from experiments.report import kept as kept_rows
from experiments.report import replication
from experiments.report.page import Page
from experiments.studies import extended, table1, wide


def test_kept_pages_are_current(pages, tmp_path):
  shown = set()
  for name, page in pages.items():
    path = tmp_path / f"{name}.md"
    page.write_markdown(path)
    text = path.read_text("utf-8")
    assert text == (kept_rows.FOLDER / f"{name}.md").read_text("utf-8"), (
      "run `python -m experiments report`"
    )
    for picture in re.findall(r"\]\((.*?\.png)\)", text):
      assert (tmp_path / picture).exists()
      assert (kept_rows.FOLDER / picture).exists()
    shown |= set(page.figures)
    for line in text.splitlines():
      if line.startswith("|"):
        assert line.endswith("|") and line.count("|") > 2
  assert shown == set(pages["replication"].drawings)
  kept = {path.stem for path in kept_rows.FOLDER.glob("*.png")}
  assert shown <= kept


def test_links_lead_somewhere(pages):
  """To files, and to headings of the other page."""
  headings = {}
  for name, page in pages.items():
    titles = re.findall(r"^#+ (.*)$", page.markdown, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    headings[f"{name}.md"] = {title.replace(" ", "-") for title in plain}
  for page in pages.values():
    for link in re.findall(r"(?<!!)\[.*?\]\((.*?)\)", page.markdown):
      path, _, anchor = link.partition("#")
      assert (kept_rows.FOLDER / path).exists()
      assert not anchor or anchor in headings[path]


def test_first_lines(kept, runs, page):
  """What comes before the first heading, number by number."""
  text = page.markdown.partition("\n## ")[0]
  assert text.count("\n- ") <= 10

  def says(before, after, a, b, digits):
    change = change_text(a, b, f"{0:.{digits}f}", star=False)
    assert f"{before}{change}{after}" in text
    return paired(a, b)

  of_40 = lambda metric, **how: runs(table1, metric, range(40), **how)
  says("max logit ", ")", *of_40("max_logit"), 2)
  says("lower loss (", ")", *of_40("loss"), 3)
  says("ECE (", ")", *of_40("ece"), 4)
  says("same accuracy (", " points", *of_40("top1"), 2)
  _, low, high, _ = says("loss ", ".\n", *of_40("loss", part="scaled_half"), 3)
  assert -0.02 < low < 0 < high < 0.02
  after = {"part": "scaled_half"}
  for metric, digits in (("loss", 3), ("ece", 4)):
    name = {"loss": "loss", "ece": "ECE"}[metric]
    worse = says(
      f"{name} ", "", *runs(wide, metric, range(10), **after), digits
    )
    assert worse[1] > 0
    says(f"{name} ", "", *runs(extended, metric, range(5), **after), digits)
  assert paired(*runs(extended, "ece", range(5), **after))[1] > 0
  says("", "", *runs(wide, "loss", range(10), epoch=80, **after), 3)
  worse = says(
    "loss ", "", *runs(extended, "loss", range(5), corrupted(kept), **after), 3
  )
  assert worse[1] > 0
  # The crossings.
  for epoch in (20, 40, 60):
    assert paired(*of_40("max_logit", epoch=epoch))[1] > 0
  says("loss differs by ", "", *of_40("loss", epoch=80), 3)
  says("ECE by ", "", *of_40("ece", epoch=80), 4)
  lower = says("lower, ", " points", *of_40("top1", epoch=80), 2)
  assert lower[2] < 0
  for epoch in (20, 80, 100):
    norm = says("(", ")", *of_40("weight_norm", epoch=epoch), 2)
    assert norm[1] > 0
  norm = says("(", ")", *runs(wide, "weight_norm", range(10)), 2)
  assert norm[2] < 0
  of = table1, range(20), corrupted(kept)
  says("accuracy ", " points", *runs(of[0], "top1", *of[1:]), 2)
  says("scaling ", ".", *runs(of[0], "loss", *of[1:], **after), 3)


def test_missing_rows_are_an_error(kept, loaded):
  some = [row for row in kept if row["study"] != "wide_tf32"]
  with pytest.raises(rows.RowsError, match="run wide_tf32"):
    replication.make(some, loaded[1])
  half = [row for row in kept if row["dataset"] != "jpeg/5"]
  with pytest.raises(rows.RowsError, match="run corruption"):
    replication.make(half, loaded[1])
  # Another learning rate is another study.
  other = dataclasses.replace(table1.STUDY.config, learning_rate=0.1)
  with pytest.raises(rows.RowsError, match="run table1"):
    replication.make(
      [row | {"config_hash": other.hash} for row in kept], loaded[1]
    )


def test_command(tmp_path, capsys, monkeypatch):
  pages = {name: Page(f"# {name}\n\nText.", {}) for name in replication.PAGES}
  monkeypatch.setattr(replication, "make", lambda *_: pages)
  arguments = ["experiments", "report", "--output", str(tmp_path / "new")]
  monkeypatch.setattr("sys.argv", arguments)
  command.main()
  said = capsys.readouterr().out
  assert "replication.md, replication_appendix.md and report.html" in said
  made = tmp_path / "new"
  text = (made / "replication.md").read_text()
  assert text == "# replication\n\nText.\n"
  whole = (made / "report.html").read_text()
  assert whole.count("<h1>") == 2 and "<title>replication</title>" in whole
