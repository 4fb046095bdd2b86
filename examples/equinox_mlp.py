"""An Equinox MLP with ⊥Grad: pass the arrays of the model as parameters.

    python examples/equinox_mlp.py

The two classes overlap, so no network can classify all points correctly. Look
at the largest logit in equinox_mlp.png. With SGD it keeps growing, as the
network memorizes noise. With ⊥Grad it stays small. The printed loss and
expected calibration error (ECE), on new points, are smaller with ⊥Grad.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from orthograd_optax import calibration, orthograd_sgd, plots


def data(key, n):
  keys = jax.random.split(key)
  labels = jax.random.bernoulli(keys[0], 0.5, (n,)).astype(int)
  x = jax.random.normal(keys[1], (n, 2)) + 0.8 * (2 * labels[:, None] - 1)
  return x, labels


@eqx.filter_value_and_grad
def loss_and_grads(model, x, labels):
  logits = jax.vmap(model)(x)
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def train(optimizer, steps, every):
  """Returns the largest logit every few steps, and final metrics."""
  model = eqx.nn.MLP(2, 2, width_size=128, depth=2, key=jax.random.key(0))
  state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
  seen, new = data(jax.random.key(1), 200), data(jax.random.key(2), 5_000)

  @eqx.filter_jit
  def step(model, state):
    _, grads = loss_and_grads(model, *seen)
    params = eqx.filter(model, eqx.is_inexact_array)
    updates, state = optimizer.update(grads, state, params)
    return eqx.apply_updates(model, updates), state

  largest = []
  for i in range(1, steps + 1):
    model, state = step(model, state)
    if i % every == 0:
      largest.append(calibration.max_logit(jax.vmap(model)(new[0])))
  return jnp.array(largest), calibration.evaluate(
    jax.vmap(model)(new[0]), new[1]
  )


def main(steps=2_000, every=100, output="equinox_mlp.png"):
  optimizers = {
    "SGD": optax.sgd(0.1, momentum=0.9),
    "⊥Grad": orthograd_sgd(0.1, momentum=0.9),
  }
  curves, metrics = {}, {}
  for name, optimizer in optimizers.items():
    curves[name], metrics[name] = train(optimizer, steps, every)
    top1, loss, ece = (metrics[name][k] for k in ("accuracy", "nll", "ece"))
    print(
      f"{name:5} max logit {curves[name][-1]:5.2f}  accuracy {top1:.1%}  "
      f"loss {loss:.3f}  ECE {ece:.3f}"
    )
  panels = {"max logit": {name: x[None] for name, x in curves.items()}}
  figure = plots.curves(panels, range(every, steps + 1, every), xlabel="step")
  plots.save(figure, output)
  return metrics


if __name__ == "__main__":
  main()
