"""Where does ⊥Grad act on your network, and which leaves can you mask?

    python examples/diagnose.py

`alignment` measures the angle between each leaf and its gradient. Look at the
radial share in the printed table: the part of ‖g‖² that ⊥Grad removes. It is 0
for a kernel that a normalization follows, because that kernel is orthogonal to
its gradient already. Mask such leaves: the update stays the same and costs
less. diagnose.png shows the share of each leaf during training.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp
import optax

from orthograd_optax import alignment, orthograd, plots


class Network(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = nn.Conv(16, (3, 3), use_bias=False)(x)
    x = nn.relu(nn.GroupNorm(4, name="norm")(x))
    x = nn.relu(nn.Dense(64, name="hidden")(x.mean((1, 2))))
    return nn.Dense(10, name="head")(x)


def main(steps=100, output="diagnose.png"):
  network = Network()
  x = jax.random.normal(jax.random.key(0), (256, 8, 8, 3))
  labels = jnp.arange(256) % 10
  params = network.init(jax.random.key(1), x)["params"]

  @jax.jit
  def grads_of(params):
    def loss(params):
      logits = network.apply({"params": params}, x)
      return optax.losses.softmax_cross_entropy_with_integer_labels(
        logits, labels
      ).mean()

    return jax.grad(loss)(params)

  # Train a little first: biases start at zero, and have no direction.
  watched = orthograd(diagnostics=True)
  optimizer = optax.chain(watched, optax.sgd(0.05, momentum=0.9))
  state, shares = optimizer.init(params), {}
  update = jax.jit(optimizer.update)
  for _ in range(steps):
    updates, state = update(grads_of(params), state, params)
    params = optax.apply_updates(params, updates)
    for name, share in state[0].removed_fraction.items():
      shares.setdefault(name, []).append(100 * share)

  table = alignment(grads_of(params), params)
  print(table)
  orthogonal = {name for name, x in table.radial_fraction.items() if x < 1e-4}
  print("Nothing to remove, so mask:", ", ".join(sorted(orthogonal)))

  def acts_on(path, _):
    return (
      jax.tree_util.keystr(path, simple=True, separator="/") not in orthogonal
    )

  mask = lambda tree: jax.tree_util.tree_map_with_path(acts_on, tree)
  masked, unmasked = orthograd(mask=mask), orthograd()
  grads = grads_of(params)
  a, _ = masked.update(grads, masked.init(params), params)
  b, _ = unmasked.update(grads, unmasked.init(params), params)
  change = optax.tree.norm(optax.tree.sub(a, b)) / optax.tree.norm(b)
  print(f"The masked update differs by {float(change):.1e} of its norm.")
  curves = {"removed share of ‖g‖², %": shares}
  curves = {
    k: {n: jnp.array([x]) for n, x in v.items()} for k, v in curves.items()
  }
  plots.save(plots.curves(curves, range(steps), xlabel="step"), output)
  return table, float(change)


if __name__ == "__main__":
  main()
