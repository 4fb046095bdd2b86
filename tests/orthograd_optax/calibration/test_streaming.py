"""`Tally` in the loops of clu, metrax and Flax NNX, and over devices."""

import chex
from flax import nnx
import flax.struct
import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from orthograd_optax import calibration

BATCHES, SIZE, CLASSES = 4, 16, 5


def batches():
  random = np.random.default_rng(0)
  logits = random.normal(size=(BATCHES, SIZE, CLASSES)).astype(np.float32)
  labels = random.integers(0, CLASSES, size=(BATCHES, SIZE))
  where = random.random((BATCHES, SIZE)) < 0.8
  return logits, labels, where


def expected():
  logits, labels, where = batches()
  return calibration.evaluate(logits[where], labels[where])


def assert_same(actual):
  chex.assert_trees_all_close(dict(actual), dict(expected()), rtol=3e-6)


@pytest.mark.parametrize("name", ["where", "mask"])
def test_clu(name):
  metrics = pytest.importorskip("clu.metrics")

  @flax.struct.dataclass
  class Collection(metrics.Collection):
    loss: metrics.Average.from_output("loss")  # pyright: ignore
    calibration: calibration.Tally

  @jax.jit
  def add(collection, logits, labels, keep):
    return collection.merge(
      collection.single_from_model_output(
        loss=logits[:, 0], logits=logits, labels=labels, **{name: keep}
      )
    )

  collection = Collection.empty()
  for logits, labels, where in zip(*batches(), strict=True):
    keep = where if name == "where" else where.astype(np.float32)
    collection = add(collection, logits, labels, keep)
  assert_same(collection.compute()["calibration"])
  assert np.isnan(Collection.empty().compute()["calibration"]["nll"])


def test_clu_over_devices():
  """Gathered by pmap, as clu's own example does."""
  metrics = pytest.importorskip("clu.metrics")

  @flax.struct.dataclass
  class Collection(metrics.Collection):
    calibration: calibration.Tally

  @jax.pmap
  def one(logits, labels, where):
    return calibration.Tally.from_model_output(
      logits=logits, labels=labels, where=where
    )

  assert_same(one(*batches()).reduce().compute())
  gather = lambda logits, labels, where: Collection.gather_from_model_output(
    logits=logits, labels=labels, where=where
  )
  gathered = jax.pmap(gather, axis_name="batch")(*batches())
  assert_same(gathered.unreplicate().compute()["calibration"])


def test_shard_map():
  mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))

  def local(logits, labels, where):
    tally = calibration.tally(logits, labels, where=where)
    return jax.lax.psum(tally, "x")

  total = jax.jit(
    jax.shard_map(local, mesh=mesh, in_specs=P("x"), out_specs=P())
  )(*batches())
  assert_same(total.metrics())
  # Counts and per-example numbers do not depend on the devices at all.
  put = lambda x: jax.device_put(x, NamedSharding(mesh, P("x")))
  sharded = calibration.tally(*map(put, batches()[:2]))
  alone = calibration.tally(*batches()[:2])
  chex.assert_trees_all_equal(sharded.count, alone.count)
  assert_same(calibration.tally(*batches()[:2], where=batches()[2]).metrics())


def test_metrax():
  wrapper = pytest.importorskip("metrax.nnx.nnx_wrapper")

  class Metric(wrapper.NnxWrapper):  # as metrax defines its own
    def __init__(self):
      super().__init__(calibration.Tally)

  metric = Metric()
  for _ in range(2):
    metric.reset()
    for logits, labels, where in zip(*batches(), strict=True):
      metric.update(logits=logits, labels=labels, where=where)
    assert_same(metric.compute())


@pytest.mark.parametrize("name", ["where", "mask"])
def test_nnx(name):
  metric = nnx.MultiMetric(
    loss=nnx.metrics.Average(), calibration=calibration.nnx_tally()
  )

  chex.clear_trace_counter()

  @nnx.jit
  @chex.assert_max_traces(n=1)
  def step(metric, logits, labels, keep):
    metric.update(
      logits=logits, labels=labels, values=logits[:, 0], **{name: keep}
    )

  for _ in range(2):
    metric.reset()
    assert np.isnan(metric.compute()["calibration"]["nll"])
    for batch in zip(*batches(), strict=True):
      step(metric, *batch)
    assert_same(metric.compute()["calibration"])
  fifteen = calibration.nnx_tally(15)
  fifteen.update(logits=batches()[0][0], labels=batches()[1][0])
  ece = calibration.ece(batches()[0][0], batches()[1][0], 15)
  np.testing.assert_allclose(fifteen.compute()["ece"], ece, rtol=1e-6)
