"""The losses against their papers' formulas in float64, and PyTorch."""

import functools
from typing import Any

import chex
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from orthograd_optax import calibration

N, K = 4, 6
LABELS = np.array([0, 3, 3, 1])
LOGITS = np.random.default_rng(0).normal(size=(N, K)) * 3
CASES = [
  ("cross_entropy", ()),
  ("smoothed", (0.05,)),
  ("smoothed", (1.0,)),
  ("focal", (0.0,)),
  ("focal", (0.5,)),
  ("focal", (3.0,)),
  ("mbls", (2.0, 0.1)),
  ("mbls", (10.0, 0.3)),
  ("logit_norm", (0.04,)),
  ("logit_norm", (1.0,)),
  ("stablemax_cross_entropy", ()),
]
every_case = pytest.mark.parametrize(("name", "parameters"), CASES)
LogitArrays = hnp.arrays(
  np.float64, (N, K), elements=st.floats(-12, 12).map(lambda x: round(x, 3))
)


def oracle(name, z, y, parameters):
  """One example's loss; analytic in z except at kinks, for complex steps."""
  log_softmax = lambda z: (
    z - z[z.real.argmax()] - np.log(np.exp(z - z[z.real.argmax()]).sum())
  )
  log_p = log_softmax(z)
  rest = np.exp(np.delete(log_p, y)).sum()  # 1 - p_y, without cancellation
  match name, parameters:
    case "cross_entropy", ():
      return -log_p[y]
    case "smoothed", (alpha,):
      target = np.full(len(z), alpha / len(z))
      target[y] += 1 - alpha
      return -(target * log_p).sum()
    case "focal", (gamma,):
      return -(rest**gamma) * log_p[y]
    case "mbls", (margin, weight):
      gaps = z[z.real.argmax()] - z - margin
      return -log_p[y] + weight * gaps[gaps.real > 0].sum() / len(z)
    case "logit_norm", (tau,):
      return -log_softmax(z / (np.sqrt((z * z).sum()) + 1e-7) / tau)[y]
    case "stablemax_cross_entropy", ():
      s = np.where(z.real >= 0, 1 + z, 1 / np.where(z.real >= 0, 1, 1 - z))
      return np.log1p(np.delete(s, y).sum() / s[y])
  raise ValueError(name)


def expect(name, logits, parameters, h=1e-30):
  """Losses, and gradients by complex steps: exact to the last digits."""
  actual = []
  for z, y in zip(np.asarray(logits, np.float64), LABELS, strict=True):
    loss = lambda z, y=y: oracle(name, z, y, parameters)
    steps = z + 1j * h * np.eye(K)
    actual.append((loss(z), [loss(step).imag / h for step in steps]))
  values, grads = zip(*actual, strict=True)
  return np.array(values), np.array(grads)


def loss_of(name):
  if name == "cross_entropy":
    return optax.softmax_cross_entropy_with_integer_labels
  return getattr(calibration, name)


@functools.cache
def compiled(name):
  loss = loss_of(name)

  @jax.jit
  def both(logits, *parameters):
    values, vjp = jax.vjp(lambda z: loss(z, LABELS, *parameters), logits)
    return values, vjp(jnp.ones_like(values))[0]

  return both


def evaluate(name, logits, *parameters):
  """Losses and gradients, in the logits' dtype."""
  with jax.enable_x64(logits.dtype == np.float64):
    return jax.tree.map(np.asarray, compiled(name)(logits, *parameters))


@every_case
@settings(max_examples=25)
@given(logits=LogitArrays)
def test_paper(name, parameters, logits):
  # Two equal largest logits are a kink of MbLS, where subgradients may differ.
  logits = logits + 1e-4 * np.arange(K)
  if name == "logit_norm":
    logits[:, 0] += 20.0  # 1e-7 away from 0 the gradient is ill-conditioned
  actual = evaluate(name, logits, *parameters)
  expected = expect(name, logits, parameters)
  chex.assert_trees_all_equal_shapes_and_dtypes(actual, expected)
  chex.assert_trees_all_close(actual, expected, rtol=1e-9, atol=1e-11)


@every_case
@pytest.mark.parametrize("size", [0.0, 50.0, 1e4])
def test_extreme_logits_in_float32(name, parameters, size):
  """Right and wrong by a lot, without an overflow or a rounding to 0 / 0."""
  signs = np.array(
    [[1] + [-1] * 5, [1] + [-1] * 5, [0, 0, 0, 1, 0, 0], [-1] * 6]
  )
  logits = (size * signs).astype(np.float32)
  values, grads = evaluate(name, logits, *parameters)
  chex.assert_type([values, grads], np.float32)
  chex.assert_tree_all_finite((values, grads))
  if size == 0:
    return
  expected, expected_grads = expect(name, logits, parameters)
  np.testing.assert_allclose(values, expected, rtol=2e-5, atol=1e-7 * size)
  # MbLS's largest logit is not unique in the last row.
  np.testing.assert_allclose(
    grads[:3], expected_grads[:3], rtol=2e-5, atol=1e-6
  )


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 3.0])
def test_focal_where_p_rounds_to_one(gamma):
  """With 1 - p = e^-20, loss and slope are (1 - p)^(γ+1) to first order."""
  logits = np.eye(K)[LABELS] * (20 + np.log(K - 1))
  values, grads = evaluate("focal", logits.astype(np.float32), gamma)
  expected = np.exp(-20 * (gamma + 1))
  np.testing.assert_allclose(values, expected, rtol=1e-4)
  slopes = grads[np.arange(N), LABELS]
  np.testing.assert_allclose(slopes, -(gamma + 1) * expected, rtol=1e-4)


@pytest.mark.parametrize("tau", [0.04, 1.0])
def test_logit_norm_at_zero(tau):
  """There, logits are divided by τ · 1e-7, and the norm's slope counts as 0."""
  values, grads = evaluate("logit_norm", np.zeros((N, K)), tau)
  np.testing.assert_allclose(values, np.log(K))
  slope = (1 / K - np.eye(K)[LABELS]) / (tau * 1e-7)
  np.testing.assert_allclose(grads, slope, rtol=1e-9)


def test_zero_is_cross_entropy():
  logits = LOGITS.astype(np.float32)
  expected = optax.softmax_cross_entropy_with_integer_labels(logits, LABELS)
  for name, parameters in [
    ("cross_entropy", ()),
    ("smoothed", (0.0,)),
    ("mbls", (1.0, 0.0)),
  ]:
    actual, _ = evaluate(name, logits, *parameters)
    np.testing.assert_array_equal(actual, expected)
  actual, _ = evaluate("focal", logits, 0.0)
  np.testing.assert_allclose(actual, expected, rtol=1e-5)


@given(logits=LogitArrays, share=st.floats(0, 0.8))
def test_the_other_convention_of_label_smoothing(logits, share):
  """Wrong classes get α' / (K - 1) each, where α = α' K / (K - 1)."""
  target = np.full((N, K), share / (K - 1))
  target[np.arange(N), LABELS] = 1 - share
  actual, _ = evaluate("smoothed", logits, share * K / (K - 1))
  with jax.enable_x64(True):
    expected = optax.softmax_cross_entropy(logits, target)
  np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@given(logits=LogitArrays, shift=st.floats(-5, 5), scale=st.floats(0.1, 10))
def test_invariances(logits, shift, scale):
  """LogitNorm doesn't see the logits' scale; softmax, not their shift."""
  for name, parameters in CASES:
    if name == "stablemax_cross_entropy":
      continue  # has neither invariance
    z, moved, along = logits, logits + shift, np.ones((N, K))
    if name == "logit_norm":
      z = along = logits + 20 * np.eye(K)[0]  # away from 0
      moved = scale * z
    values, grads = evaluate(name, z, *parameters)
    again, _ = evaluate(name, moved, *parameters)
    np.testing.assert_allclose(again, values, rtol=1e-6, atol=1e-9)
    # So the gradient has no part along the shift, or along the logits.
    np.testing.assert_allclose(np.sum(grads * along, axis=1), 0, atol=1e-5)


@given(logits=LogitArrays, gamma=st.floats(0, 5), margin=st.floats(0, 20))
def test_order(logits, gamma, margin):
  """Focal losses are below cross-entropy, MbLS above it or, within, equal."""
  plain, _ = evaluate("cross_entropy", logits)
  focal, _ = evaluate("focal", logits, gamma)
  bound, _ = evaluate("mbls", logits, margin, 0.5)
  assert (focal <= plain * (1 + 1e-12) + 1e-15).all()
  beyond = np.ptp(logits, axis=1) > margin
  np.testing.assert_array_equal(bound[~beyond], plain[~beyond])
  assert (bound >= plain).all()


@pytest.mark.parametrize(
  ("name", "axes"),
  [
    ("smoothed", ([0.0, 0.1, 0.3],)),
    ("focal", ([0.0, 0.5, 3.0],)),
    ("mbls", ([1.0, 6.0, 10.0], [0.0, 0.1, 1.0])),
    ("logit_norm", ([0.01, 0.04, 1.0],)),
  ],
)
def test_traced_parameters(name, axes):
  """Runs with parameters of their own, and logits, as one program."""
  logits = np.stack([LOGITS, -LOGITS, 2 * LOGITS]).astype(np.float32)
  parameters = [np.array(axis, np.float32) for axis in axes]
  values, grads = jax.jit(jax.vmap(compiled(name)))(logits, *parameters)
  chex.assert_type([values, grads], np.float32)
  for i in range(3):
    one = expect(name, logits[i], [axis[i] for axis in axes])
    np.testing.assert_allclose(values[i], one[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(grads[i], one[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.0, 300.0])
def test_pytorch(scale):
  torch = pytest.importorskip("torch")
  entropy = functools.partial(
    torch.nn.functional.cross_entropy, reduction="none"
  )
  y = torch.tensor(LABELS)

  def focal(z, gamma):
    log_p = torch.log_softmax(z, dim=1)[torch.arange(N), y]
    return -((1 - log_p.exp()) ** gamma) * log_p

  def margin(z, margin, weight):
    gaps = z.max(dim=1, keepdim=True).values - z
    penalty = torch.relu(gaps - margin).mean(dim=1)
    return entropy(z, y) + weight * penalty

  def norm(z, tau):
    z = z / (torch.norm(z, dim=1, keepdim=True) + 1e-7) / tau
    return entropy(z, y)

  references = {
    "cross_entropy": lambda z: entropy(z, y),
    "smoothed": lambda z, alpha: entropy(z, y, label_smoothing=alpha),
    "focal": focal,
    "mbls": margin,
    "logit_norm": norm,
  }
  for name, parameters in CASES:
    if name not in references or (name == "focal" and scale == 300):
      continue  # plain powers have no gradient there
    logits = torch.tensor(scale * LOGITS, requires_grad=True)
    expected = references[name](logits, *parameters)
    expected.sum().backward()
    values, grads = evaluate(name, scale * LOGITS, *parameters)
    np.testing.assert_allclose(values, expected.detach(), rtol=1e-9)
    np.testing.assert_allclose(grads, logits.grad, rtol=1e-9, atol=1e-9)


@every_case
@pytest.mark.parametrize("shape", [(), (2, 2), (2, 1, 2)])
def test_any_number_of_axes(name, parameters, shape):
  """As in optax's losses: (batch, time, K), with labels (batch, time)."""
  loss = loss_of(name)
  logits = LOGITS.astype(np.float32)
  expected = loss(logits, LABELS, *parameters)
  count = int(np.prod(shape))
  z, y = logits[:count].reshape(*shape, K), LABELS[:count].reshape(shape)
  actual = loss(jnp.asarray(z), jnp.asarray(y), *parameters)
  chex.assert_shape(actual, shape)
  np.testing.assert_allclose(actual.ravel(), expected[:count], rtol=1e-6)


def test_focus_of_each_example():
  focus = np.array([[0.0, 1.0], [2.0, 3.0]], np.float32)
  z, y = LOGITS.astype(np.float32), LABELS
  pairs = zip(z, y, focus.ravel(), strict=True)
  expected = [calibration.focal(*one) for one in pairs]
  actual = calibration.focal(z.reshape(2, 2, K), y.reshape(2, 2), focus)
  np.testing.assert_allclose(actual.ravel(), expected, rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0])
def test_smoothed_is_optax_smooth_labels(alpha):
  z = LOGITS.reshape(2, 2, K).astype(np.float32)
  y = LABELS.reshape(2, 2)
  targets = optax.smooth_labels(jax.nn.one_hot(y, K), alpha)
  expected = optax.softmax_cross_entropy(z, targets)
  actual = calibration.smoothed(z, y, alpha)
  np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_logit_norm_of_large_float16():
  """Whose squares overflow."""
  logits = jnp.array([[300.0, 0.0, 0.0]], jnp.float16)
  (loss,) = calibration.logit_norm(logits, jnp.array([1]), 0.5)
  chex.assert_type(loss, jnp.float16)
  expected = np.log(np.exp(2.0) + 2)
  np.testing.assert_allclose(loss, expected, rtol=1e-3)


stablemax = calibration.stablemax_cross_entropy


class StablemaxTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_slope_where_formulas_meet(self):
    """At 0, and at ±1, where the unused formula is infinite."""
    logits = np.array([[0, 1, -1, 2, 0, 1], [1, 0, 0, -1, 1, 2]], np.float32)
    labels = np.array([0, 3])
    loss = lambda logits: stablemax(logits, labels).sum()
    actual = self.variant(jax.grad(loss))(logits)

    def total(logits):
      losses = [
        oracle("stablemax_cross_entropy", z, y, ())
        for z, y in zip(logits, labels, strict=True)
      ]
      return sum(losses)

    steps = 1e-5 * np.eye(logits.size).reshape(-1, *logits.shape)
    differences = [total(logits + d) - total(logits - d) for d in steps]
    expected = np.array(differences).reshape(logits.shape) / 2e-5
    np.testing.assert_allclose(actual, expected, rtol=1e-5)

  @chex.variants(with_jit=True, without_jit=True)
  def test_where(self):
    """What doesn't count may be NaN, and has no slope."""
    logits = np.array(LOGITS, np.float32)
    by_class = np.arange(K) != 2
    cases = [
      (np.array([True, False, True, False]), [0, 2], range(K)),
      (np.broadcast_to(by_class, (N, K)), range(N), np.flatnonzero(by_class)),
    ]
    for where, rows, columns in cases:
      counted = np.zeros((N, K), bool)
      counted[np.ix_(rows, columns)] = True
      loss = lambda z, where=where: stablemax(z, LABELS, where=where)
      with_slope: Any = self.variant(lambda z, f=loss: jax.vjp(f, z))
      losses, vjp = with_slope(np.where(counted, logits, np.nan))
      grads = np.asarray(vjp(jnp.ones(N))[0])
      # A class that doesn't count is as one whose s is 0.
      kept, _ = expect(
        "stablemax_cross_entropy", np.where(counted, logits, -1e30), ()
      )
      expected = np.where(np.isin(np.arange(N), rows), kept, 0)
      np.testing.assert_allclose(losses, expected, rtol=1e-6)
      assert np.all((grads != 0) == counted)


def test_stablemax_where_p_rounds_to_one():
  """1 - p is 5e-12: float32 knows it to seven digits."""
  logits = np.where(np.eye(K)[LABELS], 1e6, -1e6).astype(np.float32)
  values, grads = evaluate("stablemax_cross_entropy", logits)
  expected = expect("stablemax_cross_entropy", logits, ())
  np.testing.assert_allclose(values, expected[0], rtol=1e-5)
  np.testing.assert_allclose(grads, expected[1], rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_stablemax_of_half_precision(dtype):
  logits = jnp.asarray(1e3 * LOGITS, dtype)
  values, grads = evaluate("stablemax_cross_entropy", np.asarray(logits))
  chex.assert_type([values, grads], dtype)
  expected = expect("stablemax_cross_entropy", logits.astype(np.float32), ())
  eps = float(jnp.finfo(dtype).eps)
  np.testing.assert_allclose(values.astype(float), expected[0], rtol=eps)
  np.testing.assert_allclose(
    grads.astype(float), expected[1], rtol=eps, atol=6e-8
  )


def test_stablemax_of_excluded_classes():
  """With logits of −∞ for all others, as under a mask, there is no loss."""
  logits = np.full((N, K), -np.inf, np.float32)
  logits[np.arange(N), LABELS] = 3
  values, grads = evaluate("stablemax_cross_entropy", logits)
  assert not values.any() and not grads.any()
