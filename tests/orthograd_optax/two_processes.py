"""One of the two processes that test_sharding.test_two_processes starts."""

import sys

import jax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from test_sharding import SGD, expected_params, make_step, make_trees

from orthograd_optax import calibration, orthograd, orthograd_sgd


def check_metrics(sharded, process: int) -> None:
  """Of examples on both processes: in arrays, and in tallies to be merged."""
  random = np.random.default_rng(0)
  logits = random.normal(size=(8, 5)).astype(np.float32)
  labels, where = random.integers(0, 5, 8), np.arange(8) % 3 > 0
  expected = calibration.evaluate(logits, labels, where=where)
  arrays = [sharded(x) for x in (logits, labels, where)]
  together = calibration.tally(*arrays[:2], where=arrays[2])
  own = slice(4 * process, 4 * process + 4)
  tally = calibration.tally(logits[own], labels[own], where=where[own])
  merged = multihost_utils.process_allgather(tally).reduce()
  for metrics in (together.metrics(), merged.metrics()):
    for name, value in expected.items():
      np.testing.assert_allclose(metrics[name], value, rtol=3e-6, err_msg=name)


def main(port: str, process: int) -> None:
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
  mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
  sharded = lambda x: jax.make_array_from_callback(
    x.shape, NamedSharding(mesh, P("x")), lambda index: x[index]
  )
  trees = make_trees()
  params, targets = jax.tree.map(sharded, trees)
  optimizer = orthograd_sgd(**SGD)
  state = optimizer.init(params)
  step = jax.jit(make_step(optimizer))
  for _ in range(3):
    params, state = step(params, state, targets)
  expected = expected_params(*trees)
  for array, ours in zip(jax.tree.leaves(params), expected, strict=True):
    assert not array.is_fully_addressable
    for shard in array.addressable_shards:
      np.testing.assert_allclose(
        shard.data, ours[shard.index], rtol=1e-5, atol=1e-6
      )
  # Whose values are not all here, so that init can't look at them.
  column, strength = (sharded(np.ones(shape)) for shape in ((4, 1), (4,)))
  orthograd(batch_axes=0, strength=strength).init({"column": column})
  check_metrics(sharded, process)
  print(f"process {process} of {jax.process_count()}: OK")


if __name__ == "__main__":
  main(sys.argv[1], int(sys.argv[2]))
