"""Recalibrators as objects: applied, exported, saved and loaded."""

import functools
import json

from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_fits import overconfident

from orthograd_optax import calibration
from orthograd_optax.calibration import _recalibrators


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


@pytest.mark.parametrize("method", METHODS)
def test_repr_is_short(method):
  logits, labels = overconfident(images=3000, classes=5)
  shown = repr(calibration.fit(logits, labels, method))
  assert len(shown) < 120 and "\n" not in shown and "columns=5" in shown


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
        (1e-39, "positive.*e-39"),  # denormal
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
