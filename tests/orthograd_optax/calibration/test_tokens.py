"""Metrics of tokens: logits of any shape, padded, sharded, without copies."""

import functools

import chex
import every_metric
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest
from scipy import special

from orthograd_optax import calibration

SHAPE, CLASSES = (8, 24), 16
METRICS = every_metric.METRICS | {
  "accuracy": functools.partial(calibration.accuracy, k=2),
  "classwise_ece_mass": functools.partial(
    calibration.classwise_ece, binning="mass"
  ),
  "brier_decomposition": calibration.brier_decomposition,
  "nll_decomposition": calibration.nll_decomposition,
  "evaluate": calibration.evaluate,
  "reliability": calibration.reliability,
  "tally": lambda *args, **kwargs: calibration.tally(*args, **kwargs).metrics(),
}
# Thresholds don't depend on the shape.
del METRICS["classwise_ece_thresholded"]


def temporary(compiled):
  memory = compiled.memory_analysis()
  assert memory is not None
  return memory.temp_size_in_bytes


@functools.cache
def tokens():
  """Logits, labels and a mask. Padding has impossible logits and labels."""
  random = np.random.default_rng(0)
  logits = (2 * random.normal(size=(*SHAPE, CLASSES))).astype(np.float32)
  noise = random.gumbel(size=logits.shape)
  labels = np.argmax(logits / 1.7 + noise, axis=-1)
  where = np.arange(SHAPE[1]) < random.integers(5, SHAPE[1], SHAPE[0])[:, None]
  return (
    np.where(where[..., None], logits, np.nan),
    np.where(where, labels, -100),
    where,
  )


@pytest.mark.parametrize("name", METRICS)
def test_padded_tokens_are_the_examples_that_count(name):
  logits, labels, where = tokens()
  metric = METRICS[name]
  expected = metric(logits[where], labels[where])
  eager = metric(logits, labels, where=where)
  chex.assert_trees_all_close(eager, expected, rtol=3e-6, atol=1e-6)


@pytest.mark.mostly_slow(4)
@pytest.mark.parametrize("name", METRICS)
def test_padded_tokens_in_a_jitted_function(name):
  logits, labels, where = tokens()
  metric = METRICS[name]
  expected = metric(logits, labels, where=where)
  traced = jax.jit(lambda *x: metric(*x[:2], where=x[2]))(*tokens())
  chex.assert_trees_all_close(traced, expected, rtol=3e-6, atol=1e-6)


@pytest.mark.parametrize(
  "spec", [P("x"), P(None, "x"), P(None, None, "x")], ids=str
)
@pytest.mark.parametrize("name", ["tally", "aurc", "classwise_ece"])
def test_sharded_tokens(name, spec):
  """The numbers are the same, and no array of the logits' size is gathered."""
  mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
  logits, labels, where = tokens()
  logits = np.nan_to_num(logits)
  put = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
  arguments = put(logits, spec), put(labels, P(*spec[:2])), put(where, P())
  metric = jax.jit(lambda *x: METRICS[name](*x[:2], where=x[2]))
  expected = METRICS[name](logits, labels, where=where)
  compiled = metric.lower(*arguments).compile()
  actual = compiled(*arguments)
  chex.assert_trees_all_close(actual, expected, rtol=3e-6, atol=1e-6)
  lines = str(compiled.as_text()).splitlines()
  gathers = [line for line in lines if "all-gather(" in line]
  for rows in (f"{SHAPE[0]},{SHAPE[1]}", f"{SHAPE[0] * SHAPE[1]}"):
    assert not any(f"[{rows},{CLASSES}]" in line for line in gathers)


def test_many_classes_are_accurate_without_a_copy():
  """50,257 of them, by float64 NumPy."""
  random = np.random.default_rng(1)
  logits = (3 * random.normal(size=(2, 8, 50_257))).astype(np.float32)
  labels = random.integers(0, 50_257, size=(2, 8))
  labels[0] = logits[0].argmax(axis=-1)
  tally = jax.jit(calibration.tally).lower(logits, labels).compile()
  assert temporary(tally) < logits.nbytes / 10
  actual = calibration.Tally.metrics(tally(logits, labels))
  z = logits.astype(np.float64)
  p, log_p = special.softmax(z, axis=-1), special.log_softmax(z, axis=-1)
  own = np.take_along_axis(p, labels[..., None], -1)[..., 0]
  brier = (p**2).sum(-1) - own**2 + (1 - own) ** 2
  expected = {
    "accuracy": 0.5,
    "nll": -np.take_along_axis(log_p, labels[..., None], -1).mean(),
    "brier": brier.mean(),
    "entropy": -(p * log_p).sum(-1).mean(),
    "confidence": p.max(-1).mean(),
    "max_logit": np.abs(z).max(-1).mean(),
  }
  same = {name: actual[name] for name in expected}
  chex.assert_trees_all_close(same, expected, rtol=1e-6)
  # A float32 sum of so many terms rounds; the order depends on the compiler.
  variance, rounding = z.var(-1, ddof=1).mean(), 50_257**0.5 * 2**-24
  assert actual["logit_variance"] == pytest.approx(variance, rel=rounding)


@pytest.mark.parametrize(
  ("name", "dtype"),
  [
    ("aurc", jnp.float32),
    ("temperature", jnp.float32),
    ("classwise_ece", jnp.float32),
    ("brier_decomposition", jnp.float32),
    ("evaluate", jnp.bfloat16),
    ("ks_calibration_error", jnp.bfloat16),
  ],
)
def test_metrics_allocate_no_copy(name, dtype):
  logits = jax.ShapeDtypeStruct((16, 64, 20_011), dtype)
  labels = jax.ShapeDtypeStruct((16, 64), np.int32)
  compiled = jax.jit(METRICS[name]).lower(logits, labels).compile()
  size = logits.size * logits.dtype.itemsize
  assert temporary(compiled) < size / 3


@pytest.mark.parametrize("name", ["nll", "brier", "entropy", "confidence"])
def test_gradients(name):
  """Sums of integers have the derivatives of plain sums."""
  logits, labels, where = tokens()
  logits = np.nan_to_num(logits)[:, :5]
  labels, where = np.where(where, labels, 0)[:, :5], where[:, :5]

  def plain(z):
    p, log_p = jax.nn.softmax(z), jax.nn.log_softmax(z)
    own = jax.nn.one_hot(labels, CLASSES)
    values = {
      "nll": -(own * log_p).sum(-1),
      "brier": ((p - own) ** 2).sum(-1),
      "entropy": -(p * log_p).sum(-1),
      "confidence": p.max(-1),
    }
    return values[name].mean(where=where)

  metric = lambda z: METRICS[name](z, labels, where=where)
  actual, expected = jax.grad(metric)(logits), jax.grad(plain)(logits)
  np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)
  # And of the second order, along a line.
  along = lambda f: jax.grad(jax.grad(lambda t: f(logits * t)))(1.0)
  np.testing.assert_allclose(along(metric), along(plain), rtol=1e-4)


@pytest.mark.parametrize("name", ["auroc", "aurc", "ks_calibration_error"])
def test_the_order_of_classes_breaks_no_tie(name):
  random = np.random.default_rng(2)
  logits = np.tile(random.normal(size=(6, CLASSES)), (20, 1)).astype(np.float32)
  order = random.permuted(np.tile(np.arange(CLASSES), (120, 1)), axis=1)
  labels = np.where(random.random(120) < 0.6, logits.argmax(1), 3)
  expected = METRICS[name](logits, labels)
  permuted = np.take_along_axis(logits, order, axis=1)
  own = np.argmax(order == labels[:, None], axis=1)
  np.testing.assert_allclose(METRICS[name](permuted, own), expected, rtol=1e-6)


def test_where_refuses():
  logits, labels, where = tokens()
  for metric in (calibration.nll, calibration.tally, calibration.fit):
    with pytest.raises(ValueError, match=r"where must be .* \(8, 24\), .*\(8,"):
      metric(logits, labels, where=where[:, :3])
  with pytest.raises(ValueError, match=r"labels\[0, \d+\] is -100.*pass where"):
    calibration.nll(logits, labels)


def test_reports_of_padded_tokens():
  """As of the examples that count, in a row."""
  logits, labels, where = tokens()
  groups = np.where(np.arange(SHAPE[1]) < 9, "early", "late")
  groups = np.broadcast_to(groups, SHAPE)
  early = groups == "early"
  fit = np.broadcast_to(np.arange(SHAPE[0])[:, None] < 4, SHAPE)
  options = {"resamples": 20}
  flat = logits[where], labels[where]

  for options_of_tokens in ({}, {"groups": groups, "fit": fit, "seeds": early}):
    chosen = {k: x[where] for k, x in options_of_tokens.items()}
    expected = calibration.report(*flat, **chosen, **options).to_dict()
    for error in expected["confident_errors"]:
      error["row"] = int(np.flatnonzero(where)[error["row"]])
    actual = calibration.report(
      logits, labels, where=where, **options_of_tokens, **options
    )
    assert actual.to_dict() == expected
  both = np.stack([logits, 2 * logits])[:, 0]  # two seeds of one sequence
  seeds = calibration.report(both, labels[0], where=where[0], **options)
  alone = calibration.report(both[:, where[0]], labels[0][where[0]], **options)
  assert seeds.to_dict() == alone.to_dict()

  compared = calibration.compare(
    logits, logits / 2, labels, where=where, **options
  )
  expected = calibration.compare(flat[0], flat[0] / 2, flat[1], **options)
  assert compared.to_dict() == expected.to_dict()
  for metric in (calibration.ece, calibration.debiased_ece):
    actual = calibration.bootstrap(
      metric, logits, labels, where=where, **options
    )
    assert actual == calibration.bootstrap(metric, *flat, **options)
  with pytest.raises(ValueError, match="where .* is all False"):
    calibration.report(logits, labels, where=where & False)
  with pytest.raises(
    ValueError, match=r"groups has shape .* must be \(8, 24\)"
  ):
    calibration.report(logits, labels, where=where, groups=groups[:2])


@pytest.mark.mostly_slow(3)  # The next test has all kinds.
@pytest.mark.parametrize("kind", ["product", "minimum", "mean"])
def test_selective_prediction_over_sequences(kind):
  """Positive scores of two classes rank sequences: label 1 is correct."""
  random = np.random.default_rng(3)
  logits = 2 * random.normal(size=(40, 300, 4)).astype(np.float32)
  correct = random.random(40) < 0.6
  logs = calibration.sequence_confidence(logits, kind=kind, log=True)
  scores = 1 / (1 - logs)
  order = np.argsort(-np.float64(logs))
  risk = np.cumsum(~correct[order]) / np.arange(1, 41)
  actual = calibration.selective_risk(scores, correct, 0.5)
  np.testing.assert_allclose(actual, risk[19], rtol=1e-6)
  np.testing.assert_allclose(
    calibration.aurc(scores, correct), risk.mean(), rtol=1e-6
  )


@pytest.mark.mostly_slow(2)
@pytest.mark.parametrize("kind", ["product", "minimum", "mean"])
@pytest.mark.parametrize("generated", [False, True])
def test_sequence_confidence(kind, generated):
  logits, labels, where = tokens()
  p = special.softmax(logits.astype(np.float64), axis=-1)
  shown = np.where(where, labels, 0)
  own = np.take_along_axis(p, shown[..., None], -1)[..., 0]
  of_tokens = own if generated else p.max(-1)
  reduce = {"product": np.prod, "minimum": np.min, "mean": np.mean}[kind]
  rows = zip(of_tokens, where, strict=True)
  expected = [reduce(row[keep]) for row, keep in rows]
  given = labels if generated else None
  confidence = functools.partial(calibration.sequence_confidence, kind=kind)
  actual = jax.jit(confidence)(logits, given, where=where)
  np.testing.assert_allclose(actual, expected, rtol=1e-5)
  logs = confidence(logits, given, where=where, log=True)
  np.testing.assert_allclose(logs, np.log(expected), rtol=1e-5)


def test_sequence_confidence_does_not_underflow_in_logs():
  logits = np.zeros((1, 1000, 8), np.float32)
  assert calibration.sequence_confidence(logits)[0] == 0
  logs = calibration.sequence_confidence(logits, log=True)
  np.testing.assert_allclose(logs, -1000 * np.log(8), rtol=1e-6)
  with pytest.raises(ValueError, match="kind must be one of .*'median'"):
    calibration.sequence_confidence(logits, kind="median")
