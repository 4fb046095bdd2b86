"""The second edition's studies: what PLAN.md promises of them."""

import contextlib
import dataclasses
import importlib
import re

import pytest

from experiments import config, engine, tuning
from experiments.report import query
from experiments.report.compare import Comparisons
from experiments.rows import read
from experiments.tuning import Grid

TUNING = ("no_temperature", "all_images", "label_noise", "fashion")
CONFIRMING = {
  "no_temperature": range(400, 410),
  "held_out_temperature": range(400, 410),
  "cross_validated": range(400, 410),
  "cross_validation": range(2000, 2050),
  "map": range(600, 603),
  "all_images": range(500, 505),
  "label_noise": range(510, 520),
  "label_noise_without_t": range(510, 520),
  "fashion": range(520, 530),
  "fashion_without_t": range(520, 530),
  "same_images": range(550, 575),
}
TINY = [
  *("dataset=sample", "model=small", "epochs=1", "precision=float32"),
  *("batch_size=8", "corruptions="),
]


def planned(name: str) -> str:
  """The section of PLAN.md whose heading has a study's name; else ""."""
  sections = re.split(r"^## ", query.PLAN.read_text("utf-8"), flags=re.M)
  named = (x for x in sections if f"`{name}`" in x.partition("\n")[0])
  return next(named, "")


def seeds(study: config.Study) -> set[int]:
  return {run.seed for run in study.runs}


@pytest.mark.parametrize("name", TUNING)
def test_tuning(name):
  """Equal numbers of settings, on images that no run trains on."""
  study = config.load_study(f"{name}_tuning")
  grids: dict[str, Grid] = importlib.import_module(
    f"experiments.studies.{name}_tuning"
  ).TUNING.grids
  (size,) = {len(grid.first()) for grid in grids.values()}
  assert size == (4 if name == "all_images" else 8)
  assert study.config.evaluate_on == "held_out" and not study.corruptions
  assert len(study.methods) % len(grids) == 0
  assert len(study.methods) >= size * len(grids)
  assert seeds(study) <= {906, 907}
  main = config.load_study(name)
  assert main.config.reserve and main.config.evaluate_on == "test"
  expected = dataclasses.replace(
    main.config, evaluate_on="held_out", reserve=False
  )
  assert study.config == expected
  for method in study.methods:
    assert method.schedule == "cosine"
    values = [
      method.learning_rate,
      method.weight_decay if method.weight_decay is not None else None,
    ]
    assert None not in values
  for method, grid in zip(main.methods, 2 * list(grids.values()), strict=False):
    tried = {grid.named(s)["learning_rate"] for s in grid.first()}
    if method.name.endswith("_untuned"):
      assert method.learning_rate in tried
  # Both sides of a pair can have the same settings, besides ⊥Grad.
  if name == "all_images":
    assert grids["sgd"] == grids["orthograd"]
    # Shifted toward the best setting of ⊥AdamW's pilots.
    shift = {"learning_rate": 2, "weight_decay": 1 / 4}
    for name, ladder in grids["adamw"].ladders.items():
      other = grids["orthograd_adamw"].ladders[name]
      assert other == tuple(shift[name] * value for value in ladder)


@pytest.mark.parametrize(("name", "expected"), CONFIRMING.items())
def test_seeds(name, expected):
  """The plan's, which no tuning, pilot or earlier study has looked at."""
  study = config.load_study(name)
  assert seeds(study) == set(expected)
  text = planned(name) or planned("no_temperature")
  if name != "cross_validation":
    assert re.search(rf"\b{expected[0]}(–|\D+){expected[-1]}\b", text)
  related = [
    {"no_temperature", "held_out_temperature", "cross_validated"},
    {"label_noise", "label_noise_without_t"},
    {"fashion", "fashion_without_t"},
  ]
  others = {
    other: config.load_study(other)
    for other in config.study_names()
    if other != name and not any({name, other} <= its for its in related)
  }
  for other, its in others.items():
    assert not seeds(study) & seeds(its), other


def test_number_of_methods_and_pairs():
  study = config.load_study("no_temperature")
  assert len(study.methods) == 10 and len(study.pairs) == 11
  assert {new for _, new in study.pairs} == {study.method_names[1]}
  assert study.method_names[1].startswith("orthograd")
  study = config.load_study("map")
  cells = {(m.learning_rate, m.weight_decay) for m in study.methods}
  assert len(cells) == 20 and len(study.methods) == 40
  assert len(study.pairs) == 20
  for old, new in study.pairs:
    assert new == f"orthograd_{old}"
  for end, outcome in ("", "crossed_loss"), ("_without_t", "loss"):
    for start, size in ("fashion", 3), ("label_noise", 1):
      study = config.load_study(start + end)
      assert len(study.pairs) == size and len(study.methods) == size + 1
      assert study.outcome == outcome
      assert ("_after_t" in study.methods[0].name) == (not end)
  assert len(config.load_study("all_images").pairs) == 2
  assert config.load_study("no_temperature").corruptions


def test_arms_share_their_images():
  """The arms of a seed draw the same images as its other methods."""
  whole = config.load_study("no_temperature").config
  held_out = config.load_study("held_out_temperature").config
  folds = config.load_study("cross_validation")
  assert held_out.per_class + held_out.calibrate == whole.per_class
  its = folds.config
  assert its.per_class + its.calibrate == whole.per_class
  assert its.calibrate * its.seeds_per_subset == whole.per_class
  subsets = [seed // its.seeds_per_subset for seed in sorted(seeds(folds))]
  assert subsets == [s for s in range(400, 410) for _ in range(5)]
  scaled = config.load_study("cross_validated")
  assert scaled.config == whole
  assert scaled.temperatures_of == folds.name


def test_arms_are_methods_on_pages(monkeypatch):
  """At the seeds' own T, with accuracies that no T changes."""

  def row(study, method, loss):
    its = config.load_study(study).config
    return {
      "study": study,
      "config_hash": its.hash,
      "method": method,
      "seed": 400,
      "epoch": its.epochs,
      "dataset": "clean",
      "metrics": {"loss": loss, "top1": 80.0},
      "scaled_own": {"loss": loss / 2},
    }

  rows = {
    "no_temperature": [row("no_temperature", "sgd", 3.0)],
    "held_out_temperature": [row("held_out_temperature", "sgd_after_t", 2.0)],
    "cross_validated": [row("cross_validated", "sgd_after_t", 1.0)],
  }
  load = lambda names: [row for name in names for row in rows.get(name, ())]
  monkeypatch.setattr(query.kept, "load", load)
  actual = Comparisons().results("no_temperature")
  values = lambda *args: actual.values(*args, seeds=[400]).tolist()
  assert values("sgd", "loss") == [3.0]
  assert values("held_out_temperature", "loss") == [1.0]
  assert values("cross_validated", "loss") == [0.5]
  assert values("cross_validated", "top1") == [80.0]


def test_ensembles_share_their_images():
  study = config.load_study("same_images")
  size = study.config.seeds_per_subset
  assert study.ensembles == (size,)
  for seed in seeds(study):
    assert study.block(seed) == seed // size - study.first_seed // size


@pytest.fixture
def reload_study(request):
  """Imports a study again, and once more at the end, without patches."""
  names = []

  def reload(name):
    names.append(name)
    module = importlib.import_module(f"experiments.studies.{name}")
    return importlib.reload(module).STUDY

  patch = pytest.MonkeyPatch()
  with contextlib.closing(contextlib.ExitStack()) as stack:
    stack.callback(lambda: [reload(name) for name in dict.fromkeys(names)])
    stack.callback(patch.undo)
    yield patch, reload


@pytest.mark.parametrize("name", TUNING)
def test_settings_come_from_kept_rows(name, reload_study):
  """The grid, its extension and the choice, by rows that are made up."""
  patch, reload = reload_study
  rows: list[dict] = []
  patch.setattr(tuning.kept, "load", lambda names: rows)

  def train(study):
    """Lower learning rates are better, without T; larger ones after T."""
    rows[:] = [
      {
        "config_hash": study.config.hash,
        "method": method.name,
        "seed": run_seed,
        "epoch": study.config.epochs,
        "dataset": "clean",
        "metrics": {"loss": method.learning_rate},
        "scaled_crossed": {"loss": -method.learning_rate},
      }
      for method in study.methods
      for run_seed in seeds(study)
    ]

  before = reload(f"{name}_tuning")
  train(before)
  after = reload(f"{name}_tuning")
  more = 2 if name == "all_images" else 4
  grids = importlib.import_module(
    f"experiments.studies.{name}_tuning"
  ).TUNING.grids
  assert len(after.methods) == len(before.methods) + more * len(grids)
  assert set(before.methods) < set(after.methods)
  waiting = reload(name)
  assert all(m.name.endswith("_untuned") for m in waiting.methods)
  train(after)
  assert reload(f"{name}_tuning") == after
  chosen = reload(name)
  assert len(chosen.methods) == len(waiting.methods)
  tuning.check_chosen(chosen)
  without_t = ()
  if name in ("label_noise", "fashion"):
    without_t = reload(f"{name}_without_t").methods
    assert len(without_t) == len(chosen.methods)
  for method in (*chosen.methods, *without_t):
    after_t = method.name.endswith("_after_t")
    base = method.name.removesuffix("_after_t")
    rates = [
      m.learning_rate for m in after.methods if re.match(rf"{base}_\d", m.name)
    ]
    best = max(rates) if after_t else min(rates)
    assert method.learning_rate == best
    plain = dataclasses.replace(
      method, name=base, learning_rate=None, weight_decay=None
    )
    assert plain.base == config.METHODS[base].base
    assert plain.loss == config.METHODS[base].loss


@pytest.mark.slow
def test_own_temperatures(tmp_path, monkeypatch):
  """Folds give temperatures, at which another study is then measured."""

  def run(name, *settings):
    study = config.load_study(name).override([*TINY, *settings])
    path = engine.run_study(study, tmp_path / name, say=lambda _: None)
    return [row for row in read(path) if row["dataset"] == "clean"]

  folds = run(
    *("cross_validation", "per_class=8", "calibrate=2", "seeds=5"),
    "first_seed=2000",
  )
  source = config.load_study("cross_validation")
  end = {"config_hash": source.config.hash, "epoch": source.config.epochs}
  kept = [row | end for row in folds]
  monkeypatch.setattr(tuning.kept, "load", lambda names: kept)
  own = tuning.temperatures(source)
  assert own.keys() == {400}
  (row,) = run("cross_validated", "per_class=10", "seeds=1")
  temperature = row["metrics"]["temperature_own"]
  assert temperature == pytest.approx(own[400], rel=1e-6)
  assert row["scaled_own"]["loss"] != row["metrics"]["loss"]
  # T → ∞ gives log 10, and T of the test images themselves the lowest loss.
  assert row["scaled_own"]["loss"] >= row["scaled"]["loss"] - 1e-6


@pytest.mark.slow
def test_ensemble_of_scaled_networks(tmp_path):
  study = config.load_study("same_images").override(
    [*TINY, "per_class=8", "seeds=5"]
  )
  options = engine.Options(save_logits=True)
  path = engine.run_study(study, tmp_path, options, lambda _: None)
  rows = [row for row in read(path) if row["dataset"] == "clean"]
  pooled = [row for row in rows if "members" in row]
  assert len(rows) == 12 and len(pooled) == 2
  for row in rows:
    assert ("scaled_members" in row) == ("members" in row)
  for row in pooled:
    assert row["scaled_members"]["loss"] != row["scaled_crossed"]["loss"]
