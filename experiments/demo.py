"""SGD beside ⊥Grad on a problem that takes a minute: `make demo`.

A network without biases learns to tell overlapping clouds of points apart from
so few of them that it can fit all. From then on, plain gradient descent lowers
the loss by scaling the weights up, which makes it surer and no better; ⊥Grad
can't. All runs, of both optimizers, are one compiled program: SGD is ⊥Grad of
strength 0, and a seed gives both the same start and the same data.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import optax

from orthograd_optax import orthograd_sgd

CLASSES, FEATURES, WIDTH = 5, 20, 48
TRAIN, TEST = 250, 2000
BINS = 10
FIGURES = (
  "accuracy, %",
  "loss",
  "calibration error",
  "confidence",
  "largest |logit|",
  "norm of the weights",
  "loss in training",
)


def sample(key, centers, count):
  """Points around the centers, and the number of the center of each."""
  label_key, noise_key = jax.random.split(key)
  labels = jax.random.randint(label_key, (count,), 0, CLASSES)
  noise = jax.random.normal(noise_key, (count, FEATURES))
  return centers[labels] + noise, labels


def init(key):
  sizes = [FEATURES, WIDTH, WIDTH, CLASSES]
  keys = jax.random.split(key, len(sizes) - 1)
  he = jax.nn.initializers.he_normal()
  return [
    he(k, shape)
    for k, shape in zip(keys, zip(sizes, sizes[1:], strict=False), strict=True)
  ]


def network(params, x):
  *hidden, last = params
  for kernel in hidden:
    x = jax.nn.relu(x @ kernel)
  return x @ last


def cross_entropy(logits, labels):
  return optax.losses.softmax_cross_entropy_with_integer_labels(
    logits, labels
  ).mean()


def calibration_error(confidence, correct):
  """The gap between confidence and accuracy, averaged over bins of (lo, hi]."""
  bins = jnp.clip(jnp.ceil(confidence * BINS) - 1, 0, BINS - 1).astype(int)
  gaps = jnp.zeros(BINS).at[bins].add(confidence - correct)
  return jnp.abs(gaps).sum() / len(confidence)


def run(strength, seed, steps):
  """Trains one network; a row of figures on the points it has not seen."""
  keys = jax.random.split(jax.random.key(seed), 4)
  centers = 0.6 * jax.random.normal(keys[0], (CLASSES, FEATURES))
  x, labels = sample(keys[1], centers, TRAIN)
  test_x, test_labels = sample(keys[2], centers, TEST)
  optimizer = orthograd_sgd(0.05, momentum=0.9, strength=strength)
  params = init(keys[3])

  def step(carry, _):
    params, state = carry
    objective = lambda params: cross_entropy(network(params, x), labels)
    updates, state = optimizer.update(
      jax.grad(objective)(params), state, params
    )
    return (optax.apply_updates(params, updates), state), None

  carry = params, optimizer.init(params)
  (params, _), _ = jax.lax.scan(step, carry, length=steps)
  logits = network(params, test_x)
  confidence = jax.nn.softmax(logits).max(-1)
  correct = logits.argmax(-1) == test_labels
  return {
    "loss in training": cross_entropy(network(params, x), labels),
    "accuracy, %": 100 * correct.mean(),
    "loss": cross_entropy(logits, test_labels),
    "confidence": confidence.mean(),
    "calibration error": calibration_error(confidence, correct),
    "largest |logit|": jnp.abs(logits).max(-1).mean(),
    "norm of the weights": optax.tree.norm(params),
  }


def main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--seeds", type=int, default=10, help="runs of each optimizer (10)"
  )
  parser.add_argument(
    "--steps", type=int, default=1500, help="full-batch steps a run (1500)"
  )
  args = parser.parse_args()
  if args.seeds < 2 or args.steps < 1:
    parser.error("--seeds must be at least 2, and --steps at least 1")
  over_seeds = jax.vmap(functools.partial(run, steps=args.steps), (None, 0))
  over_both = jax.jit(jax.vmap(over_seeds, (0, None)))
  print(
    f"Training 2 × {args.seeds} networks on {TRAIN} points each,"
    f" {args.steps} steps, on {jax.devices()[0]} …"
  )
  rows = over_both(jnp.array([0.0, 1.0]), jnp.arange(args.seeds))
  head = "".join(f"{name:>18}" for name in ("SGD", "⊥Grad", "difference"))
  print(f"\n{'on unseen points':20}{head}")
  for name in FIGURES:
    sgd, orthograd = rows[name]
    error = jnp.std(orthograd - sgd, ddof=1) / args.seeds**0.5
    print(
      f"{name:20}"
      f"{f'{sgd.mean():.3f} ± {sgd.std(ddof=1):.3f}':>18}"
      f"{f'{orthograd.mean():.3f} ± {orthograd.std(ddof=1):.3f}':>18}"
      f"{f'{(orthograd - sgd).mean():+.3f} ± {error:.3f}':>18}"
    )
  print(
    f"\nMean ± standard deviation over {args.seeds} seeds; difference: mean ±"
    " standard error\nof the differences between two runs of the same seed."
  )


if __name__ == "__main__":
  main()
