"""Language: its text, its transformer in float64, and a tiny study."""

import dataclasses
import hashlib
import math

import numpy as np
import pytest
import scipy.special
import scipy.stats

from experiments import __main__ as command
from experiments import language, report
from experiments import rows as engine_rows
from experiments.files import UserError

TINY = language.Recipe(
  layers=2,
  width=8,
  heads=2,
  context=16,
  batch=2,
  steps=4,
  windows=6,
  package_bytes=600,
  train_bytes=3000,
  precision="float32",
)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
  """40 packages of three files; the last two files are in every package."""
  folder = tmp_path_factory.mktemp("packages") / "site-packages"
  for i in range(40):
    package = folder / f"package{i}"
    (package / "_vendor").mkdir(parents=True)
    (package / "one.py").write_bytes(b"%03d|" % i * 80)
    (package / "two.md").write_text("the same")
    (package / "_vendor" / "copy.py").write_text("vendored" * 9)
    (package / "data.bin").write_bytes(b"\1" * 99)
  (folder / "package1-1.0.dist-info").mkdir()
  (folder / "package1-1.0.dist-info" / "top.txt").write_text("metadata")
  (folder / "single.py").write_text("x = 1")
  return folder


def test_text(packages, monkeypatch):
  monkeypatch.setattr(language, "text_folders", lambda: [packages])
  text = language.collect(TINY)
  whole = {
    "train": bytes(text.train),
    "held_out": text.held_out.tobytes(),
    "test": text.test.tobytes(),
  }
  names = [f"{i:03d}|" for i in range(40)]
  where = {
    part: {n for n in names if n.encode() in its} for part, its in whole.items()
  }
  assert len(where["train"]) >= 5 and where["test"] and where["held_out"]
  assert not where["train"] & where["test"]
  assert not where["train"] & where["held_out"]
  assert not where["test"] & where["held_out"]
  for its in whole.values():
    assert b"vendored" not in its and b"\1" not in its
    assert b"metadata" not in its
  assert sum(its.count(b"the same") for its in whole.values()) <= 1
  for part, its in whole.items():
    facts = text.facts[part]
    assert facts["bytes"] == len(its)
    assert facts["sha256"] == hashlib.sha256(its).hexdigest()
    assert facts["packages"] <= facts["files"]
  assert text.train.shape == (3000,)
  assert text.test.shape == text.held_out.shape == (6, 17)
  again = language.collect(TINY)
  assert again.facts == text.facts


def test_too_little_text(tmp_path, monkeypatch):
  monkeypatch.setattr(language, "text_folders", lambda: [tmp_path])
  with pytest.raises(UserError, match="train text has 0 bytes, but needs at"):
    language.collect(TINY)


def test_rows_of_another_text(packages, tmp_path, monkeypatch):
  """Are not left to be trained again without a word."""
  monkeypatch.setattr(language, "text_folders", lambda: [packages])
  text = {"train": {"sha256": "another"}}
  config = dataclasses.asdict(TINY) | {"text": text}
  row = {"study": language.STUDY, "config": config, "config_hash": "c"}
  row |= {"method": "adamw_weak", "seed": 1, "epoch": 4, "dataset": "clean"}
  engine_rows.write(tmp_path / "rows.jsonl", [row | {"metrics": {}}])
  with pytest.raises(UserError, match="another text, .* Install the same"):
    language.run(tmp_path, TINY, (1, 2))


def test_windows_share_no_label():
  text = np.arange(100, dtype=np.uint8)
  windows = language._windows(text, TINY)
  assert windows.shape == (6, 17)
  assert windows[0, 0] == 0 and windows[-1, -1] == 99
  labels = windows[:, 1:].ravel()
  assert len(set(labels.tolist())) == labels.size


def forward(params, inputs, heads):
  """A pre-norm transformer in float64, one position at a time."""
  norm = lambda x, w: x / np.sqrt(np.mean(x**2) + 1e-6) * w
  gelu = lambda x: (
    0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
  )
  x = [
    params["bytes"][b] + params["positions"][i] for i, b in enumerate(inputs)
  ]
  for block in params["blocks"]:
    mixed = [norm(v, block["norm_1"]) @ block["inputs"] for v in x]
    q, k, v = (np.array([np.split(m, 3)[j] for m in mixed]) for j in range(3))
    size = q.shape[1] // heads
    for i in range(len(x)):
      seen = []
      for h in range(heads):
        part = slice(h * size, (h + 1) * size)
        scores = k[: i + 1, part] @ q[i, part] / math.sqrt(size)
        seen.append(scipy.special.softmax(scores) @ v[: i + 1, part])
      x[i] = x[i] + np.concatenate(seen) @ block["outputs"]
      hidden = gelu(norm(x[i], block["norm_2"]) @ block["expand"])
      x[i] = x[i] + hidden @ block["contract"]
  return np.array([norm(v, params["norm"]) @ params["head"] for v in x])


def test_logits_against_numpy():
  random = np.random.default_rng(0)
  params = language.jax.tree.map(lambda w: 20 * w, language.init(TINY, 1))
  inputs = random.integers(0, 256, (2, 5))
  actual = language.logits(TINY, params, inputs)
  exact = language.jax.tree.map(lambda w: w.astype(np.float64), params)
  for row, bytes_ in zip(actual, inputs, strict=True):
    expected = forward(exact, bytes_, TINY.heads)
    np.testing.assert_allclose(row, expected, rtol=2e-4, atol=2e-3)


def test_size():
  shapes = language.jax.tree.leaves(language.init(language.Recipe(), 0))
  assert 10e6 < sum(w.size for w in shapes) < 12e6


def test_choice_counts_diverged_runs():
  row = lambda name, value: {"method": name, "metrics": {"loss": value}}
  rows = [row("a", 1.0), row("a", 2.0), row("b", 1.0), row("b", None)]
  assert language.mean_losses(rows) == {"a": 1.5, "b": math.inf}


@pytest.mark.slow
def test_study(packages, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(language, "text_folders", lambda: [packages])
  run = lambda: language.run(tmp_path, TINY, (1, 2))
  rows = run()
  everything = list(engine_rows.read(tmp_path / "rows.jsonl"))
  tuning = [row for row in everything if row["study"] == language.TUNING]
  tried = {row["method"] for row in tuning}
  assert {row["dataset"] for row in tuning} == {"held_out"}
  assert {row["seed"] for row in tuning} == set(language.TUNING_SEEDS)
  assert len(tried) in (16, 20)
  assert len(rows) == 8 and {row["dataset"] for row in rows} == {"clean"}
  for row in rows:
    name = row["method"]
    its = [r for r in tuning if r["method"].startswith(f"{name}_")]
    assert len(its) in (4, 5)
    best = min(its, key=lambda row: row["metrics"]["loss"])
    assert row["settings"] == best["settings"]
    assert row["config"]["text"]["test"]["bytes"] == 6 * 17
  text = report.language.text(rows)
  pair = [
    [r["metrics"]["loss"] for r in rows if r["method"] == name]
    for name in ("adamw_usual", "orthograd_adamw_usual")
  ]
  low, high = scipy.stats.ttest_rel(pair[1], pair[0]).confidence_interval()
  low, high = low / math.log(2), high / math.log(2)
  assert f"({low:+.4f}, {high:+.4f})" in text
  monkeypatch.setattr(language, "train", lambda *_: pytest.fail("it trains"))
  assert run() == rows  # nothing is trained again
  words = ["language", "--small", "--seeds", "1,2", "--output", str(tmp_path)]
  monkeypatch.undo()
  monkeypatch.setattr(language, "text_folders", lambda: [packages])
  monkeypatch.setattr(language, "SMALL", TINY)
  monkeypatch.setattr("sys.argv", ["experiments", *words])
  command.main()
  assert "bits per byte after T" in capsys.readouterr().out
