"""A Flax NNX classifier with ⊥Grad, before and after temperature scaling.

    python examples/flax_nnx.py

Trains a network on noisy labels, with SGD and with ⊥Grad. Look at the expected
calibration error (ECE), printed and drawn in flax_nnx.png. Both networks are
overconfident, ⊥Grad's less so. A temperature is one number that divides all
logits. Fitted on held-out examples, it removes most of the ECE of both
networks.
"""

from flax import nnx
import jax
import jax.numpy as jnp
import optax

from orthograd_optax import calibration, orthograd, plots


class Classifier(nnx.Module):
  def __init__(self, rngs):
    self.hidden = nnx.Linear(20, 256, rngs=rngs)
    self.head = nnx.Linear(256, 5, rngs=rngs)

  def __call__(self, x):
    return self.head(nnx.relu(self.hidden(x)))


def data(key, n):
  """Draws points around five centres. A quarter get a random label."""
  keys = jax.random.split(key, 4)
  labels = jax.random.randint(keys[0], (n,), 0, 5)
  centres = jax.random.normal(jax.random.key(7), (5, 20))
  x = centres[labels] + 1.5 * jax.random.normal(keys[1], (n, 20))
  noisy = jax.random.bernoulli(keys[2], 0.25, (n,))
  return x, jnp.where(noisy, jax.random.randint(keys[3], (n,), 0, 5), labels)


def loss_of(model, x, labels):
  logits = model(x)
  return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@nnx.jit
def train_step(model, optimizer, x, labels):
  loss, grads = nnx.value_and_grad(loss_of)(model, x, labels)
  optimizer.update(model, grads)
  return loss


def train(transform, steps):
  model = Classifier(nnx.Rngs(0))
  optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)
  x, labels = data(jax.random.key(0), 1_000)
  for _ in range(steps):
    train_step(model, optimizer, x, labels)
  return model


def main(steps=1_500, output="flax_nnx.png"):
  momentum = optax.sgd(0.1, momentum=0.9)
  transforms = {"SGD": momentum, "⊥Grad": optax.chain(orthograd(), momentum)}
  x, labels = data(jax.random.key(1), 10_000)
  fit, test = calibration.split(labels)
  metrics, diagrams = {}, {}
  for name, transform in transforms.items():
    logits = train(transform, steps)(x)
    t = calibration.fit_temperature(logits[fit], labels[fit])
    versions = {name: logits[test], f"{name}, T = {t:.1f}": logits[test] / t}
    for version, scaled in versions.items():
      metrics[version] = calibration.evaluate(scaled, labels[test])
      diagrams[version] = calibration.reliability(scaled, labels[test])
      top1, loss, ece = (
        metrics[version][k] for k in ("accuracy", "nll", "ece")
      )
      print(f"{version:14} accuracy {top1:.1%}  loss {loss:.3f}  ECE {ece:.3f}")
  plots.save(plots.reliability_diagram(diagrams), output)
  return metrics


if __name__ == "__main__":
  main()
