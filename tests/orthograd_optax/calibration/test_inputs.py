"""What people have in the place of logits and integer labels."""

from typing import Any

import calibration as uncertainty_calibration
import chex
from every_metric import METRICS
import jax
import jax.numpy as jnp
from logit_sets import assert_close, softmax64, synthetic
import numpy as np
import pytest
from scipy import special
from sklearn import metrics

from orthograd_optax import calibration
from orthograd_optax.calibration import _inputs


class FaceValueTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True, with_pmap=True)
  def test_logits_are_taken_at_face_value(self):
    """Also those that look like probabilities."""
    for logits in (
      np.array([[1.0, 0.0], [0.0, 1.0]], np.float32),
      np.array([[0.3, 0.7], [0.9, 0.1]], np.float32),
      np.array([0.3, 0.8], np.float32),
    ):
      labels = np.array([0, 1])
      both = logits if logits.ndim == 2 else np.stack([0 * logits, logits], 1)
      expected = -special.log_softmax(both.astype(np.float64), axis=1)
      expected = expected[np.arange(2), labels].mean()
      nll: Any = self.variant(calibration.nll)
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
  chex.assert_type(own, jnp.float32)
  for name in ("accuracy", "ece", "brier", "entropy"):
    metric = METRICS[name]
    assert_close(metric(own, labels), metric(logits, labels), atol=1e-6)
  sizes = calibration.max_logit(own), calibration.logit_variance(own)
  chex.assert_tree_all_finite((own, sizes))
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
