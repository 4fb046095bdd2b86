"""Bins against plain loops, and tallies against whole sets."""

from typing import Any

import chex
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from logit_sets import assert_close, binned, confidence64, synthetic
import numpy as np
import pytest

from orthograd_optax import calibration


def test_reliability(data):
  logits, labels = data
  actual = calibration.reliability(logits, labels)
  confidence, correct = confidence64(logits, labels)
  for b, i in enumerate(binned(logits, labels)):
    assert actual.count[b] == i.size
    expected = (confidence[i].mean(), correct[i].mean()) if i.size else (0, 0)
    assert_close(actual.confidence[b], expected[0])
    assert_close(actual.accuracy[b], expected[1])


def test_average_reliability_is_that_of_all_images():
  random = np.random.default_rng(0)
  logits = (3 * random.normal(size=(4, 250, 5))).astype(np.float32)
  labels = random.integers(0, 5, size=(4, 250))
  stacked = jax.vmap(calibration.reliability)(logits, labels)
  chex.assert_shape(stacked.count, (4, 10))
  expected = calibration.reliability(logits.reshape(-1, 5), labels.ravel())
  one_by_one = [
    calibration.reliability(*pair) for pair in zip(logits, labels, strict=True)
  ]
  for seeds in (stacked, one_by_one):
    average = calibration.average_reliability(seeds)
    chex.assert_trees_all_equal(average.count, expected.count)
    chex.assert_trees_all_close(average, expected, rtol=1e-6, atol=1e-7)


def test_average_reliability_refuses():
  logits, labels = synthetic()
  ten = calibration.reliability(logits, labels)
  five = calibration.reliability(logits, labels, 5)
  with pytest.raises(ValueError, match=r"same num_bins.*\[\(5,\), \(10,\)\]"):
    calibration.average_reliability([ten, five])
  with pytest.raises(ValueError, match="at least one reliability.*but 0 have"):
    calibration.average_reliability([])
  with pytest.raises(ValueError, match=r"leading axis.* \(10,\)"):
    calibration.average_reliability(ten)


def test_confidence_of_one_is_in_the_last_bin():
  logits = jnp.array([[1e4, 0.0, -1e4], [-1e4, 1e4, 0.0], [0.0, 40.0, 0.0]])
  labels = jnp.array([0, 1, 0])
  bins = calibration.reliability(logits, labels)
  assert bins.count.tolist() == [0] * 9 + [3]
  assert bins.confidence[-1] == 1
  assert_close(calibration.ece(logits, labels), 1 / 3)
  assert_close(calibration.nll(logits, labels), 40 / 3)
  values = calibration.evaluate(logits, labels)
  del values["confidence_correlation"]  # All confidences are equal.
  chex.assert_tree_all_finite(values)


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("classes", [2, 3, 5, 10])
def test_edges_belong_to_the_bin_below(classes):
  """Equal logits have a confidence of exactly 1 / classes, an edge here."""
  logits, labels = jnp.zeros((4, classes)), jnp.zeros(4, int)
  count = calibration.reliability(logits, labels, classes).count
  assert count.tolist() == [4] + [0] * (classes - 1)
  # Of equal logits, the first is the prediction.
  assert calibration.accuracy(logits, labels) == 1
  assert calibration.accuracy(logits, labels + 1) == 0
  assert calibration.accuracy(logits, labels + 1, k=2) == 1


# Streams.


def assert_same(actual, expected, atol=1e-7):
  chex.assert_trees_all_close(
    dict(actual), dict(expected), rtol=2e-6, atol=atol
  )


@given(
  st.integers(0, 2**32 - 1),
  st.floats(0.01, 100.0),
  st.permutations([*range(8)]),
)
def test_tallies_add_up(seed, scale, order):
  random = np.random.default_rng(seed)
  logits = (scale * random.normal(size=(8, 25, 4))).astype(np.float32)
  labels = random.integers(0, 4, size=(8, 25))
  total = calibration.Tally.empty()
  for i in order:
    total += calibration.tally(logits[i], labels[i])
  everything = logits.reshape(-1, 4), labels.ravel()
  whole = calibration.tally(*everything)
  chex.assert_trees_all_equal_shapes_and_dtypes(total, whole)
  counts = lambda tally: (tally.count, tally.correct, tally.top5)
  chex.assert_trees_all_equal(counts(total), counts(whole))
  sums = jax.tree.map(jnp.add, total.sums, total.lost)
  chex.assert_trees_all_close(sums, whole.sums, rtol=1e-6, atol=1e-6)
  actual, expected = total.metrics(), whole.metrics()
  # Sums of squares lose digits, or all of them, where confidences are close.
  correlation = actual.pop("confidence_correlation")
  exact = calibration.confidence_correlation(*everything)
  assert abs(correlation - exact) < 1e-4 or np.isnan(correlation)
  assert scale < 0.1 or not np.isnan(correlation)
  del expected["confidence_correlation"]
  assert_same(actual, expected, atol=2e-6)


class StreamTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True, with_pmap=True)
  def test_tally_in_a_scan_with_padding(self):
    logits, labels = synthetic(images=230)
    padded = np.full((300, 10), np.nan, np.float32)
    padded[:230] = logits
    padded_labels = np.concatenate([labels, np.full(70, -1)])
    batches = padded.reshape(3, 100, 10), padded_labels.reshape(3, 100)
    keep = (np.arange(300) < 230).reshape(3, 100)

    def stream(logits, labels, keep):
      def add(total, batch):
        return total + calibration.tally(*batch[:2], where=batch[2]), None

      start = calibration.Tally.empty()
      return jax.lax.scan(add, start, (logits, labels, keep))[0].metrics()

    run: Any = self.variant(stream)
    actual = run(*batches, keep)
    assert_same(actual, calibration.evaluate(logits, labels))
    # And outside of a scan, where labels are looked at.
    last: Any = self.variant(
      lambda z, y, keep: calibration.tally(z, y, where=keep).count.sum()
    )
    assert last(batches[0][2], batches[1][2], keep[2]) == 30


def test_tally_over_devices():
  logits, labels = synthetic()
  devices = jax.devices()
  n = len(devices)
  mesh = jax.sharding.Mesh(np.array(devices), ("batch",))
  spec = jax.sharding.PartitionSpec("batch")

  def local(logits, labels):
    return jax.lax.psum(calibration.tally(logits, labels), "batch").metrics()

  actual = jax.jit(
    jax.shard_map(
      local, mesh=mesh, in_specs=spec, out_specs=jax.sharding.PartitionSpec()
    )
  )(logits[: 100 * n], labels[: 100 * n])
  expected = calibration.evaluate(logits[: 100 * n], labels[: 100 * n])
  assert_same(actual, expected)


@pytest.mark.slow
def test_many_small_batches_stay_exact():
  """As many additions as images don't add up to an error in float32."""
  logits, labels = synthetic(images=100_000)
  batches = logits[:, None], labels[:, None]
  tallies = jax.vmap(calibration.tally)(*batches)

  def add(total, one):
    return total + one, None

  total, _ = jax.lax.scan(add, calibration.Tally.empty(), tallies)
  plain = jax.tree.map(lambda x: jax.lax.scan(add, x[0], x[1:])[0], tallies)
  with jax.enable_x64(True):
    exact = calibration.evaluate(logits.astype(np.float64), labels)
  for key, value in total.metrics().items():
    assert_close(value, exact[key], rtol=1e-6)
  lossy = float(plain.metrics()["brier"]) / float(exact["brier"])
  assert abs(lossy - 1) > 1e-6


def test_tallies_of_seeds():
  """A leading axis stands for seeds, as elsewhere."""
  logits, labels = synthetic()
  seeds = jnp.stack([logits, 0.5 * logits, 2 * logits])
  tallies = jax.vmap(calibration.tally, in_axes=(0, None))(seeds, labels)
  actual = (tallies + tallies).metrics()
  chex.assert_shape(list(actual.values()), (3,))
  bins = tallies.reliability()
  for i, one in enumerate(seeds):
    expected = calibration.evaluate(one, labels)
    assert_same(jax.tree.map(lambda x, i=i: x[i], actual), expected)
    reliability = calibration.reliability(one, labels)
    assert_close(bins.confidence[i], reliability.confidence)


def test_tallies_and_reliabilities_compare_by_value():
  logits, labels = synthetic()
  tally = calibration.tally(logits, labels)
  again = calibration.tally(logits, labels)
  assert (tally == again) is True and (tally != again) is False
  assert (tally.reliability() == again.reliability()) is True
  for other in (
    calibration.tally(logits[::-1], labels),
    calibration.tally(logits, labels, 5),
    calibration.Tally.empty(),
    tally.reliability(),
    None,
  ):
    assert (tally == other) is False
  assert calibration.Tally.empty() + tally == tally


def test_tallies_that_do_not_fit():
  ten, five = calibration.Tally.empty(), calibration.Tally.empty(5)
  with pytest.raises(ValueError, match="same num_bins"):
    _ = ten + five
  assert np.isnan(ten.metrics()["nll"])
  logits, labels = synthetic()
  with pytest.raises(ValueError, match="where must be booleans"):
    calibration.tally(logits, labels, where=np.ones(3, bool))
  every = np.ones(len(labels), bool)
  calibration.tally(logits, list(labels), where=every)
  with pytest.raises(ValueError, match=f"is {2**32 + labels[0]}. Give"):
    calibration.tally(logits, np.asarray(labels) + 2**32, where=every)
  with pytest.raises(TypeError, match="labels must be integers, but are bool"):
    calibration.tally(logits, every, where=every)
