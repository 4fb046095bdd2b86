"""Addition mod 113: AdamW memorizes, AdamW with ⊥Grad generalizes.

    python examples/grokking.py

Three networks learn the same 40 % of all sums a + b mod 113. Look at the other
60 %, printed and drawn in grokking.png. AdamW gets almost none of them right:
it lowers its loss by growing the weights (Prieto et al., 2025,
arXiv:2501.04697). ⊥AdamW gets 99 % of them right within 150 steps. StableMax,
the paper's other remedy, keeps the gradients of fitted sums from rounding to
zero. AdamW with StableMax does not generalize within these steps.
"""

import jax
import jax.numpy as jnp
import optax

from orthograd_optax import calibration, orthograd_adamw, plots

P = 113
softmax = optax.losses.softmax_cross_entropy_with_integer_labels
stablemax = calibration.stablemax_cross_entropy


def sums(key):
  """Returns one-hot pairs and their sums: 40 % to train on, and the others."""
  a, b = jnp.divmod(jnp.arange(P * P), P)
  x = jnp.concatenate([jax.nn.one_hot(a, P), jax.nn.one_hot(b, P)], axis=1)
  y = (a + b) % P
  shuffled = jax.random.permutation(key, P * P)
  train, test = jnp.split(shuffled, [int(0.4 * P * P)])
  return (x[train], y[train]), (x[test], y[test])


def init(key):
  """Creates a network without biases, initialized as in PyTorch."""
  shapes = (2 * P, 200), (200, 200), (200, P)
  keys = jax.random.split(key, len(shapes))
  draw = lambda key, shape: jax.random.uniform(key, shape, minval=-1, maxval=1)
  return [draw(k, s) / s[0] ** 0.5 for k, s in zip(keys, shapes, strict=True)]


def apply(params, x):
  first, second, last = params
  return jax.nn.relu(jax.nn.relu(x @ first) @ second) @ last


def train(optimizer, entropy, steps, every):
  """Returns accuracies on training and other sums, every few steps."""
  data, unseen = sums(jax.random.key(0))
  state = optimizer.init(params := init(jax.random.key(2)))
  loss = lambda params: entropy(apply(params, data[0]), data[1]).mean()

  @jax.jit
  def step(params, state):
    updates, state = optimizer.update(jax.grad(loss)(params), state, params)
    return optax.apply_updates(params, updates), state

  right = jax.jit(lambda params, x, y: (apply(params, x).argmax(1) == y).mean())
  accuracies = []
  for i in range(1, steps + 1):
    params, state = step(params, state)
    if i % every == 0:
      accuracies.append([100 * right(params, *part) for part in (data, unseen)])
  return jnp.array(accuracies)


def main(steps=160, every=10, output="grokking.png"):
  adamw = optax.adamw(0.01, weight_decay=0.0)
  orthogonal = orthograd_adamw(0.01, weight_decay=0.0)
  curves = {
    "AdamW": train(adamw, softmax, steps, every),
    "⊥AdamW": train(orthogonal, softmax, steps, every),
    "AdamW, StableMax": train(adamw, stablemax, steps, every),
  }
  panels = {
    title: {name: both[None, :, i] for name, both in curves.items()}
    for i, title in enumerate(["sums trained on, %", "other sums, %"])
  }
  figure = plots.curves(panels, range(every, steps + 1, every), xlabel="step")
  plots.save(figure, output)
  for name, both in curves.items():
    seen, new = both[-1]
    print(
      f"{name:16} right on {seen:.1f} % of training sums, {new:.1f} % of others"
    )
  return curves


if __name__ == "__main__":
  main()
