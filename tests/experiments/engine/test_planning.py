"""Plans of studies."""

import pytest

from experiments.engine import train

from .small_studies import (
  run_command,
)

pytestmark = pytest.mark.usefixtures("use_tiny")


def test_plan_of_a_large_network(tmp_path, monkeypatch, capsys):
  """A CPU does not compile it."""
  monkeypatch.setattr(train.Engine, "__init__", None)
  planned = run_command(
    monkeypatch, capsys, "plan", "table1", "--output", tmp_path
  )
  assert "compiling" not in planned
  assert "not measured" in planned and "ms a run" not in planned


@pytest.mark.slow
def test_plan(tmp_path, monkeypatch, capsys):
  planned = run_command(
    monkeypatch,
    capsys,
    *("plan", "quick", "--output", tmp_path, "--set", "batch_size=16"),
    *("--set", "per_class=7", "--set", "seeds=2", "--set", "calibrate=2"),
  )
  assert "runs       4, 0 complete" in planned
  assert "ms a run" in planned and "GB" in planned
