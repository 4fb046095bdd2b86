"""Where does ⊥Grad act on your network, and which leaves can you mask?

    python examples/diagnose.py

`alignment` measures the angle between each leaf and its gradient. Look at the
radial share in the printed table: the part of ‖g‖² that ⊥Grad removes. It is 0
for a kernel that a normalization follows (here conv), because that kernel is
orthogonal to its gradient already. Mask such leaves: the update stays the same
and costs less. diagnose.png shows the share of each leaf during training.
"""

from flax import nnx
import jax
import jax.numpy as jnp
import optax

from orthograd_optax import alignment, orthograd, plots, read_diagnostics


class Network(nnx.Module):
  def __init__(self, rngs):
    self.conv = nnx.Conv(3, 16, (3, 3), use_bias=False, rngs=rngs)
    self.norm = nnx.GroupNorm(16, num_groups=4, rngs=rngs)
    self.hidden = nnx.Linear(16, 64, rngs=rngs)
    self.head = nnx.Linear(64, 10, rngs=rngs)

  def __call__(self, x):
    x = nnx.relu(self.norm(self.conv(x)))
    return self.head(nnx.relu(self.hidden(x.mean((1, 2)))))


def main(steps=100, output="diagnose.png"):
  network, y = Network(nnx.Rngs(0)), jnp.arange(256) % 10
  x = jax.random.normal(jax.random.key(0), (256, 8, 8, 3))
  chain = optax.chain(orthograd(diagnostics=True), optax.sgd(0.05, 0.9))
  optimizer = nnx.Optimizer(network, chain, wrt=nnx.Param)

  @nnx.jit
  def grads_of(network):
    def loss(network):
      entropy = optax.softmax_cross_entropy_with_integer_labels
      return entropy(network(x), y).mean()

    return nnx.grad(loss)(network)

  # Train a little first: biases start at zero, and have no direction.
  update, shares = nnx.jit(lambda o, n, grads: o.update(n, grads)), {}
  for _ in range(steps):
    update(optimizer, network, grads_of(network))
    for name, group in read_diagnostics(optimizer).items():
      layer, leaf = name.split("/")
      curve = shares.setdefault(f"{layer}, %", {}).setdefault(leaf, [])
      curve.append(100 * group.cosine**2)

  grads, params = grads_of(network), nnx.state(network, nnx.Param)
  table = alignment(grads, params)
  print(table)
  orthogonal = {name for name, x in table.cosine.items() if x**2 < 1e-4}
  print("Nothing to remove, so mask:", ", ".join(sorted(orthogonal)))

  def acts_on(path, _):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    return name.removesuffix("/value") not in orthogonal

  mask = lambda tree: jax.tree_util.tree_map_with_path(acts_on, tree)
  masked, unmasked = orthograd(mask=mask), orthograd()
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
