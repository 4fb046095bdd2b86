"""The theorems on ⊥Grad, on problems small enough to follow to the limit.

Theorem 3.1, without renormalization: if ∇L is k-Lipschitz, L ≥ L_inf and
η < 1/k, each step lowers L by at least η(1 − ηk/2)‖gₙ‖². The paper goes on from
Σ‖θₙ₊₁ − θₙ‖² < ∞ to "Cauchy", which does not follow (think of steps 1/n). What
does is tested here: gₙ → 0, ‖θₙ‖ is non-decreasing and bounded, and at every
limit point the gradient is parallel to θ, in each group.
"""

import functools
from typing import Any, NamedTuple

import hypothesis
from hypothesis import strategies as st
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from orthograd_optax import orthograd


@pytest.fixture(autouse=True)
def float64():
  with jax.enable_x64(True):
    yield


class Path(NamedTuple):
  """What each step saw and did, in one row, as flat vectors."""

  params: Any
  loss: Any
  grads: Any
  updates: Any


@functools.partial(
  jax.jit,
  static_argnames=("loss", "steps", "renormalize", "group_by", "eps"),
)
def _scan(loss, params, learning_rate, data, steps, **options):
  optimizer = optax.chain(orthograd(**options), optax.sgd(learning_rate))

  def step(carry, _):
    params, state = carry
    value, grads = jax.value_and_grad(loss)(params, *data)
    updates, state = optimizer.update(grads, state, params)
    seen = Path(params, value, grads, updates)
    return (optax.apply_updates(params, updates), state), seen

  carry = params, optimizer.init(params)
  (params, _), path = lax.scan(step, carry, length=steps)
  return params, path


def descend(loss, params, learning_rate, *data, steps=500, **options):
  """The parameters after some steps of SGD with ⊥Grad, and the path there."""
  params, path = _scan(loss, params, learning_rate, data, steps, **options)
  flat = lambda tree: np.concatenate(
    [np.reshape(x, (steps, -1)) for x in jax.tree.leaves(tree)], axis=1
  )
  return params, Path(flat(path[0]), np.asarray(path[1]), *map(flat, path[2:]))


def squares(x):
  return np.sum(x * x, axis=-1)


def assert_close(actual, desired, atol):
  np.testing.assert_allclose(actual, desired, rtol=0, atol=atol)


def assert_pythagoras(squares, step_squares, rtol=1e-13):
  grown = squares[:-1] + step_squares[:-1]
  np.testing.assert_allclose(squares[1:], grown, rtol=rtol)


# Losses of z = XW, and a bound on their second derivative in z, so that for n
# samples k = bound · λmax(XᵀX) / n. All are ≥ 0, and the last two not convex.
LOSSES = {
  "squares": (lambda z, y: 0.5 * (z - y) ** 2, 1.0),
  "logistic": (
    lambda z, y: optax.softmax_cross_entropy(z, jax.nn.softmax(y)),
    0.5,
  ),
  "cauchy": (lambda z, y: jnp.log1p((z - y) ** 2), 2.0),
  "cosine": (lambda z, y: 1 - jnp.cos(z - y), 1.0),
}

# To which group each of the parameters of `problem` belongs.
GROUPS = {
  "leaf": np.repeat([0, 1, 2, 3], [2, 4, 3, 3]),
  "layer": np.repeat([0, 1], [6, 6]),
  "global": np.repeat([0], [12]),
}

each_loss = pytest.mark.parametrize("loss", LOSSES)
each_group_by = pytest.mark.parametrize("group_by", GROUPS)
seeds = st.integers(0, 2**32 - 1)
fractions, factors = st.floats(0.01, 0.99), st.floats(1e-3, 1e3)
few = hypothesis.settings(max_examples=hypothesis.settings().max_examples // 5)


@functools.cache
def objective(name):
  def loss(params, x, y):
    # Which numbers form a group means nothing to the theorem.
    w = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(params)])
    return LOSSES[name][0](x @ w.reshape(4, 3), y).sum() / len(x)

  return loss


def problem(name, seed):
  """Returns parameters with a leaf of zeros, data, and k."""
  rng = np.random.default_rng(seed)
  normal = lambda *shape: 0.3 * rng.normal(size=shape)
  params = {
    "one": {"bias": normal(2), "kernel": normal(2, 2)},
    "two": {"bias": np.zeros(3), "kernel": normal(3)},
  }
  x, y = rng.normal(size=(16, 4)), 3 * rng.normal(size=(16, 3))
  return params, (x, y), LOSSES[name][1] * np.linalg.norm(x, 2) ** 2 / len(x)


def by_group(group_by, x):
  """The sum over each group."""
  groups = GROUPS[group_by]
  return x @ np.eye(1 + max(groups))[groups]


def project(group_by, w, g):
  """⊥Grad without renormalization, by its definition."""
  wg, ww = by_group(group_by, w * g), by_group(group_by, w * w)
  c = wg / np.where(ww == 0, 1, ww)
  return g - c[:, GROUPS[group_by]] * w


@pytest.mark.mostly_slow(5)
@each_group_by
@each_loss
@few
@hypothesis.given(seed=seeds, fraction=fractions)
def test_each_step_descends(loss, group_by, seed, fraction):
  params, data, k = problem(loss, seed)
  eta = fraction / k
  options = dict(group_by=group_by, renormalize=False)
  _, path = descend(objective(loss), params, eta, *data, **options)
  g = project(group_by, path.params, path.grads)
  assert_close(path.updates, -eta * g, 1e-14 * eta * abs(path.grads).max())

  drop = eta * (1 - eta * k / 2) * squares(g)
  rounding = 1e-14 * (1 + path.loss[0])
  assert np.all(path.loss[1:] <= path.loss[:-1] - drop[:-1] + rounding)
  assert drop.sum() <= path.loss[0]

  norms = by_group(group_by, path.params**2)
  assert_pythagoras(norms, by_group(group_by, (eta * g) ** 2))
  assert np.all(norms[1:] >= norms[:-1] * (1 - 1e-14))
  bound = eta * path.loss[0] / (1 - eta * k / 2)
  assert np.sum(norms[-1]) <= np.sum(norms[0]) + bound


@each_group_by
@each_loss
def test_limit_is_parallel_and_not_stationary(loss, group_by):
  params, data, k = problem(loss, 1)
  options = dict(group_by=group_by, renormalize=False)
  _, path = descend(objective(loss), params, 0.99 / k, *data, **options)
  g = path.grads[-1:]
  rest = project(group_by, path.params[-1:], g)
  norms = by_group(group_by, g * g)
  assert np.all(norms > 1e-2**2)
  assert np.all(by_group(group_by, rest * rest) < 1e-9**2 * norms)


@each_group_by
@few
@hypothesis.given(seed=seeds, fraction=fractions)
def test_renormalized_steps_are_as_long_as_gradients(group_by, seed, fraction):
  # Hence no convergence unless the gradient vanishes.
  params, data, k = problem("cauchy", seed)
  eta = fraction / k
  loss = objective("cauchy")
  _, path = descend(loss, params, eta, *data, group_by=group_by)
  steps = by_group(group_by, path.updates**2)
  gradients = by_group(group_by, (eta * path.grads) ** 2)
  np.testing.assert_allclose(steps, gradients, rtol=1e-13)
  # Rounding is magnified with the step, by ‖∇L‖/‖g‖.
  assert_pythagoras(by_group(group_by, path.params**2), gradients, rtol=1e-10)


@pytest.mark.parametrize("sign", [-1, 1])
def test_renormalized_stops_where_the_gradient_is_parallel(sign):
  w = np.random.default_rng(0).normal(size=4)
  rotation = np.kron([[1, 1], [1, -1]], [[1, 1], [1, -1]])  # up to a factor
  # The rotation and its inverse leave rounding errors, which must not matter.
  _, path = descend(lambda w: sign * jnp.sum((rotation @ w) ** 2), w, 0.1)
  np.testing.assert_array_equal(path.params, np.broadcast_to(w, (500, 4)))


def bowl(w, bottom):
  return 0.5 * jnp.sum((w - bottom) ** 2)


def test_renormalized_converges_to_a_stationary_point_or_not_at_all():
  w, direction = np.array([0.6, 0.8, 0.0]), np.array([0.0, 0.6, 0.8])
  eta, steps = 0.5, 20_000
  # It zigzags about the ray to a bottom further out, and only this lets ‖w‖
  # grow: the gap r closes as dr/dn = −η²r²/2‖bottom‖.
  _, path = descend(bowl, w, eta, 2 * direction, steps=steps)
  gap = np.sqrt(squares(path.grads[-1]))
  np.testing.assert_allclose(gap, 2 * 2 / eta**2 / steps, rtol=0.1)
  # It can't come back to one further in, and runs away.
  _, path = descend(bowl, w, eta, 0.5 * direction, steps=100)
  assert np.all(squares(path.updates) >= (eta * 0.5) ** 2)
  assert squares(path.params[-1]) > 1e8


def test_renormalized_with_a_large_epsilon_may_stop_short():
  # The lemma's proof bounds ‖g‖ + ε from the wrong side: it needs ε ≪ ‖g‖.
  w, bottom = np.array([0.6, 0.8, 0.0]), np.array([0.0, 1.2, 1.6])
  w, _ = descend(bowl, w, 0.5, bottom, eps=10.0)
  assert_close(w / np.linalg.norm(w), bottom / 2, 1e-15)
  assert np.linalg.norm(w - bottom) > 0.9


LAYERS = ("hidden", "middle", "out")


def network(params, x):
  """Logits of an MLP without biases: positively homogeneous in each layer."""
  for name in LAYERS[:-1]:
    x = jax.nn.relu(x @ params[name])
  return x @ params["out"]


def cross_entropy(params, x, y):
  logits = network(params, x)
  return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


gradient = jax.jit(jax.grad(cross_entropy))


def layers(function, *trees):
  return np.array([function(*[t[name] for t in trees]) for name in LAYERS])


def ring(seed):
  """A network; points in three sectors, and a constant; the sectors."""
  rng = np.random.default_rng(seed)
  angle = np.linspace(0, 2 * np.pi, 24, endpoint=False)
  r = rng.uniform(0.5, 1.5, 24)
  x = np.stack([r * np.cos(angle), r * np.sin(angle), np.ones(24)], axis=1)
  shapes = zip(LAYERS, [(3, 6), (6, 5), (5, 3)], strict=True)
  params = {name: 0.5 * rng.normal(size=shape) for name, shape in shapes}
  return params, x, np.arange(24) // 8


@hypothesis.settings(max_examples=3 * hypothesis.settings().max_examples // 5)
@hypothesis.given(seed=seeds, layer=st.sampled_from(LAYERS), c=factors)
def test_network_is_homogeneous(seed, layer, c):
  params, x, y = ring(seed)
  scaled = network(params | {layer: c * params[layer]}, x)
  assert_close(scaled / c, network(params, x), 1e-13)
  # Euler's identity: all layers have the same ⟨w, ∇L⟩.
  grads = gradient(params, x, y)
  radial = layers(np.vdot, params, grads)
  assert_close(radial, radial[0], 1e-14)


def trained(strength):
  """A trained network, its gradient, and its loss as a function."""
  # Most other seeds end up hopping over a kink of a ReLU, where ∇L is not
  # Lipschitz: then nothing is promised.
  start, x, y = ring(3)
  options = dict(steps=5_000, renormalize=False, strength=strength)
  params, _ = descend(cross_entropy, start, 0.3, x, y, **options)
  return params, gradient(params, x, y), lambda p: cross_entropy(p, x, y)


def cosines(params, grads):
  norms = layers(np.linalg.norm, params) * layers(np.linalg.norm, grads)
  return layers(np.vdot, params, grads) / norms


def move(params, grads, share):
  """Goes downhill until the first layer has moved by a share of its norm."""
  norms = layers(np.linalg.norm, params) / layers(np.linalg.norm, grads)
  return jax.tree.map(lambda w, g: w - share * norms.min() * g, params, grads)


def predict(params):
  """Labels and confidence on a grid."""
  axis = np.linspace(-2, 2, 121)
  grid = np.stack([x.ravel() for x in np.meshgrid(axis, axis, 1.0)], axis=1)
  p = np.asarray(jax.nn.softmax(network(params, grid)))
  return p.argmax(axis=1), p.max(axis=1)


def test_at_the_limit_only_confidence_can_grow():
  params, grads, loss = trained(strength=1.0)
  assert np.all(cosines(params, grads) < -1 + 1e-12)
  ends = [move(params, grads, share) for share in (0.0, 0.1, 0.3, 1.0)]
  labels, confidence = zip(*map(predict, ends), strict=True)
  assert np.all(np.bincount(labels[0]) > 1000)
  assert np.all(np.diff(labels, axis=0) == 0)
  assert np.all(np.diff(confidence, axis=0) > 0)
  assert np.all(np.diff([loss(end) for end in ends]) < 0)


def test_elsewhere_the_boundary_moves():
  params, grads, _ = trained(strength=1.0)
  rng = np.random.default_rng(0)  # to go as far, in another direction
  shuffled = {name: rng.permuted(g) for name, g in grads.items()}
  sgd, sgd_grads, _ = trained(strength=0.0)
  for w, g in ((params, shuffled), (sgd, sgd_grads)):
    assert np.all(np.abs(cosines(w, g)) < 0.97)
    assert np.sum(predict(move(w, g, 1.0))[0] != predict(w)[0]) > 100


def normalized(w, x, y):
  """A loss that does not depend on the norm of w."""
  z = x @ w
  z = (z - z.mean(axis=0, keepdims=True)) / z.std(axis=0, keepdims=True)
  return optax.softmax_cross_entropy_with_integer_labels(z, y).mean()


@pytest.mark.parametrize("renormalize", [False, True])
@few
@hypothesis.given(seed=seeds, c=factors)
def test_scale_invariant_layers_are_left_alone(renormalize, seed, c):
  rng = np.random.default_rng(seed)
  w, x = c * rng.normal(size=(4, 3)), rng.normal(size=(16, 4))
  eta = 0.1 * c * c  # the gradient goes as 1/c
  y = np.arange(16) % 3
  _, path = descend(normalized, w, eta, x, y, renormalize=renormalize)
  g = path.grads
  assert_close(path.updates, -eta * g, 1e-13 * eta * abs(g).max())
  assert_pythagoras(squares(path.params), squares(eta * g))
