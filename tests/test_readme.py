"""The examples of the README run, one after the other."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax

NAMES = ("train_step", "optimizer", "loss", "params", "x", "labels")
README = pathlib.Path(__file__).parents[1] / "README.md"


def test_examples_run():
  blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
  assert len(blocks) >= 4
  assert len(blocks[0].strip().splitlines()) == 12
  namespace = {}
  for block in blocks:
    exec(compile(block, README.name, "exec"), namespace)
    if "def train_step" in block:
      check_train_step(**{k: v for k, v in namespace.items() if k in NAMES})
  # A network that knows nothing has a loss of log 3.
  assert namespace["loss"](namespace["params"]) < 1.05


def check_train_step(train_step, optimizer, loss, params, x, labels):
  """Devices with shares of a batch do what one does with all of it."""
  deal = lambda x: x.reshape(4, 15, *x.shape[1:])
  copies = lambda x: jnp.stack([x] * 4)
  state = optimizer.init(params)
  both = jax.tree.map(copies, (params, state))
  after, _ = train_step(*both, deal(x), deal(labels))
  updates, _ = optimizer.update(jax.grad(loss)(params), state, params)
  expected = optax.apply_updates(params, updates)["kernel"]
  for kernel in after["kernel"]:
    np.testing.assert_allclose(kernel, expected, rtol=1e-5, atol=1e-7)
