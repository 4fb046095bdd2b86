"""The front page of the results: short, current, and true to the rows."""

import re

import numpy as np
import pytest
import scipy.stats

from experiments.report import (
  answer,
  conclusions,
  formats,
  outcomes,
  screen,
  study,
)
from experiments.report.results import Results
from experiments.rows import kept
from experiments.studies import (
  best,
  decay,
  masked,
  methods,
  optimizers,
  pilot_optimizers,
  strength,
  where,
)


@pytest.fixture(scope="module")
def page(planned, kept):
  return answer.make(planned, kept)


@pytest.fixture(scope="module")
def values():
  """By method and part, the metrics of each seed of `schedules`."""
  found = {}
  for row in kept.load(["schedules"]):
    if row["dataset"] == "clean":
      for part in ("metrics", "scaled_half"):
        for metric, value in row[part].items():
          its = found.setdefault((row["method"], part, metric), {})
          its[row["seed"]] = value
  return {
    key: np.array([its[seed] for seed in sorted(its)])
    for key, its in found.items()
  }


def test_answers_in_ten_sentences(page):
  first = page.markdown.split("\n\n")[1:3]
  words = re.sub(r"\]\(.*?\)", "]", " ".join(first))
  assert len(re.findall(r"[.?!](?:\*\*)?(?= -| [A-Z]|$|\n)", words)) <= 10


@pytest.mark.parametrize(
  "part, metric, digits",
  [("metrics", "loss", 3), ("metrics", "ece", 4), ("scaled_half", "loss", 3)],
)
def test_differences(page, values, part, metric, digits):
  a, b = (values[name, part, metric] for name in answer.COSINE)
  low, high = scipy.stats.ttest_rel(b, a).confidence_interval()
  form = f"+.{digits}f"
  text = f"{np.mean(b - a):{form}} ({low:{form}}, {high:{form}})"
  assert text in page.markdown


def test_table(page, values):
  first = page.markdown.partition("## ")[0]
  lines = re.findall(r"^\| (⊥Grad|SGD), cosine \|(.*)\|$", first, re.M)
  assert len(lines) == 2
  for (name, cells), method in zip(lines, answer.COSINE, strict=True):
    assert (name == "SGD") == (method == "cosine")
    runs, accuracy, loss, scaled, _, ece, cost = map(float, cells.split("|"))
    assert runs == 10
    for number, part, metric, digits in (
      (accuracy, "metrics", "top1", 2),
      (loss, "metrics", "loss", 3),
      (scaled, "scaled_half", "loss", 3),
      (ece, "metrics", "ece", 4),
    ):
      mean = np.mean(values[method, part, metric])
      assert number == pytest.approx(mean, abs=0.51 * 10**-digits)
    assert cost == (1.0 if method == "cosine" else 1.0 + answer.COST)


def line_of(name, pair):
  """A pair's line among the other outcomes on a study's page."""
  page = (kept.FOLDER / f"{name}.md").read_text("utf-8")
  (line,) = (
    line
    for line in page.partition("## The other outcomes")[2].splitlines()
    if line.startswith(f"| {pair} |")
  )
  return line.split("|")


# What the page and the guides say in words, beside the numbers.


def test_words_on_methods(planned):
  of, found = planned["methods"]
  loss = {name: outcomes.mean(found, name, "loss") for name, _ in of.pairs}
  assert min(loss, key=loss.get) == "mixup"
  table = answer.table(found, list(of.method_names), planned["ensembles"][1])
  assert 1.9 < table["SAM"]["cost"] < 2.1 > 1.1 > table["mixup"]["cost"]
  after_t = study.answer(of, found).verdicts
  assert [pair[0] for pair in after_t if "helps" in after_t[pair]] == [
    "label_smoothing"
  ]
  assert after_t["label_smoothing", "orthograd_label_smoothing"].endswith(
    "less than matters"
  )
  assert [pair[0] for pair in after_t if "harms" in after_t[pair]] == [
    "average"
  ]
  without_t = study.others(of, found, of.pairs)["loss"]
  assert [a for (a, _), row in without_t.items() if not row.differs] == [
    "mixup"
  ]
  cosine = "⊥Grad, cosine − SGD, cosine"
  assert line_of("schedules", cosine)[3].endswith("* ")
  assert not line_of("methods", cosine)[3].endswith("* ")


def test_words_on_optimizers(planned):
  of, found = planned["optimizers"]
  assert set(study.answer(of, found).verdicts.values()) == {"harms"}
  others = study.others(of, found, of.pairs)
  assert {row.sign for row in others["loss"].values()} == {1}
  assert {row.sign for row in others["accuracy, %"].values()} == {-1}


def test_words_on_the_pilots_of_optimizers():
  """With ⊥Grad, the best rates are the largest; decay changes its effect."""
  said = (kept.FOLDER / "optimizers.md").read_text("utf-8")
  pilot = pilot_optimizers.STUDY
  found = Results(kept.load([pilot.name]), pilot.config)
  for chosen in optimizers.STUDY.methods[1::2]:
    tried = {
      it.learning_rate: outcomes.mean(found, it.name)
      for it in pilot.methods
      if (it.base, it.strength, it.weight_decay)
      == (chosen.base, 1, chosen.weight_decay)
    }
    *_, before, last = sorted(tried)
    assert chosen.learning_rate == last
    step = f"{tried[before]:.3f} to {tried[last]:.3f}"
    assert f"{step} ({formats.method_name(chosen.base)})" in said
  same = list(conclusions.at_same_settings())
  assert len(same) == 12
  for weak, strong in zip(same[::2], same[1::2], strict=True):
    assert weak["rate"] == strong["rate"] and weak["decay"] < strong["decay"]
    assert [metric for metric, _ in weak["means"]] == ["loss", "ece", "loss"]
    for i in (0, 1):  # without T
      (_, at_weak), (_, at_strong) = weak["means"][i], strong["means"][i]
      assert at_strong[0] < at_weak[1] < at_weak[0]
      assert at_strong[0] < at_strong[1]


def test_words_on_the_best_single_network(planned):
  found = planned["schedules"][1]
  names = [*methods.STUDY.method_names, *optimizers.STUDY.method_names]
  best_of = {
    outcome: min(names, key=lambda name: outcomes.mean(found, name, outcome))
    for outcome in ("loss", "scaled_loss")
  }
  assert best_of == {"loss": "orthograd_sam", "scaled_loss": "muon"}


def test_words_on_ensembles(planned):
  of, found = planned["ensembles"]
  ((pair, verdict),) = study.answer(of, found).verdicts.items()
  assert verdict == "helps"
  others = study.others(of, found, of.pairs)
  signs = {it: others[it][pair].sign for it in ("loss", "Brier score", "ECE")}
  assert signs == {"loss": -1, "Brier score": -1, "ECE": 1}
  it = conclusions.of_ensembles(found)
  less, least = it["excess"]
  assert least < less < 0
  assert it["surest"]["confidence"] > it["surest"]["accuracy"]
  assert it["temperatures"][1] < 1 < it["temperatures"][0]
  assert np.mean(it["scaled_ece"].a) > np.mean(others["ECE"][pair].a)
  assert it["single"]["scaled_loss"].interval[1] < outcomes.MATTERS
  ours = outcomes.mean(found, pair[1])
  rivals = it["rivals"]
  assert max(rivals["mixup"], rivals["muon"]) < ours
  assert rivals["sam"] == pytest.approx(ours, abs=2e-3)
  assert rivals["adamw"] == pytest.approx(ours, abs=2e-3)


def test_words_on_described_ensembles(planned):
  changes = {}
  names = ("methods", "schedules", "wide_cosine", "optimizers", *study.SIZES)
  for name in names:
    of, found = planned[name]
    for pair in of.pairs:
      a, b = answer.ensemble_means(found, pair)["scaled_loss"]
      changes[name, pair[0]] = b - a
  higher = {key for key, change in changes.items() if change > 0}
  assert higher == {
    ("methods", "mixup"),
    ("schedules", "sgd"),
    ("data_100_percent", "cosine"),
    *(("optimizers", name) for name in ("adamw", "lion", "muon")),
  }
  for name in study.SIZES:  # without T
    means = answer.ensemble_means(planned[name][1], answer.COSINE)
    assert means["loss"][0] < means["loss"][1]


def test_words_on_the_best(planned):
  (verdict,) = study.answer(*planned["best"]).verdicts.values()
  assert verdict == "harms"
  found = planned["methods"][1]
  strengths = {
    it.name: outcomes.mean(found, it.name, "loss")
    for it in strength.STUDY.methods
  }
  assert min(strengths, key=strengths.get) == answer.COSINE[1]
  of, found = planned["alternatives"]
  pair = answer.COSINE[1], "sam"
  assert study.others(of, found, of.pairs)["loss"][pair].sign == 0
  of, found = planned["methods"]
  pair = "sam", "orthograd_sam"
  assert study.answer(of, found).verdicts[pair] == "no difference that matters"
  assert study.others(of, found, of.pairs)["loss"][pair].sign == -1


def test_words_on_the_screen(planned):
  lines = [
    line
    for it in screen.STUDIES
    for line in screen.candidates(*planned[it.name])
  ]
  assert len(lines) == 3 and not any(line.matches for line in lines)


def test_words_on_wide_networks(planned):
  verdicts = study.answer(*planned["wide_cosine"]).verdicts
  assert verdicts == {answer.COSINE: "harms"}


def test_words_on_decay(planned):
  of, found = planned["decay"]
  after_t = study.answer(of, found).verdicts
  assert [after_t[pair] for pair in decay.LEVELS] == [
    "harms",
    "harms",
    "no difference that matters",
    "harms",
  ]
  without_t = study.others(of, found, of.pairs)["loss"]
  better = [pair[0] for pair in decay.LEVELS if without_t[pair].change < 0]
  assert better == ["decay_0.0001", "cosine"]


def test_best_is_chosen_by_the_rule(planned):
  """PLAN.md's, without the part that does nothing by `where`."""
  losses = {}
  for module in (where, masked, strength, decay):
    of, found = planned[module.STUDY.name]
    for method in of.methods:
      if method.strength or method.strength_at_end:
        losses[method.name] = outcomes.mean(found, method.name)
  del losses["orthograd_cosine_normed_kernels"]
  others = [method.name for method in methods.ALTERNATIVES]
  found = planned["methods"][1]
  rivals = {name: outcomes.mean(found, name) for name in others}
  (chosen,) = best.STUDY.pairs
  assert chosen == (min(rivals, key=rivals.get), min(losses, key=losses.get))


def difference(row):
  """As pages write it."""
  change = formats.signed(row.change, row.metric)
  return f"{change} {formats.interval(row.interval, row.metric)}"


def test_readme_says_the_same(page, planned):
  """Numbers of the main README's results are here, too."""
  text = (kept.FOLDER.parents[1] / "README.md").read_text("utf-8")
  text = " ".join(text.split())
  _, found = planned["schedules"]
  rows = answer.by_outcome(found, answer.COSINE)
  for outcome in ("loss", "ece", "scaled_loss"):
    row = rows[outcome]
    assert difference(row) in page.markdown
    assert difference(row) in text
    assert formats.mean(row.a, row.metric) in text
    assert formats.mean(row.b, row.metric) in text
  rows = answer.by_outcome(planned["wide_cosine"][1], answer.COSINE)
  loss = rows["loss"]
  before, after = (formats.mean(x, "loss") for x in (loss.a, loss.b))
  assert (
    f"WRN-28-10 (cosine, 5 seeds): loss {before} → {after}; after a"
    f" temperature {difference(rows['scaled_loss'])}" in text
  )
  row = answer.by_outcome(planned["ensembles"][1], answer.ENSEMBLES)
  loss = row["scaled_loss"]
  after = formats.mean(loss.b, "loss")
  assert f"loss after it {difference(loss)}, to {after}, 5 of each" in text
  of, found = planned["optimizers"]
  for words, outcome in {
    "tuned again for it, loss": "loss",
    "after a temperature": "scaled_loss",
  }.items():
    rows = [answer.by_outcome(found, pair)[outcome] for pair in of.pairs]
    first, second, third = (formats.signed(row.change, "loss") for row in rows)
    assert f"{words} {first}, {second} and {third}" in text
