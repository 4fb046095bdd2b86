"""Metrics against scikit-learn, SciPy, uncertainty-calibration and relplot."""

import functools
import itertools

import calibration as uncertainty_calibration
from every_metric import METRICS
from hypothesis import given
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import relplot
from scipy import integrate, optimize, special, stats
from sklearn import datasets, metrics

from orthograd_optax import calibration
from orthograd_optax.calibration import _inputs

KEYS = [
  "accuracy",
  "top5_accuracy",
  "nll",
  "ece",
  "brier",
  "entropy",
  "confidence",
  "max_logit",
  "logit_variance",
  "confidence_correlation",
]


@functools.cache
def synthetic(classes=10, scale=3.0, images=2000):
  """Overconfident where sure, underconfident where not: gaps of both signs."""
  random = np.random.default_rng(classes)
  logits = scale * random.normal(size=(images, classes))
  truth = np.sign(logits) * np.abs(logits) ** 0.6 * 1.3
  labels = np.argmax(truth + random.gumbel(size=truth.shape), axis=1)
  return logits.astype(np.float32), labels


@functools.cache
def digits():
  """An overfit network's logits on real images.

  They are sharpened, so that a third of the confidences are exactly 1, as in a
  ResNet trained for long.
  """
  images, labels = datasets.load_digits(return_X_y=True)
  images = jnp.asarray(images / 16 - 0.3, jnp.float32)
  labels = jnp.asarray(labels)
  keys = jax.random.split(jax.random.key(0), 3)
  params = [
    jax.random.normal(key, shape) * (2 / shape[0]) ** 0.5
    for key, shape in zip(keys, [(64, 64), (64, 64), (64, 10)], strict=True)
  ]

  def apply(params, x):
    for w in params[:-1]:
      x = jax.nn.relu(x @ w)
    return 10 * x @ params[-1]

  def loss(params):
    logits = jax.nn.log_softmax(apply(params, images[:200]))
    return -jnp.mean(logits[jnp.arange(200), labels[:200]])

  def step(params, _):
    grads = jax.grad(loss)(params)
    return jax.tree.map(lambda w, g: w - 0.02 * g, params, grads), None

  params, _ = jax.jit(lambda p: jax.lax.scan(step, p, None, 500))(params)
  return 3 * np.asarray(apply(params, images[200:])), np.asarray(labels[200:])


def saturated(scale=1e4):
  logits, labels = synthetic()
  return logits / np.abs(logits).max() * np.float32(scale), labels


CASES = {
  "ten classes": synthetic,
  "two classes": functools.partial(synthetic, 2, 1.0),
  "many classes": functools.partial(synthetic, 50, 2.0),
  "digits": digits,
  "extreme logits": saturated,
}


slow = functools.partial(pytest.param, marks=pytest.mark.slow)
# Of one shape, so that they share programs.
FAST = ("ten classes", "extreme logits")


@pytest.fixture(params=[x if x in FAST else slow(x) for x in CASES])
def data(request):
  return CASES[request.param]()


def softmax64(logits):
  return special.softmax(np.asarray(logits, np.float64), axis=1)


def confidence64(logits, labels):
  p = softmax64(logits)
  return p.max(axis=1), p.argmax(axis=1) == labels


def binned(logits, labels, num_bins=10):
  """Indices of the images in each bin (lo, hi], by a plain loop."""
  confidence, _ = confidence64(logits, labels)
  return [
    np.flatnonzero((confidence > b / num_bins) & (confidence <= hi / num_bins))
    for b, hi in zip(range(num_bins), range(1, num_bins + 1), strict=True)
  ]


def assert_close(actual, expected, rtol=1e-6, atol=1e-7):
  np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)


def test_real_case_is_saturated():
  logits, labels = digits()
  confidence = jax.nn.softmax(logits).max(axis=1)
  assert 0.2 < np.mean(confidence == 1) < 0.6
  assert calibration.accuracy(logits, labels) < 0.95


def test_accuracy(data):
  logits, labels = data
  classes = logits.shape[1]
  for k in sorted({1, min(classes - 1, 5)}):
    if classes > 2:
      expected = metrics.top_k_accuracy_score(
        labels, logits, k=k, labels=np.arange(classes)
      )
    else:
      expected = metrics.accuracy_score(labels, logits.argmax(axis=1))
    assert_close(calibration.accuracy(logits, labels, k), expected)


def test_nll(data):
  logits, labels = data
  log_p = special.log_softmax(logits.astype(np.float64), axis=1)
  expected = -log_p[np.arange(len(labels)), labels].mean()
  assert_close(calibration.nll(logits, labels), expected)
  if log_p.min() > -30:  # scikit-learn clips at 2e-16.
    expected = metrics.log_loss(
      labels, softmax64(logits), labels=np.arange(logits.shape[1])
    )
    assert_close(calibration.nll(logits, labels), expected)


def test_brier(data):
  logits, labels = data
  expected = metrics.brier_score_loss(
    labels,
    softmax64(logits),
    labels=np.arange(logits.shape[1]),
    scale_by_half=False,
  )
  assert_close(calibration.brier(logits, labels), expected)


@pytest.mark.parametrize("num_bins", [1, 10, 15])
def test_ece(data, num_bins):
  logits, labels = data
  p = softmax64(logits)
  expected = uncertainty_calibration.get_ece(p, labels, num_bins=num_bins)
  assert_close(calibration.ece(logits, labels, num_bins), expected)
  expected = uncertainty_calibration.get_ece_em(p, labels, num_bins=num_bins)
  actual = calibration.ece(logits, labels, num_bins, binning="mass")
  assert_close(actual, expected)


def test_ece_by_hand():
  # 0.9, 0.9 (one wrong) and 0.6, 0.6 (both right): gaps of both signs.
  p = jnp.array([[0.9, 0.1], [0.1, 0.9], [0.6, 0.4], [0.4, 0.6]])
  labels = jnp.array([0, 0, 0, 1])
  logits = jnp.log(p)
  assert_close(calibration.ece(logits, labels), (0.4 + 0.4) / 2)
  assert_close(calibration.mce(logits, labels), 0.4)
  assert_close(calibration.ece(logits, labels, 1), 0.0, atol=1e-7)
  assert_close(calibration.ece(logits, labels, 2, "mass"), (0.4 + 0.4) / 2)


def test_mce(data):
  logits, labels = data
  confidence, correct = confidence64(logits, labels)
  gaps = [
    abs(confidence[i].mean() - correct[i].mean())
    for i in binned(logits, labels)
    if i.size
  ]
  assert_close(calibration.mce(logits, labels), max(gaps))


@pytest.mark.parametrize("binning", ["width", "mass"])
def test_classwise_ece(data, binning):
  logits, labels = data
  # Of a float32 softmax, so that equal probabilities (of zero or one) are equal
  # in both.
  p = np.asarray(jax.nn.softmax(logits)).astype(np.float64)
  function = {
    "width": uncertainty_calibration.get_ece,
    "mass": uncertainty_calibration.get_ece_em,
  }[binning]
  expected = function(p, labels, num_bins=10, mode="marginal")
  actual = calibration.classwise_ece(logits, labels, 10, binning)
  assert_close(actual, expected)


def test_debiased_ece(data):
  logits, labels = data
  confidence, correct = confidence64(logits, labels)
  expected = 0.0
  for i in binned(logits, labels):
    if i.size == 0:
      continue
    gap = abs(confidence[i].mean() - correct[i].mean())
    sigma = np.sqrt(correct[i].mean() * (1 - correct[i].mean()) / i.size)
    folded = gap
    if sigma > 0:
      folded = stats.foldnorm.mean(gap / sigma, scale=sigma)
    expected += i.size / len(labels) * (2 * gap - folded)
  actual = calibration.debiased_ece(logits, labels)
  assert_close(actual, expected)
  assert actual <= calibration.ece(logits, labels) + 1e-6


def test_debiased_ece_is_that_of_kumar_et_al():
  """Who draw samples for the expectation, and need two images in each bin."""
  logits, labels = synthetic(10, 2.0)
  confidence, correct = confidence64(logits, labels)
  utils = uncertainty_calibration.utils
  data = list(zip(confidence, correct.astype(float), strict=True))
  bins = utils.bin(data, utils.get_equal_bins(list(confidence), 10))
  np.random.seed(0)
  drawn = utils.normal_debiased_ce(bins, power=1, resamples=4000)
  actual = calibration.debiased_ece(logits, labels, 10, "mass")
  assert abs(actual - drawn) < 3e-4
  assert abs(calibration.ece(logits, labels, 10, "mass") - drawn) > 1e-3


def test_debiased_ece_has_less_bias():
  """On a calibrated network the ECE is all bias."""
  keys = jax.random.split(jax.random.key(0), 200)

  def errors(key):
    logits = jax.random.normal(key, (500, 5))
    labels = jax.random.categorical(jax.random.fold_in(key, 1), logits)
    binned = {"num_bins": 15, "binning": "mass"}
    return (
      calibration.ece(logits, labels, **binned),
      calibration.debiased_ece(logits, labels, **binned),
    )

  plain, debiased = jax.vmap(errors)(keys)
  assert plain.mean() > 0.04
  # In units of 0.8 σ, with a gap of N(0, σ²): 2 E|gap| − E|N(gap, σ²)|.
  assert abs(debiased.mean() / plain.mean() - (2 - np.sqrt(2))) < 0.02


def smooth_ece64(logits, labels, sigma):
  """The integral of the definition, with images of the kernel mirrored."""
  confidence, correct = confidence64(logits, labels)
  residual = (confidence - correct) / len(labels)

  def smoothed(t):
    total = 0.0
    for shift in range(-4, 6, 2):
      for centre in (shift + confidence, shift - confidence):
        total = total + stats.norm.pdf((t[:, None] - centre[None]) / sigma)
    return np.abs((total / sigma) @ residual)

  t = np.linspace(0, 1, 4001 if sigma > 0.01 else 32001)
  values = np.concatenate([smoothed(part) for part in np.array_split(t, 40)])
  return integrate.trapezoid(values, t)


@pytest.mark.parametrize("sigma", [slow(0.002), slow(0.02), 0.1, 0.3])
def test_smooth_ece_at_a_bandwidth(sigma):
  for logits, labels in (synthetic(images=300), digits()):
    logits, labels = logits[:300], labels[:300]
    expected = smooth_ece64(logits, labels, sigma)
    actual = calibration.smooth_ece(logits, labels, sigma)
    assert_close(actual, expected, rtol=3e-6 if sigma > 0.01 else 2e-5)


def test_smooth_ece(data, monkeypatch):
  logits, labels = data
  # relplot gives the outermost of its 1,001 points half of their weight, so
  # that confidences of 1 count less: stay off them.
  confidence, correct = confidence64(logits, labels)
  confidence = np.minimum(confidence, 0.998)
  logits = np.log(np.stack([confidence, 1 - confidence], axis=1))
  labels = np.where(correct, 0, 1)
  if np.any(confidence < 0.5):
    logits = np.log(confidence)[:, None] + np.zeros((1, 10))
    others = np.log1p(-confidence)[:, None] - np.log(9)
    logits = np.where(np.arange(10)[None] == 0, logits, others)
  logits = logits.astype(np.float32)
  actual = calibration.smooth_ece(logits, labels)
  # It is its own bandwidth.
  at_own = calibration.smooth_ece(logits, labels, float(actual))
  assert_close(actual, at_own, rtol=1e-5)

  # relplot's integral is over 200 points; more can be had.
  monkeypatch.setattr(relplot.config, "smECE_mesh_pts", 4000)
  confidence, correct = confidence64(logits, labels)
  expected, sigma = relplot.metrics.smECE(
    confidence, correct.astype(float), return_width=True
  )
  at_theirs = calibration.smooth_ece(logits, labels, sigma)
  assert_close(at_theirs, expected, rtol=2e-3)
  # It bisects ten times, and stops above the crossing.
  assert sigma - 1 / 1024 - 2e-4 <= actual <= sigma + 2e-4


def test_entropy(data):
  logits, labels = data
  expected = stats.entropy(softmax64(logits), axis=1).mean()
  assert_close(calibration.entropy(logits), expected)
  assert calibration.entropy(logits, labels) == calibration.entropy(logits)


def test_logits(data):
  logits, _ = data
  z = logits.astype(np.float64)
  assert_close(calibration.confidence(logits), softmax64(z).max(1).mean())
  assert_close(calibration.max_logit(logits), np.abs(z).max(axis=1).mean())
  expected = z.var(axis=1, ddof=1).mean()
  assert_close(calibration.logit_variance(logits), expected)


@pytest.mark.parametrize("n", [2, 41, 47, 55])
def test_confidence_correlation_of_equal_answers(n):
  """Is NaN, also where the mean of n ones rounds."""
  logits = np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)
  for labels in (logits.argmax(axis=1), logits.argmin(axis=1)):
    assert np.isnan(calibration.confidence_correlation(logits, labels))


def test_confidence_correlation(data):
  logits, labels = data
  expected = stats.pearsonr(*confidence64(logits, labels)).statistic
  assert_close(calibration.confidence_correlation(logits, labels), expected)


def test_aurc(data):
  logits, labels = data
  p = np.asarray(logits, np.float64)
  top = np.sort(p, axis=1)
  log_odds = top[:, -1] - special.logsumexp(top[:, :-1], axis=1)
  if np.unique(log_odds).size < log_odds.size:
    pytest.skip("ties have a test of their own")
  correct = p.argmax(axis=1) == labels
  area, _ = uncertainty_calibration.get_selective_stats(log_odds, correct)
  assert_close(calibration.aurc(logits, labels), 1 - area, rtol=2e-6)


def test_aurc_averages_over_ties():
  confidence = np.array([3.0, 2.0, 2.0, 2.0, 1.0, 1.0])
  wrong = np.array([0, 1, 0, 1, 0, 1])
  areas = []
  for order in itertools.permutations(range(6)):
    if (np.diff(confidence[list(order)]) <= 0).all():
      errors = np.cumsum(wrong[list(order)])
      areas.append(np.mean(errors / np.arange(1, 7)))
  logits = jnp.stack([jnp.asarray(confidence), jnp.zeros(6)], axis=1)
  assert_close(calibration.aurc(logits, jnp.asarray(wrong)), np.mean(areas))


def test_aurc_tells_saturated_confidences_apart():
  logits = jnp.array([[30.0, 0.0], [40.0, 0.0], [50.0, 0.0], [60.0, 0.0]])
  assert np.all(jax.nn.softmax(logits).max(axis=1) == 1)
  good = calibration.aurc(logits, jnp.array([1, 0, 0, 0]))
  bad = calibration.aurc(logits, jnp.array([0, 0, 0, 1]))
  assert_close(good, 1 / 16)
  assert_close(bad, (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


def test_evaluate(data):
  logits, labels = data
  actual = calibration.evaluate(logits, labels)
  assert list(actual) == KEYS
  classes = logits.shape[1]
  expected = {
    "accuracy": calibration.accuracy(logits, labels),
    "top5_accuracy": calibration.accuracy(logits, labels, min(5, classes)),
    "nll": calibration.nll(logits, labels),
    "ece": calibration.ece(logits, labels),
    "brier": calibration.brier(logits, labels),
    "entropy": calibration.entropy(logits),
    "confidence": calibration.confidence(logits),
    "max_logit": calibration.max_logit(logits),
    "logit_variance": calibration.logit_variance(logits),
    "confidence_correlation": stats.pearsonr(
      *confidence64(logits, labels)
    ).statistic,
  }
  for key in KEYS:
    assert_close(actual[key], expected[key])
  # Their order lasts, for tables.
  over_seeds = jax.vmap(calibration.evaluate, in_axes=(0, None))
  assert list(over_seeds(logits[None], labels)) == KEYS
  other = calibration.evaluate(logits, labels, num_bins=20)
  assert_close(other["ece"], calibration.ece(logits, labels, 20))


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
  assert stacked.count.shape == (4, 10)
  expected = calibration.reliability(logits.reshape(-1, 5), labels.ravel())
  one_by_one = [
    calibration.reliability(*pair) for pair in zip(logits, labels, strict=True)
  ]
  for seeds in (stacked, one_by_one):
    average = calibration.average_reliability(seeds)
    np.testing.assert_array_equal(average.count, expected.count)
    assert_close(average.confidence, expected.confidence)
    assert_close(average.accuracy, expected.accuracy)


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


# Streams.


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
  for part in ("count", "correct", "top5"):
    np.testing.assert_array_equal(getattr(total, part), getattr(whole, part))
  sums = jax.tree.map(jnp.add, total.sums, total.lost)
  jax.tree.map(
    functools.partial(assert_close, rtol=1e-6, atol=1e-6), sums, whole.sums
  )
  actual, expected = total.metrics(), whole.metrics()
  # Sums of squares lose digits, or all of them, where confidences are close.
  correlation = actual.pop("confidence_correlation")
  exact = calibration.confidence_correlation(*everything)
  assert abs(correlation - exact) < 1e-4 or np.isnan(correlation)
  assert scale < 0.1 or not np.isnan(correlation)
  del expected["confidence_correlation"]
  for key, value in expected.items():
    assert_close(actual[key], value, rtol=2e-6, atol=2e-6)


def test_tally_in_a_scan_with_padding():
  logits, labels = synthetic(images=230)
  padded = np.full((300, 10), np.nan, np.float32)
  padded[:230] = logits
  padded_labels = np.concatenate([labels, np.full(70, -1)])
  batches = padded.reshape(3, 100, 10), padded_labels.reshape(3, 100)
  keep = (np.arange(300) < 230).reshape(3, 100)

  @jax.jit
  def stream(logits, labels, keep):
    def add(total, batch):
      return total + calibration.tally(*batch[:2], where=batch[2]), None

    start = calibration.Tally.empty()
    return jax.lax.scan(add, start, (logits, labels, keep))[0].metrics()

  actual = stream(*batches, keep)
  expected = calibration.evaluate(logits, labels)
  for key in KEYS:
    assert_close(actual[key], expected[key], rtol=2e-6)
  # And outside of jit, where labels are looked at.
  last = calibration.tally(batches[0][2], batches[1][2], where=keep[2])
  assert last.count.sum() == 30


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
  for key in KEYS:
    assert_close(actual[key], expected[key], rtol=2e-6)


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
  bins = tallies.reliability()
  for i, one in enumerate(seeds):
    expected = calibration.evaluate(one, labels)
    for key in KEYS:
      assert actual[key].shape == (3,)
      assert_close(actual[key][i], expected[key], rtol=2e-6)
    reliability = calibration.reliability(one, labels)
    assert_close(bins.confidence[i], reliability.confidence)


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-4, 1e-5])
def test_correlation_of_a_network_that_knows_nothing_yet(scale):
  """Its confidences are nearly equal, which sums of squares can't resolve."""
  logits, labels = synthetic()
  logits = logits * np.float32(scale)
  expected = stats.pearsonr(*confidence64(logits, labels)).statistic
  actual = calibration.evaluate(logits, labels)["confidence_correlation"]
  # Confidences are about 0.1, with a spacing of 7e-9 in float32.
  assert_close(actual, expected, rtol=1e-4, atol=3e-9 / scale)
  stream = calibration.tally(logits, labels).metrics()
  stream = stream["confidence_correlation"]
  assert np.isnan(stream) or abs(stream - expected) < 1e-3
  equal = np.tile(np.float32([[0.3, 0.1, -0.7]]), (50, 1))
  labels = np.arange(50) % 2
  for values in (
    calibration.evaluate(equal, labels),
    calibration.tally(equal, labels).metrics(),
  ):
    assert np.isnan(values["confidence_correlation"])


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


# Types, transformations and edges.


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", METRICS)
def test_half_precision_is_exact_for_what_it_is(name, dtype):
  logits, labels = synthetic()
  logits = jnp.asarray(logits, dtype)
  actual = METRICS[name](logits, labels)
  assert actual.dtype == jnp.float32
  expected = METRICS[name](logits.astype(jnp.float32), labels)
  np.testing.assert_array_equal(actual, expected)


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("name", METRICS)
def test_float64(name):
  logits, labels = synthetic()
  with jax.enable_x64(True):
    exact = METRICS[name](logits.astype(np.float64), labels)
    assert exact.dtype == jnp.float64
    assert METRICS[name](logits, labels).dtype == jnp.float32
  assert_close(METRICS[name](logits, labels), exact, rtol=2e-6)


@pytest.mark.mostly_slow(3)
@pytest.mark.parametrize("name", METRICS)
def test_jit_and_vmap(name):
  metric = METRICS[name]
  logits, labels = synthetic()
  stack = jnp.asarray(logits).reshape(2, 2, 500, 10)
  stack_labels = jnp.asarray(labels[:500])
  mapped = jax.vmap(metric, in_axes=(0, None))
  mapped = jax.jit(jax.vmap(mapped, in_axes=(0, None)))
  actual = mapped(stack, stack_labels)
  assert actual.shape == (2, 2)
  for i, j in itertools.product(range(2), range(2)):
    expected = metric(stack[i, j], stack_labels)
    assert_close(actual[i, j], expected, rtol=2e-6)


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


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "uint32"])
@pytest.mark.parametrize("name", ["brier", "classwise_ece", "accuracy"])
def test_labels_of_any_width(name, dtype):
  """More classes than the labels' type can count."""
  logits = np.random.default_rng(0).normal(size=(100, 300)).astype(np.float32)
  labels = np.arange(100)
  expected = METRICS[name](logits, labels)
  labels = labels.astype(dtype)
  assert_close(METRICS[name](logits, labels), expected)
  assert_close(METRICS[name](logits, jnp.asarray(labels)), expected)
  assert_close(jax.jit(METRICS[name])(logits, labels), expected)
  far = np.where(labels == 3, 2**32, labels.astype(np.int64))
  with pytest.raises(ValueError, match=r"labels\[3\] is 4294967296"):
    METRICS[name](logits, far)


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


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize("label", [-1, 10])
@pytest.mark.parametrize("name", METRICS)
def test_labels_out_of_range(name, label):
  logits, labels = synthetic()
  labels = labels.copy()
  labels[5] = label
  message = rf"10 classes, .*from 0 to 9, but labels\[5\] is {label}"
  with pytest.raises(ValueError, match=message):
    METRICS[name](logits, labels)
  assert np.isnan(jax.jit(METRICS[name])(logits, labels))


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
  assert np.all(np.isfinite(list(values.values())))


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


def test_impossible_classes():
  logits = jnp.array([[0.0, 1.0, -jnp.inf], [2.0, 0.0, -jnp.inf]])
  labels = jnp.array([1, 1])
  without = calibration.evaluate(logits[:, :2], labels)
  values = calibration.evaluate(logits, labels)
  for key in ("accuracy", "nll", "ece", "brier", "entropy", "confidence"):
    assert_close(values[key], without[key])
  assert calibration.nll(logits, jnp.array([1, 2])) == np.inf
  assert np.isnan(calibration.aurc(-logits, labels))  # as all others


def test_undefined_correlation_is_nan():
  correlation = calibration.confidence_correlation
  logits = jnp.array([[1.0, 0.0], [3.0, 0.0]])
  for labels in (jnp.array([0, 0]), jnp.array([1, 1])):  # all right, all wrong
    assert np.isnan(correlation(logits, labels))
    stream = calibration.tally(logits, labels).metrics()
    assert np.isnan(stream["confidence_correlation"])
  equal = jnp.full((7, 2), 0.3).at[:, 0].set(0.1)
  assert np.isnan(correlation(equal, jnp.arange(7) % 2))


def test_input_that_makes_no_sense():
  logits, labels = synthetic()
  with pytest.raises(ValueError, match=r"\(20, 100\) .*\(20, 100, 10\)"):
    calibration.nll(logits.reshape(20, 100, 10), labels)
  with pytest.raises(ValueError, match=r"\(2000,\).*\(2000, 10\).*\(1999,\)"):
    calibration.ece(logits, labels[1:])
  for dtype in (int, bool, np.float32, jnp.float32):
    for call in (calibration.nll, calibration.tally, calibration.fit):
      one_hot = np.eye(10, dtype=dtype)[labels]
      with pytest.raises(ValueError, match=r"one-hot, use labels.argmax\(1\)"):
        call(logits, one_hot)
  # The advice works.
  expected = calibration.nll(logits, labels)
  assert calibration.nll(logits, one_hot.argmax(1)) == expected
  where = np.ones(len(labels), bool)
  with pytest.raises(ValueError, match=r"one-hot, use labels.argmax\(1\)"):
    calibration.tally(logits, one_hot, where=where)
  with pytest.raises(ValueError, match="at least one example and two classes"):
    calibration.evaluate(logits[:0], labels[:0])
  with pytest.raises(ValueError, match="two classes"):
    calibration.accuracy(logits[:, :0], labels)
  with pytest.raises(
    TypeError, match="labels must be integers, but are float32"
  ):
    calibration.nll(logits, labels.astype(np.float32))
  with pytest.raises(TypeError, match="real numbers, but are complex64"):
    calibration.nll(logits * 1j, labels)
  with pytest.raises(TypeError, match="labels"):
    calibration.nll(logits)
  for k in (0, 11, 1.5):
    with pytest.raises(ValueError, match=f"1 to .* 10, but is {k}"):
      calibration.accuracy(logits, labels, k=k)
  with pytest.raises(
    TypeError, match="num_bins must .* an array.*static_argnames"
  ):
    jax.jit(calibration.ece)(logits, labels, 10)
  with pytest.raises(
    TypeError, match="k must be a Python number, but is an array"
  ):
    calibration.accuracy(logits, labels, k=jnp.array(3))
  for bins in (0, -1, 2.5):
    with pytest.raises(ValueError, match=f"num_bins must be .*{bins}"):
      calibration.ece(logits, labels, bins)
    with pytest.raises(ValueError, match=f"num_bins must be .*{bins}"):
      calibration.evaluate(logits, labels, bins)
  with pytest.raises(ValueError, match='"width" or "mass", but is .height.'):
    calibration.ece(logits, labels, binning="height")
  with pytest.raises(ValueError, match="bandwidth .*0.001 to 1.*but is 2"):
    calibration.smooth_ece(logits, labels, 2.0)


# Metrics of the ranks, and decompositions.


def log_odds64(logits):
  top = np.sort(np.asarray(logits, np.float64), axis=1)
  return top[:, -1] - special.logsumexp(top[:, :-1], axis=1)


def gaps64(probability, outcome, num_bins=10):
  """By SciPy: counts and gaps of bins of equal width."""
  edges = np.linspace(0, 1, num_bins + 1)
  sums = stats.binned_statistic(
    probability, [probability, outcome], "sum", edges
  )
  count = stats.binned_statistic(probability, None, "count", edges).statistic
  confidence, right = sums.statistic
  return count, (confidence - right) / np.maximum(count, 1)


def test_top_k_ece():
  logits, labels = synthetic()
  p = softmax64(logits)
  order = np.argsort(-p, axis=1)
  for k in (2, 5):
    within = np.take_along_axis(p, order[:, :k], axis=1).sum(axis=1)
    inside = (order[:, :k] == labels[:, None]).any(axis=1)
    count, gap = gaps64(within, inside)
    expected = np.sum(count * np.abs(gap)) / len(labels)
    assert_close(calibration.top_k_ece(logits, labels, k), expected)
  one = calibration.top_k_ece(logits, labels, 1)
  assert_close(one, calibration.ece(logits, labels))
  # All classes together are certain, and right.
  assert_close(calibration.top_k_ece(logits, labels, 10), 0, atol=1e-6)


@pytest.mark.parametrize("threshold", [0.01, 0.3])
def test_classwise_ece_with_a_threshold(threshold):
  logits, labels = synthetic()
  p = softmax64(logits)
  errors, masses = [], []
  for c in range(10):
    keep = p[:, c] >= threshold
    own = labels[keep] == c
    count, gap = gaps64(p[keep, c], own)
    errors.append(np.sum(count * np.abs(gap)) / keep.sum())
    utils = uncertainty_calibration.utils
    pairs = list(zip(p[keep, c], own.astype(float), strict=True))
    bins = utils.bin(pairs, utils.get_equal_bins(list(p[keep, c]), 10))
    masses.append(utils.plugin_ce(bins, power=1))
  options = {"threshold": threshold}
  actual = calibration.classwise_ece(logits, labels, **options)
  assert_close(actual, np.mean(errors))
  actual = calibration.classwise_ece(logits, labels, 10, "mass", **options)
  assert_close(actual, np.mean(masses), rtol=2e-6)
  # Of classes that never get there, nothing is known.
  assert np.isnan(calibration.classwise_ece(0 * logits, labels, **options)) == (
    threshold > 0.1
  )
  with pytest.raises(ValueError, match="threshold .*below 1, but is 1.0"):
    calibration.classwise_ece(logits, labels, threshold=1.0)


def test_rms_calibration_error(data):
  logits, labels = data
  confidence, correct = confidence64(logits, labels)
  count, gap = gaps64(confidence, correct)
  expected = np.sqrt(np.sum(count * gap**2) / len(labels))
  assert_close(calibration.rms_calibration_error(logits, labels), expected)
  utils = uncertainty_calibration.utils
  pairs = list(zip(confidence, correct.astype(float), strict=True))
  bins = utils.bin(pairs, utils.get_equal_bins(list(confidence), 10))
  # In float32, confidences near 1 would be equal, and so be in one bin.
  with jax.enable_x64(True):
    actual = calibration.rms_calibration_error(
      np.float64(logits), labels, 10, "mass"
    )
  assert_close(actual, utils.plugin_ce(bins, power=2))


def ks64(logits, labels):
  """In float64, with confidences equal if they are in ten digits."""
  p = softmax64(logits)
  confidence = p.max(axis=1)
  residual = (p.argmax(axis=1) == labels) - confidence
  _, group = np.unique(np.round(log_odds64(logits), 10), return_inverse=True)
  gaps = np.cumsum(np.bincount(group, residual)) / len(labels)
  return np.abs(gaps).max()


def test_ks_calibration_error(data):
  logits, labels = data
  actual = calibration.ks_calibration_error(logits, labels)
  assert_close(actual, ks64(logits, labels), rtol=2e-6)


@pytest.mark.parametrize("classes", [2, 3, 5, 10])
def test_ks_calibration_error_of_ties(classes):
  """Confidences of the same logits in another order may round differently."""
  for seed in range(20):
    random = np.random.default_rng(seed)
    kinds = 2 * random.normal(size=(4, classes)).astype(np.float32)
    logits = random.permuted(kinds[random.integers(0, 4, size=60)], axis=1)
    labels = np.where(
      random.random(60) < 0.6, logits.argmax(axis=1), logits.argmin(axis=1)
    )
    actual = calibration.ks_calibration_error(logits, labels)
    assert_close(actual, ks64(logits, labels), rtol=2e-6)


def test_ks_calibration_error_of_equal_confidences():
  logits = jnp.tile(jnp.array([[2.0, 0.0]]), (6, 1))
  labels = jnp.array([0, 1, 0, 1, 0, 1])
  gap = calibration.confidence(logits) - 0.5
  assert_close(calibration.ks_calibration_error(logits, labels), gap)


@pytest.mark.parametrize("coverage", [0.05, 0.7, 1.0])
def test_selective_risk(coverage):
  logits, labels = synthetic()
  wrong = logits.argmax(axis=1) != labels
  order = np.argsort(-log_odds64(logits), kind="stable")
  kept = wrong[order][: round(coverage * len(labels))]
  actual = calibration.selective_risk(logits, labels, coverage)
  assert_close(actual, kept.mean())


def test_selective_risk_of_whole_examples():
  # 0.7 · 10 is a little above 7 in floats.
  logits = jnp.stack([jnp.arange(10.0, 0.0, -1.0), jnp.zeros(10)], axis=1)
  labels = jnp.array([0] * 7 + [1] * 3)
  assert calibration.selective_risk(logits, labels, 0.7) == 0
  assert_close(calibration.selective_risk(logits, labels, 0.71), 1 / 8)
  # Equal confidences count as if in random order.
  equal = calibration.selective_risk(0 * logits, labels, 0.5)
  assert_close(equal, 0.3)
  for coverage in (0, 1.1, -1):
    with pytest.raises(
      ValueError, match=f"coverage must be .*but is {coverage}"
    ):
      calibration.selective_risk(logits, labels, coverage)


def test_auroc(data):
  logits, labels = data
  correct = logits.argmax(axis=1) == labels
  expected = metrics.roc_auc_score(correct, log_odds64(logits))
  assert_close(calibration.auroc(logits, labels), expected, rtol=2e-6)
  tied = np.round(logits, 0)
  correct = tied.argmax(axis=1) == labels
  # Rounded, for sums of the same numbers to be equal in another order.
  expected = metrics.roc_auc_score(correct, np.round(log_odds64(tied), 5))
  actual = calibration.auroc(tied, labels)
  assert_close(actual, expected, rtol=2e-4)


def test_auroc_of_no_errors_is_nan():
  logits, _ = synthetic()
  assert np.isnan(calibration.auroc(logits, logits.argmax(axis=1)))
  assert np.isnan(calibration.auroc(logits, logits.argmin(axis=1)))


def test_brier_decomposition():
  """With one probability in each bin, refinement is the recalibrated score."""
  random = np.random.default_rng(0)
  kinds = np.array([[0.72, 0.25, 0.03], [0.15, 0.64, 0.21], [0.4, 0.08, 0.52]])
  truth = np.array([[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.3, 0.1, 0.6]])
  kind = random.integers(0, 3, size=500)
  labels = np.array([random.choice(3, p=truth[k]) for k in kind])
  logits = np.log(kinds[kind]).astype(np.float32)
  refinement = 0.0
  for c in range(3):
    own = labels == c
    frequency = np.array([own[kind == k].mean() for k in range(3)])
    refinement += metrics.brier_score_loss(own, frequency[kind])
  parts = calibration.brier_decomposition(logits, labels)
  assert_close(parts.refinement, refinement, rtol=2e-6)
  assert_close(sum(parts), calibration.brier(logits, labels))


def test_decompositions_add_up_and_are_not_negative(data):
  logits, labels = data
  for score, decompose in (
    (calibration.brier, calibration.brier_decomposition),
    (calibration.nll, calibration.nll_decomposition),
  ):
    parts = decompose(logits, labels)
    assert_close(sum(parts), score(logits, labels))
    assert min(parts) >= -1e-6


def test_nll_decomposition():
  logits, labels = synthetic()

  def loss(log_t):
    p = softmax64(logits.astype(np.float64) / np.exp(log_t))
    return metrics.log_loss(labels, p, labels=np.arange(10))

  best = optimize.minimize_scalar(loss, bracket=(0, 1), tol=1e-10).fun
  parts = calibration.nll_decomposition(logits, labels)
  assert_close(parts.refinement, best)
  calibrated = logits / calibration.fit_temperature(logits, labels)
  parts = calibration.nll_decomposition(calibrated, labels)
  assert_close(parts.calibration, 0, atol=1e-6)


# What people have in the place of logits and integer labels.


def test_logits_are_taken_at_face_value():
  """Also those that look like probabilities, under jit or not."""
  for logits in (
    np.array([[1.0, 0.0], [0.0, 1.0]], np.float32),
    np.array([[0.3, 0.7], [0.9, 0.1]], np.float32),
    np.array([0.3, 0.8], np.float32),
  ):
    labels = np.array([0, 1])
    both = logits if logits.ndim == 2 else np.stack([0 * logits, logits], 1)
    expected = -special.log_softmax(both.astype(np.float64), axis=1)
    expected = expected[np.arange(2), labels].mean()
    for nll in (calibration.nll, jax.jit(calibration.nll)):
      assert_close(nll(logits, labels), expected)
    assert_close(calibration.tally(logits, labels).metrics()["nll"], expected)
    calibration.evaluate(logits, labels)
    with pytest.raises(ValueError, match="look like probabilities"):
      calibration.fit(logits, labels)


def test_small_batches_of_scores_never_fail():
  random = np.random.default_rng(0)
  for _ in range(200):
    calibration.nll(random.normal(size=1).astype(np.float32), np.array([1]))


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
def test_look_like_probabilities(classes):
  looks = _inputs.look_like_probabilities
  logits, _ = synthetic(classes)
  p = np.asarray(jax.nn.softmax(logits))
  for shown in (p, jnp.asarray(p), p.round(2), p.round(3), p[None], p[:1]):
    assert looks(shown) == (shown is not p.round(2) or classes < 100)
  for other in (logits, p - 0.01, p * 1.3, p * 0.7, np.round(logits)):
    assert not looks(other)
  assert looks(np.eye(classes, dtype=int))
  # One column has no sums.
  assert looks(p[:, 0]) and looks(p[:, :1])
  assert not looks(logits[:, 0]) and not looks(logits[:, :1])


def test_from_probabilities_of_two_decimals():
  """Rounded or cut off, as a table may have them: rows don't sum to 1."""
  logits, labels = synthetic()
  p = softmax64(logits)
  for shown in (p.round(2), np.floor(100 * p) / 100):
    assert np.abs(shown.sum(axis=1) - 1).max() > 0.015
    own = calibration.from_probabilities(shown)
    divided = shown / shown.sum(axis=1, keepdims=True)
    assert_close(jax.nn.softmax(own), divided, rtol=1e-6, atol=1e-7)
    expected = uncertainty_calibration.get_ece(divided, labels, num_bins=10)
    assert_close(calibration.ece(own, labels), expected)
  own = calibration.from_probabilities(np.full((1, 10), 0.097))  # 0.97
  assert_close(jax.nn.softmax(own), np.full((1, 10), 0.1))


def test_from_probabilities(data):
  logits, labels = data
  p = softmax64(logits)
  own = calibration.from_probabilities(p)
  assert own.dtype == jnp.float32 and np.all(np.isfinite(own))
  for name in ("accuracy", "ece", "brier", "entropy"):
    metric = METRICS[name]
    assert_close(metric(own, labels), metric(logits, labels), atol=1e-6)
  assert np.isfinite(calibration.max_logit(own))
  assert np.isfinite(calibration.logit_variance(own))
  traced = jax.jit(calibration.from_probabilities)(p.astype(np.float32))
  assert_close(jax.nn.softmax(traced), p, atol=1e-6)


def test_from_probabilities_of_zero():
  p = np.array([[1.0, 0.0], [0.25, 0.75]])
  for dtype, loss in ((np.float32, 87.34), (np.float64, 708.4)):
    logits = calibration.from_probabilities(p.astype(dtype))
    actual = calibration.nll(logits, np.array([1, 1]))
    assert_close(actual, (loss - np.log(0.75)) / 2, rtol=1e-4)
    assert calibration.nll(logits[:1], np.array([0])) == 0


class Tensor:
  """Like a tensor of another framework: no array, but it can become one."""

  def __init__(self, array):
    self.array = array

  def __array__(self, dtype=None, copy=None):
    return np.asarray(self.array, dtype)


def test_tensors_of_other_frameworks():
  logits, labels = synthetic()
  expected = calibration.nll(logits, labels)
  assert calibration.nll(Tensor(logits), Tensor(labels)) == expected
  p = Tensor(np.asarray(jax.nn.softmax(logits)))
  assert_close(
    calibration.nll(calibration.from_probabilities(p), labels), expected
  )


def test_two_classes_in_one_column():
  logits, labels = synthetic(2, 1.0)
  z = logits[:, 1] - logits[:, 0]
  score = special.expit(z.astype(np.float64))
  for name in ("accuracy", "nll", "ece", "classwise_ece", "auroc"):
    expected = METRICS[name](logits, labels)
    assert_close(METRICS[name](z, labels), expected, rtol=3e-6)
    assert_close(METRICS[name](z[:, None], labels == 1), expected, rtol=3e-6)
    for shown in (score, score[:, None]):
      own = calibration.from_probabilities(shown)
      assert_close(METRICS[name](own, labels), expected, rtol=3e-6)
  assert_close(jax.jit(calibration.nll)(z, labels), calibration.nll(z, labels))
  # Of the second class's probability, by scikit-learn.
  expected = metrics.log_loss(labels, score)
  assert_close(calibration.nll(z, labels), expected)


@pytest.mark.parametrize(
  ("p", "message"),
  [
    ([[0.5, 0.5], [0.9, 0.2]], r"sum of probabilities\[1\] is 1.1.*keepdims"),
    (np.full((3, 50), 0.0159), r"1 ± 0.2 .* probabilities\[0\] is 0.795"),
    (np.full((3, 50), 0.0241), r"1 ± 0.2 .* probabilities\[0\] is 1.205"),
    (
      [[0.5, 0.5], [1.2, -0.2]],
      r"probabilities\[1, 0\] is 1.2.*don't call from",
    ),
    ([[0.5, 0.5], [np.nan, 0.5]], r"probabilities\[1, 0\] is nan.*Leave"),
    ([0.5, 3.0], r"from 0 to 1.* probabilities\[1\] is 3"),
    (np.zeros((0, 3)), "at least one example"),
  ],
)
def test_what_are_no_probabilities(p, message):
  with pytest.raises(ValueError, match=message):
    calibration.from_probabilities(np.array(p))


def test_what_are_no_numbers():
  with pytest.raises(TypeError, match="real numbers"):
    calibration.from_probabilities(np.array([[1j, 0]]))


def test_labels_as_people_have_them():
  logits, labels = synthetic(2, 1.0)
  expected = calibration.nll(logits, labels)
  assert calibration.nll(logits, labels.astype(bool)) == expected
  assert calibration.nll(logits, labels.tolist()) == expected
  names = np.array(["cat", "dog"])
  strings = names[labels]
  for shown in (strings, strings.astype(object), strings.tolist()):
    with pytest.raises(TypeError, match="'(cat|dog)'.*labels = (.*) for y in"):
      calibration.nll(logits, shown)
  # The line of the message.
  classes = names
  again = [list(classes).index(y) for y in strings]
  assert calibration.nll(logits, again) == expected
  with pytest.raises(ValueError, match=r"Use labels\[:, 0\]"):
    calibration.nll(logits, labels[:, None])
  with pytest.raises(TypeError, match=r"float64.*labels.astype\(int\)"):
    calibration.nll(logits, labels.astype(float))
  with pytest.raises(ValueError, match="pass labels > 0"):
    calibration.nll(logits, 2 * labels - 1)
  with pytest.raises(ValueError, match="pass labels - 1"):
    calibration.nll(logits, labels + 1)
  three, its_labels = synthetic()
  with pytest.raises(ValueError, match=r"pass logits\.T"):
    calibration.nll(three.T, its_labels)
  with pytest.raises(ValueError, match="Pass logits first"):
    calibration.nll(its_labels, three)
  with pytest.raises(TypeError, match="bool"):
    calibration.nll(three, its_labels > 3)


def test_arguments_that_were_meant():
  logits, labels = synthetic()
  for metric in (
    calibration.ece,
    calibration.reliability,
    calibration.evaluate,
  ):
    with pytest.raises(TypeError, match="'bins'. Did you mean num_bins"):
      metric(logits, labels, bins=15)
  with pytest.raises(TypeError, match="accuracy has no argument 'top'. .*k"):
    calibration.accuracy(logits, labels, top=5)
  with pytest.raises(TypeError, match="top_k_ece: .*'k'"):
    calibration.top_k_ece(logits, labels)
  with pytest.raises(TypeError, match="'x'.*Did you mean where"):
    calibration.nll(logits, labels, x=5)


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
