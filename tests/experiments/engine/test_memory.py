"""The memory of a run grows with what it keeps."""

import dataclasses

import tiny

from experiments.config import SGD, Config
from experiments.engine import memory, train


def test_memory(monkeypatch):
  """It grows with the network, the batch and what is kept of it."""
  size = lambda config, way: memory.bytes_per_run(config, SGD, way)
  config = Config()
  larger = dataclasses.replace(config, batch_size=128)
  assert 1.5 < size(larger, "patches") / size(config, "patches") < 2
  assert size(config, "patches") > size(config, "mixed")
  assert size(config, "mixed") > size(config, "pallas")
  assert size(config, "pallas") > 4 * 11_173_962 * 4
  wide = dataclasses.replace(config, model="wrn28_10")
  assert size(wide, "mixed") > 3 * size(config, "mixed")
  mesh = train.make_mesh(2)
  fit = lambda config, *rest: memory.runs_that_fit(config, SGD, *rest)
  assert fit(tiny.CONFIG, "patches", mesh) == 4 * 10
  room = (1 << 30) + 3.5 * size(config, "mixed")
  monkeypatch.setattr(memory, "device_memory", lambda: room)
  assert fit(config, "mixed", mesh) == 4 * 3
  monkeypatch.setattr(memory, "device_memory", lambda: 1 << 30)
  assert fit(config, "mixed", mesh) == 4
