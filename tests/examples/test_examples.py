"""The examples, shortened: they run, and show what they say they show."""

import importlib.util
import pathlib

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "examples"


def run(name, tmp_path, **settings):
  """What an example's `main` returns; its picture must be there, too."""
  spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  picture = tmp_path / f"{name}.png"
  actual = module.main(output=picture, **settings)
  assert picture.stat().st_size > 5_000
  return actual


def test_all_are_tested_and_short():
  text = pathlib.Path(__file__).read_text("utf-8")
  for path in FOLDER.glob("*.py"):
    assert f'run("{path.stem}", ' in text
    lines = filter(str.strip, path.read_text("utf-8").splitlines())
    assert len(list(lines)) <= 80, path.name


@pytest.mark.slow
def test_grokking(tmp_path):
  actual = run("grokking", tmp_path, steps=130, every=130)
  seen, others = zip(*(curve[-1] for curve in actual.values()), strict=True)
  assert min(seen) > 99
  assert list(actual) == ["AdamW", "⊥AdamW", "AdamW, StableMax"]
  assert others[0] < 1 and others[1] > 90 and others[2] < 1


@pytest.mark.slow
def test_flax_nnx(tmp_path):
  actual = run("flax_nnx", tmp_path, steps=800)
  (sgd, scaled, ours, _) = (each["ece"] for each in actual.values())
  assert scaled < ours < sgd


@pytest.mark.slow
def test_language_model(tmp_path):
  actual = run("language_model", tmp_path, steps=30, every=15)
  assert len(actual) == 4
  for confidence, ece, temperature in (curve[-1] for curve in actual.values()):
    assert 1 / 128 < confidence < 1 and 0 < ece < confidence
    assert 0.2 < temperature < 5


@pytest.mark.slow
def test_equinox_mlp(tmp_path):
  actual = run("equinox_mlp", tmp_path, steps=600)
  assert actual["⊥Grad"]["max_logit"] < 0.7 * actual["SGD"]["max_logit"]
  assert actual["⊥Grad"]["nll"] < actual["SGD"]["nll"]


@pytest.mark.slow
def test_sharded_transformer(tmp_path):
  losses, gathered = run("sharded_transformer", tmp_path, steps=20)
  assert losses[-1] < 0.8 * losses[0] and gathered <= 64


@pytest.mark.slow
def test_diagnose(tmp_path, capsys):
  table, change = run("diagnose", tmp_path, steps=5)
  assert "so mask: conv/kernel\n" in capsys.readouterr().out
  assert table.cosine["head/kernel"] ** 2 > 1e-3 and change < 1e-5


@pytest.mark.slow
def test_calibrate_sklearn(tmp_path):
  pytest.importorskip("sklearn")
  report, before, after = run("calibrate_sklearn", tmp_path)
  assert report.best == "isotonic" and after < 0.05 < 0.1 < before
  assert "<svg" in (tmp_path / "calibrate_sklearn.html").read_text("utf-8")
