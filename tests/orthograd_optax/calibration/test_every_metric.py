"""What holds for every metric: dtypes, transformations, invariants."""

from typing import Any

from absl.testing import parameterized
import chex
from every_metric import METRICS
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
from logit_sets import assert_close, synthetic
import numpy as np
import pytest

from orthograd_optax import calibration


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", METRICS)
def test_half_precision_is_exact_for_what_it_is(name, dtype):
  logits, labels = synthetic()
  logits = jnp.asarray(logits, dtype)
  actual = METRICS[name](logits, labels)
  expected = METRICS[name](logits.astype(jnp.float32), labels)
  chex.assert_type(actual, jnp.float32)
  chex.assert_trees_all_equal(actual, expected)


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("name", METRICS)
def test_float64(name):
  logits, labels = synthetic()
  with jax.enable_x64(True):
    exact = METRICS[name](logits.astype(np.float64), labels)
    single = METRICS[name](logits, labels)
    chex.assert_type([exact, single], [jnp.float64, jnp.float32])
  assert_close(METRICS[name](logits, labels), exact, rtol=2e-6)


@pytest.mark.mostly_slow(7)
class EveryMetricTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True, with_pmap=True)
  @parameterized.parameters(*METRICS)
  def test_of_many_sets(self, name):
    """Runs in a vmap, whose leading axis stays, within each variant."""
    logits, labels = synthetic()
    stack, labels = logits.reshape(4, 500, 10), labels[:500]
    over_sets = jax.vmap(METRICS[name], in_axes=(0, None))
    mapped: Any = self.variant(over_sets, n_devices=2)
    actual = mapped(stack, labels)
    expected = [METRICS[name](one, labels) for one in stack]
    chex.assert_shape(actual, (4,))
    assert_close(actual, expected, rtol=2e-6)


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("name", METRICS)
def test_a_class_without_images(name):
  """If its logits are low, only means by class count the class."""
  logits, labels = synthetic()
  keep = labels != 9
  logits, labels = logits[keep], labels[keep]
  logits[:, 9] = -100
  value = METRICS[name](logits, labels)
  without = METRICS[name](logits[:, :9], labels)
  if name == "classwise_ece":
    without = 0.9 * without
  if name in ("max_logit", "logit_variance"):
    assert value > without
  else:
    assert_close(value, without, rtol=2e-6)


@pytest.mark.parametrize("name", METRICS)
def test_strict_promotion(name):
  with jax.numpy_dtype_promotion("strict"):
    METRICS[name](*synthetic())


@pytest.mark.parametrize("name", METRICS)
def test_nan_is_not_hidden(name):
  logits, labels = synthetic()
  logits = logits.copy()
  logits[7, 3] = np.nan
  assert np.isnan(METRICS[name](logits, labels))
  assert all(np.isnan(v) for v in calibration.evaluate(logits, labels).values())


# Invariants.

LOGITS = st.tuples(st.integers(0, 2**32 - 1), st.floats(1e-2, 1e2))


def draw(seed, scale):
  random = np.random.default_rng(seed)
  logits = (scale * random.normal(size=(60, 4))).astype(np.float32)
  truth = logits + 0.5 * scale * random.normal(size=logits.shape)
  return logits, np.argmax(truth, axis=1)


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("name", sorted(set(METRICS) - {"max_logit"}))
@given(LOGITS, st.sampled_from([-64.0, 1.0, 512.0]))
def test_adding_a_constant_changes_nothing(name, drawn, constant):
  logits, labels = draw(*drawn)
  # On a grid, so that the sum is exact, and differences stay as they were.
  logits = np.round(logits * 256) / np.float32(256)
  value = METRICS[name](logits, labels)
  shifted = METRICS[name](logits + np.float32(constant), labels)
  assert_close(shifted, value, rtol=1e-5)


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("name", METRICS)
@given(LOGITS, st.randoms())
def test_the_order_of_images_does_not_matter(name, drawn, random):
  logits, labels = draw(*drawn)
  logits[::7] = logits[0]  # ties
  order = list(range(len(labels)))
  random.shuffle(order)
  value = METRICS[name](logits, labels)
  assert_close(METRICS[name](logits[order], labels[order]), value, rtol=1e-5)


@given(LOGITS)
def test_ranges(drawn):
  logits, labels = draw(*drawn)
  values = {name: float(m(logits, labels)) for name, m in METRICS.items()}
  in_unit = ("accuracy", "ece", "mce", "classwise_ece", "smooth_ece", "aurc")
  in_unit += ("top_k_ece", "ks_calibration_error", "selective_risk")
  for name in in_unit:
    assert -1e-6 <= values[name] <= 1 + 1e-6, name
  assert 0 <= values["brier"] <= 2 + 1e-6
  assert -1e-6 <= values["entropy"] <= np.log(4) + 1e-6
  assert 0.25 - 1e-6 <= values["confidence"] <= 1
  rms = values["rms_calibration_error"]
  assert values["ece"] <= rms + 1e-6 <= values["mce"] + 2e-6
  assert values["debiased_ece"] <= values["ece"] + 1e-6
  gap = abs(values["accuracy"] - values["confidence"])
  assert gap <= values["ece"] + 1e-6
  assert gap <= values["ks_calibration_error"] + 1e-6
  for name in ("brier", "nll"):
    parts = getattr(calibration, f"{name}_decomposition")(logits, labels)
    assert min(parts) >= -1e-6
    assert_close(sum(parts), values[name], rtol=1e-5)
  if not np.isnan(values["confidence_correlation"]):
    assert abs(values["confidence_correlation"]) <= 1 + 1e-5


@given(LOGITS)
def test_monotone_in_temperature_with_known_limits(drawn):
  logits, labels = draw(*drawn)
  logits = logits / np.abs(logits).max()
  temperatures = 10.0 ** np.linspace(-6, 6, 25)
  stack = (logits[None] / temperatures[:, None, None]).astype(np.float32)
  over = lambda metric: np.asarray(jax.vmap(metric, (0, None))(stack, labels))
  entropy, confidence = over(calibration.entropy), over(calibration.confidence)
  assert np.all(np.diff(entropy) >= -1e-5)
  assert np.all(np.diff(confidence) <= 1e-5)
  accuracy = float(calibration.accuracy(logits, labels))
  error = over(calibration.ece)
  # As T → 0 the network is sure of all, and as T → ∞ of nothing.
  assert_close(confidence[[0, -1]], [1, 0.25], rtol=1e-4)
  assert_close(entropy[[0, -1]], [0, np.log(4)], rtol=1e-4, atol=1e-4)
  limits = [1 - accuracy, abs(accuracy - 0.25)]
  assert_close(error[[0, -1]], limits, rtol=1e-4, atol=1e-4)
