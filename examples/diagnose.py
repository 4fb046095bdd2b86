"""Where does ⊥Grad act on your network, and which leaves can you mask?

    python examples/diagnose.py

`alignment` measures the angle between each leaf and its gradient. Look at the
radial share in the printed table: the part of ‖g‖² that ⊥Grad removes. It is 0
for a kernel that a normalization follows (here Conv_0), because that kernel is
orthogonal to its gradient already. Mask such leaves: the update stays the same
and costs less. diagnose.png shows the share of each leaf during training.
"""

from flax import linen as nn
import jax
import jax.numpy as jnp
import optax

from orthograd_optax import alignment, orthograd, plots, read_diagnostics


class Network(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = nn.Conv(16, (3, 3), use_bias=False)(x)
    x = nn.relu(nn.GroupNorm(4, name="norm")(x))
    x = nn.relu(nn.Dense(64, name="hidden")(x.mean((1, 2))))
    return nn.Dense(10, name="head")(x)


def main(steps=100, output="diagnose.png"):
  network, y = Network(), jnp.arange(256) % 10
  x = jax.random.normal(jax.random.key(0), (256, 8, 8, 3))
  params = network.init(jax.random.key(1), x)["params"]

  @jax.jit
  def grads_of(params):
    def loss(params):
      logits = network.apply({"params": params}, x)
      return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    return jax.grad(loss)(params)

  # Train a little first: biases start at zero, and have no direction.
  transform, sgd = orthograd(diagnostics=True), optax.sgd(0.05, momentum=0.9)
  optimizer = optax.chain(transform, sgd)
  state, shares = optimizer.init(params), {}
  update = jax.jit(optimizer.update)
  for _ in range(steps):
    updates, state = update(grads_of(params), state, params)
    params = optax.apply_updates(params, updates)
    for name, group in read_diagnostics(state).items():
      layer, leaf = name.split("/")
      curve = shares.setdefault(f"{layer}, %", {}).setdefault(leaf, [])
      curve.append(100 * group.removed_fraction)

  table = alignment(grads_of(params), params)
  print(table)
  orthogonal = {name for name, x in table.radial_fraction.items() if x < 1e-4}
  print("Nothing to remove, so mask:", ", ".join(sorted(orthogonal)))

  def acts_on(path, _):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    return name not in orthogonal

  mask = lambda tree: jax.tree_util.tree_map_with_path(acts_on, tree)
  masked, unmasked = orthograd(mask=mask), orthograd()
  grads = grads_of(params)
  a, _ = masked.update(grads, masked.init(params), params)
  b, _ = unmasked.update(grads, unmasked.init(params), params)
  change = optax.tree.norm(optax.tree.sub(a, b)) / optax.tree.norm(b)
  print(f"The masked update differs by {float(change):.1e} of its norm.")
  title = "Share of ‖g‖² that ⊥Grad removes, by layer"
  figure = plots.curves(shares, range(steps), xlabel="step", title=title)
  for axis in figure.axes:
    axis.set_ylim(-5, 105)
  plots.save(figure, output)
  return table, float(change)


if __name__ == "__main__":
  main()
