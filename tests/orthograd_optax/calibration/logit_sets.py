"""Logits and labels that tests share, and their numbers in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special
from sklearn import datasets

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


# Of one shape, so that they share programs.
FAST = ("ten classes", "extreme logits")


def softmax64(logits):
  return special.softmax(np.asarray(logits, np.float64), axis=1)


def confidence64(logits, labels):
  p = softmax64(logits)
  return p.max(axis=1), p.argmax(axis=1) == labels


def log_odds64(logits):
  top = np.sort(np.asarray(logits, np.float64), axis=1)
  return top[:, -1] - special.logsumexp(top[:, :-1], axis=1)


def binned(logits, labels, num_bins=10):
  """Indices of the images in each bin (lo, hi], by a plain loop."""
  confidence, _ = confidence64(logits, labels)
  return [
    np.flatnonzero((confidence > b / num_bins) & (confidence <= hi / num_bins))
    for b, hi in zip(range(num_bins), range(1, num_bins + 1), strict=True)
  ]


def assert_close(actual, expected, rtol=1e-6, atol=1e-7):
  np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)
