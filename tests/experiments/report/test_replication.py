"""The pages of the paper's experiments, from the rows that are kept."""

import dataclasses
import re

import pytest
from reading import change_text, corrupted, paired

from experiments import rows
from experiments.report import replication
from experiments.rows import kept as kept_rows
from experiments.studies import extended, table1, wide


def test_every_drawing_is_shown(pages):
  text = "".join(page.markdown for page in pages.values())
  shown = re.findall(r"\]\((.*?)\.png\)", text)
  assert set(shown) == set(pages["replication"].drawings)


def headings(path):
  """As GitHub names them in links."""
  titles = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
  plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
  return {title.replace(" ", "-") for title in plain}


@pytest.mark.parametrize(
  "name",
  [
    "results/README.md",
    "results/replication.md",
    "results/replication_appendix.md",
    "README.md",
    "../README.md",
  ],
)
def test_links_lead_somewhere(name):
  path = kept_rows.FOLDER.parent / name
  for link in re.findall(
    r"\[[^]]*\]\((?!http)(.*?)\)", path.read_text("utf-8")
  ):
    file, _, anchor = link.partition("#")
    target = path.parent / file if file else path
    assert target.exists(), link
    assert not anchor or anchor in headings(target), link


def test_first_lines(kept, runs, later, under_corruption, page):
  """What comes before the first heading, number by number."""
  text = page.markdown.partition("\n## ")[0]
  assert text.count("\n- ") + 1 <= 10

  def says(words, digits, *of, runs=runs, **how):
    """Words with {} for a difference, whose interval is returned."""
    pair = runs(*of, **how)
    change = change_text(*pair, f"{0:.{digits}f}", star=False)
    assert words.format(change) in text
    return paired(*pair)[1:3]

  after = {"part": "scaled_half"}
  of_40, of_10, of_5 = range(40), range(10), range(5)
  hard = corrupted(kept)
  says("max logit {},", 2, table1, "max_logit", of_40)
  says("a slightly lower loss, {},", 3, table1, "loss", of_40)
  says("ECE, {}, at", 4, table1, "ece", of_40)
  low, high = says("same accuracy, {} points", 2, table1, "top1", of_40)
  assert -0.5 < low < 0 < high < 0.5
  low, high = says("scaling**: loss {}.", 3, table1, "loss", of_40, **after)
  assert -0.02 < low < 0 < high < 0.02
  # Worse after scaling.
  for low, _ in (
    says("*worse* after scaling: loss {}", 3, wide, "loss", of_10, **after),
    says("ECE {};", 4, wide, "ece", of_10, **after),
    says(
      "ECE is worse after scaling, too, {}", 4, extended, "ece", of_5, **after
    ),
    says("corruption, {}", 3, extended, "loss", of_5, hard, **after),
  ):
    assert low > 0
  says("at epoch 80, loss {}", 3, wide, "loss", of_10, epoch=80, **after)
  says("images loss is {}", 3, extended, "loss", of_5, **after)
  # The crossings.
  for epoch in (20, 40, 60):
    assert paired(*runs(table1, "max_logit", of_40, epoch=epoch))[1] > 0
  says("loss differs by {}", 3, table1, "loss", of_40, epoch=80)
  says("ECE by {}", 4, table1, "ece", of_40, epoch=80)
  _, high = says("lower, {} points", 2, table1, "top1", of_40, epoch=80)
  assert high < 0
  for epoch in (20, 80, 100):
    at = "epoch 20" if epoch == 20 else epoch
    says(f"{{}} at {at}", 2, table1, "weight_norm", of_40, epoch=epoch)
  _, high = says("smaller, {}", 2, wide, "weight_norm", of_10)
  assert high < 0
  all_hard = {"runs": under_corruption, "datasets": hard}
  for low, high in (
    says("loss is lower, {}", 3, table1, "loss", of_40, **all_hard),
    says("Accuracy, {} points", 2, table1, "top1", of_40, **all_hard),
    says("scaling, {}, rest", 3, table1, "loss", of_40, **all_hard, **after),
  ):
    assert low * high > 0
  fresh = {"runs": later, "seeds": range(20, 40), "datasets": hard}
  for low, high in (
    says("undecided: {} and", 2, table1, "top1", **fresh),
    says(" and {} (", 3, table1, "loss", **fresh, **after),
  ):
    assert low < 0 < high


def test_missing_rows_are_an_error(kept, loaded):
  some = [row for row in kept if row["study"] != "wide_tf32"]
  with pytest.raises(rows.RowsError, match="run wide_tf32"):
    replication.make(some, *loaded[1:])
  half = [row for row in kept if row["dataset"] != "jpeg/5"]
  with pytest.raises(rows.RowsError, match="run corruption"):
    replication.make(half, *loaded[1:])
  with pytest.raises(rows.RowsError, match="run corruption_confirmation"):
    replication.make(kept, loaded[1], [])
  # Another learning rate is another study.
  other = dataclasses.replace(table1.STUDY.config, learning_rate=0.1)
  with pytest.raises(rows.RowsError, match="run table1"):
    replication.make(
      [row | {"config_hash": other.hash} for row in kept], *loaded[1:]
    )
