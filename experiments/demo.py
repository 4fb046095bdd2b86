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

from orthograd_optax import calibration, orthograd_sgd, stats

CLASSES, FEATURES, WIDTH = 5, 20, 48
TRAIN, TEST = 250, 2000


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


def run(strength, seed, steps):
  """Trains one network; its metrics on the points it has not seen."""
  keys = jax.random.split(jax.random.key(seed), 4)
  centers = 0.6 * jax.random.normal(keys[0], (CLASSES, FEATURES))
  x, labels = sample(keys[1], centers, TRAIN)
  test_x, test_labels = sample(keys[2], centers, TEST)
  optimizer = orthograd_sgd(0.05, momentum=0.9, strength=strength)
  params = init(keys[3])

  def step(carry, _):
    params, state = carry
    objective = lambda params: calibration.nll(network(params, x), labels)
    updates, state = optimizer.update(
      jax.grad(objective)(params), state, params
    )
    return (optax.apply_updates(params, updates), state), None

  carry = params, optimizer.init(params)
  (params, _), _ = jax.lax.scan(step, carry, length=steps)
  metrics = calibration.evaluate(network(params, test_x), test_labels)
  metrics["norm of the weights"] = optax.tree.norm(params)
  metrics["loss in training"] = calibration.nll(network(params, x), labels)
  return metrics


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
  # With five classes, five guesses are always right.
  names = [name for name in rows if name != "top5"]
  sgd, ours = ({name: rows[name][i] for name in names} for i in (0, 1))
  table = stats.compare_table(sgd, ours, paired=True, names=("SGD", "⊥Grad"))
  print(f"\nOn {TEST} points that it has not seen:\n\n{table}")
  print(
    f"Mean ± standard deviation over {args.seeds} seeds; d: Cohen's effect size"
    " of SGD less\n⊥Grad, and its interval; p: of the paired t-test, for both"
    " get the same seeds."
  )


if __name__ == "__main__":
  main()
