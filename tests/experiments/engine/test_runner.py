"""Studies that are stopped, resumed, spread out and looked at."""

import dataclasses
import errno
import json
import os
import signal
import socket
import sys

import filelock
import measured
import pytest
import tiny

from experiments import __main__ as command
from experiments import config, rows, shares
from experiments.config import METHODS, ORTHOGRAD, SGD, Run
from experiments.engine import evaluate, group, runner, train
from experiments.files import UserError

from .small_studies import (
  begin,
  finish,
  groups,
  launch,
  results,
  run_command,
)

pytestmark = pytest.mark.usefixtures("use_tiny")


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
  assert "4 of 4 runs are complete" in output and "epoch" not in output
  assert path.read_bytes() == before
  # Rows of epochs that no checkpoint is left of are made from the start.
  output = finish(launch(tmp_path, cache_dir, TINY="evaluate_every=1"))
  assert "epoch 1/4" in output
  actual, expected = results(tmp_path), results(whole)
  assert {key: actual[key] for key in expected} == expected
  assert len(actual) == len(expected) + 4 * 2 * 2


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
  actual, expected = results(tmp_path), results(whole)
  assert set(actual) == set(expected)
  for key, row in actual.items():
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
  actual = results(tmp_path)
  assert {key: actual[key] for key in trained} == trained
  assert len(actual) == len(trained) + 2 * 5
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
  made = measured.row(0, config_hash=tiny.CONFIG.hash)
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


def test_folder_that_can_not_be_written(tmp_path, monkeypatch, capsys):
  (tmp_path / "file").write_text("in the way")
  argv = ["x", "run", "quick", "--output", str(tmp_path / "file" / "runs")]
  monkeypatch.setattr(sys, "argv", argv)
  with pytest.raises(SystemExit) as stopped:
    command.main()
  assert "file" in str(stopped.value) and "Error" in str(stopped.value)
  assert "Traceback" not in capsys.readouterr().err


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
    UserError, match="Line 1 of .*rows.jsonl (is not|was|has no) .* Remove"
  ):
    rows.Rows(tmp_path / "rows.jsonl")


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
    measured.row(1, dataset, epoch=epoch, config_hash=study.config.hash)
    for epoch in (2, 4)
    for dataset in ("train", "clean")
  )
  left = [run for run in study.runs if run != (SGD, 1)]
  for size in (1, 2, 3, 4, 100):
    actual = groups(study, tmp_path, group_size=size)
    assert sum(actual, []) == left
    assert all(len(runs) <= size for runs in actual)


def test_groups_keep_ensembles_whole(tmp_path):
  study = config.load_study("ensembles")
  for size, parts in {10: [5] * 5, 19: [5] * 5, 20: [10, 10, 5]}.items():
    actual = groups(study, tmp_path, group_size=size)
    assert [len(runs) // 2 for runs in actual] == parts
    assert sum(actual, []) == study.runs
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


def test_errors_of_a_disk_name_the_path_and_the_remedy(monkeypatch, capsys):
  def fail():
    raise OSError(errno.EIO, "Input/output error", "runs/x")

  monkeypatch.setattr(config, "study_names", fail)
  message = "^Error: .*'runs/x'. Check that the path exists, .*repeat the comm"
  with pytest.raises(SystemExit, match=message):
    run_command(monkeypatch, capsys, "list")


def test_list(monkeypatch, capsys):
  listed = run_command(monkeypatch, capsys, "list")
  assert "quick" in listed and "table1" in listed


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
