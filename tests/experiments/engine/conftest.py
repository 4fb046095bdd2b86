"""Studies that several test files read, each trained once."""

import pytest
import tiny

from experiments import registry
from experiments.engine import evaluate, group, runner, train

from .small_studies import (
  finish,
  launch,
  shared_programs,
  train_all,
)


@pytest.fixture
def use_tiny(monkeypatch):
  tiny.use(monkeypatch)


@pytest.fixture(scope="session")
def trained():
  """An engine, and its state and metrics after two epochs."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setitem(registry.MODELS, "small", tiny.MODEL)
    return train_all()


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
  return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="session")
def whole(tmp_path_factory, cache_dir):
  """A study's folder that was made without any interruption."""
  folder = tmp_path_factory.mktemp("whole")
  finish(launch(folder, cache_dir))
  return folder


@pytest.fixture(scope="session")
def made(tmp_path_factory):
  """A study's folder that was made in this process."""
  folder = tmp_path_factory.mktemp("made")
  with pytest.MonkeyPatch.context() as patch:
    tiny.use(patch)
    engine, _, evaluator = shared_programs()
    patch.setattr(train, "Engine", lambda *_, **__: engine)
    patch.setattr(evaluate, "Evaluator", lambda _: evaluator)
    runner.run_study(tiny.STUDY, folder, say=print)
  return folder


@pytest.fixture
def events(monkeypatch, use_tiny):
  """Which epochs are begun and looked at; all tests share their programs."""
  del use_tiny
  actual = []
  engine, epoch_of, evaluator = shared_programs()

  def epoch(state, runs, number, *images):
    actual.append(("begin", number + 1))
    return epoch_of(state, runs, number, *images)

  def note(self, number, metrics, _note=group.Group._note_diverged):
    actual.append(("look", number))
    return _note(self, number, metrics)

  monkeypatch.setattr(engine, "epoch", epoch)
  monkeypatch.setattr(group.Group, "_note_diverged", note)
  monkeypatch.setattr(train, "Engine", lambda *_, **__: engine)
  monkeypatch.setattr(evaluate, "Evaluator", lambda _: evaluator)
  return actual
