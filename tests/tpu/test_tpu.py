"""The package compiled for TPUs, without one: see `make test-tpu`.

`libtpu` compiles for a topology, here four chips of a v5e. Nothing runs: the
tests read the programs, not results.
"""

import functools
import math
import os
import re
import time
from typing import Any, NamedTuple

import jax
from jax import flatten_util
from jax.experimental import topologies
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax
import pytest

from orthograd_optax import orthograd, orthograd_sgd

pytest.importorskip(
  "libtpu",
  reason="libtpu is not installed; `make test-tpu` installs it and runs these",
)
os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # there is no TPU to ask about

SHARDED: dict[str, dict[str, tuple[tuple[int, ...], P]]] = {
  "attention": {
    "bias": ((256,), P("model")),
    "kernel": ((1024, 1024), P("data", "model")),
  },
  "mlp": {
    "up": ((1024, 4096), P(None, "model")),
    "down": ((4096, 1024), P("model", None)),
  },
  "stem": {"kernel": ((3, 3, 64, 64), P()), "scale": ((64,), P())},
}
SMALLEST_SHARD = 64  # entries, of the scale
SGD: Any = dict(learning_rate=0.1, momentum=0.9, weight_decay=5e-4)


@pytest.fixture(scope="module", autouse=True)
def _compiled_anew():
  """Without the cache of conftest.py, so that compile times are real."""
  enabled = jax.config.jax_enable_compilation_cache
  jax.config.update("jax_enable_compilation_cache", False)
  yield
  jax.config.update("jax_enable_compilation_cache", enabled)


@pytest.fixture(scope="module")
def chips() -> list[Any]:
  topology = topologies.get_topology_desc(
    platform="tpu", topology_name="v5e:2x2"
  )
  return topology.devices


@pytest.fixture
def four(chips, monkeypatch) -> Mesh:
  """All chips; the host sees no others."""
  monkeypatch.setattr(jax, "device_count", lambda: 4)
  return Mesh(np.array(chips).reshape(2, 2), ("data", "model"))


@pytest.fixture
def one(chips, monkeypatch) -> Mesh:
  """A single chip; the host sees no others."""
  monkeypatch.setattr(jax, "device_count", lambda: 1)
  return Mesh(np.array(chips[:1]), ("data",))


def abstract(tree: Any, mesh: Mesh, *axes: str) -> Any:
  """The types of arrays, all with their first dimensions over these axes."""
  place = lambda x: jax.ShapeDtypeStruct(
    x.shape, x.dtype, sharding=NamedSharding(mesh, P(*axes))
  )
  return jax.tree.map(place, tree)


def sharded_tree(mesh: Mesh) -> Any:
  return {
    layer: {
      name: jax.ShapeDtypeStruct(
        shape, jnp.float32, sharding=NamedSharding(mesh, spec)
      )
      for name, (shape, spec) in leaves.items()
    }
    for layer, leaves in SHARDED.items()
  }


def abstract_state(optimizer: Any, params: Any, mesh: Mesh) -> Any:
  """The optimizer's state; momentum is sharded as its parameter is."""
  return optax.tree.map_params(
    optimizer,
    lambda _, w: w,
    jax.eval_shape(optimizer.init, params),
    params,
    transform_non_params=lambda x: abstract(x, mesh),
  )


def make_update(optimizer: Any) -> Any:
  def update(grads, state, params):
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  return update


class Program(NamedTuple):
  """A compiled program.

  Attributes:
    compiled: as JAX has it.
    text: its HLO.
    seconds: its compile time.
  """

  compiled: Any
  text: str
  seconds: float


def compile_for_tpu(function: Any, *args: Any) -> Program:
  jitted = function if hasattr(function, "lower") else jax.jit(function)
  lowered = jitted.lower(*args)
  start = time.perf_counter()
  compiled = lowered.compile()
  seconds = time.perf_counter() - start
  return Program(compiled, compiled.as_text(), seconds)


def collectives(text: str) -> dict[str, list[int]]:
  """Of each kind, the sizes of all arrays that go from chip to chip."""
  actual: dict[str, list[int]] = {}
  kinds = "|".join(
    ["all-gather", "all-reduce", "(?:ragged-)?all-to-all", "reduce-scatter"]
    + ["collective-permute", "collective-broadcast", "send", "recv"]
  )
  for types, kind in re.findall(rf"= (.*) ({kinds})(?:-start)?\(", text):
    for shape in re.findall(r"\[([\d,]*)\]", types):
      size = math.prod(map(int, filter(None, shape.split(","))))
      actual.setdefault(kind, []).append(size)
  return actual


def count(text: str, operation: str) -> int:
  return len(re.findall(rf" {operation}(?:-start)?\(", text))


def show(name: str, program: Program) -> None:
  """Prints what was compiled: pytest shows it with -s or -rP."""
  text = program.text
  names = ("all-reduce", "all-gather", "conditional", "while", "fusion")
  operations = {x: count(text, x) for x in names}
  sent = {kind: len(sizes) for kind, sizes in collectives(text).items()}
  print(
    f"\n{name}:",
    f"  compiled in {program.seconds:.1f} s",
    f"  bytes accessed: {bytes_accessed(program):,.0f}",
    f"  temporaries: {temporaries(program):,} bytes",
    f"  operations: {operations}",
    f"  arrays sent: {sent}",
    sep="\n",
  )


def bytes_accessed(program: Program) -> float:
  return program.compiled.cost_analysis()["bytes accessed"]


def temporaries(program: Program) -> int:
  return program.compiled.memory_analysis().temp_size_in_bytes


def same_sharding(shardings: Any, arrays: Any) -> bool:
  same = lambda x, y: x.is_equivalent_to(y.sharding, y.ndim)
  return all(jax.tree.leaves(jax.tree.map(same, shardings, arrays)))


@pytest.mark.parametrize(
  "options",
  [
    dict(group_by="leaf"),
    dict(group_by="layer"),
    dict(group_by="global"),
    dict(group_by="leaf", diagnostics=True),
    dict(group_by="global", diagnostics=True),
  ],
  ids=lambda options: "-".join(map(str, options.values())),
)
@pytest.mark.parametrize("alone", [True, False], ids=["orthograd", "sgd"])
def test_sharded_parameters_are_not_gathered(four, alone, options):
  params = sharded_tree(four)
  optimizer = orthograd(**options) if alone else orthograd_sgd(**SGD, **options)
  state = abstract_state(optimizer, params, four)
  update = optimizer.update if alone else make_update(optimizer)
  program = compile_for_tpu(update, params, state, params)
  show(f"{'orthograd' if alone else 'sgd'} {options}", program)
  sent = collectives(program.text)
  assert "all-reduce" in sent
  assert all(max(sizes) < SMALLEST_SHARD for sizes in sent.values()), sent
  out, new_state = program.compiled.output_shardings
  assert same_sharding(out, params)
  if not alone:
    trace = optax.tree.get(new_state, "trace")
    assert same_sharding(trace, params)


def raveled(g: Any, w: Any) -> Any:
  """A form that copies: all leaves as one vector."""
  (w, _), (g, unravel) = map(flatten_util.ravel_pytree, (w, g))
  return unravel(g - w @ g / (w @ w) * w)


def test_communication_is_seen(four):
  params = sharded_tree(four)
  sent = collectives(compile_for_tpu(raveled, params, params).text)
  print(sent)
  assert max(map(max, sent.values())) >= SMALLEST_SHARD


def resnet18(mesh: Mesh, **options: Any) -> tuple[Any, Any]:
  """The network, and the types of its variables, on every chip."""
  from experiments import registry
  from experiments.engine import models

  model = registry.MODELS["resnet18"](**options)
  init = functools.partial(models.init, model)
  return model, abstract(jax.eval_shape(init, jax.random.key(0)), mesh)


def make_training_step(model: Any, optimizer: Any) -> Any:
  def step(params, batch_stats, state, images, labels):
    def loss(params):
      logits, new = model.apply(
        {"params": params, "batch_stats": batch_stats},
        images,
        train=True,
        mutable=["batch_stats"],
      )
      losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
      return jnp.mean(losses), new["batch_stats"]

    grads, batch_stats = jax.grad(loss, has_aux=True)(params)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), batch_stats, state

  return step


def test_training_step_under_jit(four):
  """The batch is sharded, parameters are replicated."""
  model, variables = resnet18(four, dtype=jnp.bfloat16)
  params, batch_stats = variables["params"], variables["batch_stats"]
  optimizer = orthograd_sgd(**SGD)
  state = abstract_state(optimizer, params, four)
  batch = (
    jax.ShapeDtypeStruct((64, 32, 32, 3), jnp.float32),
    jax.ShapeDtypeStruct((64,), jnp.int32),
  )
  step = make_training_step(model, optimizer)
  program = compile_for_tpu(
    step, params, batch_stats, state, *abstract(batch, four, "data")
  )
  show("training step, jit", program)
  assert same_sharding(program.compiled.output_shardings[0], params)


def test_epoch_of_the_engine(four):
  """A `shard_map` over 2 × 2 chips: one run a row, half a batch a chip."""
  from experiments import config
  from experiments.engine import train

  mesh = train.make_mesh(batch=2, devices=list(four.devices.flat))
  settings = config.Config(model="resnet18", per_class=20)
  engine = train.Engine(settings, mesh=mesh)
  shapes = train.Runs(
    seed=jax.ShapeDtypeStruct((2,), jnp.int32),
    method=jax.tree.map(
      lambda _: jax.ShapeDtypeStruct((2,), jnp.float32),
      config.ORTHOGRAD.resolve(settings),
    ),
    subset=jax.ShapeDtypeStruct((2, 10 * settings.per_class), jnp.int32),
  )
  runs = abstract(shapes, mesh, "run")
  state = abstract(jax.eval_shape(engine.init, runs), mesh, "run")
  dataset = (
    jax.ShapeDtypeStruct((), jnp.int32),
    jax.ShapeDtypeStruct((50_000, 32, 32, 3), jnp.uint8),
    jax.ShapeDtypeStruct((50_000,), jnp.int32),
  )
  program = compile_for_tpu(engine.epoch, state, runs, *abstract(dataset, mesh))
  show("epoch of the engine", program)
  new_state, _ = program.compiled.output_shardings
  assert same_sharding(new_state, state)


def cost_of_update(transform: Any, params: Any, mesh: Mesh) -> Program:
  optimizer = optax.chain(
    transform, optax.add_decayed_weights(5e-4), optax.sgd(0.1, momentum=0.9)
  )
  state = abstract_state(optimizer, params, mesh)
  # Don't donate. For donated arguments libtpu reports 31.5 KB of temporaries
  # for each of many operations, however small; of the textbook's form, too.
  return compile_for_tpu(make_update(optimizer), params, state, params)


def bytes_of(params: Any) -> int:
  return sum(w.size * w.dtype.itemsize for w in jax.tree.leaves(params))


def matrices(mesh: Mesh) -> Any:
  """Each is larger than a chip's VMEM, so that all sweeps read HBM."""
  matrix = jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
  return abstract([matrix] * 2, mesh)


@pytest.mark.parametrize("name", ["matrices", "resnet18"])
def test_cost_on_one_chip(one, name):
  """Compared with the textbook's form, which sweeps w and g once less."""
  from benchmarks import update

  params = matrices(one) if name == "matrices" else resnet18(one)[1]["params"]
  transforms = {
    "SGD": optax.identity(),
    "textbook": update.textbook(),
    "ours": orthograd(),
  }
  programs = {}
  for kind, transform in transforms.items():
    programs[kind] = cost_of_update(transform, params, one)
    show(f"update of {name}, {kind}", programs[kind])
  ours, textbook = programs["ours"], programs["textbook"]
  assert count(ours.text, "conditional") == count(ours.text, "while") == 0
  assert bytes_accessed(ours) < 1.5 * bytes_accessed(textbook)
  assert temporaries(ours) < 0.05 * bytes_of(params)


def test_temporaries_are_seen(one):
  params = matrices(one)
  program = compile_for_tpu(raveled, params, params)
  show("raveled matrices", program)
  assert temporaries(program) > 0.5 * bytes_of(params)
