"""The calls that docs/guides/from_pytorch.md names side by side."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from orthograd_optax import calibration, orthograd, orthograd_sgd


def formula(w, g, eps):
  """The projection of the authors' code and of HeavyBall, in float64."""
  perpendicular = g - np.sum(w * g) / (np.sum(w * w) + eps) * w
  lengths = np.linalg.norm(g), np.linalg.norm(perpendicular) + eps
  return perpendicular * lengths[0] / lengths[1]


def test_epsilon():
  """With HeavyBall's 1e-8, weights of norm 1e-4 are projected by half."""
  w, g = np.random.default_rng(0).normal(size=(2, 50))
  w *= 1e-4 / np.linalg.norm(w)
  g += 1e5 * w
  params, grads = jnp.asarray(w, jnp.float32), jnp.asarray(g, jnp.float32)
  ours, _ = orthograd().update(grads, optax.EmptyState(), params)
  authors, heavyball = (formula(w, g, eps) for eps in (1e-30, 1e-8))
  np.testing.assert_allclose(ours, authors, rtol=1e-4, atol=1e-5)
  cosine = lambda x: x @ w / np.linalg.norm(x) / np.linalg.norm(w)
  assert abs(cosine(np.float64(ours))) < 1e-6 and cosine(heavyball) > 0.5


def test_steps_beside_pytorch_optimizer():
  """20 steps of SGD with momentum and weight decay."""
  torch = pytest.importorskip("torch")
  peer = pytest.importorskip("pytorch_optimizer")
  rng = np.random.default_rng(0)
  start = {"kernel": rng.normal(size=(8, 5)), "bias": rng.normal(size=8)}
  start = {k: x.astype(np.float32) for k, x in start.items()}
  x, y = rng.normal(size=(32, 5)).astype(np.float32), rng.integers(0, 8, 32)

  theirs = {k: torch.nn.Parameter(torch.tensor(w)) for k, w in start.items()}
  options = {"momentum": 0.9, "weight_decay": 1e-2}
  base = torch.optim.SGD(theirs.values(), lr=0.1, **options)
  their_optimizer = peer.OrthoGrad(base)
  ours = jax.tree.map(jnp.asarray, start)
  optimizer = orthograd_sgd(0.1, **options)
  state = optimizer.init(ours)

  def loss(params):
    logits = x @ params["kernel"].T + params["bias"][None]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

  for _ in range(20):
    their_optimizer.zero_grad()
    logits = torch.tensor(x) @ theirs["kernel"].T + theirs["bias"]
    torch.nn.functional.cross_entropy(logits, torch.tensor(y)).backward()
    their_optimizer.step()
    updates, state = optimizer.update(jax.grad(loss)(ours), state, ours)
    ours = optax.apply_updates(ours, updates)
  for name, w in ours.items():
    np.testing.assert_allclose(w, theirs[name].detach(), atol=1e-6)


RANDOM = np.random.default_rng(0)
LOGITS = 3 * RANDOM.normal(size=(500, 4))
LABELS = np.where(
  RANDOM.random(500) < 0.6, LOGITS.argmax(1), RANDOM.integers(0, 4, 500)
)
P = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
METRICS = {
  "l1": calibration.ece,
  "l2": calibration.rms_calibration_error,
  "max": calibration.mce,
}


@pytest.mark.parametrize("norm", METRICS)
def test_torchmetrics(norm):
  torch = pytest.importorskip("torch")
  theirs = pytest.importorskip("torchmetrics.functional.classification")
  probabilities, labels = torch.tensor(P), torch.tensor(LABELS)
  expected = theirs.multiclass_calibration_error(
    probabilities, labels, 4, 15, norm
  )
  actual = METRICS[norm](LOGITS, LABELS, num_bins=15)
  np.testing.assert_allclose(actual, expected, rtol=1e-6)
  # Ours take tensors, too.
  tensors = METRICS[norm](torch.tensor(LOGITS), labels, num_bins=15)
  np.testing.assert_array_equal(tensors, actual)


@pytest.mark.parametrize("name", ["ECE", "MCE"])
def test_netcal(name):
  theirs = getattr(pytest.importorskip("netcal.metrics"), name)(15)
  ours = {"ECE": calibration.ece, "MCE": calibration.mce}[name]
  actual = ours(LOGITS, LABELS, num_bins=15)
  np.testing.assert_allclose(actual, theirs.measure(P, LABELS), rtol=1e-6)


def test_sklearn():
  metrics = pytest.importorskip("sklearn.metrics")
  expected = metrics.log_loss(LABELS, P)
  actual = calibration.nll(LOGITS, LABELS)
  np.testing.assert_allclose(actual, expected, rtol=1e-6)
  brier = metrics.brier_score_loss(LABELS, P, scale_by_half=False)
  actual = calibration.brier(LOGITS, LABELS)
  np.testing.assert_allclose(actual, brier, rtol=1e-6)
