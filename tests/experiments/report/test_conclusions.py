"""What is concluded from results that are made up, by the rules of PLAN.md."""

import re

import numpy as np
import pytest

from experiments import config
from experiments.report import conclusions, screen, study
from experiments.report.compare import SEVERITIES
from experiments.report.results import Results


def results(name, losses, raw=None, spread=0.002, top1=None):
  """A study's rows, with these losses after T, and what is added before it.

  Methods that are not given have the loss 0.6.
  """
  it = config.load_study(name)
  datasets = it.datasets(it.config.epochs)
  rng = np.random.default_rng(0)
  rows = []
  for method in it.method_names:
    # Of mean zero, so that equal losses do not differ by chance.
    noises = spread * rng.permutation(np.linspace(-1, 1, it.seeds))
    for seed, noise in enumerate(noises, it.first_seed):
      loss = losses.get(method, 0.6) + 0.05 * (seed % 7) + noise
      metrics = dict.fromkeys(("ece", "brier", "wrong_confidence"), 0.1 + noise)
      metrics["loss"] = loss + (raw or {}).get(method, 0.0)
      metrics["top1"] = (top1 or {}).get(method, 80.0) + noise
      metrics |= {"temperature_half": 1.5 + noise, "max_softmax": 0.9 + noise}
      rows += [
        {
          "study": name,
          "method": method,
          "seed": seed,
          "epoch": it.config.epochs,
          "dataset": dataset,
          "config_hash": it.config.hash,
          "metrics": metrics,
          "scaled_half": {"loss": loss, "ece": 0.1 + noise},
          "scaled_clean": {"loss": loss},
          "bins": {
            "count": [100, 900],
            "confidence": [0.5, 0.9],
            "accuracy": [0.4, 0.8],
          },
          "epoch_seconds": 2.0 if method == "sam" else 1.0,
          "runs_at_once": it.seeds,
        }
        for dataset in datasets
      ]
  return it, Results(rows, it.config)


def page_of(of, found):
  """The text of a study's page."""
  found.of_study = lambda _: []  # no commit, no time
  return study.make(of, found).markdown


def test_a_part_carries_the_effect():
  lower = ("orthograd", "orthograd_head", "orthograd_cosine")
  _, found = results(
    "where", dict.fromkeys(lower, 0.5) | {"orthograd_norms": 0.55}
  )
  conclusion = conclusions.of_where(found)
  assert conclusion["carries"] == ["head"]
  labels = [case["label"] for case in conclusion["cases"]]
  assert labels[::3] == ["loss after T, constant rate", "loss, cosine"]
  verdicts = {}
  for case in conclusion["cases"]:
    for part, (*_, verdict) in case["parts"].items():
      verdicts.setdefault(part, []).append(verdict)
  nothing = "does nothing"
  assert verdicts == {
    "head": ["carries the effect", nothing] * 2,
    "norms": ["some of it", nothing] * 2,
    "body": [nothing] * 4,
    "normed_kernels": [nothing] * 4,
  }


@pytest.mark.parametrize(
  ("losses", "raw", "same"),
  [
    ({}, {}, True),
    ({}, {"orthograd_cosine": 0.1}, False),
    ({"orthograd_cosine": 0.5}, {"orthograd_cosine": 0.1}, False),
  ],
)
def test_masked(losses, raw, same):
  _, found = results("masked", losses, raw)
  assert conclusions.of_masked(found)["same"] == same


@pytest.mark.parametrize(
  ("losses", "raw", "advice"),
  [
    ({}, {}, 0.0),
    ({"orthograd_cosine": 0.5}, {}, 1.0),
    ({"orthograd_cosine": 0.5, "strength_0.5": 0.51}, {}, 0.5),
    ({}, {"cosine": 0.2, "strength_0.25": 0.1}, 0.5),
    ({"ramped_in": 0.3}, {}, None),
  ],
)
def test_strength(losses, raw, advice):
  _, found = results("strength", losses, raw)
  assert conclusions.of_strength(found)["advice"] == advice


def test_decay():
  losses = dict.fromkeys(("orthograd_cosine", "head_decay_4"), 0.5)
  losses |= {"head_decay_16": 0.53, "orthograd_decay_0.002": 0.9}
  of, found = results("decay", losses)
  it = conclusions.of_decay(found)
  assert {k: head["replaces"] for k, head in it["heads"].items()} == {
    4: True,
    16: False,
  }
  assert (it["helps"], it["harms"]) == (1, 1)
  said = page_of(of, found)
  assert "helps at 1 of the 4 weight decays, and harms at 1.**" in said
  assert re.search(
    r"by \S+ \(.*\) at 0, .* at 1e-4, .* at 5e-4, .* at 2e-3", said
  )


def test_what_diverges_is_said_and_claims_nothing():
  """Holm's adjustment still is over all that is planned."""
  lower = {"orthograd_adamw": 0.5999, "orthograd_muon": 0.5}
  of, found = results("optimizers", lower)
  before = study.answer(of, found)
  gone = [("orthograd_lion", seed) for seed in range(100, 110)]
  gone.append(("adamw", 103))
  end = lambda run: (*run, 7, "diverged")
  left = {key: row for key, row in found.rows.items() if key[:2] not in gone}
  found.rows = left | {end(run): {"study": of.name} for run in gone}
  assert study.is_complete(of, found)
  rows = study.answer(of, found).rows
  assert list(rows) == [of.pairs[0], of.pairs[2]] == [*before.rows][::2]
  assert len(rows[of.pairs[0]].a) == 9
  pair = of.pairs[2]
  assert rows[pair].adjusted == before.rows[pair].adjusted == 3 * rows[pair].p
  assert conclusions.of_optimizers(found)["agnostic"] == "not confirmed"
  said = page_of(of, found)
  assert "AdamW (seed 103); ⊥Grad, Lion (seeds 100, 101, " in said
  ((name, _),) = study.make_kept({of.name: (of, found)})
  assert name == "optimizers"


@pytest.mark.parametrize(
  ("loss", "words"),
  [
    (0.5, "⊥Grad helps ensembles of SGD with cosine, once"),
    (0.7, "⊥Grad harms ensembles of SGD with cosine*"),
    (0.6, "⊥Grad makes no difference that matters to ensembles*"),
  ],
)
def test_ensembles(loss, words):
  of, found = results("ensembles", {"orthograd_cosine": loss})
  for (name, seed, *rest), row in list(found.rows.items()):
    if seed % 5 == 0:
      found.rows[(f"{name} ensemble of 5", seed, *rest)] = row
  said = page_of(of, found)
  assert said.partition("\n\n")[2].startswith(f"**{words}")
  assert "Ensembles of mixup without ⊥Grad have 0.392 (two" in said
  outcome = study.answer(of, found).outcome
  seeds = range(300, 325, 5)
  plain = [found.rows["cosine", s, 100, "clean"] for s in seeds]
  mean = np.mean([row["scaled_half"]["loss"] for row in plain])
  assert outcome.matters == pytest.approx(0.03 * mean, rel=1e-12)


@pytest.mark.parametrize(
  ("loss", "words"),
  [
    (0.5, "⊥Grad at its best beats the best alternative*"),
    (0.7, "The best alternative beats ⊥Grad at its best*"),
    (0.6, "⊥Grad at its best against the best alternative: no difference"),
  ],
)
def test_best(loss, words):
  said = page_of(*results("best", {"strength_0.5": loss}))
  assert said.partition("\n\n")[2].startswith(f"**{words}")
  assert "SAM takes 2.00 times as long" in said


@pytest.mark.parametrize(("pair", "word"), [(0.5, None), (0.45, "x")])
def test_methods(pair, word):
  losses = {"sam": 0.5, "orthograd_sam": pair, "orthograd_mixup": 0.55}
  losses["orthograd_average"] = 0.7
  of, found = results("methods", losses)
  it = conclusions.of_methods(found)
  assert (it["single"], it["pair"]) == ("sam", "orthograd_sam")
  assert it["recommended"] == (word and "orthograd_sam")
  said = page_of(of, found)
  adds = r"mixup, -0\.05\d \(.*\)" + (r"; SAM, -0\.05.*" if word else "")
  assert re.search(
    rf"^- ⊥Grad adds to \(with ⊥Grad minus without, in nats\): {adds}\. The",
    said,
    re.M,
  )
  assert re.search(
    r"^- After T, ⊥Grad harms: averaging, \+0\.\d+ \(.*\)\.$", said, re.M
  )


def test_alternatives():
  of, found = results("alternatives", {"sam": 0.5, "mixup": 0.7})
  assert conclusions.of_alternatives(found) == {"best": "sam"}
  said = page_of(of, found)
  assert re.search(
    r"^- ⊥Grad is beaten by \(.*\): SAM, -0\.1\S+ \(.*\)\.$", said, re.M
  )
  assert re.search(
    r"^- After T, ⊥Grad beats: mixup, \+0\.1\S+ \(.*\)\.$", said, re.M
  )


def test_alternatives_may_all_be_equal():
  said = page_of(*results("alternatives", {}))
  assert "in nats): none of them." in said


@pytest.mark.parametrize(
  ("lower", "higher", "verdict"),
  [
    (("adamw", "lion", "muon"), (), "confirmed"),
    (("adamw", "lion"), (), "not confirmed"),
    (("adamw", "lion"), ("muon",), "contradicted"),
  ],
)
def test_optimizers(lower, higher, verdict):
  losses = {f"orthograd_{name}": 0.5 for name in lower}
  losses |= {f"orthograd_{name}": 0.7 for name in higher}
  _, found = results("optimizers", losses)
  assert conclusions.of_optimizers(found)["agnostic"] == verdict


@pytest.mark.parametrize(
  ("better", "spread", "verdict"),
  [(1.0, 0.1, "real"), (0.0, 0.1, "refuted"), (0.0, 3.0, "undecided")],
)
def test_corruption(better, spread, verdict):
  top1 = {"sgd": 60.0, "orthograd": 60.0 + better}
  name = "corruption_confirmation"
  _, found = results(name, {}, spread=spread, top1=top1)
  it = conclusions.of_corruption_confirmation(found)
  assert it["verdict"] == verdict
  assert len(it["earlier"].a) == 20 and len(it["all"].a) == 40


@pytest.mark.parametrize(
  "name", sorted({*conclusions.CONCLUSIONS} - {"ensembles"})
)
def test_pages_state_them(name):
  page = page_of(*results(name, {}))
  assert "The rule is that of [the plan]" in page
  for line in page.splitlines():
    if line.startswith("|"):
      assert line.endswith("|") and line.count("|") > 2


def test_only_a_complete_study_has_a_conclusion():
  it, found = results("masked", {})
  assert study.is_complete(it, found)
  run = it.method_names[1], it.first_seed
  ended = {key: row for key, row in found.rows.items() if key[:2] != run}
  found.rows = ended
  assert not study.is_complete(it, found)
  found.of_study = lambda _: []
  assert "The rule is that of" not in study.make(it, found).markdown
  found.rows = ended | {(*run, 3, "diverged"): {}}
  assert study.is_complete(it, found)


def test_sizes_are_one_family(planned):
  it, found = results("data_1_percent", {"orthograd_cosine": 0.605})
  (alone,) = study.answer(it, found).rows.values()
  first, second = study.family(it.name, planned)
  assert (len(first.a), len(second.a)) == (10, 5)
  answer = study.answer(it, found, [first, second])
  (row,) = answer.rows.values()
  assert row.adjusted == min(1.0, 3 * alone.p)
  assert answer.outcome.matters == pytest.approx(0.03 * np.mean(row.a))


def test_candidates_match_by_accuracy_and_ece():
  it, _ = results("extended_screen", {})
  rows = []
  for name, accuracy, ece in (
    ("decay_0", 70.0, 0.1),
    ("orthograd_decay_0", 66.0, screen.ECE),
    ("rate_0.001", 70.0, 0.1),
    ("orthograd_rate_0.001", 66.0, screen.ECE + 0.06),
  ):
    for images in SEVERITIES:
      rows += [
        {
          "study": it.name,
          "method": name,
          "seed": it.first_seed,
          "epoch": it.config.epochs,
          "dataset": dataset,
          "config_hash": it.config.hash,
          "metrics": {"top1": accuracy, "ece": ece},
          "wall_time": 60.0,
          "time": "2000-01-01",
          "device": "1 × GPU",
          "commit": "unknown",
          "versions": {"jax": "0"},
        }
        for dataset in images
      ]
  found = Results(rows, it.config)
  one, other = screen.candidates(it, found)
  assert one.matches and not other.matches
  page = screen.make([(it, found)]).markdown
  assert "**no weight decay** matches." in page
