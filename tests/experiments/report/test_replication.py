"""The report of the paper's experiments, from the rows that are kept."""

import dataclasses
import html.parser
import json
import re
import shutil

import numpy as np
import pytest
import scipy.stats

from experiments import __main__ as command
from experiments.engine import rows
from experiments.report import kept as results
from experiments.report import page, paper, replication
from experiments.report import tables as tables_of
from experiments.report.study import METRICS, NAMES
from experiments.studies import (
  extended,
  table1,
  unaugmented,
  wide,
  wide_tf32,
)

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def kept():
  return results.load()


@pytest.fixture(scope="module")
def blocks(kept):
  return replication.make(kept)


def section(blocks, title):
  """The blocks below a heading, up to the next."""
  starts = [i for i, b in enumerate(blocks) if str(b).startswith("## ")]
  (start,) = (i for i in starts if title in blocks[i])
  end = next((i for i in starts if i > start), len(blocks))
  return blocks[start + 1 : end]


def tables(blocks, title):
  found = section(blocks, title)
  return [b.rows for b in found if isinstance(b, page.Table)]


def is_resnet(row):
  """Whether it is of ResNet-18 after the last of 100 epochs."""
  found = row["model"], row["config"]["epochs"], row["epoch"]
  return found == ("resnet18", 100, 100)


def column(kept, optimizer, metric, seeds, dataset="clean", part="metrics"):
  """Straight from the rows, by seed."""
  found = {
    row["seed"]: row[part][metric]
    for row in kept
    if (row["optimizer"], row["dataset"]) == (optimizer, dataset)
    and is_resnet(row)
  }
  return np.array([found[seed] for seed in seeds])


def test_rows_are_whole(kept):
  keys = [rows.key(row) for row in kept]
  assert len(set(keys)) == len(keys)
  names = ("study", "model", "metrics", "config", "versions", "device")
  names += ("commit", "wall_time", "precision")
  assert all(name in row for row in kept for name in names)
  assert not any(row["dataset"] == "diverged" for row in kept)
  for row in kept:
    if row["dataset"] != "train":
      assert sum(row["bins"]["count"]) == 10_000


def test_table_1(kept, blocks):
  ((header, *lines),) = tables(blocks, "Table 1")
  by_name = {line[0]: dict(zip(header, line, strict=True)) for line in lines}
  assert len(by_name) == len(paper.TABLE_1) == 12
  for metric in paper.TABLE_1:
    cells = by_name[METRICS[metric]]
    a, b = (
      column(kept, name, metric, range(20)) for name in ("sgd", "orthograd")
    )
    pooled = np.sqrt((np.var(a, ddof=1) + np.var(b, ddof=1)) / 2)
    d = (np.mean(a) - np.mean(b)) / pooled
    assert cells["d, ours"].split()[0] == f"{d:.2f}"
    p = scipy.stats.ttest_ind(a, b, equal_var=False).pvalue
    assert float(cells["p, Welch"]) == pytest.approx(p, rel=0.5, abs=5e-4)
    p = scipy.stats.ttest_rel(a, b).pvalue
    assert float(cells["p, paired"]) == pytest.approx(p, rel=0.5, abs=5e-4)
    first, second = (i for i, name in enumerate(header) if name == "ours")
    row = next(x for x in lines if x[0] == METRICS[metric])
    for i, x in ((first, a), (second, b)):
      mean, std = row[i].split(" ± ")
      digits = len(mean.partition(".")[2])
      assert mean == f"{np.mean(x):.{digits}f}"
      assert std == f"{np.std(x, ddof=1):.{digits}f}" and float(std) > 0


@pytest.mark.parametrize("metric", paper.TOLERANCE)
@pytest.mark.parametrize("seeds", [range(20), range(20, 40)])
def test_columns_are_the_papers(kept, metric, seeds):
  for optimizer in ("sgd", "orthograd"):
    ours = np.mean(column(kept, optimizer, metric, seeds))
    theirs = getattr(paper.TABLE_1[metric], optimizer)
    assert abs(ours - theirs) <= paper.TOLERANCE[metric]


@pytest.mark.parametrize("metric", ["max_logit", "logit_variance"])
def test_logits_are_smaller(kept, metric):
  a, b = (
    column(kept, name, metric, range(40)) for name in ("sgd", "orthograd")
  )
  assert np.mean(b) < np.mean(a)
  assert scipy.stats.ttest_ind(a, b, equal_var=False).pvalue < 0.001


def test_headline(kept):
  """What the README quotes is what the rows say."""
  text = (results.FOLDER.parents[1] / "README.md").read_text("utf-8")
  found = results.Results(kept, table1.STUDY.config)
  _, paired = tables_of.compared(found, range(40))
  names = {"top1": "accuracy, %", "max_logit": "max logit", "ece": "ECE"}
  names |= {m: METRICS[m] for m in ("loss", "entropy", "temperature")}
  for metric, name in names.items():
    row = paired.rows[metric]
    cells = [
      name,
      tables_of.spread(metric, row.mean_a, row.std_a),
      tables_of.spread(metric, row.mean_b, row.std_b),
      tables_of.effect(row),
      tables_of.p_value(paired.adjusted[metric]),
    ]
    assert f"| {' | '.join(cells)} |" in text


def test_corruption_by_severity(kept, blocks):
  _, by_severity, by_corruption, _ = tables(blocks, "CIFAR-10-C: the same")
  (line,) = (x for x in by_severity if x[0] == "loss")
  names = {row["dataset"] for row in kept if row["dataset"].endswith("/3")}
  extra = {"speckle_noise/3", "gaussian_blur/3", "spatter/3", "saturate/3"}
  assert len(names) == 19 and extra < names
  for optimizer, cell in zip(
    ("sgd", "orthograd"), line[3].strip(" *").split(" / "), strict=True
  ):
    losses = [
      column(kept, optimizer, "loss", range(20), name) for name in names - extra
    ]
    assert cell == f"{np.mean(losses):.3f}"
  assert len(by_corruption) == 1 + 19


def test_renormalization_is_tested_for_equivalence(kept, blocks):
  clean, corrupted = tables(blocks, "Renormalized, or not")
  assert len(corrupted) == len(clean) - 1  # weights don't depend on images
  (line,) = (x for x in clean if x[0] == "ECE")
  a, b = (
    column(kept, name, "ece", range(10))
    for name in ("orthograd", "orthograd_unnormalized")
  )
  # Two one-sided tests: the larger p-value.
  p = max(
    scipy.stats.ttest_rel(a + 0.01, b, alternative="greater").pvalue,
    scipy.stats.ttest_rel(a - 0.01, b, alternative="less").pvalue,
  )
  assert float(line[-1]) == pytest.approx(p, abs=5e-4)


def test_reliability_is_of_all_corrupted_images(kept, blocks):
  clean, corrupted = (
    b for b in section(blocks, "Reliability") if isinstance(b, page.Picture)
  )
  for picture, seeds, sets in ((clean, 40, 1), (corrupted, 20, 75)):
    found = [
      row
      for row in kept
      if row["optimizer"] == "sgd"
      and is_resnet(row)
      and ((row["dataset"] == "clean") if sets == 1 else _is_corrupted(row))
    ]
    assert len(found) == seeds * sets
    counts = np.sum([row["bins"]["count"] for row in found], axis=0)
    bars = [
      patch.get_height()
      for patch in picture.figure.axes[2].patches
      if patch.get_height() > 0
    ]
    shares = 100 * counts / np.sum(counts)
    np.testing.assert_allclose(max(bars), max(shares), rtol=1e-4)


def _is_corrupted(row):
  name, _, severity = row["dataset"].partition("/")
  extra = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
  return severity and name not in extra


def test_kept_report_is_current(blocks, tmp_path):
  page.write_markdown(blocks, tmp_path / "README.md")
  text = (tmp_path / "README.md").read_text("utf-8")
  assert text == (results.FOLDER / "README.md").read_text("utf-8"), (
    "run `python -m experiments report`"
  )
  for name in re.findall(r"\]\((.*?\.png)\)", text):
    assert (tmp_path / name).exists() and (results.FOLDER / name).exists()
  for line in text.splitlines():
    if line.startswith("|"):
      assert line.endswith("|")


class Reader(html.parser.HTMLParser):
  """Counts tags, and collects what a page would fetch."""

  def __init__(self):
    super().__init__()
    self.tags, self.links = [], []

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href")]


def test_page_needs_no_other_file(blocks, tmp_path):
  path = tmp_path / "report.html"
  page.write_html(blocks, path)
  reader = Reader()
  reader.feed(path.read_text("utf-8"))
  pictures = [b for b in blocks if isinstance(b, page.Picture)]
  assert reader.tags.count("svg") == len(pictures) >= 5
  assert reader.tags.count("table") == len(
    [b for b in blocks if isinstance(b, page.Table)]
  )
  assert all(link.startswith("#") for link in reader.links)


def values(kept, study, optimizer, metric, dataset="clean", part="metrics"):
  """Straight from the rows: by seed, and by epoch."""
  found: dict[int, dict[int, float]] = {}
  wanted = study.STUDY.config.hash, optimizer, dataset
  for row in kept:
    if (row["config_hash"], row["optimizer"], row["dataset"]) == wanted:
      at = found.setdefault(row["seed"], {})
      at[row["epoch"]] = row[part][metric]
  return found


def test_wide(kept, blocks):
  ((_, *lines), way, *others) = tables(blocks, "WRN-28-10: 5 seeds")
  *_, fresh, both, _, _, _ = others
  assert len(others) == 8
  pictures = [b.name for b in blocks if isinstance(b, page.Picture)]
  names = ["wide_reliability", "radial", "extended", "trajectories"]
  assert set(names) < set(pictures)
  assert [line[0] for line in lines] == list(METRICS.values())
  found = {line[0]: line for line in lines}["loss"]
  assert found[1] == "1.05" and found[-1] == "**not within** 0.08"
  # After the best of a run's epochs.
  for table, first in ((way, 0), (fresh, 5)):
    for line, metric, digits in zip(
      table[1:], ("top1", "loss", "max_logit"), (2, 3, 2), strict=True
    ):
      cells = []
      for name in ("sgd", "orthograd"):
        by_seed = values(kept, wide, name, "top1")
        its = values(kept, wide, name, metric)
        best = [
          its[i][max(by_seed[i], key=by_seed[i].get)]
          for i in range(first, first + 5)
        ]
        mean, std = np.mean(best), np.std(best, ddof=1)
        cells.append(f"{mean:.{digits}f} ± {std:.{digits}f}")
      assert line[-1] == " / ".join(cells)
  ours = list(values(kept, wide, "orthograd", "top1").items())
  ours = np.array([x[100] for _, x in sorted(ours)])
  assert both[1][4] == f"{np.mean(ours):.2f} ± {np.std(ours, ddof=1):.2f}"
  # The paper's d of accuracies that differ by 0.46 is -0.35; and of the four p
  # that are adjusted, this is the least.
  fresh = ours[5:]
  variances = np.var(fresh, ddof=1) / 5, (0.46 / 0.35) ** 2 / 5
  t = (79.0 - np.mean(fresh)) / np.sqrt(sum(variances))
  freedom = 4 * sum(variances) ** 2 / sum(np.square(variances))
  p = 4 * 2 * scipy.stats.t(freedom).sf(t)
  text = " ".join(
    b for b in section(blocks, "WRN-28-10: 5 seeds") if isinstance(b, str)
  )
  assert f"{np.mean(fresh):.2f} where the paper has 79.00 (p {p:.3f})" in text


def test_precision_of_wide(kept, blocks):
  (*_, table, _, difference) = tables(blocks, "WRN-28-10: 5 seeds")
  assert {line[0]: line[-1] for line in table if line[-1]} == {
    "": "match",
    "loss": "within 0.08",
    "max logit": "within 0.6",
  }
  # Student's t, written out, of ⊥Grad's loss from epoch 60 on.
  few, many = (
    np.array(
      [
        np.mean([its[epoch] for epoch in range(60, 101, 4)])
        for seed, its in values(kept, study, "orthograd", "loss").items()
        if study is wide_tf32 or seed >= 5
      ]
    )
    for study in (wide_tf32, wide)
  )
  assert (len(few), len(many)) == (2, 5)
  squares = sum(np.sum((x - np.mean(x)) ** 2) for x in (few, many))
  error = np.sqrt(squares / 5 * (1 / 2 + 1 / 5))
  found = np.mean(few) - np.mean(many)
  law = scipy.stats.t(5)
  low, high = (found + sign * law.ppf(0.975) * error for sign in (-1, 1))
  p = 2 * law.sf(abs(found) / error)
  (line,) = (x for x in difference if x[0] == "⊥Grad’s loss")
  assert line[-1] == f"{found:.3f} ({low:.3f}, {high:.3f}), p {p:.3f}"


def test_extended(kept, blocks):
  (table, said, way) = tables(blocks, "Extended training")
  assert table[1][1] == "70.5 / 65.8" and table[1][0].endswith("paper")
  last = lambda *what: np.array(
    [by_epoch[1000] for by_epoch in values(kept, extended, *what).values()]
  )
  a, b = (last(name, "top1") for name in ("sgd", "orthograd"))
  assert len(a) == len(b) == 5
  assert table[2][1] == f"{np.mean(a):.2f} / {np.mean(b):.2f}"
  assert way[1][5] == table[2][1]
  assert "0 of 5 seeds" in said[-1][2] and "not confirmed" in said[-1][1]
  names = {row["dataset"] for row in kept if _is_corrupted(row)}
  hardest = [name for name in names if name.endswith("/5")]
  assert len(hardest) == 15
  a, b = (
    np.mean([last(name, "loss", of) for of in hardest], axis=0)
    for name in ("sgd", "orthograd")
  )
  change = b - a
  students, error = scipy.stats.t(4), np.std(change, ddof=1) / np.sqrt(5)
  margin = students.ppf(0.975) * error
  low, high = np.mean(change) - margin, np.mean(change) + margin
  p = 2 * students.cdf(np.mean(change) / error)
  expected = f"5: {np.mean(change):.3f} ({low:.3f}, {high:.3f}), p {p:.2g}"
  assert said[2][2].endswith(expected) and said[2][1] == "**holds**"
  text = " ".join(
    b for b in section(blocks, "Extended training") if isinstance(b, str)
  )
  late = [
    value
    for name in ("sgd", "orthograd")
    for by_epoch in values(kept, extended, name, "top1").values()
    for epoch, value in by_epoch.items()
    if epoch >= 800
  ]
  assert f"lowest of all {len(late)} values" in text
  assert f"is {min(late):.1f} %" in text
  scaled = [
    np.mean(last(name, "loss", "clean", "scaled"))
    for name in ("sgd", "orthograd")
  ]
  assert "{:.3f} against {:.3f}".format(*scaled) in text


def test_sections_to_come(kept):
  """Of studies that have not been run, on rows such as they make."""

  def as_if(row, study, **fields):
    config = study.STUDY.config
    its = {"study": study.STUDY.name, "model": config.model}
    its |= {"config": dataclasses.asdict(config), "config_hash": config.hash}
    return row | its | fields

  made = []
  its = extended.STUDY.config.hash
  for row in kept:
    if row["config_hash"] == its:
      if row["epoch"] == 1000 and row["seed"] < 2:
        made.append(as_if(row, unaugmented))
  blocks = replication.make([*kept, *made])
  assert "### Without augmentation, 2 seeds" in blocks
  assert len(tables(blocks, "Extended training")) == 4


def test_what_is_not_there_is_left_out(kept):
  some = [row for row in kept if row["study"] == "table1"]
  # Whichever of the studies that share the models made them.
  some = [row | {"study": "temperature"} for row in some]
  text = " ".join(b for b in replication.make(some) if isinstance(b, str))
  assert "Table 1" in text and "20 more seeds" not in text
  assert "CIFAR-10-C:" not in text and "Renormalized" not in text
  # Half of CIFAR-10-C is none, and another learning rate another study.
  half = [row for row in kept if not row["dataset"].startswith("jpeg")]
  text = " ".join(b for b in replication.make(half) if isinstance(b, str))
  assert "CIFAR-10-C:" not in text and "Renormalized" not in text
  other = dataclasses.replace(table1.STUDY.config, learning_rate=0.1)
  with pytest.raises(rows.RowsError, match="run table1"):
    replication.make([row | {"config_hash": other.hash} for row in kept])


def test_blocks():
  table = page.Table([["", "a|b"], ["x < y", "**1**"]], "A `note`.")
  assert page._markdown(table).splitlines()[0] == "|  | a\\|b |"
  text = page._html(table)
  assert "x &lt; y" in text and "<b>1</b>" in text and "<code>note" in text
  assert page._html("## A & B") == "<h2>A &amp; B</h2>"
  assert page._html("- a\n- b") == "<ul><li>a</li><li>b</li></ul>"


def test_keep(kept, tmp_path, capsys, monkeypatch):
  some = kept[:6]
  folder, into = tmp_path / "run", tmp_path / "results"
  folder.mkdir()
  monkeypatch.setattr(results.keep, "__defaults__", (into,))
  write = lambda found: (folder / "rows.jsonl").write_text(
    "".join(json.dumps(row) + "\n" for row in found)
  )
  write(some[:4])
  monkeypatch.setattr("sys.argv", ["experiments", "keep", str(folder)])
  command.main()
  study = some[0]["study"]
  assert f"{study}.jsonl.gz" in capsys.readouterr().out
  before = (into / f"{study}.jsonl.gz").read_bytes()
  command.main()  # the same rows, and the same file
  assert (into / f"{study}.jsonl.gz").read_bytes() == before
  write([{**some[0], "wall_time": 1.5}, *some[4:]])
  command.main()
  found = {rows.key(row): row for row in results.load(into)}
  assert len(found) == 6
  assert found[rows.key(some[0])]["wall_time"] == 1.5
  shutil.rmtree(folder)
  with pytest.raises(SystemExit, match="has no rows"):
    command.main()


def test_command(tmp_path, capsys, monkeypatch, kept):
  monkeypatch.setattr(replication, "make", lambda found: ["# Title", "Text."])
  arguments = ["experiments", "report", "--output", str(tmp_path / "new")]
  monkeypatch.setattr("sys.argv", arguments)
  command.main()
  assert "report.html" in capsys.readouterr().out
  assert (tmp_path / "new" / "README.md").read_text() == "# Title\n\nText.\n"
  assert set(NAMES) == {row["optimizer"] for row in kept}
