"""Temperature, Platt, vector scaling, isotonic regression and splits."""

import functools

import chex
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special
from sklearn.isotonic import IsotonicRegression
import statsmodels.api as statsmodels

from orthograd_optax import calibration


def overconfident(seed=0, images=1000, classes=10, scale=4.0, temperature=2.5):
  random = np.random.default_rng(seed)
  logits = scale * random.normal(size=(images, classes))
  noise = random.gumbel(size=logits.shape)
  labels = np.argmax(logits / temperature + noise, axis=1)
  return logits.astype(np.float32), labels


def nll64(logits, labels):
  log_p = special.log_softmax(np.asarray(logits, np.float64), axis=1)
  return -log_p[np.arange(len(labels)), labels].mean()


def temperature64(logits, labels):
  """Brent's method on the loss itself, then on its numerical derivative."""
  logits = np.asarray(logits, np.float64)

  def slope(log_t):
    step = 1e-4
    up, down = np.exp(log_t + step), np.exp(log_t - step)
    return nll64(logits / up, labels) - nll64(logits / down, labels)

  best = optimize.minimize_scalar(
    lambda log_t: nll64(logits / np.exp(log_t), labels),
    bracket=(np.log(logits.std()), np.log(logits.std()) + 1),
  )
  return np.exp(optimize.brentq(slope, best.x - 0.1, best.x + 0.1, xtol=1e-12))


# Temperature.


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("classes", [2, 10, 100])
@pytest.mark.parametrize("scale", [1e-4, 0.3, 4.0, 1e4])
def test_temperature_is_the_minimizer(classes, scale):
  for seed, temperature in enumerate((0.4, 1.0, 3.0)):
    logits, labels = overconfident(
      seed, 1000, classes, 4.0 * temperature, temperature
    )
    logits = logits * np.float32(scale)
    expected = temperature64(logits, labels)
    actual = calibration.fit_temperature(logits, labels)
    # The numerical derivative is good to its step squared.
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_temperature_in_float64():
  logits, labels = overconfident()
  logits = logits.astype(np.float64)
  lead = logits - logits[np.arange(len(labels)), labels][:, None]

  def slope(log_t):
    weights = special.softmax(lead / np.exp(log_t), axis=1)
    return np.sum(weights * lead)

  expected = np.exp(optimize.brentq(slope, -3, 3, xtol=1e-14))
  with jax.enable_x64(True):
    actual = calibration.fit_temperature(logits, labels)
  np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_temperature_of_one_hard_image():
  """All but one image right, far apart: still one minimizer."""
  logits = np.zeros((50, 3), np.float32)
  labels = np.arange(50) % 3
  logits[np.arange(50), labels] = np.linspace(5, 20, 50)
  logits[7] = [0, 0, 1]
  labels[7] = 0
  expected = temperature64(logits, labels)
  actual = calibration.fit_temperature(logits, labels)
  np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_separable_data_has_the_lowest_temperature():
  logits, labels = overconfident()
  labels = logits.argmax(axis=1)
  temperature = calibration.fit_temperature(logits, labels)
  assert temperature == np.float32(1e-8)
  scaled = logits / temperature
  chex.assert_tree_all_finite(scaled)
  assert calibration.nll(scaled, labels) == 0
  # A tie with the label's logit doesn't make it less so.
  tied = np.concatenate([logits, np.zeros((1, 10), np.float32)])
  tied_labels = np.append(labels, 4)
  assert calibration.fit_temperature(tied, tied_labels) == np.float32(1e-8)


def test_misleading_logits_have_the_highest_temperature():
  logits, _ = overconfident()
  labels = logits.argmin(axis=1)
  temperature = calibration.fit_temperature(logits, labels)
  assert temperature == np.float32(1e8)
  loss = calibration.nll(logits / temperature, labels)
  np.testing.assert_allclose(loss, np.log(10), rtol=1e-6)


def test_temperature_with_impossible_classes():
  logits, labels = overconfident()
  masked = np.concatenate([logits, np.full((1000, 1), -np.inf)], axis=1)
  expected = calibration.fit_temperature(logits, labels)
  assert calibration.fit_temperature(masked, labels) == expected
  for value, column in ((np.inf, 3), (-np.inf, labels[0])):
    broken = logits.copy()
    broken[0, column] = value
    assert np.isnan(calibration.fit_temperature(broken, labels))


def test_temperature_that_makes_no_difference():
  logits = jnp.arange(5.0)[:, None] + jnp.zeros((1, 3))
  assert calibration.fit_temperature(logits, jnp.array([0, 1, 2, 0, 1])) == 1


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 100.0))
def test_temperature_never_raises_the_loss(seed, scale):
  logits, labels = overconfident(seed, 60, 4, 3.0)
  logits = logits * np.float32(scale)
  temperature = calibration.fit_temperature(logits, labels)
  best = nll64(logits / temperature, labels)
  others = 10.0 ** np.linspace(-3, 3, 61)
  losses = [nll64(logits / t, labels) for t in (1.0, *others)]
  assert best <= min(losses) + 1e-9
  before = calibration.accuracy(logits, labels)
  assert calibration.accuracy(logits / temperature, labels) == before


# Vector scaling.


def vector_scaling64(logits, labels):
  logits = np.asarray(logits, np.float64)
  classes = logits.shape[1]

  def loss(x):
    return nll64(logits * x[None, :classes] + x[None, classes:], labels)

  start = np.concatenate([np.ones(classes), np.zeros(classes)])
  return optimize.minimize(loss, start, method="BFGS", options={"gtol": 1e-8})


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_vector_scaling(scale):
  random = np.random.default_rng(0)
  logits = random.normal(size=(3000, 4))
  truth = logits * np.array([[1.0, 2.0, 0.5, 3.0]]) + np.array(
    [[0.5, -0.5, 1.0, -1.0]]
  )
  labels = np.argmax(truth + random.gumbel(size=truth.shape), axis=1)
  logits = (scale * logits).astype(np.float32)
  scaling = calibration.fit(logits, labels, "vector")
  best = vector_scaling64(logits * np.float32(1 / scale), labels)
  assert nll64(scaling(logits), labels) <= best.fun + 1e-6
  np.testing.assert_allclose(scaling.scale * scale, best.x[:4], atol=2e-3)
  bias = best.x[4:] - best.x[4:].mean()
  np.testing.assert_allclose(scaling.bias, bias, atol=2e-3)
  temperature = calibration.fit_temperature(logits, labels)
  by_temperature = calibration.nll(logits / temperature, labels)
  assert calibration.nll(scaling(logits), labels) < by_temperature


def test_vector_scaling_of_separable_data_is_finite():
  logits, _ = overconfident()
  labels = logits.argmax(axis=1)
  scaling = calibration.fit(logits, labels, "vector")
  chex.assert_tree_all_finite(scaling.scale)
  assert np.all(scaling.scale > 1)
  assert calibration.nll(scaling(logits), labels) < 1e-3


# Isotonic regression.


def test_isotonic():
  logits, labels = overconfident(images=600, classes=3)
  other, _ = overconfident(1, images=200, classes=3, scale=6.0)
  logits[100:130] = logits[100]  # equal probabilities
  calibrate = calibration.fit(logits, labels, "isotonic")
  actual = np.exp(jax.jit(lambda f, z: f(z))(calibrate, other))
  columns = []
  for c in range(3):
    p = np.asarray(jax.nn.softmax(logits))[:, c].astype(np.float64)
    fit = IsotonicRegression(out_of_bounds="clip").fit(p, labels == c)
    # Both are linear between images, here with a floor of half an image.
    values = np.maximum(fit.y_thresholds_, 1 / 1200)
    p = np.asarray(jax.nn.softmax(other))[:, c].astype(np.float64)
    columns.append(np.interp(p, fit.X_thresholds_, values))
  expected = np.stack(columns, axis=1)
  expected /= expected.sum(axis=1, keepdims=True)
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
  np.testing.assert_allclose(actual.sum(axis=1), 1, rtol=1e-6)


def test_isotonic_helps_on_other_images():
  logits, labels = overconfident(images=8000, classes=4, temperature=4.0)
  fit, test = calibration.split(labels)
  calibrate = calibration.fit(logits[fit], labels[fit], "isotonic")
  before = calibration.ece(logits[test], labels[test])
  after = calibration.ece(calibrate(logits[test]), labels[test])
  assert after < 0.25 * before
  assert np.isfinite(calibration.nll(calibrate(logits[test]), labels[test]))


@pytest.mark.parametrize("method", ["platt", "vector", "isotonic"])
def test_fits_on_the_host_refuse_traced_logits(method):
  logits, labels = overconfident()
  fit = functools.partial(calibration.fit, method=method)
  for call in (jax.jit(fit), jax.vmap(fit)):
    with pytest.raises(TypeError, match=f"{method}.*on the host.*outside of"):
      call(logits[None], labels[None])


@pytest.mark.parametrize("method", ["platt", "vector"])
def test_logits_that_are_not_finite_make_parameters_nan(method):
  logits, labels = overconfident(classes=3)
  for value in (np.nan, np.inf, -np.inf):
    logits[3, 0] = value
    fitted = calibration.fit(logits, labels, method)
    assert np.isnan(fitted.scale).all() and np.isnan(fitted.bias).all()


def test_isotonic_refuses():
  logits, labels = overconfident()
  logits[3, 0] = np.nan
  with pytest.raises(ValueError, match="NaN"):
    calibration.fit(logits, labels, "isotonic")


# All methods.


def test_fit_chooses_the_method():
  logits, labels = overconfident(classes=5)
  fit = functools.partial(calibration.fit, logits, labels)
  temperature = calibration.fit_temperature(logits, labels)
  assert fit("temperature").temperature == temperature
  assert fit().temperature == temperature
  with pytest.raises(ValueError, match="one of 'temperature', .*but is 'beta'"):
    fit("beta")
  with pytest.raises(ValueError, match="look like probabilities"):
    calibration.fit(jax.nn.softmax(logits), labels)
  with pytest.raises(TypeError, match="'methods'. Did you mean method"):
    calibration.fit(logits, labels, methods="vector")


@pytest.mark.parametrize("scale", [0.1, 5.0])
def test_platt_is_a_logistic_regression(scale):
  """Of the difference of two logits, by statsmodels."""
  random = np.random.default_rng(0)
  z = random.normal(size=1000)
  labels = (random.logistic(size=1000) < 1.7 * z - 0.6).astype(int)
  z = (scale * z).astype(np.float32)
  fitted = statsmodels.Logit(
    labels, statsmodels.add_constant(z.astype(np.float64))
  ).fit(disp=0, tol=1e-12)
  recalibrate = calibration.fit(z, labels, "platt")
  bias = recalibrate.bias[1] - recalibrate.bias[0]
  np.testing.assert_allclose(
    [bias, recalibrate.scale[1]], fitted.params, rtol=1e-3, atol=1e-3
  )
  expected = fitted.predict()
  p = jax.nn.softmax(recalibrate(z))
  np.testing.assert_allclose(p[:, 1], expected, atol=2e-4)
  served = recalibrate.export()(z)
  np.testing.assert_allclose(served[:, 1], expected, atol=2e-4)


def test_platt_has_one_scale_and_beats_a_temperature():
  logits, labels = overconfident(classes=5)
  shifted = logits + np.float32([[2, 0, 0, -1, 0]])
  platt = calibration.fit(shifted, labels, "platt")
  assert np.ptp(platt.scale) == 0
  vector = calibration.fit(shifted, labels, "vector")
  temperature = calibration.fit(shifted, labels)
  losses = [nll64(f(shifted), labels) for f in (vector, platt, temperature)]
  assert losses[0] <= losses[1] + 1e-6 < losses[2]
  # The shift is known to be undone.
  expected = -np.array([2, 0, 0, -1, 0]) / 2.5
  bias = platt.bias - platt.bias.mean()
  np.testing.assert_allclose(bias, expected - expected.mean(), atol=0.4)


@pytest.mark.parametrize("method", ["platt", "vector"])
def test_constant_logits_give_the_frequencies_of_classes(method):
  random = np.random.default_rng(0)
  noise = random.normal(size=(400, 4))
  for labels in (np.arange(400) % 4, np.minimum(np.arange(400) % 7, 3)):
    frequency = np.bincount(labels) / 400
    best = -np.sum(frequency * np.log(frequency))  # 1.386 if balanced
    for centre in (0.1, np.pi, 12345.678, np.array([[3.0, 1.7, 0.3, -2.3]])):
      for relative in (0, 1e-8, 1e-7, 1e-6):
        logits = np.float32(centre * (1 + relative * noise))
        recalibrate = calibration.fit(logits, labels, method)
        loss = nll64(recalibrate(logits), labels)
        assert loss == pytest.approx(best, rel=1e-6), (centre, relative)
    # Larger deviations can be fitted, here to noise.
    logits = np.float32(3 + 1e-4 * noise)
    recalibrate = calibration.fit(logits, labels, method)
    assert best - 0.03 < nll64(recalibrate(logits), labels) <= best + 1e-6


@pytest.mark.parametrize("method", ["platt", "vector"])
def test_a_class_that_is_masked_does_not_spoil_the_others(method):
  logits, labels = overconfident(classes=4)
  expected = calibration.fit(logits, labels, method)(logits)
  masked = np.concatenate([logits, np.full((1000, 1), -1e9, np.float32)], 1)
  actual = calibration.fit(masked, labels, method)(masked)
  loss = nll64(expected, labels)
  assert nll64(actual, labels) == pytest.approx(loss, abs=1e-5)
  assert np.all(actual[:, 4] < actual[:, :4].max(axis=1) - 5)


def test_isotonic_keeps_few_knots():
  logits, labels = overconfident(images=8000, classes=3)
  fitted = calibration.fit(logits, labels, "isotonic")
  assert fitted.probability.shape[1] < 400


# Splits.


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.95), st.integers(20, 500))
def test_split_is_disjoint_complete_and_balanced(seed, fraction, images):
  labels = np.random.default_rng(seed).integers(0, 4, size=images)
  fit, test = calibration.split(labels, fraction, random_seed=seed)
  both = np.concatenate([fit, test])
  np.testing.assert_array_equal(np.sort(both), np.arange(images))
  assert abs(fit.size - fraction * images) <= 1
  for c in range(4):
    share = np.sum(labels[fit] == c)
    assert abs(share - fraction * np.sum(labels == c)) <= 1 + 1e-9


def test_split_is_the_same_everywhere():
  fit, test = calibration.split(np.arange(12) % 3, 0.5, random_seed=1)
  assert fit.tolist() == [0, 1, 2, 3, 4, 8]
  assert test.tolist() == [5, 6, 7, 9, 10, 11]


def test_split_in_sample_is_said_so():
  labels = np.arange(20) % 4
  fit, test = calibration.split(labels, in_sample=True)
  np.testing.assert_array_equal(fit, test)
  with pytest.raises(ValueError, match="in_sample=True"):
    calibration.split(labels, 1.0)
  with pytest.raises(ValueError, match="must have at least one"):
    calibration.split(labels[:1], 0.5)
  with pytest.raises(ValueError, match="integers of shape"):
    calibration.split(np.zeros((3, 2)))
