"""What is asked of rows, and what they are called."""

import numpy as np
import pytest

from experiments import config, datasets
from experiments.report import query
from experiments.report.compare import Comparisons
from experiments.report.query import LABELS, OUTCOMES, Results
from experiments.rows import kept
from experiments.studies import table1

from .reading import EXTRA

CONFIG = table1.STUDY.config


def row(method, seed, loss, images="clean", epoch=CONFIG.epochs):
  return {
    "study": "table1",
    "config_hash": CONFIG.hash,
    "method": method,
    "seed": seed,
    "epoch": epoch,
    "dataset": images,
    "metrics": {"loss": loss, "top1": None if loss < 0 else 50.0},
    "scaled_half": {"loss": loss / 2},
  }


def test_sets_of_images():
  assert query.sets("clean") == ("clean",)
  assert len(query.sets("corrupted")) == 75
  assert {name.split("/")[0] for name in query.sets("extra")} == set(EXTRA)
  assert query.sets("fog") == tuple(f"fog/{i}" for i in range(1, 6))
  third = query.sets("severity 3")
  assert len(third) == 15 and all(name.endswith("/3") for name in third)
  assert query.sets("severity 0") == ("clean",)


def test_values():
  hard = [f"{name}/{i}" for name in datasets.CORRUPTIONS for i in range(1, 6)]
  rows = [row("sgd", seed, seed + 1.0) for seed in (0, 1, 2)]
  rows += [row("sgd", 0, 10.0 + i, name) for i, name in enumerate(hard)]
  rows += [row("sgd", 0, 5.0, epoch=20), row("orthograd", 1, 8.0)]
  rows += [row("sgd", 1, 1.0) | {"config_hash": "other", "seed": 7}]
  result = Results(rows, CONFIG)
  assert result.seeds(["sgd"]) == [0, 1, 2]
  assert result.seeds(["sgd", "orthograd"]) == [1]
  np.testing.assert_array_equal(result.values("sgd", "loss"), [1, 2, 3])
  np.testing.assert_array_equal(result.values("sgd"), [0.5, 1, 1.5])  # after T
  assert result.values("sgd", "raw_corrupted_loss") == np.arange(75).mean() + 10
  assert result.values("sgd", "loss", [0], 20) == 5.0
  assert result.over_epochs("sgd", "loss", [0], [20, 100]).tolist() == [[5, 1]]
  assert result.evaluated(["sgd"], [0]) == [20, 100]
  assert result.evaluated(["sgd"], [0, 1]) == [100]


def test_a_missing_number_is_not_measured():
  result = Results([row("sgd", 0, -1.0), row("sgd", 1, 1.0)], CONFIG)
  assert result.measured(["sgd"], "loss")
  assert not result.measured(["sgd"], "accuracy")
  assert not result.measured(["sgd"], "corrupted_loss")


def test_every_kept_method_has_a_label():
  names = {m.name for study in config.studies().values() for m in study.methods}
  labels = {name: query.method_name(name) for name in names}
  for name, label in labels.items():
    if "pilot" not in name and not name[-1].isdigit():
      assert "_" not in label and "orthograd" not in label, name
  assert query.method_name("orthograd_decay_0.002") == "⊥Grad, decay 2e-3"
  chosen = [name for name in names if name in LABELS["methods"]]
  assert len({labels[name] for name in chosen}) == len(chosen)


def test_pools_and_situations_exist():
  for name, pool in query.POOLS.items():
    assert pool["study"] in config.study_names(), name
    assert all(
      (kept.FOLDER / f"{it}.jsonl.gz").exists() for it in pool["files"]
    )
  for name, a, b in LABELS["situations"].values():
    assert a != b and name in {*query.POOLS, *config.study_names()}
  assert {it.sign for it in OUTCOMES.values()} == {1, -1}


def test_what_is_planned():
  plan = query.planned()
  assert plan["decay"] == "#4-decay"
  assert plan["alternatives"] == "#5-methods-alternatives"
  assert not {"quick", "table1", "pilot_rates"} & plan.keys()


@pytest.mark.parametrize("name", ["schedules", "data_100_percent"])
def test_a_study_without_rows_is_incomplete(name, monkeypatch):
  monkeypatch.setattr(kept, "load", lambda files: [])
  ask = Comparisons()
  assert ask.is_planned(name) and not ask.is_complete(name)
