"""What the command line tells a user: help, settings, and the next command."""

import dataclasses
import json
import pathlib
import pkgutil
import shlex
from subprocess import PIPE, Popen
import sys

import jax
from jax._src.distributed import State
import pytest
from tiny import write

from experiments import __main__ as command_line
from experiments import config, rows
from experiments.cli import folders, parser
from experiments.datasets import cifar
from experiments.engine import progress
from experiments.studies import quick, renormalization, table1

ROOT = pathlib.Path(__file__).parents[3]


def main(monkeypatch, capsys, *args):
  monkeypatch.setattr(sys, "argv", ["experiments", *map(str, args)])
  command_line.main()
  return capsys.readouterr().out


@pytest.mark.parametrize("name", parser.COMMANDS)
def test_help_ends_in_an_example(name, monkeypatch, capsys):
  *_, shown = parser.COMMANDS[name].format_help().splitlines()
  text = shown.removeprefix("  python -m experiments ")
  words = shlex.split(text)
  assert words[: len(name.split())] == name.split()
  args = parser.MAIN.parse_args(words)
  assert callable(pkgutil.resolve_name(f"experiments.cli.{args.function}"))
  with pytest.raises(SystemExit):
    main(monkeypatch, capsys, *name.split(), "--help")
  assert capsys.readouterr().out.endswith(f"\nexample:\n{shown}\n")


def test_a_reader_that_closes_early():
  """As in `data status | true`: not a word."""
  command = [sys.executable, "-m", "experiments", "data", "status"]
  with Popen(command, stdout=PIPE, stderr=PIPE, cwd=ROOT) as process:
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 1


def test_status_lists_frost(tmp_path, monkeypatch, capsys):
  status = "data", "status"
  monkeypatch.setenv("ORTHOGRAD_DATA", str(tmp_path))
  shown = main(monkeypatch, capsys, *status)
  assert "frost.bin               missing\n" in shown
  assert shown.count(" missing\n") == 16 and "data fetch frost`" in shown
  for name in (*cifar.CIFAR10.digests, "frost.bin"):
    (tmp_path / name).touch()
  shown = main(monkeypatch, capsys, *status)
  assert shown.count(" missing\n") == 9 and "data fetch cifar10`" not in shown
  shown = main(monkeypatch, capsys, *status, "frost")
  assert "frost.bin                         0 bytes\n" in shown
  with pytest.raises(SystemExit):
    main(monkeypatch, capsys, "data", "verify", "frost")
  shown = capsys.readouterr().out
  assert "frost.bin: damaged: 0 bytes, SHA-256 e3b0c44298fc1c14" in shown


def test_first_epoch_has_no_estimate(monkeypatch):
  clock = iter([0.0, 24.0, 27.0])
  monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
  eta = progress.Eta(100)
  eta.tick()
  assert str(eta) == "24 s with compilation"
  eta.tick()
  assert str(eta) == "4:54 left"


def test_settings_as_text():
  changed = quick.STUDY.override(["epochs=2", "augment=false", "ensembles=2,3"])
  changes = {"epochs": "2", "augment": "false", "ensembles": "2,3"}
  assert config.differences(changed, quick.STUDY) == changes
  again = [f"{name}={value}" for name, value in changed.settings().items()]
  assert quick.STUDY.override(again) == changed


def test_run_says_what_it_runs_and_what_is_next(tmp_path, monkeypatch, capsys):
  """Of a study that is complete, so that nothing is trained."""
  monkeypatch.delenv("CI", raising=False)
  sets = ("--set", "epochs=2", "--set", "seeds=2")
  small = quick.STUDY.override(["epochs=2", "seeds=2"])
  other = quick.STUDY.override(["epochs=3", "seeds=1"])
  folder = tmp_path / "a folder"
  write(folder, small, other)
  monkeypatch.setattr(rows.Missing, "datasets", lambda *_: [])
  monkeypatch.setattr(sys, "argv", ["", "run", "quick", *sets, "--output"])
  sys.argv.append(str(folder))
  command_line.main()
  out, progress_lines = capsys.readouterr()
  assert "epochs=2 instead of 50" in progress_lines
  assert "seeds=2 instead of 5" in progress_lines
  also = "quick: also there: 2 runs with epochs=3; `report` leaves them out\n"
  assert also in progress_lines
  quoted = shlex.quote(str(folder))
  assert out.endswith(f"\n  python -m experiments report {quoted}\n")


def test_next_step_of_studies_that_share_a_folder(tmp_path):
  write(tmp_path, table1.STUDY, renormalization.STUDY)
  said = folders.next_step(renormalization.STUDY, tmp_path)
  assert "writes the page of table1" in said
  assert f"experiments keep {tmp_path}\n  python -m experiments report" in said
  changed = renormalization.STUDY.override(["epochs=2"])
  assert "--output a new folder" in folders.next_step(changed, tmp_path)
  (line,) = folders.left_out(tmp_path)
  assert "10 runs with other methods (orthograd_unnormalized)" in line


@pytest.mark.parametrize("name", ["cross_validation", "label_noise_tuning"])
def test_next_step_of_studies_for_other_studies(tmp_path, name):
  study = config.load_study(name)
  write(tmp_path, study)
  said = folders.next_step(study, tmp_path)
  assert said.endswith(f"\n  python -m experiments keep {tmp_path}")


@pytest.mark.parametrize(
  ("settings", "wanted"),
  [
    (["seeds=1"], "--set seeds=2 --output"),
    (["methods=sam"], "--set methods=sam,sgd --output"),
    (["seeds=1", "epochs=2"], "--set seeds=2 --set epochs=2 --output"),
  ],
)
def test_report_of_too_little(tmp_path, monkeypatch, capsys, settings, wanted):
  study = quick.STUDY.override(settings)
  write(tmp_path, study)
  with pytest.raises(SystemExit) as stopped:
    main(monkeypatch, capsys, "report", tmp_path)
  said = str(stopped.value)
  assert "needs two seeds of each of two methods" in said
  count = f"{study.seeds} seed{'s' if study.seeds > 1 else ''} of "
  assert count + study.method_names[0] in said
  assert f"python -m experiments run quick {wanted} {tmp_path}\n" in said
  assert folders.next_step(study, tmp_path) == said.removeprefix("Error: ")


def test_report_of_a_study_that_diverged(tmp_path, monkeypatch, capsys):
  study = quick.STUDY.override(["seeds=2"])
  write(tmp_path, study)
  path = tmp_path / "rows.jsonl"
  lost = [row | {"dataset": "diverged"} for row in rows.read(path)]
  rows.write(path, lost)
  with pytest.raises(SystemExit, match=r"diverged: orthograd \[0, 1\], sgd "):
    main(monkeypatch, capsys, "report", tmp_path)


def test_report_of_a_study_that_was_stopped(tmp_path):
  write(tmp_path, quick.STUDY.override(["seeds=1"]))
  settings = json.dumps(dataclasses.asdict(quick.STUDY))
  (tmp_path / "study.json").write_text(settings)
  assert f"experiments resume {tmp_path}\n" in folders.too_little(tmp_path)


def test_show_says_what_is_not_compared(tmp_path, monkeypatch, capsys):
  write(
    tmp_path,
    quick.STUDY.override(["seeds=1"]),
    quick.STUDY.override(["epochs=3"]),
  )
  shown = main(monkeypatch, capsys, "show", tmp_path)
  assert "Not in the comparison: 10 runs with epochs=3, which" in shown


def test_settings_that_no_run_can_have(tmp_path, monkeypatch, capsys):
  """Are errors before anything is written."""
  for options, message in (
    (
      ["--set", "per_class=101"],
      "per_class is 101, .* at most 100, the",
    ),
    (
      ["--set", "first_seed=4294967296"],
      "first_seed is 4294967296, .* at",
    ),
    (["--batch-devices", "3"], "batch is 3, but must divide the number of"),
  ):
    command = ("run", "quick", *options, "--output", tmp_path / "new")
    with pytest.raises(SystemExit, match=message):
      main(monkeypatch, capsys, *command)
  assert not list(tmp_path.glob("new/*"))


def test_textures_are_missing(tmp_path, monkeypatch, capsys):
  """Which is said before training, not after it."""
  monkeypatch.setenv("ORTHOGRAD_DATA", str(tmp_path))
  run = ("run", "quick", "--set", "corruptions=fog,frost", "--output", tmp_path)
  with pytest.raises(SystemExit, match="frost.bin is missing. Run"):
    main(monkeypatch, capsys, *run)
  assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["grokking", "--seeds", "1,x"], "integers such as 100,101, got '1,x'"),
    (["grokking", "--steps", "0"], "expected a positive integer, got '0'"),
    (["run", "quick", "--group-size", "x"], "a positive integer, got 'x'"),
    (
      ["run", "quick", "--share", "3"],
      "expected a share such as 3/16, got '3'",
    ),
  ],
)
def test_options_that_are_no_numbers(monkeypatch, capsys, options, message):
  with pytest.raises(SystemExit):
    main(monkeypatch, capsys, *options)
  assert message in capsys.readouterr().err


def test_no_published_images(tmp_path, monkeypatch, capsys):
  """Are said once, not for each corruption."""
  with pytest.raises(SystemExit, match="neither a labels.npy"):
    main(monkeypatch, capsys, "data", "published", tmp_path)
  assert capsys.readouterr().out == ""


def test_output_is_not_of_a_study(tmp_path, monkeypatch, capsys):
  with pytest.raises(SystemExit, match="leave --output out"):
    main(monkeypatch, capsys, "report", tmp_path, "--output", tmp_path)


def test_processes_that_can_not_be_found(tmp_path, monkeypatch, capsys):
  """The error says what is missing, instead of a traceback of jax."""
  run = ("run", "quick", "--output", tmp_path / "new")
  with pytest.raises(SystemExit, match="--process need --distributed"):
    main(monkeypatch, capsys, *run, "--process", 1)
  # As in a fresh process, where jax has no devices yet.
  monkeypatch.setattr(jax.distributed, "initialize", State().initialize)
  with pytest.raises(SystemExit, match="coordinator_address .* --coord"):
    main(monkeypatch, capsys, *run, "--distributed")
  two = ("--distributed", "--coordinator", "127.0.0.1:1", "--processes", 2)
  with pytest.raises(SystemExit, match="process id .* and --process None"):
    main(monkeypatch, capsys, *run, *two)
  with pytest.raises(SystemExit, match="process_id < num.* and --process 2"):
    main(monkeypatch, capsys, *run, *two, "--process", 2)
  wrong = ("--distributed", "--coordinator", "n1", "--processes", 1)
  with pytest.raises(SystemExit, match="can't find .* Got --coordinator n1,"):
    main(monkeypatch, capsys, *run, *wrong, "--process", 0)
  assert not list(tmp_path.glob("*"))
