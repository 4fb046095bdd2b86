"""The page of one study, and the rule for its verdicts."""

import dataclasses
import datetime
import functools
import html
import json

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import scipy.stats

from experiments import report, rows
from experiments.report import outcomes, plan, study
from experiments.report.compare import CORRUPTED, Compared, provenance
from experiments.report.results import Results
from experiments.rows import RowsError
from experiments.rows import kept as kept_rows
from experiments.studies import corruption_confirmation, schedules, table1

LOSS = outcomes.OUTCOMES["scaled_loss"]
ACCURACY = outcomes.OUTCOMES["accuracy"]


@pytest.mark.parametrize(
  ("change", "noise", "loss", "accuracy"),
  [
    (-0.1, 0.01, "helps", "harms, by less than matters"),
    (0.1, 0.01, "harms", "helps, by less than matters"),
    (
      -0.01,
      0.001,
      "helps, by less than matters",
      "harms, by less than matters",
    ),
    (0.0, 0.001, "no difference that matters", "no difference that matters"),
    (0.0, 0.1, "undecided", "no difference that matters"),
    (0.0, 1.0, "undecided", "undecided"),
  ],
)
def test_verdicts(change, noise, loss, accuracy):
  a = np.linspace(1.0, 2.0, 10)
  b = a + change + noise * np.tile([1.0, -1.0], 5)
  row = Compared("loss", a, b)
  assert outcomes.verdict(row, LOSS) == loss
  assert outcomes.verdict(row, ACCURACY) == accuracy


@given(
  st.lists(st.floats(-0.1, 0.1), min_size=3, max_size=12),
  st.floats(1e-4, 0.05),
  st.floats(1, 10),
)
def test_verdicts_follow_the_interval(differences, spread, factor):
  """By SciPy's interval; an adjustment can only make them less certain."""
  a = np.zeros(len(differences))
  b = np.array(differences) + spread * np.arange(len(a))
  low, high = scipy.stats.ttest_1samp(b, 0).confidence_interval()
  row = Compared("loss", a, b)
  inside = -0.02 < low and high < 0.02
  if low > 0 or high < 0:
    word = "helps" if high < 0 else "harms"
    tail = ", by less than matters" if inside else ""
    assert outcomes.verdict(row, LOSS) == word + tail
  row.adjusted = min(1.0, factor * row.adjusted)
  if row.adjusted >= 0.05:
    word = "no difference that matters" if inside else "undecided"
    assert outcomes.verdict(row, LOSS) == word


def made(seeds=6):
  """Rows of a study with two pairs: the second is lower by 0.1, or equal."""
  rng = np.random.default_rng(0)
  noise = rng.normal(scale=0.002, size=(seeds, 5))
  losses = {
    "sgd": 0.8,
    "orthograd": 0.7,
    "cosine": 0.6,
    "orthograd_cosine": 0.6,
  }
  for seed in range(seeds):
    for i, (name, loss) in enumerate(losses.items()):
      loss += 0.05 * seed + float(noise[seed, i])
      for dataset in ("train", "clean", *CORRUPTED):
        metrics = {
          m: loss for m in ("loss", "ece", "brier", "wrong_confidence")
        }
        metrics["top1"] = 80.0 + float(noise[seed, i])
        yield {
          "study": "schedules",
          "method": name,
          "seed": 100 + seed,
          "epoch": 100,
          "dataset": dataset,
          "metrics": metrics,
          "scaled_half": {"loss": loss},
          "scaled_clean": {"loss": 2 * loss},
          "bins": {k: [0.5] * 10 for k in ("count", "confidence", "accuracy")},
          "config_hash": schedules.STUDY.config.hash,
          "time": "2026-11-17T00:00:00",
          "wall_time": 60.0,
          "device": "1 × H200",
          "versions": {"jax": "0.0"},
          "precision": "bfloat16",
          "commit": "abc",
        }


def test_equal_pairs_do_not_differ():
  row = Compared("loss", np.ones(3), np.ones(3))
  assert row.p == 1 and row.interval == (0, 0) and row.sign == 0
  assert outcomes.verdict(row, LOSS) == "no difference that matters"


def test_only_what_is_planned_has_the_plan():
  rows = list(made(seeds=10))
  found = Results(rows, schedules.STUDY.config)
  assert "don’t need it.**" in study.make(schedules.STUDY, found).markdown
  changed = schedules.STUDY.override(["methods=sgd,orthograd"])
  page = study.make(changed, found).markdown
  assert "don’t need it" not in page and "PLAN.md" not in page
  assert "run schedules --set methods=sgd,orthograd`: " in page


def test_page_of_a_planned_study():
  found = Results(made(), schedules.STUDY.config)
  answer = study.answer(schedules.STUDY, found)
  assert answer.verdicts == {
    ("sgd", "orthograd"): "helps",
    ("cosine", "orthograd_cosine"): "no difference that matters",
  }
  row = answer.rows["sgd", "orthograd"]
  test = scipy.stats.ttest_rel(row.b, row.a)
  other = answer.rows["cosine", "orthograd_cosine"]
  assert row.adjusted == pytest.approx(2 * min(test.pvalue, other.p))
  low, high = test.confidence_interval()
  page = study.make(schedules.STUDY, found)
  shown = f"| {np.mean(row.b - row.a):+.3f} ({low:+.3f}, {high:+.3f}) |"
  assert "| ⊥Grad − SGD " + shown in page.markdown
  # Seven other outcomes, of which the losses and what has their numbers differ.
  (line,) = (
    line
    for line in page.markdown.split("## The other")[1].splitlines()
    if line.startswith("| ⊥Grad − SGD |")
  )
  assert len(line.split("|")) == 2 + 1 + 7 and line.count(" *") == 5
  assert "**Question.** Does ⊥Grad help once a temperature is" in page.markdown
  assert set(page.figures) == {
    "schedules_differences",
    "schedules_reliability",
  }
  after_t, without = page.drawings["schedules_differences"]().axes
  for axis, label in ((after_t, "loss after T"), (without, "loss without T")):
    assert f"difference in {label}, nats, 95 %" in axis.get_xlabel()
  text = f"{np.mean(row.b - row.a):+.3f} ({low:+.3f}, {high:+.3f})"
  assert after_t.texts[0].get_text() == text.replace("-", "−")


def write_named(folder, name, change=lambda row: row):
  """Writes a folder of a study with a name, with two epochs of its rows."""
  it = dataclasses.replace(schedules.STUDY, name=name, evaluate_every=50)
  folder.mkdir()
  settings = json.dumps(dataclasses.asdict(it))
  (folder / "study.json").write_text(settings)
  rows.write(
    folder / "rows.jsonl",
    (
      change(row | {"study": name, "epoch": epoch})
      for row in made(seeds=2)
      if "/" not in row["dataset"]
      for epoch in (50, 100)
    ),
  )
  return folder


@pytest.mark.parametrize(
  "name", ["größe", "100%", "100%25", "a|b", "a b", "a](b)", "<b>", "$x$", "⊥"]
)
def test_names_of_studies(tmp_path, name):
  """Pictures are found, whatever Markdown makes of a name in a link."""
  folder = write_named(tmp_path / "study", name)
  study.write(folder)
  page = (folder / "report.html").read_text("utf-8")
  assert page.count("<svg") == page.count("<figcaption>") == 3
  assert f"<title>{html.escape(name)}" in page and "<b>" not in page
  assert "⊥Grad" in study.show(folder)


@pytest.mark.parametrize("part", ["metrics", "scaled_half"])
def test_null_numbers(tmp_path, part):
  """Rows have null for a number that is not finite; it is left out."""

  def change(row):
    first = row["method"] == "sgd" and row["seed"] == 100
    return row | {part: row[part] | {"loss": None}} if first else row

  folder = write_named(tmp_path / "study", "nulls", change)
  text = study.show(folder)
  (line,) = (
    x for x in text.splitlines() if x.startswith("sgd   ") and "100 c" in x
  )
  assert len(line.split()) == 8 - (part == "metrics")  # a blank for the mean
  assert ("loss after T" in text) == (part != "scaled_half")
  if part == "scaled_half":
    with pytest.raises(RowsError, match="each with loss after T"):
      study.write(folder)
  else:
    study.write(folder)


def test_other_outcomes_are_those_of_the_plan():
  """Accuracy under corruption has no *, nor counts for those of others."""
  rows = list(made())
  for row in rows:
    row["metrics"]["top1"] += 5 * (row["method"] == "orthograd")
  found = Results(rows, schedules.STUDY.config)
  others = study.others(schedules.STUDY, found, schedules.STUDY.pairs)
  tested = [
    cell
    for label, column in others.items()
    for cell in column.values()
    if label != "corrupted accuracy, %"
  ]
  assert len(tested) == 12
  least = min(tested, key=lambda cell: cell.p)
  assert least.adjusted == pytest.approx(12 * least.p)
  assert others["accuracy, %"]["sgd", "orthograd"].differs
  under = others["corrupted accuracy, %"]["sgd", "orthograd"]
  assert under.p < 1e-6 and not under.differs


def test_a_page_describes_ensembles():
  rows = [
    row
    if row["seed"] > 100
    else row | {"method": f"{row['method']} ensemble of 5"}
    for row in made()
  ]
  found = Results(rows, schedules.STUDY.config)
  page = study.make(schedules.STUDY, found).markdown
  section = page.partition("## Ensembles")[2].partition("\n## ")[0]
  assert "Described, not tested." in section
  assert "| ⊥Grad, cosine, ensemble of 5 | 1 | 0.60" in section
  assert "## Ensembles" not in study.make(table1.STUDY, found).markdown


def test_a_page_names_the_studies_whose_runs_it_uses():
  rows = [
    row | {"study": "where" if "cosine" in row["method"] else "schedules"}
    for row in made()
  ]
  found = Results(rows, schedules.STUDY.config)
  assert study.runs_of(schedules.STUDY, found) == ["where"]
  page = study.make(schedules.STUDY, found).markdown
  assert "It uses runs of [where](where.md). Recipe" in page


def test_the_time_is_of_all_groups():
  """Also of a group whose first row comes late."""
  start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
  # Three groups, of 2 minutes, 4 minutes and 30 seconds.
  clocks = [(0, 60), (0, 120), (130, 200), (130, 240), (500, 30)]
  rows = [
    row
    | {
      "wall_time": clock + 0.4,
      "time": str(start + datetime.timedelta(seconds=began + clock)),
    }
    for row, (began, clock) in zip(made(), clocks, strict=False)
  ]
  found = Results(rows, schedules.STUDY.config)
  assert provenance(found, "schedules")["time"] == "6:31"


def test_a_study_may_have_another_outcome():
  rows = [row for row in made() if "cosine" not in row["method"]]
  found = Results(rows, corruption_confirmation.STUDY.config)
  answer = study.answer(corruption_confirmation.STUDY, found)
  assert answer.outcome.label == "corrupted accuracy, %"
  assert list(answer.verdicts.values()) == ["no difference that matters"]


def test_what_is_planned():
  names = set(plan.studies())
  assert {"schedules", "where", "data_1_percent", "wide_cosine"} <= names
  assert not {"quick", "table1", "confirmation", "pilot_rates"} & names
  text = plan.section("schedules") or ""
  assert text.startswith("**Question.** Does ⊥Grad help") and "## " not in text


def test_page_and_table(kept, tmp_path):
  settings = dataclasses.asdict(table1.STUDY)
  (tmp_path / "study.json").write_text(json.dumps(settings))
  write = functools.partial(rows.write, tmp_path / "rows.jsonl")
  some = [row for row in kept if row["study"] == "table1" and row["seed"] < 3]
  # One run diverged, and another is at its beginning.
  gone = {"dataset": "diverged", "epoch": 7, "seed": 3, "metrics": {}}
  early = {"epoch": 20, "seed": 4}
  (first,) = (
    row
    for row in some
    if row["seed"] == 0
    and row["epoch"] == 20
    and (row["method"], row["dataset"]) == ("sgd", "clean")
  )
  write([some[0] | gone, first | early, *some])
  shown = report.show(tmp_path)
  assert f"{some[0]['method']}, seed 3: diverged in epoch 7\n" in shown
  assert "\n\nThe test set after the last epoch:\n\n- ⊥Grad − SGD, " in shown
  said = report.write_study(tmp_path)
  assert "over 3 pairs: **" in said and "report.html" in said
  page = (tmp_path / "report.html").read_text("utf-8")
  assert "<title>Table 1: ResNet-18, 20 seeds × {SGD, ⊥Grad}, 10 %" in page
  assert page.count("<svg") == 3 and "learning_rate 0.01, " in page
  assert f"commit {some[-1]['commit']}" in page
  write([row | {"commit": f"{row['commit'][:12]}-dirty"} for row in some])
  report.write_study(tmp_path)
  assert "-dirty," in (tmp_path / "report.html").read_text("utf-8")
  write([row for row in some if row["seed"] == 0])
  assert "The test set" not in report.show(tmp_path)
  with pytest.raises(RowsError, match="needs two seeds of both methods"):
    report.write_study(tmp_path)


def test_pages_of_kept_studies(monkeypatch, tmp_path):
  rows.write(tmp_path / "rows.jsonl", made(seeds=10))
  results = tmp_path / "results"
  kept_rows.keep([tmp_path], results)
  monkeypatch.setattr(kept_rows.load, "__defaults__", (results,))
  # Not of `where`, which shares its folder and lacks rows of its own.
  ((name, page),) = study.make_kept(study.load_planned())
  assert name == "schedules"
  assert {"schedules_differences", "schedules_reliability"} <= set(page.figures)
