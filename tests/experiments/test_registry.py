"""Each part is one entry: it builds, and all that uses it finds it."""

import dataclasses

import pytest

from experiments import registry
from experiments.config import METHODS, SGD, Config, Method, Study
from experiments.engine import memory, train
from experiments.report import query

PARTS = {
  "base": registry.OPTIMIZERS,
  "loss": registry.LOSSES,
  "model": registry.MODELS,
}


@pytest.mark.parametrize(
  ("kind", "name"), [(kind, name) for kind in PARTS for name in PARTS[kind]]
)
def test_every_entry(kind, name):
  part = PARTS[kind][name]
  assert part.label
  if kind == "model":
    model = train.make_model(Config(model=name), "patches")
    assert model.method == "patches"
    return
  method = dataclasses.replace(SGD, **{kind: name})
  method.check_settings()
  assert set(part.takes) <= {*vars(method), "hidden"}
  if name != SGD.loss:
    assert getattr(METHODS[name], kind) == name
    assert query.method_name(name) == part.label


@pytest.mark.parametrize(
  ("name", "copies"),
  [("sgd", 1), ("lion", 1), ("adamw", 2), ("sgdp", 1), ("sam", 2)],
)
def test_memory_counts_an_optimizers_state(name, copies):
  size = lambda name: memory.bytes_per_run(
    Config("small"), METHODS[name], "patches"
  )
  expected = size("sgd") + (copies - 1) * 4 * 20_186
  assert size(name) == pytest.approx(expected, abs=1000)


def test_a_new_part_is_one_entry(monkeypatch):
  """A loss that doubles the cross-entropy, by a function, not a text."""
  double = lambda logits, labels, smoothing: 2 * logits[labels] + smoothing
  part = registry.Part("double", double, takes=("smoothing",))
  settings = vars(Method("double", smoothing=0.5))
  assert part.build(settings, {3: 1.0}, 3) == 2.5
  with pytest.raises(ValueError, match="loss is 'mbls', but must be one of"):
    Study(name="x", methods=(Method("old", loss="mbls"),))
