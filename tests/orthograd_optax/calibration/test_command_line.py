"""`python -m orthograd_optax`: what it reads, prints and writes."""

import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import numpy as np
import pytest
from small_reports import CLASSES, made, overconfident, run

from orthograd_optax import __main__ as command

ENV = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[3])}


def write(folder, kind, logits, labels):
  p = np.asarray(jax.nn.softmax(logits))
  if kind == "logits.npz":
    np.savez(folder / "x.npz", logits=logits, labels=labels)
  elif kind == "probabilities.npz":
    np.savez(folder / "x.npz", probabilities=p, labels=labels)
  elif kind == "names.npz":
    names = np.array(["b", "c", "a"])
    pair = {"probabilities": p, "labels": names[labels], "classes": names}
    np.savez(folder / "x.npz", **pair)
  elif kind == "npy":
    np.save(folder / "x.npy", logits)
    np.save(folder / "labels.npy", labels)
    return ["x.npy", "--labels", "labels.npy"]
  elif kind == "csv":
    lines = ["label,logit_0,logit_1,logit_2"]
    lines += [
      ",".join([str(y), *map(str, row)])
      for y, row in zip(labels, logits, strict=True)
    ]
    (folder / "x.csv").write_text("\n".join(lines) + "\n")
    return ["x.csv"]
  elif kind == "parquet":
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    names = np.array(["b", "c", "a"])
    frame = pandas.DataFrame(p.astype(np.float64), columns=list(names))
    frame["label"] = names[labels]
    frame.to_parquet(folder / "x.parquet")
    return ["x.parquet"]
  return ["x.npz"]


KINDS = ["logits.npz", "probabilities.npz", "names.npz", "npy", "csv"]


@pytest.mark.parametrize("kind", [*KINDS, "parquet"])
def test_report_of_a_file(kind, folder, capsys):
  logits, labels = overconfident()
  files = write(folder, kind, logits, labels)
  status, out, err = run(capsys, "report", *files, "--json")
  assert status == 0 and err == ""
  content = json.loads(out)
  for name in ("accuracy", "nll", "ece", "brier", "temperature"):
    expected = made().metrics[name]._asdict()
    assert content[name] == pytest.approx(expected, rel=1e-4, abs=1e-5), name
  assert not list(folder.glob("*.html"))


def test_report_writes_a_page_and_prints_the_table(folder, capsys):
  write(folder, "logits.npz", *overconfident())
  status, out, err = run(capsys, "report", "x.npz")
  assert status == 0 and err == "Wrote x.html\n"
  assert "accuracy" in out and "Next: " in out
  assert "confidence of x be trusted" in (folder / "x.html").read_text("utf-8")
  options = ("--output", "page.html", "--name", "my model")
  assert run(capsys, "report", "x.npz", *options)[0] == 0
  assert "confidence of my model" in (folder / "page.html").read_text("utf-8")
  assert sorted(p.name for p in folder.iterdir()) == [
    *("page.html", "x.html", "x.npz")
  ]


def test_compare_files(folder, capsys):
  logits, labels = overconfident()
  np.savez("a.npz", logits=logits, labels=labels)
  np.savez("b.npz", logits=logits / 2, labels=labels)
  status, out, err = run(capsys, "compare", "a.npz", "b.npz", "--json")
  assert status == 0
  content = json.loads(out)
  assert content["verdicts"]["ece"] == "b is better"
  assert content["difference"]["ece"]["high"] < 0
  status, out, err = run(capsys, "compare", "a.npz", "b.npz")
  assert status == 0 and "b is better" in out and "a_or_b.html" in err
  assert (folder / "a_or_b.html").exists()
  other = labels.copy()
  other[3] = (other[3] + 1) % 3
  np.savez("b.npz", logits=logits / 2, labels=other)
  status, out, err = run(capsys, "compare", "a.npz", "b.npz")
  assert status == 2 and re.search(r"labels\[3\] is . in a.npz and . in b", err)
  np.savez("b.npz", logits=logits[1:], labels=labels[1:])
  status, out, err = run(capsys, "compare", "a.npz", "b.npz")
  assert status == 2 and "have 400 and 399 labels" in err


def test_compare_names_the_order_of_classes(folder, capsys):
  (folder / "a.csv").write_text("label,cat,dog\ncat,0.9,0.1\ndog,0.4,0.6\n")
  (folder / "b.csv").write_text("label,dog,cat\ncat,0.1,0.9\ndog,0.6,0.4\n")
  _, _, err = run(capsys, "compare", "a.csv", "b.csv")
  assert "the order differs: cat,dog and dog,cat. Reorder the columns" in err
  (folder / "sub").mkdir()
  (folder / "sub" / "a.csv").write_text((folder / "a.csv").read_text())
  status, out, _ = run(capsys, "compare", "a.csv", "sub/a.csv", "--json")
  assert status == 0 and json.loads(out)["names"] == ["a.csv", "sub/a.csv"]


def test_without_arguments(capsys):
  assert command.main([]) == 0
  assert "report on one model" in capsys.readouterr().out


def test_files_are_checked_before_jax_is_imported(folder):
  (folder / "bad.csv").write_text("label,p_a,p_b\na,x,1\n")
  (folder / "good.csv").write_text("label,p_a,p_b\na,0,1\n")
  code = (
    "import sys; from orthograd_optax.__main__ import main; "
    "status = main(sys.argv[1:]); assert 'jax' not in sys.modules; "
    "sys.exit(status)"
  )
  for arguments, message in (
    (["report", "missing.npz"], "no file missing.npz"),
    (["report", "bad.csv"], "'x' is not a number"),
    (["report", "good.csv", "--output", "no/x.html"], "no folder no"),
    (
      ["report", "good.csv", "--resamples", "0"],
      "--resamples must be at least",
    ),
  ):
    start = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(start, capture_output=True, text=True, env=ENV)
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_help_teaches_by_example(capsys):
  for arguments in (["--help"], ["report", "--help"], ["compare", "--help"]):
    with pytest.raises(SystemExit) as stop:
      command.main(arguments)
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "python -m orthograd_optax report" in text or "compare old" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.slow
def test_as_a_process(folder):
  write(folder, "logits.npz", *overconfident())
  arguments = [sys.executable, "-m", "orthograd_optax", "report", "x.npz"]
  done = subprocess.run(
    arguments, capture_output=True, text=True, check=True, env=ENV
  )
  assert "Next: Recalibrate: temperature." in done.stdout
  assert (folder / "x.html").stat().st_size > 10_000
  assert CLASSES == 3
