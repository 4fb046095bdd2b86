"""Rows that are kept with the code."""

import json
import shutil

import pytest

from experiments import __main__ as command
from experiments import config
from experiments.engine import rows
from experiments.report import kept as kept_rows
from experiments.report.formats import NAMES


def test_rows_are_whole(kept):
  keys = [rows.key(row) for row in kept]
  assert len(set(keys)) == len(keys)
  names = ("study", "model", "metrics", "config", "versions", "device")
  names += ("commit", "wall_time", "precision")
  assert all(name in row for row in kept for name in names)
  assert {row["optimizer"] for row in kept} <= set(NAMES)
  assert not any(row["dataset"] == "diverged" for row in kept)
  for row in kept:
    if row["dataset"] != "train":
      assert sum(row["bins"]["count"]) == 10_000


def test_keep(kept, tmp_path, capsys, monkeypatch):
  some = kept[:6]
  folder, into = tmp_path / "run", tmp_path / "results"
  folder.mkdir()
  monkeypatch.setattr(kept_rows.keep, "__defaults__", (into,))
  write = lambda found: (folder / "rows.jsonl").write_text(
    "".join(json.dumps(row) + "\n" for row in found)
  )
  write(some[:4])
  monkeypatch.setattr("sys.argv", ["experiments", "keep", str(folder)])
  command.main()
  study = some[0]["study"]
  assert f"{study}.jsonl.gz" in capsys.readouterr().out
  before = (into / f"{study}.jsonl.gz").read_bytes()
  command.main()  # the same rows, and the same file
  assert (into / f"{study}.jsonl.gz").read_bytes() == before
  write([{**some[0], "wall_time": 1.5}, *some[4:]])
  command.main()
  found = {rows.key(row): row for row in kept_rows.load([study], into)}
  assert len(found) == 6
  assert found[rows.key(some[0])]["wall_time"] == 1.5
  write([{**some[0], "study": "../elsewhere"}])
  with pytest.raises(SystemExit, match="Line 1 .* its study is .*elsewhere"):
    command.main()
  assert not list(tmp_path.glob("elsewhere*"))
  shutil.rmtree(folder)
  with pytest.raises(SystemExit, match="has no rows"):
    command.main()


def test_a_folder_begins_with_rows_that_are_kept(tmp_path):
  """But not with those of runs that lack some, nor of their ensembles."""
  study = config.load_study("ensembles")
  results, folder = tmp_path / "results", tmp_path / "runs"
  made = [
    {
      "study": study.name,
      "config_hash": study.config.hash,
      "optimizer": name,
      "seed": seed,
      "epoch": study.config.epochs,
      "dataset": dataset,
      "metrics": {},
    }
    | ({"members": list(range(seed, seed + 5))} if "ens" in name else {})
    for names, seeds in (
      (study.optimizers, range(300, 310)),
      (study.pooled, (300, 305)),
    )
    for name in names
    for seed in seeds
    for dataset in study.datasets(study.config.epochs)
    if (name, seed, dataset) != ("cosine", 307, "fog/5")
  ]
  source = tmp_path / "source"
  source.mkdir()
  (source / "rows.jsonl").write_text(
    "".join(json.dumps(row) + "\n" for row in made)
  )
  kept_rows.keep([source], results)
  copied = kept_rows.begin(study, folder, results)
  found = list(rows.read(folder / "rows.jsonl"))
  assert len(found) == copied
  left_out = {("cosine", 307), ("cosine ensemble of 5", 305)}
  assert {(row["optimizer"], row["seed"]) for row in found} == {
    (row["optimizer"], row["seed"]) for row in made
  } - left_out
  missing = rows.Missing(study, rows.Rows(folder / "rows.jsonl").keys)
  seeds = [run.seed for run in filter(missing, study.runs)]
  assert seeds == [307, *(seed for seed in range(310, 325) for _ in "ab")]
  # Another time, the folder is left as it is.
  before = (folder / "rows.jsonl").read_bytes()
  assert kept_rows.begin(config.load_study("decay"), folder) == 0
  assert (folder / "rows.jsonl").read_bytes() == before
