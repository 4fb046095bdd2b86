"""All runs of seeds 0 to 39."""

import gzip
import json
import subprocess

import numpy as np
import pytest
from reading import (
  METRICS,
  Runs,
  change_text,
  corrupted,
  holm,
  paired,
  section,
  tables,
)

from experiments.rows import kept as kept_rows
from experiments.rows import schema
from experiments.studies import confirmation, table1


def historic(commit, name):
  """Rows that the repository had at a commit."""
  command = ["git", "show", f"{commit}:experiments/results/{name}"]
  found = subprocess.run(command, cwd=kept_rows.FOLDER, capture_output=True)
  if found.returncode:
    pytest.skip(f"the repository's history lacks {commit}")
  data = found.stdout
  data = gzip.decompress(data) if name.endswith(".gz") else data
  return [schema.convert(json.loads(line)) for line in data.splitlines()]


@pytest.mark.slow  # reads thousands of rows
@pytest.mark.parametrize(
  ("study", "commit", "name", "count"),
  [
    ("table1", "0fd5fef", "table1.jsonl", 2 * 20 * 5),
    ("corruption", "0fd5fef", "corruption.jsonl", 2 * 20),
    ("renormalization", "0fd5fef", "renormalization.jsonl", 10 * (5 + 1)),
    ("extended", "dae3c79", "extended.jsonl.gz", 2 * 5 * 7),
  ],
)
def test_they_are_of_the_history(loaded, study, commit, name, count):
  history = historic(commit, name)
  former = [row for row in loaded[1] if row["study"] == study]
  assert len(former) == count
  sets = {"clean": ["clean"], "CIFAR-10-C": corrupted(history)}
  sets |= {f"severity {i}": corrupted(history, i) for i in range(1, 6)}
  of = Runs(history).rows
  for row in former:
    key = [row[k] for k in ("config_hash", "method", "seed", "epoch")]
    found = [of[*key, dataset] for dataset in sets[row["dataset"]]]
    assert len(found) == row["sets"] in (1, 15, 75)
    assert {it["commit"] for it in found} == {row["commit"]}
    for part in ("metrics", "scaled", "scaled_half"):
      for metric, value in row[part].items():
        expected = np.mean([it[part][metric] for it in found])
        assert value == pytest.approx(expected, rel=1e-12)


def test_every_cell(kept, runs, former, later, loaded, page, appendix):
  ((_, *lines),) = tables(page, "All runs of seeds 0–39")
  ((_, *wider),) = tables(appendix, "All runs of seeds 0–39")
  fresh = [r for r in kept if r["study"] == confirmation.STUDY.name]
  mixed = Runs([*loaded[1], *fresh])
  swapped = Runs([*kept, *loaded[2]])
  assert not set(Runs(fresh).rows) & set(former.rows)
  columns = [
    (former, range(20), ["clean"]),
    (runs, range(20), ["clean"]),
    (runs, range(20, 40), ["clean"]),
    (later, range(20, 40), ["clean"]),
    (mixed, range(40), ["clean"]),
    (swapped, range(40), ["clean"]),
    (former, range(20), ["CIFAR-10-C"]),
    (runs, range(20), corrupted(kept)),
    (later, range(20, 40), corrupted(kept)),
  ]
  blocks = [(m, "metrics") for m in METRICS.values()]
  after = [(m, "scaled_half") for m in ("loss", "ece", "brier")]
  for i, (of, seeds, datasets) in enumerate(columns, 1):
    clean = datasets == ["clean"]
    for first, block in ((0, blocks if clean else blocks[:-2]), (12, after)):
      values = [of(table1, m, seeds, datasets, part) for m, part in block]
      stars = holm([paired(*x)[-1] for x in values]) < 0.05
      for j, ((a, b), star) in enumerate(zip(values, stars, strict=True)):
        cell, wide = lines[first + j][i], wider[first + j][i]
        assert wide == change_text(a, b, wide, star)
        assert cell == wide.split()[0] + (" *" if star else "")
    if not clean:
      assert {lines[10][i], lines[11][i], wider[10][i], wider[11][i]} == {"–"}
  assert len(lines) == len(wider) == 15
  # Of the second run two effects are known.
  text = section(page, "All runs of seeds 0–39")
  assert "only d: max logit -1.80, logit variance -1.76." in text


def test_what_the_page_says_of_them(page):
  """Its first lines, by the stars of the table."""
  ((header, *lines),) = tables(page, "All runs of seeds 0–39")
  starred = {
    name: {line[0] for line in lines if line[i].endswith("*")}
    for i, name in enumerate(header)
    if i
  }
  over_40 = {
    line[0].removesuffix(", %")
    for line in tables(page, "Table 1")[0]
    if line[3].endswith("*")
  }
  assert starred["first + first"] == over_40
  unsure = {"loss", "ECE", "confidence correlation"}
  assert starred["third + second"] == over_40 - unsure
  sure = {"entropy", "max softmax"}
  assert starred["0–19 third"] - starred["0–19 first"] == sure
  logits = {"max logit", "logit variance"}
  third, first = (
    starred[f"0–19 {run}, corrupted"] for run in ("third", "first")
  )
  assert third - first == sure | logits
  for run in ("20–39 first", "20–39 second"):
    assert not starred[run] & {"loss", "ECE"}
  assert starred["20–39 first"] >= sure | logits
  assert starred["20–39 second, corrupted"] == {"max logit"}
