"""That the benchmarks measure what they say, with sizes of no interest."""

import functools
import json
import sys
import types

import jax
import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks import corruptions, engine, peers, training, tricks, update
from orthograd_optax import _sums

SHAPES = [(8, 8), (8,)]


@pytest.fixture(scope="module")
def rows():
  return [
    *command.updates("by size", SHAPES, "float32", parallel=False)(2, 3, 1e9),
    *command.updates("by leaves", SHAPES * 2, "float32")(2, 3, 1e9),
  ]


def test_floor_is_what_the_bytes_say(rows):
  entries = 72
  floors = {r["step"]: r["floor"] for r in rows if r["model"] == "by size"}
  assert floors[update.SGD] == pytest.approx(1e3 * 20 * entries / 1e9)
  assert floors[update.OURS] == pytest.approx(1e3 * 28 * entries / 1e9)


def test_time_is_of_more_updates(monkeypatch):
  """It leaves out the start, however many a contender makes at a time."""
  now = 0.0

  def takes(updates, seconds):
    def run(times):
      nonlocal now
      now += 2 + times * updates * seconds

    return update.Contender(run, updates)

  monkeypatch.setattr(update.time, "perf_counter", lambda: now)
  contenders = {update.SGD: takes(25, 0.5), "slow": takes(5, 3.0)}
  sgd, slow = update.rows(contenders, 4)
  assert (sgd["ms"], slow["ms"]) == pytest.approx((500, 3000))
  assert slow["over_sgd"] == pytest.approx([6, 6, 6])


def test_results_are_kept(rows, tmp_path, monkeypatch):
  monkeypatch.setattr(command, "RESULTS", tmp_path)
  command.save("here", command.about(), rows)
  assert json.loads((tmp_path / "here.json").read_text("utf-8"))["rows"] == rows
  table = (tmp_path / "here.md").read_text("utf-8").splitlines()
  assert table[0] == "# Time of an update: here"
  lines = [line for line in table if line.startswith("|")]
  assert len(lines) == len(rows) + 2
  assert len({line.count("|") for line in lines}) == 1


def test_saved_rows_are_drawn_again(rows, tmp_path, monkeypatch):
  pytest.importorskip("matplotlib")
  monkeypatch.setattr(command, "RESULTS", tmp_path)
  command.save("here", command.about(), rows)
  monkeypatch.setattr(sys, "argv", ["benchmarks", "draw", "--name", "here"])
  command.main()
  assert (tmp_path / "here.png").read_bytes().startswith(b"\x89PNG")


def test_a_gpu_must_be_there(monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["benchmarks", "gpu"])
  with pytest.raises(SystemExit):
    command.main()
  assert "needs a GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("saved", "said"), [(None, "does not exist. Saved are"), ([], "no rows by")]
)
def test_nothing_to_draw(saved, said, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(command, "RESULTS", tmp_path)
  if saved is not None:
    command.save("here", command.about(), saved)
  monkeypatch.setattr(sys, "argv", ["", "draw", "--name", "here"])
  with pytest.raises(SystemExit):
    command.main()
  assert said in capsys.readouterr().err


def test_tricks_can_be_switched_off():
  for name, value in tricks.TRICKS.values():
    assert getattr(_sums, name) != value


@pytest.mark.parametrize("size", [1, 36])
def test_matrices_have_as_many_entries(size):
  shapes = update.matrices(size, 40)
  assert len(shapes) == 40
  entries = sum(np.prod(s) for s in shapes)
  assert entries == pytest.approx(1e6 * size, rel=0.02)


def test_decoders_are_the_same():
  """The one whose updates are timed, and the one that is trained."""
  params, tokens, _ = jax.eval_shape(lambda: (*training.decoder()[:2], 0))
  shapes = sorted(x.shape for x in jax.tree.leaves(params))
  assert shapes == sorted(update.decoder(24, 1024, 50257))
  assert tokens.shape == (8, 1025)


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_training_steps_have_no_floor(alone):
  model = training.Decoder(depth=1, width=8, heads=2, tokens=9, context=4)
  problem = functools.partial(training.decoder, 2, model)
  actual = list(command.steps_of("small", problem, alone)(2, 1, 1e9))
  steps = [update.SGD, update.OURS, update.TEXTBOOK]
  assert [r["step"] for r in actual] == steps
  assert all(r["floor"] is None and r["leaves"] == 16 for r in actual)
  assert {command.line(r).count("|") for r in actual} == {11}


def test_a_peer_that_does_not_run_is_left_out(monkeypatch, capsys):
  torch = pytest.importorskip("torch")

  class Broken:
    def __init__(self, base):
      del base

    def step(self):
      raise RuntimeError("no compiler")

  module = types.SimpleNamespace(OrthoGrad=Broken)
  modules = {"torch": torch, "pytorch_optimizer": module}
  monkeypatch.setattr(peers, "imported", modules.get)
  params, grads = (update.arrays(SHAPES, "float32", seed) for seed in (0, 1))
  assert not peers.in_torch(params, grads, 1)
  assert "can't be timed: no compiler" in capsys.readouterr().err


def test_peers_are_beside_sgd_of_the_same_turns(monkeypatch):
  peer = update.Contender(lambda times: None, 1)
  monkeypatch.setattr(peers, "in_torch", lambda *_: {"a peer": peer})
  measure = command.updates("small", SHAPES, "float32", False, beside=True)
  actual = {row["step"]: row for row in measure(1, 3, 1e9)}
  *_, again, last = actual
  assert (again, last) == ("SGD, beside PyTorch", "a peer")
  assert actual[again]["floor"] == actual[update.SGD]["floor"]
  assert actual[again]["over_sgd"] == [1, 1, 1]


def test_peers_must_do_the_same():
  wanted = update.arrays(SHAPES, "float32", 0)
  torch = pytest.importorskip("torch")
  actual = [torch.from_numpy(np.array(x)) for x in wanted]
  peers.assert_same("a peer", actual, wanted)
  actual[0][0] += 1
  with pytest.raises(AssertionError, match="a peer is off by"):
    peers.assert_same("a peer", actual, wanted)


@pytest.mark.slow
def test_steps_of_the_engine(monkeypatch, capsys):
  words = "engine --runs 2 --methods patches --precision float32"
  words += " --per-class 7 --repeats 1"
  monkeypatch.setattr(sys, "argv", words.split())
  engine.main()
  header, _, line = capsys.readouterr().out.strip().splitlines()[-3:]
  cells = dict(zip(header.split(" | "), line.split(" | "), strict=True))
  assert cells["runs"] == "2"
  assert float(cells["ms a step and run"]) > 0


def test_corruptions_have_a_line_each(monkeypatch, capsys):
  of = corruptions.corruptions
  monkeypatch.setattr(of, "ALL_CORRUPTIONS", ("brightness", "jpeg"))
  monkeypatch.setattr(sys, "argv", ["corruptions", "--images", "4"])
  corruptions.main()
  names = [
    line.split("|")[1].strip()
    for line in capsys.readouterr().out.splitlines()
    if line.startswith("| ")
  ]
  assert names == ["", "brightness", "jpeg", "all 40"]
