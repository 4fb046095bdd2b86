"""A language model: can the confidence in its tokens be trusted?

    python examples/language_model.py

Trains a small transformer on the text of a module of the standard library,
letter by letter, by AdamW and ⊥AdamW at two weight decays. Prints three numbers
of another module's text, and draws them in language_model.png: confidence in
the next letter, expected calibration error (ECE), and the best temperature,
which is above 1 if the model is overconfident.
"""

import pathlib
import shlex
import textwrap

from flax import nnx
import jax.numpy as jnp
import numpy as np
import optax

from orthograd_optax import calibration, orthograd_adamw, plots

VOCABULARY, WIDTH, LAYERS, LENGTH, BATCH = 128, 64, 2, 64, 16


def tokens(module):
  """Returns the letters of a module's source."""
  text = pathlib.Path(module.__file__).read_text("utf-8")
  return np.frombuffer(text.encode("ascii", "replace"), np.uint8).astype(int)


class Block(nnx.Module):
  def __init__(self, rngs):
    self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
    self.attend = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
    self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
    self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

  def __call__(self, x):
    x += self.attend(self.norms[0](x), mask=nnx.make_causal_mask(x[..., 0]))
    return x + self.down(nnx.relu(self.up(self.norms[1](x))))


class Transformer(nnx.Module):
  def __init__(self, rngs):
    self.letters = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
    self.places = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
    self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
    self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

  def __call__(self, x):
    x = self.letters(x) + self.places(jnp.arange(LENGTH))[None]
    for block in self.blocks:
      x = block(x)
    return self.head(x)


@nnx.jit
def train_step(model, optimizer, windows):
  def loss(model):
    entropy = optax.losses.softmax_cross_entropy_with_integer_labels
    return entropy(model(windows[:, :-1]), windows[:, 1:]).mean()

  optimizer.update(model, nnx.grad(loss)(model))


def train(transform, steps, every):
  """Returns confidence, ECE and temperature of unseen text by step."""
  model = Transformer(nnx.Rngs(0))
  optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)
  seen, unseen = tokens(textwrap), tokens(shlex)
  windows = lambda text, at: jnp.array([text[i : i + LENGTH + 1] for i in at])
  test = windows(unseen, range(0, len(unseen) - LENGTH - 1, LENGTH))
  random, numbers = np.random.default_rng(0), []
  for step in range(1, steps + 1):
    starts = random.integers(0, len(seen) - LENGTH, BATCH)
    train_step(model, optimizer, windows(seen, starts))
    if step % every == 0:
      z, y = model(test[:, :-1]).reshape(-1, VOCABULARY), test[:, 1:].ravel()
      ece, t = calibration.ece(z, y), calibration.fit_temperature(z, y)
      numbers.append([calibration.confidence(z), ece, t])
  return np.array(numbers)


def main(steps=300, every=30, output="language_model.png"):
  curves = {}
  for optimizer in (optax.adamw, orthograd_adamw):
    for decay in (1e-4, 0.3):
      name = f"{'⊥' * (optimizer is orthograd_adamw)}AdamW, decay {decay}"
      curves[name] = train(optimizer(3e-3, weight_decay=decay), steps, every)
      confidence, ece, t = curves[name][-1]
      print(f"{name:20} confidence {confidence:.2f}  ECE {ece:.3f}  T {t:.2f}")
  panels = {
    title: {name: values[None, :, i] for name, values in curves.items()}
    for i, title in enumerate(["confidence", "ECE", "best temperature"])
  }
  figure = plots.curves(panels, range(every, steps + 1, every), xlabel="step")
  plots.save(figure, output)
  return curves


if __name__ == "__main__":
  main()
