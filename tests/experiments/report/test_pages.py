"""The pages of the rows that are kept: all there, current, and nothing else."""

import re

import pytest

from experiments import __main__ as command
from experiments.report import pages
from experiments.rows import kept


def test_kept_pages_are_current():
  shown, made = set(), set()
  for name, page in pages.make():
    path = kept.FOLDER / f"{name}.md"
    assert path.read_text("utf-8") == page.markdown + "\n", (
      "run `python -m experiments report`"
    )
    for line in page.markdown.splitlines():
      if line.startswith("|"):
        assert line.endswith("|") and line.count("|") > 2
    made.add(path.name)
    shown |= set(re.findall(r"\]\(([^/)]*?\.png)\)", page.markdown))
  rows = {path.name for path in kept.FOLDER.glob("*.jsonl.gz")} | {kept.SUMS}
  there = {path.name for path in kept.FOLDER.glob("[!.]*")}
  assert there == made | shown | rows


@pytest.mark.slow
def test_command(tmp_path, capsys, monkeypatch):
  folder = tmp_path / "new"
  arguments = ["experiments", "report", "--output", str(folder)]
  monkeypatch.setattr("sys.argv", arguments)
  command.main()
  said = capsys.readouterr().out
  for path in kept.FOLDER.iterdir():
    if path.suffix == ".md":
      assert f"Wrote {folder / path.name}.\n" in said
      assert (folder / path.name).read_bytes() == path.read_bytes()
    elif path.suffix == ".png":
      assert (folder / path.name).stat().st_size > 5_000
