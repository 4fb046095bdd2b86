"""Results that pages have in words or in code, against the kept rows."""

import pathlib
import re

import numpy as np
import pytest

from experiments.grokking import Recipe
from experiments.report import grokking, query
from experiments.report.compare import UNDER_CORRUPTION, Comparisons
from experiments.rows import kept

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ask():
  return Comparisons()


def text(path):
  return " ".join((ROOT / path).read_text("utf-8").split())


def test_compare_two_methods(ask):
  page = (ROOT / "docs/guides/compare_two_methods.md").read_text("utf-8")
  lists = re.findall(r'"([^"]+)": \[([^]]+)\]', page)
  names = {
    "accuracy, %": "accuracy",
    "ECE": "ece",
    "loss after T": "scaled_loss",
  }
  assert len(lists) == 8
  its = ask.results("schedules")
  for i, (name, numbers) in enumerate(lists):
    method = "orthograd_cosine" if i >= 4 else "cosine"
    actual = np.array(numbers.replace(",", " ").split(), float)
    expected = its.values(method, names.get(name, name))
    digits = len(numbers.split(",")[0].partition(".")[2])
    np.testing.assert_array_equal(actual, expected.round(digits))
  deviations = [
    f"{its.values(method).std(ddof=1):.3f}" for method in ("sgd", "cosine")
  ]
  p = {
    study: ask.tested(study)["accuracy"]["cosine", "orthograd_cosine"].adjusted
    for study in ("schedules", "methods")
  }
  page = " ".join(page.split())
  assert (
    "was {} with a constant learning rate and {} ".format(*deviations) in page
  )
  assert f"still significant (p {p['schedules']:.3f})" in page
  assert p["methods"] > 0.05


def test_settings_of_the_guide(ask):
  """A tenth of the decay, three times the rate; what decays grokking takes."""
  its, study = ask.results("pilot_optimizers"), ask.study("pilot_optimizers")
  for base in ("adamw", "lion", "muon"):
    without, ours = (
      min(
        (
          m for m in study.methods if m.base == base and bool(m.strength) == has
        ),
        key=lambda method: its.values(method.name).mean(),
      )
      for has in (False, True)
    )
    assert 3 <= ours.learning_rate / without.learning_rate <= 3.4
    assert ours.weight_decay == pytest.approx(without.weight_decay / 10)
  rates = grokking.rates_facts(kept.load(["grokking_rates"]))["rates"]
  arms = [(arm, its) for each in rates.values() for arm, its in each.items()]
  decays = [
    a.weight_decay for a, _ in arms if a.weight_decay and not a.orthograd
  ]
  assert f"with a decay of {min(decays):g} to {max(decays):g}" in text(
    "docs/guides/when_to_use_it.md"
  )
  lost = [(a, i) for a, i in arms if a.weight_decay and a.orthograd]
  assert min(arm.weight_decay for arm, _ in lost) == 0.1
  assert all(its["top1"].mean() < 20 for _, its in lost)


def test_the_epoch_of_the_guide(ask):
  its = ask.results("resnet18")
  old, new = (
    its.over_epochs(name, "max_logit", range(20), range(20, 101, 20)).mean(0)
    for name in ("sgd", "orthograd")
  )
  assert (new > old).tolist() == [True, True, True, False, False]
  page = text("docs/guides/when_to_use_it.md")
  assert "up to epoch 60 of 100, the logits were *larger*" in page


def test_what_the_plan_chose(ask):
  plan = text("experiments/PLAN.md")
  loss = lambda study, name: f"{ask.results(study).values(name).mean():.4f}"
  for words in (
    f"strength ½ ({loss('strength', 'strength_0.5')}; ramped out",
    f"ramped out {loss('strength', 'ramped_out')}, ramped in",
    f"ramped in {loss('strength', 'ramped_in')}, full",
    f"strength on all {loss('strength', 'orthograd_cosine')}; ruled",
    f"a norm, {loss('where', 'orthograd_cosine_normed_kernels')}), and",
    f"SAM ({loss('methods', 'sam')}; averaging",
    f"averaging {loss('methods', 'average')}, mixup",
    f"mixup {loss('methods', 'mixup')}). SGD itself has",
    f"SGD itself has {loss('methods', 'cosine')}.",
  ):
    assert words in plan
  rows = kept.load(["grokking", "grokking_pilot"])
  pilot = grokking.facts(rows, Recipe())["pilot"]
  means = [f"{d:g} ({np.mean(s):.4g})" for d, s in sorted(pilot.items())]
  assert ", ".join(means) in plan
  its, study = ask.results("pilot_optimizers"), ask.study("pilot_optimizers")
  base = lambda name: name.removeprefix("orthograd_")
  best = {
    min(
      (m.name for m in study.methods if m.base == it and not m.strength),
      key=lambda name: its.values(name).mean(),
    )
    for it in ("adamw", "lion", "muon")
  }
  fitted = [
    its.values(m.name, "temperature").mean()
    for m in study.methods
    if m.strength and base(m.name) in best
  ]
  assert f"is {min(fitted):.2f} to {max(fitted):.1f}." in plan


def test_the_first_engine(ask):
  page = (ROOT / "experiments/README.md").read_text("utf-8")
  table = page.partition("| first / present engine |")[2].partition("\n\n")[0]
  its = ask.results("resnet18")
  names = {
    "accuracy, %": ("accuracy", 2),
    "loss": ("loss", 3),
    "ECE": ("ece", 4),
    "temperature": ("temperature", 2),
    "max logit": ("max_logit", 2),
    "norm of the weights": ("weight_norm", 2),
  }
  lines = [line[2:-2].split(" | ") for line in table.splitlines()[2:]]
  assert [line[0] for line in lines] == [*names]
  for label, *cells in lines:
    outcome, digits = names[label]
    for method, cell in zip(("sgd", "orthograd"), cells, strict=True):
      mean = its.values(method, outcome, range(20)).mean()
      assert cell.partition(" / ")[0] == f"{mean:.{digits}f}"


def test_what_depends_on_the_run(ask):
  """The replication's words on significance, in runs that it does not show."""

  def differs(pool, seeds, metrics=UNDER_CORRUPTION, **where):
    rows = ask.table(pool, metrics, seeds=seeds, **where)
    return {metric for metric, row in rows.items() if row.differs}

  late, early = range(20, 40), range(20)
  hard = differs("resnet18_corrupted", late, images="corrupted")
  assert hard == {"max_logit"}
  all_metrics = query.METRICS
  assert not {"entropy", "max_softmax"} & differs(
    "resnet18_first", early, all_metrics
  )
  where = {"images": "CIFAR-10-C"}
  unsure = {"entropy", "max_softmax", "max_logit", "logit_variance"}
  assert not unsure & differs("resnet18_first", early, **where)
  for pool in ("resnet18", "resnet18_corrupted"):
    assert not {"loss", "ece"} & differs(pool, late, all_metrics)
  pair = ("orthograd", "orthograd_unnormalized")
  first = ask.table("resnet18_first", pair=pair, seeds=range(10))
  assert min(row.p for row in first.values()) >= 0.05


def test_where_it_helps_after_t(ask):
  """Of single networks by more than 3 %: where SGD's settings are too large."""
  page = text("docs/guides/start.md")
  assert "by more than 3 % only where [learning rate and weight decay]" in page
  gains = lambda row: row.change < -0.03 * row.a.mean()
  rows = ask.tested("map")["crossed_loss"]
  helped = [pair[0] for pair, row in rows.items() if gains(row)]
  assert helped == [
    "sgd_0.3_0.008",
    "sgd_1_0.0005",
    "sgd_1_0.002",
    "sgd_1_0.008",
  ]
  assert min(rows[it, f"orthograd_{it}"].a.mean() for it in helped) > 0.8
  alone = [x for x in query.LABELS["situations"].values() if "ens" not in x[1]]
  alone = [it for it in alone if ask.is_complete(it[0])]
  assert len(alone) > 10 and not any(gains(ask.compare(*it)) for it in alone)


def test_what_to_use_without_t(ask):
  page = text("docs/guides/start.md")
  assert (
    "try SAM first, which computes two gradients a step, then Muon or" in page
  )
  assert "mixup. Tuned for the loss without a temperature, each had" in page
  its = ask.tested("no_temperature")["loss"]
  rivals = [its[x, "orthograd"] for x in ("sam", "muon", "mixup", "sgd")]
  assert all(row.sign == 1 for row in rivals)
  means = [row.a.mean() for row in rivals]
  assert means == sorted(means)
  assert "loss and ECE were no higher" in text(
    "docs/guides/calibrate_any_model.md"
  )
  folds, tenth = (
    [
      ask.results("no_temperature").values(arm, it).mean()
      for it in ("loss", "ece")
    ]
    for arm in ("cross_validated", "held_out_temperature")
  )
  assert np.less(folds, tenth).all()


def test_the_sign_of_a_strong_decay(ask):
  """T and accuracy of ⊥Grad at weight decay 8e-3."""
  its, t, accuracy = ask.results("map"), [], []
  for rate in ("0.03", "0.1", "0.3", "1"):
    values = its.values(f"orthograd_sgd_{rate}_0.008", "temperature")
    t.append(np.exp(np.log(values).mean()))
    accuracy.append(
      its.values(f"orthograd_sgd_{rate}_0.008", "accuracy").mean()
    )
  page = text("docs/guides/when_to_use_it.md")
  assert f"⊥Grad's T was {min(t):.2f} to {max(t):.2f}]" in page
  assert f"accuracy {min(accuracy):.0f} to {max(accuracy):.0f} %" in page
