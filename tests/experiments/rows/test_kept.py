"""Rows that are kept with the code."""

import concurrent.futures
import shutil
import time

from measured import row
import pytest

from experiments import __main__ as command
from experiments import config, files, rows
from experiments.rows import kept as kept_rows

STUDIES = sorted(
  path.name.removesuffix(".jsonl.gz")
  for path in kept_rows.FOLDER.glob("*.jsonl.gz")
)


def test_digests():
  """As `sha256sum --check` reads them."""
  lines = (kept_rows.FOLDER / kept_rows.SUMS).read_text("utf-8").splitlines()
  assert lines == [
    f"{files.sha256(kept_rows.FOLDER / name)}  {name}"
    for name in (f"{study}.jsonl.gz" for study in STUDIES)
  ]


@pytest.mark.mostly_slow(7)
@pytest.mark.parametrize("study", STUDIES)
def test_rows_are_whole(study):
  of_one_file = study.startswith(("grokking", "language"))
  for its in kept_rows.load([study]):
    assert its["commit"] and its["time"]
    assert (its["study"] == study) == (study != "former_runs")
    if study == "former_runs":
      continue
    assert {"config", "versions", "device", "wall_time"} <= its.keys()
    assert ("convolutions" in its) != of_one_file
    if not of_one_file and its["dataset"] not in ("train", "diverged"):
      assert sum(its["bins"]["count"]) == images(its["config"])


def images(recipe):
  """The number of images that a row is of."""
  if recipe.get("evaluate_on") == "held_out":
    data = config.Config(**recipe).data
    return data.held_out * len(data.classes)
  return 10_000


def test_keep(tmp_path, capsys, monkeypatch):
  folder, into = tmp_path / "run", tmp_path / "results"
  folder.mkdir()
  monkeypatch.setattr(kept_rows.keep, "__defaults__", (into,))
  write = lambda *actual: rows.write(folder / "rows.jsonl", actual)
  write(*map(row, range(4)))
  monkeypatch.setattr("sys.argv", ["experiments", "keep", str(folder)])
  command.main()
  path = into / "tiny.jsonl.gz"
  assert str(path) in capsys.readouterr().out
  before = path.read_bytes()
  command.main()  # the same rows, and the same file
  assert path.read_bytes() == before
  write(row(0, wall_time=1.5), row(4), row(0, study="other", method="sam"))
  command.main()
  actual = kept_rows.load(["tiny"], into)
  assert [each["seed"] for each in actual] == [0, 1, 2, 3, 4]
  assert [each.get("wall_time") for each in actual] == [1.5, *[None] * 4]
  assert len((into / kept_rows.SUMS).read_text().splitlines()) == 2
  shutil.rmtree(folder)
  with pytest.raises(SystemExit, match="has no rows"):
    command.main()


def test_several_processes_keep_rows_at_once(tmp_path, monkeypatch):
  """And no digest is lost."""
  into = tmp_path / "results"
  digest = lambda path, sha256=files.sha256: time.sleep(0.1) or sha256(path)
  monkeypatch.setattr(files, "sha256", digest)
  for name in "abcd":
    (tmp_path / name).mkdir()
    rows.write(tmp_path / name / "rows.jsonl", [row(study=name)])
  with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(lambda name: kept_rows.keep([tmp_path / name], into), "abcd"))
  assert len(kept_rows.load("abcd", into)) == 4


def test_kept_rows_that_were_changed(tmp_path):
  folder, into = tmp_path / "run", tmp_path / "results"
  folder.mkdir()
  rows.write(folder / "rows.jsonl", [row()])
  (path,) = kept_rows.keep([folder], into)
  rows.write(path, [row(metrics={"loss": 0.5})])  # with right checks
  for content in (path.read_bytes(), None):
    if content is None:
      path.unlink()
    for use in (
      lambda: kept_rows.load(["tiny"], into),
      lambda: kept_rows.keep([folder], into),
    ):
      with pytest.raises(rows.RowsError, match="was changed: expected .* git"):
        use()


def test_digests_that_are_garbled(tmp_path):
  folder, into = tmp_path / "run", tmp_path / "results"
  folder.mkdir()
  rows.write(folder / "rows.jsonl", [row()])
  kept_rows.keep([folder], into)
  (into / kept_rows.SUMS).write_bytes(b"\xff" * 64 + b"  tiny.jsonl.gz\n")
  with pytest.raises(rows.RowsError, match="was changed: expected"):
    kept_rows.load(["tiny"], into)
  assert kept_rows.load(["unknown"], into) == []
  rows.write(into / "unknown.jsonl.gz", [row()])
  with pytest.raises(rows.RowsError, match="expected no digest as in SHA256"):
    kept_rows.load(["unknown"], into)


def test_a_folder_begins_with_rows_that_are_kept(tmp_path):
  """But without the rows of incomplete runs, and of their ensembles."""
  study = config.load_study("ensembles")
  results, folder = tmp_path / "results", tmp_path / "runs"
  made = [
    {
      "study": study.name,
      "config_hash": study.config.hash,
      "method": name,
      "seed": seed,
      "epoch": study.config.epochs,
      "dataset": dataset,
      "metrics": {},
    }
    | ({"members": list(range(seed, seed + 5))} if "ens" in name else {})
    for names, seeds in (
      (study.method_names, range(300, 310)),
      (study.pooled, (300, 305)),
    )
    for name in names
    for seed in seeds
    for dataset in study.datasets(study.config.epochs)
    if (name, seed, dataset) != ("cosine", 307, "fog/5")
  ]
  source = tmp_path / "source"
  source.mkdir()
  rows.write(source / "rows.jsonl", made)
  kept_rows.keep([source], results)
  copied = kept_rows.begin(study, folder, results)
  actual = list(rows.read(folder / "rows.jsonl"))
  assert len(actual) == copied
  left_out = {("cosine", 307), ("cosine ensemble of 5", 305)}
  assert {(row["method"], row["seed"]) for row in actual} == {
    (row["method"], row["seed"]) for row in made
  } - left_out
  missing = rows.Missing(study, rows.Rows(folder / "rows.jsonl").keys)
  seeds = [run.seed for run in filter(missing, study.runs)]
  assert seeds == [307, *(seed for seed in range(310, 325) for _ in "ab")]
  # Another time, the folder is left unchanged.
  before = (folder / "rows.jsonl").read_bytes()
  assert kept_rows.begin(config.load_study("decay"), folder) == 0
  assert (folder / "rows.jsonl").read_bytes() == before
