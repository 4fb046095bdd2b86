"""Temperature, vector scaling, isotonic regression and splits."""

import functools
import json

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
from orthograd_optax.calibration import _recalibrators


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
  assert np.all(np.isfinite(scaled))
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
  assert np.all(np.isfinite(scaling.scale)) and np.all(scaling.scale > 1)
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


@pytest.mark.parametrize("method", ["temperature", "vector", "isotonic"])
def test_calibrators_take_what_they_were_fitted_to(method):
  logits, labels = overconfident(classes=5)
  calibrate = calibration.fit(logits, labels, method)
  half = jnp.asarray(logits, jnp.bfloat16)
  expected = calibrate(half.astype(jnp.float32))
  np.testing.assert_array_equal(calibrate(half), expected)
  stacked = calibrate(logits.reshape(2, 500, 5))
  # Steep steps magnify the rounding of a probability.
  assert np.mean(np.abs(stacked[1] - calibrate(logits[500:]))) < 1e-4
  one = calibrate(logits[0])  # the classes of one example
  assert np.mean(np.abs(one - calibrate(logits)[0])) < 1e-4
  for shape in ((10, 4), (10, 1), (1000,), (1,), ()):
    for call in (calibrate, calibrate.export()):
      with pytest.raises(ValueError, match=r"\(\.\.\., 5\).*to 5 classes"):
        call(np.zeros(shape))


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


# Recalibrators as objects.

METHODS = ("temperature", "platt", "vector", "isotonic")


@pytest.mark.parametrize("method", METHODS)
def test_fit_save_load_export(method, tmp_path):
  logits, labels = overconfident(classes=5)
  recalibrate = calibration.fit(logits, labels, method)
  assert isinstance(recalibrate, calibration.Recalibrator)
  assert recalibrate.method == method
  expected = recalibrate(logits)
  # At serving time: within a program, as one, and as what one is given.
  for jitted in (
    jax.jit(recalibrate),
    jax.jit(lambda z: recalibrate(z)),
    functools.partial(jax.jit(lambda f, z: f(z)), recalibrate),
  ):
    assert_mostly_close(jitted(logits), expected)
  path = tmp_path / "recalibrator.json"
  assert recalibrate.save(path) == path
  again = calibration.load(str(path))
  assert type(again) is type(recalibrate)
  np.testing.assert_array_equal(again(logits), expected)
  serve = recalibrate.export()
  p = serve(logits)
  assert type(p) is np.ndarray and p.dtype == np.float64
  np.testing.assert_allclose(p.sum(axis=1), 1)
  assert_mostly_close(p, jax.nn.softmax(expected))
  assert_mostly_close(serve(logits.reshape(10, 100, 5)).reshape(1000, 5), p)


def assert_mostly_close(actual, expected):
  """An isotonic fit is steep: where a probability is rounded, it may jump."""
  off = ~np.isclose(actual, expected, rtol=1e-4, atol=1e-5)
  assert off.mean() < 0.002


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


@pytest.mark.parametrize("method", METHODS)
def test_scores_of_two_classes(method, tmp_path):
  """Fitted to scores, it returns two columns, also for new scores."""
  logits, labels = overconfident(classes=2)
  z = logits[:, 1] - logits[:, 0]
  both = np.stack([0 * z, z], axis=1)
  expected = calibration.fit(both, labels, method)
  p = jax.nn.softmax(expected(both))
  for shape in ((1000,), (1000, 1)):
    fitted = calibration.fit(z.reshape(shape), labels, method)
    assert fitted.columns == 1
    loaded = calibration.load(fitted.save(tmp_path / "x.json"))
    for recalibrate in (fitted, loaded, jax.jit(fitted)):
      for new in (z, z[:, None], both):
        actual = jax.nn.softmax(recalibrate(new))
        np.testing.assert_allclose(actual.sum(axis=1), 1, rtol=1e-6)
        assert_mostly_close(actual, p)
    assert_mostly_close(jax.vmap(fitted)(z), expected(both))
    for serve in (fitted.export(), loaded.export()):
      assert_mostly_close(serve(z), p)
      assert_mostly_close(serve(z[:2]), p[:2])  # two examples, not classes
      assert serve(z[0]).shape == (2,)
    with pytest.raises(ValueError, match=r"\(n,\) or \(n, 1\)"):
      fitted(np.zeros((10, 3)))
  # Fitted to two columns, one axis is one example.
  assert expected.columns == 2
  assert_mostly_close(expected(z[:, None]), expected(both))
  assert_mostly_close(expected(both[0]), expected(both)[0])
  for call in (expected, expected.export()):
    with pytest.raises(ValueError, match=r"2\) or \(n, 1\).* 2 classes"):
      call(z)


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


@pytest.mark.parametrize("method", METHODS)
def test_repr_is_short(method):
  logits, labels = overconfident(images=3000, classes=5)
  shown = repr(calibration.fit(logits, labels, method))
  assert len(shown) < 120 and "\n" not in shown and "columns=5" in shown


def test_isotonic_keeps_few_knots():
  logits, labels = overconfident(images=8000, classes=3)
  fitted = calibration.fit(logits, labels, "isotonic")
  assert fitted.probability.shape[1] < 400


@given(st.floats(2.0**-99, 2.0**99, width=32), st.integers(0, 2**32 - 1))
def test_saved_numbers_are_the_same(tmp_path, temperature, seed):
  scale, bias = np.random.default_rng(seed).normal(size=(2, 4))
  scale, bias = scale.astype(np.float32), (1e-9 * bias).astype(np.float32)
  for saved in (
    calibration.Temperature(jnp.float32(temperature), columns=1),
    calibration.VectorScaling(jnp.asarray(scale), jnp.asarray(bias), columns=4),
  ):
    loaded = calibration.load(saved.save(tmp_path / "x.json"))
    same = jax.tree.map(np.array_equal, saved, loaded)
    assert all(jax.tree.leaves(same))


TEMPERATURE = {"method": "temperature", "columns": 3, "temperature": 2.5}
VECTOR = {"method": "vector", "columns": 3, "scale": [1, 2, 3], "bias": [0] * 3}
PLATT = VECTOR | {"method": "platt", "scale": [2, 0, 2]}
ISOTONIC = {
  "method": "isotonic",
  "columns": 1,
  "probability": [[0.1, 0.2], [0.8, 0.9]],
  "calibrated": [[0.2, 0.3], [0.7, 0.8]],
}


def recalibrator(content, **changes):
  """The file of a recalibrator, with changes; "..." removes a key."""
  head = {"format": "orthograd-optax recalibrator", "dtype": "float32"}
  content = head | content | changes
  return json.dumps({k: v for k, v in content.items() if v != "..."})


def test_load_reads_what_the_next_test_changes(tmp_path):
  path = tmp_path / "x.json"
  for content in (TEMPERATURE, VECTOR, ISOTONIC, PLATT):
    path.write_text(recalibrator(content))
    assert calibration.load(path).columns == content["columns"]


@pytest.mark.parametrize(
  ("content", "rule"),
  [
    ("", "Expecting value"),
    (b"\xff\xfe\xff", "decode"),
    ("{}", "the format"),
    ("[1]", "JSON object"),
    ("[" * 200_000, "recursion"),
    ('{"a":' * 200_000, "recursion"),
    ("9" * 5000, "digits"),
    (recalibrator(TEMPERATURE, format=[]), "the format"),
    (recalibrator(TEMPERATURE, method="..."), "method .*but is None"),
    (recalibrator(TEMPERATURE, method="beta"), "method .*'beta'"),
    (recalibrator(TEMPERATURE, method=[]), "method .*but is \\[\\]"),
    (recalibrator(TEMPERATURE, method={}), "method .*but is {}"),
    (recalibrator(TEMPERATURE, method=None), "method .*None"),
    (recalibrator(TEMPERATURE, scale=1.0), "list of keys"),
    (recalibrator(TEMPERATURE, temperature="..."), "list of keys"),
    (recalibrator(TEMPERATURE, columns="..."), "list of keys"),
    (recalibrator(TEMPERATURE, dtype="object"), "dtype"),
    (recalibrator(TEMPERATURE, dtype=["float32"]), "dtype"),
    (recalibrator(TEMPERATURE, columns=0), "columns .*positive integer.* 0"),
    (recalibrator(TEMPERATURE, columns=True), "columns .*True"),
    (recalibrator(TEMPERATURE, columns=2.0), "columns"),
    (recalibrator(TEMPERATURE, columns=None), "columns"),
    *(
      (recalibrator(TEMPERATURE, temperature=x), f"temperature must be .*{why}")
      for x, why in (
        (np.nan, "finite"),
        (np.inf, "finite"),
        (1e39, "finite"),  # in float32
        (None, "a number"),
        ("2.5", "a number"),
        (True, "a number"),
        (10**400, "a number"),
        ({}, "a number"),
        (0, "positive.* 0.0"),
        (-1.5, "positive.*-1.5"),
        (1e-50, "positive.* 0.0"),  # in float32
        ([1, 2, 3], "a positive number"),
        ([2.5], "a positive number"),
        ([], "a positive number"),
      )
    ),
    (
      recalibrator(TEMPERATURE).replace("2.5", "1e999"),
      "temperature must be finite.*inf",
    ),
    (
      recalibrator(VECTOR, scale=[1, 2]),
      r"shape of scale must be \(3,\).*\(2,\)",
    ),
    (recalibrator(VECTOR, scale=[[1], [2], [3]]), "shape"),
    (recalibrator(VECTOR, columns=4), r"shape .*\(4,\)"),
    (recalibrator(VECTOR, columns=1), r"shape .*\(2,\)"),
    (recalibrator(VECTOR, bias=[0, 0, np.nan]), "bias must be finite"),
    (recalibrator(VECTOR, bias=[0, [0], 0]), "rows of equally many"),
    (recalibrator(VECTOR, bias=[0, None, 0]), "numbers"),
    (recalibrator(PLATT, bias=[0, 0]), r"shape of bias must be \(3,\).*\(2,\)"),
    (recalibrator(PLATT, scale=[2]), r"shape of scale must be \(3,\).*\(1,\)"),
    (recalibrator(PLATT, scale=[1, 0, 2]), "scale must be the same number"),
    (recalibrator(ISOTONIC, calibrated=[[0.2, 0.3]]), "shape"),
    (recalibrator(ISOTONIC, columns=3), "shape"),
    (recalibrator(ISOTONIC, probability=[0.1, 0.2]), "shape"),
    (
      recalibrator(ISOTONIC, probability=[[], []], calibrated=[[], []]),
      "shape",
    ),
    (recalibrator(ISOTONIC, probability=0.5), "shape"),
    (recalibrator(ISOTONIC, calibrated=[[-5, 0.3], [0.7, 7]]), "from 0 to 1"),
    (recalibrator(ISOTONIC, calibrated=[[0, 0], [0, 0]]), "above 0"),
    (recalibrator(ISOTONIC, probability=[[-1, 0], [0, 1]]), "from 0 to 1"),
    (
      recalibrator(ISOTONIC, probability=[[0.2, 0.1], [0.8, 0.9]]),
      "probability must ascend",
    ),
    (
      recalibrator(ISOTONIC, calibrated=[[0.3, 0.2], [0.7, 0.8]]),
      "calibrated must ascend",
    ),
  ],
)
def test_load_refuses(content, rule, tmp_path):
  path = tmp_path / "x.json"
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  message = f"x.json is not a valid recalibrator: .*{rule}"
  with pytest.raises(ValueError, match=message) as raised:
    calibration.load(path)
  assert len(str(raised.value)) < 500


def test_load_reads_no_more_than_a_file_may_have(tmp_path, monkeypatch):
  path = tmp_path / "x.json"
  path.write_text(recalibrator(TEMPERATURE) + " " * 2**20)
  fitted = calibration.load(path)
  monkeypatch.setattr(_recalibrators, "_MAX_BYTES", 100)
  with pytest.raises(ValueError, match="a file must have at most"):
    fitted.save(tmp_path / "y.json")
  with pytest.raises(ValueError, match="x.json is not .* must have at most"):
    calibration.load(path)


def test_load_counts_lists_before_it_makes_them(tmp_path):
  path = tmp_path / "x.json"
  path.write_text(f"[{'[],' * 2**20}[]]")
  with pytest.raises(ValueError, match="it must have at most 1,048,576 lists"):
    calibration.load(path)


def test_save_refuses_and_keeps_the_former_file(tmp_path):
  path = tmp_path / "x.json"
  calibration.Temperature(jnp.float32(2), columns=3).save(path)
  before = path.read_bytes()
  for value, rule in ((np.nan, "finite"), (-1, "positive"), ([1, 2], "a pos")):
    with pytest.raises(ValueError, match=f"temperature must be .*{rule}"):
      calibration.Temperature(jnp.float32(value), columns=3).save(path)
  assert path.read_bytes() == before
  assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
  with pytest.raises(OSError, match="nowhere does not. Make"):
    calibration.Temperature(jnp.float32(2), columns=3).save(
      tmp_path / "nowhere" / "x"
    )


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
