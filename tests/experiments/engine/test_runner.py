"""Studies that are stopped, resumed, spread out and looked at."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

import filelock
import jax
import numpy as np
import pytest
import scipy.special
import tiny

from experiments import __main__ as command
from experiments import config, datasets, rows, shares
from experiments.config import METHODS, ORTHOGRAD, SGD, Run
from experiments.datasets import cache
from experiments.engine import (
  evaluate,
  group,
  runner,
  train,
)
from experiments.files import UserError

TESTS = pathlib.Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def use_tiny(monkeypatch):
  tiny.use(monkeypatch)


def launch(folder, cache_dir, *args, **variables):
  """A process that runs the study, on one device, with a cache of programs."""
  environment = os.environ | {
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "PYTHONPATH": str(TESTS.parent),
    "PYTHONUNBUFFERED": "1",
    "JAX_COMPILATION_CACHE_DIR": str(cache_dir),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
  }
  return subprocess.Popen(
    [sys.executable, TESTS / "tiny.py", folder, *args],
    env=environment | variables,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def finish(process):
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0, output
  return output


def named(runs):
  return [(run.method.name, run.seed) for run in runs]


def results(folder):
  """What was found, without when and where."""
  found = {}
  for row in rows.read(folder / "rows.jsonl"):
    assert rows.key(row) not in found
    names = ("metrics", "bins", "scaled", "scaled_half", "scaled_clean")
    found[rows.key(row)] = {name: row.get(name) for name in names}
  return found


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
  return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache_dir):
  """A study's folder that was made without any interruption."""
  folder = tmp_path_factory.mktemp("whole")
  finish(launch(folder, cache_dir))
  return folder


@functools.cache
def shared_programs():
  study = tiny.STUDY.override(["corruptions="])
  mesh = train.make_mesh()
  engine = train.Engine(study.config, diagnostics=True, mesh=mesh)
  return engine, engine.epoch, evaluate.Evaluator(engine)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  """A study's folder that was made in this process."""
  folder = tmp_path_factory.mktemp("made")
  with pytest.MonkeyPatch.context() as patch:
    tiny.use(patch)
    engine, _, evaluator = shared_programs()
    patch.setattr(train, "Engine", lambda *_, **__: engine)
    patch.setattr(evaluate, "Evaluator", lambda _: evaluator)
    runner.run_study(tiny.STUDY, folder, say=print)
  return folder


def test_rows(made):
  found = list(rows.read(made / "rows.jsonl"))
  # Of each run: two epochs in training, on the test set, and in 5 severities.
  assert len(found) == 4 * 2 * (1 + 1 + 5)
  both = [row for row in found if row["dataset"] == "contrast/5"]
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
  spent = [r["epoch_seconds"] for r in found if r["dataset"] == "train"]
  assert len(spent) == 8 and all(0 < seconds < 600 for seconds in spent)
  assert row["settings"] == dataclasses.asdict(SGD)
  # Images under corruption are also judged by the temperature of clean ones.
  assert set(row["scaled_clean"]) == set(row["scaled"]) > {"loss", "ece"}
  assert row["scaled_clean"]["loss"] >= row["scaled_half"]["loss"] - 0.05
  assert all("scaled_clean" not in r for r in found if r["dataset"] == "clean")
  metrics = row["metrics"]
  assert {"top1", "loss", "ece", "weight_norm", "temperature"} <= set(metrics)
  assert all(isinstance(value, float) for value in metrics.values())
  # A kernel before batch norm has a gradient orthogonal to it; others have not.
  (training,) = (
    row["metrics"]
    for row in found
    if rows.key(row)[1:] == ("orthograd", 1, 4, "train")
  )
  assert training["radial: kernel, then norm"] < 1e-6
  for kind in ("kernel, no norm", "norm scale", "norm bias", "dense kernel"):
    assert 1e-4 < training[f"radial: {kind}"] < 1
  # Contrast makes it harder, and SGD is not ⊥Grad.
  of = {rows.key(row)[1:]: row["metrics"]["loss"] for row in found}
  assert of["sgd", 0, 4, "clean"] != of["orthograd", 0, 4, "clean"]
  assert of["sgd", 0, 2, "train"] == pytest.approx(
    of["orthograd", 0, 2, "train"], rel=0.1
  )


@pytest.mark.slow
def test_killed_at_any_moment(whole, cache_dir, tmp_path):
  """It goes on where it was, and ends in the same bits."""
  for moment in ("epoch 2/4", "epoch 4/4", "evaluated on contrast/2"):
    process = launch(tmp_path, cache_dir)
    assert process.stdout is not None
    for line in process.stdout:
      if moment in line:
        break
    process.send_signal(signal.SIGKILL)
    process.communicate()
  # As a crash in the middle of a line would leave it.
  path = tmp_path / "rows.jsonl"
  os.truncate(path, path.stat().st_size - 30)
  output = finish(launch(tmp_path, cache_dir))
  assert "resumes after epoch" in output
  assert results(tmp_path) == results(whole)
  before = path.read_bytes()
  output = finish(launch(tmp_path, cache_dir))
  assert "4 of 4 runs are there already" in output and "epoch" not in output
  assert path.read_bytes() == before
  # Rows of epochs that no checkpoint is left of are made from the start.
  output = finish(launch(tmp_path, cache_dir, TINY="evaluate_every=1"))
  assert "epoch 1/4" in output
  found, expected = results(tmp_path), results(whole)
  assert {key: found[key] for key in expected} == expected
  assert len(found) == len(expected) + 4 * 2 * 2


@pytest.mark.slow
def test_two_processes(whole, cache_dir, tmp_path):
  """With four devices, which share runs and batches; rows are written once."""
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
  flags = "--xla_force_host_platform_device_count=2"
  variables = {"TINY_BATCH_DEVICES": "2", "XLA_FLAGS": flags}
  processes = [
    launch(tmp_path, cache_dir, str(i), port, **variables) for i in range(2)
  ]
  for process in processes:
    finish(process)
  found, expected = results(tmp_path), results(whole)
  assert set(found) == set(expected)
  for key, row in found.items():
    loss = expected[key]["metrics"]["loss"]
    assert row["metrics"]["loss"] == pytest.approx(loss, rel=1e-3)


@pytest.mark.slow
def test_studies_that_share_models(tmp_path):
  """What one has trained, the other evaluates."""
  base = tiny.STUDY.override(
    ["corruptions=", "corrupted_at=", "epochs=2", "seeds=1"]
  )
  path = runner.run_study(base, tmp_path, say=print)
  trained, said = results(tmp_path), []
  more = dataclasses.replace(
    base, name="more", models_of=base.name, corruptions=("contrast",)
  )
  assert more.folder == base.folder
  runner.run_study(more, tmp_path, say=said.append)
  assert not any(": epoch " in text for text in said)
  found = results(tmp_path)
  assert {key: found[key] for key in trained} == trained
  assert len(found) == len(trained) + 2 * 5
  assert {row["study"] for row in rows.read(path)} == {"tiny", "more"}
  assert config.load_settings(tmp_path).name == "tiny"
  # Another optimizer of the same study is the only one that is left; and where
  # something is missing, those that trained together are evaluated together.
  other = more.override(["methods=orthograd,orthograd_unnormalized"])
  unnormalized = Run(METHODS["orthograd_unnormalized"], 0)
  assert groups(other, tmp_path) == [[unnormalized]]
  other = dataclasses.replace(other, corruptions=("contrast", "fog"))
  assert groups(other, tmp_path) == [
    [Run(SGD, 0), Run(ORTHOGRAD, 0)],
    [unnormalized],
  ]


@pytest.mark.slow
def test_groups_share_programs_and_images(tmp_path, monkeypatch):
  study = tiny.STUDY.override(["corrupted_at=", "epochs=1"])
  engines, sets = [], []

  def make_engine(*args, _make=train.Engine, **options):
    engines.append(_make(*args, **options))
    return engines[-1]

  def images_of(name, *args, _make=evaluate.images_of):
    sets.append(name)
    return _make(name, *args)

  monkeypatch.setattr(train, "Engine", make_engine)
  monkeypatch.setattr(evaluate, "images_of", images_of)
  options = group.Options(group_size=2)
  runner.run_study(study, tmp_path, options, say=print)
  assert len(results(tmp_path)) == len(study.runs) * len(study.datasets(1))
  (engine,) = engines
  assert engine.epoch._cache_size() == 1
  corrupted = [name for name in sets if name != "clean"]
  assert sorted(corrupted) == sorted(study.datasets(1)[2:])
  assert set(sets) == set(study.datasets(1)[1:])


def test_a_name_means_one_method(tmp_path):
  """Rows of other settings under the same name are not taken for its own."""
  path = tmp_path / "rows.jsonl"
  made = row_of(0) | {"config_hash": tiny.CONFIG.hash}
  rows.Rows(path).append([made])  # before methods were data
  rows.Rows(path).check_methods(tiny.STUDY)
  other = dataclasses.replace(SGD, learning_rate=0.3, schedule="cosine")
  made |= {"seed": 1, "settings": dataclasses.asdict(other)}
  rows.Rows(path).append([made])
  with pytest.raises(
    rows.RowsError, match="rows of sgd with another schedule, learning_rate.*"
  ):
    runner.run_study(tiny.STUDY, tmp_path, say=print)
  renamed = dataclasses.replace(other, name="sgd_cosine")
  study = dataclasses.replace(tiny.STUDY, methods=(renamed, ORTHOGRAD))
  rows.Rows(path).check_methods(study)


def test_leftovers(tmp_path):
  """Only its own leftovers are removed, wherever others are."""
  own = [
    ".study.json-0123abcd.part",
    "checkpoints/x/.runs.json-0123abcd.part",
    "logits/.sgd-0-1-clean.npy-0123abcd.part",
  ]
  others = [".film.part", "notes/.study.json-0123abcd.part"]
  for name in own + others:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("half")
  runner._prepare(tiny.STUDY, tmp_path)
  assert not any((tmp_path / name).exists() for name in own)
  assert all((tmp_path / name).exists() for name in others)


def test_study_is_read_back(tmp_path):
  sweep = [
    dataclasses.replace(SGD, name=f"sgd_{x}", learning_rate=x)
    for x in (0.1, 0.2)
  ]
  study = dataclasses.replace(
    tiny.STUDY, methods=(*sweep, METHODS["sam"]), ensembles=(2,)
  )
  runner._prepare(study, tmp_path)
  assert config.load_settings(tmp_path) == study
  # As it was written before methods were data.
  settings = json.loads((tmp_path / "study.json").read_text())
  del settings["methods"], settings["ensembles"]
  settings["optimizers"] = ["sgd", "orthograd"]
  (tmp_path / "study.json").write_text(json.dumps(settings))
  assert config.load_settings(tmp_path) == tiny.STUDY


@pytest.fixture
def events(monkeypatch):
  """Which epochs are begun and looked at; all tests share their programs."""
  found = []
  engine, epoch_of, evaluator = shared_programs()

  def epoch(state, runs, number, *images):
    found.append(("begin", number + 1))
    return epoch_of(state, runs, number, *images)

  def note(self, number, metrics, _note=group.Group._note_diverged):
    found.append(("look", number))
    return _note(self, number, metrics)

  monkeypatch.setattr(engine, "epoch", epoch)
  monkeypatch.setattr(group.Group, "_note_diverged", note)
  monkeypatch.setattr(train, "Engine", lambda *_, **__: engine)
  monkeypatch.setattr(evaluate, "Evaluator", lambda _: evaluator)
  return found


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
      flip(max(state.glob("**/d/*"), key=lambda p: p.stat().st_size))
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


@pytest.mark.parametrize("failing", [1, 4])
def test_compiler_options_that_fail(
  tmp_path, monkeypatch, events, made, failing
):
  """Trains without them, from the last checkpoint; rows are unchanged."""
  del events
  engine, *_ = shared_programs()
  epoch_of = engine.epoch

  def fail(state, runs, number, *images):
    if number + 1 < failing:
      return epoch_of(state, runs, number, *images)
    jax.tree.map(lambda x: x.delete(), state)  # it is donated
    raise jax.errors.JaxRuntimeError("CUDNN_STATUS_EXECUTION_FAILED\nDetails")

  # `set_options` changes both; these are undone after the test.
  monkeypatch.setattr(engine, "options", {"xla_some_option": "true"})
  monkeypatch.setattr(engine, "epoch", fail)
  study, said = tiny.STUDY.override(["corruptions="]), []
  options = group.Options(checkpoint_every=2)
  runner.run_study(study, tmp_path, options, said.append)
  (told,) = (text for text in said if "compiler options" in text)
  assert "(CUDNN_STATUS_EXECUTION_FAILED)" in told and engine.options == {}
  assert any("resumes after epoch 2" in x for x in said) == (failing > 2)
  found, expected = results(tmp_path), results(made)
  assert found == {key: expected[key] for key in found} and len(found) == 16
  # Without options, an error is the user's to see.
  monkeypatch.setattr(engine, "epoch", fail)
  with pytest.raises(jax.errors.JaxRuntimeError, match="CUDNN"):
    runner.run_study(study, tmp_path / "other", options, print)


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
    (state / "3", "expected one of epoch 4, got one of epoch 3"),
    (other, "expected one of group .*, got one of group"),
  ):
    path.write_text("".join(f"{line}\n" for line in lines[:-4]))
    shutil.rmtree(state / "4")
    shutil.copytree(source, state / "4")
    said = []
    runner.run_study(study, tmp_path / "a", options, say=said.append)
    assert any(re.search(message, text) for text in said), said
    assert any("resumes after epoch 3" in text for text in said)
    assert results(tmp_path / "a") == expected


def test_a_run_that_diverges(tmp_path, monkeypatch, events):
  """It is recorded as such, and the others go on."""
  in_place(monkeypatch, lambda x: np.where(np.arange(len(x)) == 1, np.nan, x))
  said = []
  study = tiny.STUDY.override(["corruptions=", "evaluate_every=2", "seeds=2"])
  options = group.Options(save_logits=True)
  runner.run_study(study, tmp_path, options, say=said.append)
  found = list(rows.read(tmp_path / "rows.jsonl"))
  (lost,) = (row for row in found if row["dataset"] == "diverged")
  assert (lost["method"], lost["seed"]) == ("orthograd", 0)
  assert lost["epoch"] == 1 and lost["metrics"]["weight_norm"] is None
  others = [row for row in found if row is not lost]
  assert len(others) == 3 * 4
  assert all(np.isfinite(row["metrics"]["loss"]) for row in others)
  assert ("orthograd", 0) not in {(r["method"], r["seed"]) for r in others}
  runner.run_study(study, tmp_path, say=said.append)
  assert "4 of 4 runs are there already" in said[-2]
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
  found = list(rows.read(tmp_path / "rows.jsonl"))
  assert [(r["dataset"], r["epoch"]) for r in found] == [("diverged", 1)] * 4
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
  found = {rows.key(row)[1:]: row for row in rows.read(path)}
  for name in study.method_names:
    pooled = found[f"{name} ensemble of 2", 0, 1, "clean"]
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
  assert "4 of 4 runs are there already" in said[0]


def test_sets_are_made_ahead(monkeypatch):
  sample = datasets.load_sample()
  made = []

  def images_of(name, *args, _make=evaluate.images_of):
    made.append((name, threading.current_thread() is threading.main_thread()))
    if name == "fog/2":
      raise cache.DataError("no fog")
    return _make(name, *args)

  monkeypatch.setattr(evaluate, "images_of", images_of)
  with contextlib.closing(evaluate.Sets(sample)) as sets:
    sets.ask(["contrast/1", "fog/2"])
    sets.ask(["contrast/1"])
    images, labels = sets["contrast/1"]
    # One that failed is tried again.
    with pytest.raises(cache.DataError, match="no fog"):
      sets["fog/2"]
    np.testing.assert_array_equal(sets["clean"][0], sample.test_images)
  there, here = [("contrast/1", False), ("fog/2", False)], [("fog/2", True)]
  assert made == [*there, *here, ("clean", True)]
  expected, _ = images_of("contrast/1", sample)
  np.testing.assert_array_equal(images, expected)
  np.testing.assert_array_equal(labels, sample.test_labels)


def row_of(seed, dataset="clean"):
  return {
    "study": "tiny",
    "config_hash": "c",
    "method": "sgd",
    "seed": seed,
    "epoch": 1,
    "dataset": dataset,
    "metrics": {"loss": float("nan")},
  }


def test_folder_that_can_not_be_written(tmp_path, monkeypatch, capsys):
  (tmp_path / "file").write_text("in the way")
  argv = ["x", "run", "quick", "--output", str(tmp_path / "file" / "runs")]
  monkeypatch.setattr(sys, "argv", argv)
  with pytest.raises(SystemExit) as stopped:
    command.main()
  assert "file" in str(stopped.value) and "Error" in str(stopped.value)
  assert "Traceback" not in capsys.readouterr().err


def groups(study, folder, **options):
  missing = rows.Missing(study, rows.Rows(folder / "rows.jsonl").keys)
  mesh = train.make_mesh(devices=jax.devices()[:1])
  return list(
    runner.make_groups(study, folder, missing, mesh, group.Options(**options))
  )


def test_runs_that_are_there_are_not_made_again(made):
  study = tiny.STUDY.override(["seeds=3"])
  assert groups(study, made) == [[Run(SGD, 2), Run(ORTHOGRAD, 2)]]
  more = tiny.STUDY.override(["corruptions=contrast,fog"])
  assert groups(more, made) == [tiny.RUNS]  # by its checkpoint
  other = tiny.STUDY.override(["momentum=0.5"])
  assert groups(other, made) == [tiny.RUNS]


def begin(folder, manifest):
  """A group's folder, without checkpoints."""
  text = json.dumps(manifest)
  name = hashlib.sha256(text.encode()).hexdigest()[:16]
  path = folder / "checkpoints" / name / "runs.json"
  path.parent.mkdir(parents=True)
  path.write_text(text)
  return path


# Valid JSON, or none, that is not what it should be.
WRONG = [b"null", b"3", b"[]", b"{}", b'"x"', b"{", b"\xff", b"[" * 100_000]


@pytest.mark.parametrize("content", WRONG)
def test_files_of_another_form(tmp_path, content):
  """Each error has the file's name and what to do."""
  path = begin(tmp_path, group.manifest(tiny.STUDY, tiny.RUNS))
  path.write_bytes(content)
  if content != b"{}":  # which is of another kind of study
    with pytest.raises(UserError, match="runs.json is damaged.*Remove .*again"):
      groups(tiny.STUDY, tmp_path)
  (tmp_path / "study.json").write_bytes(content)
  with pytest.raises(UserError, match="study.json has no settings.*Remove it"):
    config.load_settings(tmp_path)
  (tmp_path / "rows.jsonl").write_bytes(content + b"\n")
  with pytest.raises(
    UserError, match="Line 1 of .*rows.jsonl (is not|was) .* Remove"
  ):
    rows.Rows(tmp_path / "rows.jsonl")


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


@pytest.mark.parametrize(
  "change",
  [
    {"speed": 1},
    {"name": 3},
    {"name": "../x"},
    {"models_of": "../x"},
    {"config": 3},
    {"config": {"speed": 1}},
    {"config": {"epochs": 0}},
    {"config": {"epochs": "4"}},
    {"methods": 3},
    {"methods": [3]},
    {"methods": [{"name": "sgd", "speed": 1}]},
    {"methods": [{"name": "../x"}]},
    {"optimizers": ["nonsense"]},
    {"seeds": None},
    {"ensembles": [[2]]},
    {"corruptions": {"fog": 1}},
  ],
)
def test_settings_that_were_changed(tmp_path, change):
  runner._prepare(tiny.STUDY, tmp_path)
  path = tmp_path / "study.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | change))
  with pytest.raises(UserError, match="study.json has no settings"):
    config.load_settings(tmp_path)


def test_groups(tmp_path):
  study = tiny.STUDY.override(["seeds=5"])
  assert [len(runs) for runs in groups(study, tmp_path)] == [10]
  split = groups(study, tmp_path, group_size=5)
  assert [len(runs) for runs in split] == [4, 4, 2]
  for runs in split:
    seeds = [run.seed for run in runs]
    assert seeds[::2] == seeds[1::2]
  assert sum(split, []) == study.runs
  assert len(groups(study, tmp_path, group_size=1)) == 10
  study = study.override(
    ["methods=sgd,orthograd_unnormalized,orthograd", "seeds=2"]
  )
  together = groups(study, tmp_path)
  assert [{run.method.name for run in runs} for runs in together] == [
    {"sgd", "orthograd"},
    {"orthograd_unnormalized"},
  ]
  # What was begun stays together, unless its checkpoints have an older form.
  manifest = group.manifest(study, tiny.RUNS[:3])
  older = {k: v for k, v in manifest.items() if k != "format"}
  begin(tmp_path, older | {"runs": [["sgd", 0], ["sgd", 1]]})
  assert groups(study, tmp_path) == together
  begin(tmp_path, manifest)
  first, *others = groups(study, tmp_path)
  assert first == tiny.RUNS[:3]
  assert set(sum(others, first)) == set(study.runs)


def test_groups_of_what_is_left(tmp_path):
  """No run is forgotten, even where one of a pair is there."""
  study = tiny.STUDY.override(["seeds=4", "corruptions="])
  file = rows.Rows(tmp_path / "rows.jsonl")
  file.append(
    row_of(1, dataset) | {"epoch": epoch, "config_hash": study.config.hash}
    for epoch in (2, 4)
    for dataset in ("train", "clean")
  )
  left = [run for run in study.runs if run != (SGD, 1)]
  for size in (1, 2, 3, 4, 100):
    found = groups(study, tmp_path, group_size=size)
    assert sum(found, []) == left
    assert all(len(runs) <= size for runs in found)


def test_groups_keep_ensembles_whole(tmp_path):
  study = config.load_study("ensembles")
  for size, parts in {10: [5] * 5, 19: [5] * 5, 20: [10, 10, 5]}.items():
    found = groups(study, tmp_path, group_size=size)
    assert [len(runs) // 2 for runs in found] == parts
    assert sum(found, []) == study.runs
  # Also if some seeds are there already.
  assert shares.split_seeds(study, list(range(303, 325)), 10) == [
    list(range(303, 310)),
    list(range(310, 320)),
    list(range(320, 325)),
  ]
  with pytest.raises(UserError, match="compares ensembles of 5 seeds, which"):
    groups(study, tmp_path, group_size=9)
  # Where no pair needs them, there are then none.
  described = config.load_study("schedules").override(["seeds=4"])
  assert [len(runs) for runs in groups(described, tmp_path, group_size=4)] == [
    4
  ] * 4


def test_two_at_once(tmp_path):
  study = tiny.STUDY.override(["seeds=1"])
  with filelock.FileLock(tmp_path / ".lock"):
    with pytest.raises(UserError, match="Another process is at work in"):
      runner.run_study(study, tmp_path, say=print)
  with filelock.FileLock(tmp_path / ".lock", timeout=0):
    pass


def run_command(monkeypatch, capsys, *args):
  monkeypatch.setattr(sys, "argv", ["experiments", *map(str, args)])
  command.main()
  return capsys.readouterr().out


def test_show_and_report(made, monkeypatch, capsys):
  shown = run_command(monkeypatch, capsys, "show", made)
  assert "contrast/5" in shown and "⊥Grad − SGD, loss after T: " in shown
  said = run_command(monkeypatch, capsys, "report", made)
  assert "over 2 pairs: **" in said and "report.html" in said
  page = (made / "report.html").read_text()
  assert page.count("<svg") == 3 and "⊥Grad" in page
  assert "http://www.w3.org" in page and "src=" not in page


def test_list(monkeypatch, capsys):
  listed = run_command(monkeypatch, capsys, "list")
  assert "quick" in listed and "table1" in listed


def test_plan_of_a_large_network(tmp_path, monkeypatch, capsys):
  """A CPU does not compile it."""
  monkeypatch.setattr(train.Engine, "__init__", None)
  planned = run_command(
    monkeypatch, capsys, "plan", "table1", "--output", tmp_path
  )
  assert "compiling" not in planned
  assert "at least" in planned and "ms a run" in planned


@pytest.mark.slow
def test_plan(tmp_path, monkeypatch, capsys):
  planned = run_command(
    monkeypatch,
    capsys,
    *("plan", "quick", "--output", tmp_path, "--set", "batch_size=16"),
    *("--set", "per_class=7", "--set", "seeds=2"),
  )
  assert "runs       4, 0 complete" in planned
  assert "ms a run" in planned and "GB" in planned


@pytest.mark.parametrize(
  ("args", "message"),
  [
    (["run", "tabel1"], "no study 'tabel1'.*table1"),
    (["run", "quick", "--set", "epoch=1"], "is not a setting"),
    (["run", "quick", "--set", "epochs=0"], "epochs is 0"),
    (["resume", "nowhere"], "nowhere is not a study folder"),
    (["show", "nowhere"], "nowhere"),
    (["report", "nowhere"], "nowhere"),
  ],
)
def test_commands_that_can_not_be(monkeypatch, capsys, args, message):
  with pytest.raises(SystemExit) as stopped:
    run_command(monkeypatch, capsys, *args)
  assert stopped.match(message)
