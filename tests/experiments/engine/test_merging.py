"""Folders of shares are joined, or said not to belong together."""

import dataclasses
import sys

import pytest
from tiny import write

from experiments import __main__ as command_line
from experiments import config, rows
from experiments.cli.parser import without_cluster
from experiments.engine import merging
from experiments.files import UserError
from experiments.studies import quick

STUDY = quick.STUDY.override(["seeds=4", "evaluate_every=50"])


def share(number, study=STUDY):
  return dataclasses.replace(study, share=(number, 4))


@pytest.fixture
def folders(tmp_path, monkeypatch):
  def lacking(missing, run, epoch):
    key = STUDY.config.hash, run.method.name, run.seed, epoch, "clean"
    return [] if key in missing.keys else ["clean"]

  monkeypatch.setattr(rows.Missing, "datasets", lacking)
  folders = [tmp_path / str(number) for number in range(4)]
  for number, folder in enumerate(folders, 1):
    write(folder, share(number))
  return folders


def test_shares_are_joined(folders, tmp_path, monkeypatch, capsys):
  write(tmp_path / "whole", STUDY)
  output = tmp_path / "all"
  command = ["", "merge", *map(str, folders), "--output", str(output)]
  monkeypatch.setattr(sys, "argv", command)
  for _ in range(2):  # the second time, it replaces what it wrote
    command_line.main()
    assert "8 of 8 runs are complete" in capsys.readouterr().out
    actual, expected = (
      {rows.key(row): row for row in rows.read(folder / "rows.jsonl")}
      for folder in (output, tmp_path / "whole")
    )
    assert actual == expected and len(actual) == 8
    assert config.load_settings(output) == STUDY
  assert merging.merge(folders[1:], tmp_path / "some")[1] == 6


def test_folders_that_do_not_belong_together(folders, tmp_path):
  first, second, *_ = folders
  output = tmp_path / "all"
  with pytest.raises(UserError, match="both have a row of .*, seed 0"):
    merging.merge([first, first], output)
  other = tmp_path / "other"
  write(other, share(3, STUDY.override(["epochs=3"])))
  with pytest.raises(UserError, match="which has epochs=3. Merge each"):
    merging.merge([first, other], output)
  with pytest.raises(UserError, match="none is not a study folder"):
    merging.merge([first, tmp_path / "none"], output)
  assert not list(output.glob("rows.jsonl"))
  write(output, STUDY)
  with pytest.raises(UserError, match="has 4 rows that are in none"):
    merging.merge([first, second], output)
  path = second / "rows.jsonl"
  path.write_bytes(path.read_bytes().replace(b"1.0}", b"1.5}"))
  with pytest.raises(UserError, match=f"{path}"):
    merging.merge([first, second], tmp_path / "new")


def test_a_job_gets_the_options_of_the_command():
  words = ["run", "quick", "--set", "seeds=3", "--logits", "--group-size=2"]
  cluster = ["--jobs=2", "--cluster", "slurm", "--sbatch", "mem=16G"]
  assert without_cluster([*words[:2], *cluster, *words[2:]]) == words
  # A share's own options follow the words.
  assert without_cluster(["run", *cluster, "--", "quick"]) == words[:2]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (["--cluster=local"], "Expected --cluster with --jobs"),
    (["--jobs=2"], "Expected --cluster with --jobs"),
    (["--partition=gpu"], "Expected --cluster with --jobs"),
    (["--sbatch=mem=1G"], "Expected --cluster with --jobs"),
    (["--cluster=local", "--jobs=2", "--kept"], "excludes --share, --kept"),
    (["--cluster=local", "--jobs=99"], "Expected a share such as 1/10"),
  ],
)
def test_jobs_that_can_not_be(tmp_path, monkeypatch, options, message):
  command = ["", "run", "quick", f"--output={tmp_path / 'new'}", *options]
  monkeypatch.setattr(sys, "argv", command)
  with pytest.raises(SystemExit, match=message):
    command_line.main()
  assert not list(tmp_path.glob("*"))
