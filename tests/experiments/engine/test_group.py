"""A group's checkpoints, rows and failures."""

import dataclasses
import json
import re
import shutil

import jax
import numpy as np
import pytest
import scipy.special
import tiny

from experiments import rows
from experiments.config import ORTHOGRAD, SGD, Run
from experiments.engine import evaluate, group, runner, train
from experiments.files import UserError

from .small_studies import (
  begin,
  groups,
  named,
  results,
  run_command,
  shared_programs,
)

pytestmark = pytest.mark.usefixtures("use_tiny")


# All tests of `made` are in this file, so that one worker trains it.


def test_rows(made):
  kept = list(rows.read(made / "rows.jsonl"))
  # Of each run: two epochs in training, on the test set, and in 5 severities.
  assert len(kept) == 4 * 2 * (1 + 1 + 5)
  both = [row for row in kept if row["dataset"] == "contrast/5"]
  last = [row for row in both if row["epoch"] == 4]
  assert {row["epoch"] for row in both} == {2, 4}
  assert [(row["method"], row["seed"]) for row in last] == named(tiny.RUNS)
  row = last[0]
  assert row["study"] == "tiny" and row["model"] == "small"
  assert row["epoch"] == 4 and row["precision"] == "float32"
  assert row["config"]["learning_rate"] == 0.05
  assert row["config_hash"] == tiny.CONFIG.hash
  assert row["versions"]["jax"] == jax.__version__
  assert "cpu" in row["device"] and row["wall_time"] > 0
  assert {"commit", "sources", "time", "convolutions"} <= set(row)
  spent = [r["epoch_seconds"] for r in kept if r["dataset"] == "train"]
  assert len(spent) == 8 and all(0 < seconds < 600 for seconds in spent)
  assert row["settings"] == dataclasses.asdict(SGD)
  # Images under corruption are also judged by the temperature of clean ones.
  assert set(row["scaled_clean"]) == set(row["scaled"]) > {"loss", "ece"}
  assert row["scaled_clean"]["loss"] >= row["scaled_half"]["loss"] - 0.05
  assert all("scaled_clean" not in r for r in kept if r["dataset"] == "clean")
  metrics = row["metrics"]
  assert {"top1", "loss", "ece", "weight_norm", "temperature"} <= set(metrics)
  assert all(isinstance(value, float) for value in metrics.values())
  # A kernel before batch norm has a gradient orthogonal to it; others have not.
  (training,) = (
    row["metrics"]
    for row in kept
    if rows.key(row)[1:] == ("orthograd", 1, 4, "train")
  )
  assert training["radial: kernel, then norm"] < 1e-6
  for kind in ("kernel, no norm", "norm scale", "norm bias", "dense kernel"):
    assert 1e-4 < training[f"radial: {kind}"] < 1
  # Contrast makes it harder, and SGD is not ⊥Grad.
  of = {rows.key(row)[1:]: row["metrics"]["loss"] for row in kept}
  assert of["sgd", 0, 4, "clean"] != of["orthograd", 0, 4, "clean"]
  assert of["sgd", 0, 2, "train"] == pytest.approx(
    of["orthograd", 0, 2, "train"], rel=0.1
  )


def test_runs_that_are_there_are_not_made_again(made):
  study = tiny.STUDY.override(["seeds=3"])
  assert groups(study, made) == [[Run(SGD, 2), Run(ORTHOGRAD, 2)]]
  more = tiny.STUDY.override(["corruptions=contrast,fog"])
  assert groups(more, made) == [tiny.RUNS]  # by its checkpoint
  other = tiny.STUDY.override(["momentum=0.5"])
  assert groups(other, made) == [tiny.RUNS]


def test_show_and_report(made, monkeypatch, capsys):
  shown = run_command(monkeypatch, capsys, "show", made)
  assert "contrast/5" in shown and "⊥Grad − SGD, loss after T: " in shown
  said = run_command(monkeypatch, capsys, "report", made)
  assert "over 2 pairs: **" in said and "report.html" in said
  page = (made / "report.html").read_text()
  assert page.count("<svg") == 3 and "⊥Grad" in page
  assert "http://www.w3.org" in page and "src=" not in page


@pytest.mark.slow
def test_an_epoch_is_begun_before_the_last_is_looked_at(tmp_path, events):
  study = tiny.STUDY.override(
    ["corrupted_at=", "corruptions=", "evaluate_every=3"]
  )
  said = []
  runner.run_study(study, tmp_path, say=said.append)
  assert [f"{what} {epoch}" for what, epoch in events] == [
    *("begin 1", "begin 2", "look 1", "begin 3", "look 2", "look 3"),
    *("begin 4", "look 4"),
  ]
  told = [text for text in said if ": epoch " in text]
  assert [f"epoch {i}/4" in text for i, text in enumerate(told, 1)] == [
    True
  ] * 4
  after = runner.run_study(
    study, tmp_path / "other", group.Options(checkpoint_every=1), print
  )
  assert events[8:10] == [("begin", 1), ("look", 1)]
  assert results(tmp_path) == results(after.parent)


def test_corrupted_images_are_made_while_it_trains(
  tmp_path, monkeypatch, events
):
  """In another thread, once the first epoch is compiled."""

  def ask(sets, names, _ask=evaluate.Sets.ask):
    events.append(("ask", names))
    return _ask(sets, names)

  monkeypatch.setattr(evaluate.Sets, "ask", ask)
  study = tiny.STUDY.override(
    ["corrupted_at=", "evaluate_every=4", "methods=sgd,orthograd"]
  )
  runner.run_study(study, tmp_path, say=print)
  corrupted = ("ask", study.datasets(4)[2:])
  assert events[:4] == [("begin", 1), ("begin", 2), ("look", 1), corrupted]
  assert events.index(("look", 4)) < events.index(("ask", ["clean"]))


def flip(path):
  """One bit, in the middle."""
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


@pytest.mark.slow
def test_damaged_checkpoints(tmp_path, events):
  """The one before is gone on with, or the start; it ends in the same bits."""
  study = tiny.STUDY.override(
    ["corruptions=", "corrupted_at=", "evaluate_every=4"]
  )
  options = group.Options(checkpoint_every=1)
  path = runner.run_study(study, tmp_path, options, say=print)
  expected, lines = results(tmp_path), path.read_text().splitlines()
  for damaged, done in (((4,), 3), ((3, 4), 0)):
    # Without the last epoch's rows, except its training rows, which come first.
    path.write_text("".join(f"{line}\n" for line in lines[:-4]))
    for epoch in damaged:
      (state,) = tmp_path.glob(f"checkpoints/*/state/{epoch}")
      flip(state)
    events.clear()
    said = []
    runner.run_study(study, tmp_path, options, say=said.append)
    told = [text for text in said if "removed the damaged" in text]
    assert len(told) == len(damaged)
    for epoch, text in zip(damaged, told, strict=True):
      assert f"state/{epoch}: " in text and "SHA-256" in text
    assert any(f"resumes after epoch {done}" in x for x in said) == bool(done)
    assert events[0] == ("begin", done + 1)
    assert results(tmp_path) == expected


@pytest.mark.slow
def test_swapped_checkpoints(tmp_path, events):
  """One of another epoch, or of another learning rate, is not resumed from."""
  study = tiny.STUDY.override(
    ["corruptions=", "corrupted_at=", "evaluate_every=4"]
  )
  options = group.Options(checkpoint_every=1)
  path = runner.run_study(study, tmp_path / "a", options, say=print)
  faster = study.override(["learning_rate=0.1"])
  runner.run_study(faster, tmp_path / "b", options, say=print)
  expected, lines = results(tmp_path / "a"), path.read_text().splitlines()
  (state,) = (tmp_path / "a").glob("checkpoints/*/state")
  (other,) = (tmp_path / "b").glob("checkpoints/*/state/4")
  for source, message in (
    (state / "3", "expected epoch 4, got 3"),
    (other, "expected group .*, got "),
  ):
    path.write_text("".join(f"{line}\n" for line in lines[:-4]))
    shutil.copyfile(source, state / "4")
    said = []
    runner.run_study(study, tmp_path / "a", options, say=said.append)
    assert any(re.search(message, text) for text in said), said
    assert any("resumes after epoch 3" in text for text in said)
    assert results(tmp_path / "a") == expected


def in_place(monkeypatch, change):
  """Has the runs' strengths changed."""

  engine, *_ = shared_programs()
  place_of = engine.place

  def place(runs, labels):
    placed = place_of(runs, labels)
    strength = change(np.array(placed.method.strength))
    strength = train.put(strength, engine.by_run)
    method = dataclasses.replace(placed.method, strength=strength)
    return placed._replace(method=method)

  monkeypatch.setattr(engine, "place", place)


def test_a_run_that_diverges(tmp_path, monkeypatch, events):
  """It is recorded as such, and the others go on."""
  in_place(monkeypatch, lambda x: np.where(np.arange(len(x)) == 1, np.nan, x))
  said = []
  study = tiny.STUDY.override(["corruptions=", "evaluate_every=2", "seeds=2"])
  options = group.Options(save_logits=True)
  runner.run_study(study, tmp_path, options, say=said.append)
  kept = list(rows.read(tmp_path / "rows.jsonl"))
  (lost,) = (row for row in kept if row["dataset"] == "diverged")
  assert (lost["method"], lost["seed"]) == ("orthograd", 0)
  assert lost["epoch"] == 1 and lost["metrics"]["weight_norm"] is None
  others = [row for row in kept if row is not lost]
  assert len(others) == 3 * 4
  assert all(np.isfinite(row["metrics"]["loss"]) for row in others)
  assert ("orthograd", 0) not in {(r["method"], r["seed"]) for r in others}
  runner.run_study(study, tmp_path, say=said.append)
  assert "4 of 4 runs are complete" in said[-2]
  logits = np.load(tmp_path / "logits" / "sgd-1-4-clean.npy")
  assert logits.shape == (tiny.TEST_IMAGES, 10) and logits.dtype == np.float32
  labels = tiny.sample().test_labels
  top1 = 100 * np.mean(np.argmax(logits, axis=1) == labels)
  (row,) = (
    row for row in others if rows.key(row)[1:] == ("sgd", 1, 4, "clean")
  )
  assert row["metrics"]["top1"] == pytest.approx(top1)


def test_all_runs_diverge(tmp_path, monkeypatch, events):
  """It is seen while the next epoch is under way, and that is the last one."""
  in_place(monkeypatch, lambda x: x * np.float32(np.nan))
  study = tiny.STUDY.override(
    ["corrupted_at=", "corruptions=", "evaluate_every=4"]
  )
  said = []
  runner.run_study(study, tmp_path, say=said.append)
  kept = list(rows.read(tmp_path / "rows.jsonl"))
  assert [(r["dataset"], r["epoch"]) for r in kept] == [("diverged", 1)] * 4
  assert events == [("begin", 1), ("begin", 2), ("look", 1)]
  assert "epoch 1/4" in said[1] and "every run has diverged" in said[2]


def test_ensembles(tmp_path, events):
  """Seeds of a method that train together, in blocks of the largest size."""
  del events
  study = tiny.STUDY.override(
    ["corruptions=", "corrupted_at=", "epochs=1", "seeds=2", "ensembles=2"]
  )
  options = group.Options(save_logits=True)
  path = runner.run_study(study, tmp_path, options, say=print)
  kept = {rows.key(row)[1:]: row for row in rows.read(path)}
  for name in study.method_names:
    pooled = kept[f"{name} ensemble of 2", 0, 1, "clean"]
    assert pooled["members"] == [0, 1] and pooled["settings"]["name"] == name
    assert "weight_norm" not in pooled["metrics"]
    logits = [
      np.float64(np.load(tmp_path / "logits" / f"{name}-{seed}-1-clean.npy"))
      for seed in (0, 1)
    ]
    p = np.mean(scipy.special.softmax(logits, axis=2), axis=0)
    labels = tiny.sample().test_labels
    loss = -np.mean(np.log(p[np.arange(len(p)), labels]))
    top1 = 100 * np.mean(np.argmax(p, axis=1) == labels)
    assert pooled["metrics"]["loss"] == pytest.approx(loss, rel=1e-5)
    assert pooled["metrics"]["top1"] == pytest.approx(top1)
  # Rows of ensembles come before the rows of their runs.
  order = [row["method"] for row in rows.read(path)]
  assert order.index("sgd ensemble of 2") < len(order) - 1
  assert order[-1] == "orthograd"
  said = []
  runner.run_study(study, tmp_path, options, say=said.append)
  assert "4 of 4 runs are complete" in said[0]


@pytest.mark.parametrize(
  "change",
  [
    {"seed": 7},
    {"runs": 3},
    {"runs": [3]},
    {"runs": [[{"name": "sgd", "speed": 1}, 0]]},
    {"runs": [[{"name": "sgd"}, "a"]]},
  ],
)
def test_runs_that_were_changed(tmp_path, change):
  manifest = group.manifest(tiny.STUDY, tiny.RUNS)
  path = begin(tmp_path, manifest)
  path.write_text(json.dumps(manifest | change))
  if "seed" in change:  # which is of another kind of study
    assert groups(tiny.STUDY, tmp_path) == [tiny.RUNS]
    return
  with pytest.raises(UserError, match="runs.json is damaged"):
    groups(tiny.STUDY, tmp_path)
