"""A small language model, sharded over 8 devices, with ⊥Grad before AdamW.

    python examples/sharded_transformer.py

Layers are stacked along axis 0 for `scan`. With `batch_axes`, ⊥Grad projects
each layer separately. Heads and hidden units are sharded over an explicit mesh.
Look at the last printed line: the devices gather a few partial sums, and never
a leaf. A CPU stands in for the 8 devices. sharded_transformer.png has the loss.
"""

import math
import os
import re

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(
  [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8"]
)

import jax
from jax import P
import jax.numpy as jnp
import optax

from orthograd_optax import orthograd_adamw, plots

L, D, H, K, TOKENS = 4, 64, 4, 16, 16  # layers, width, heads, width of a head
LAYERS = {
  "qkv": ((L, 3, D, H, K), P(None, None, None, "model")),
  "out": ((L, H, K, D), P(None, "model")),
  "up": ((L, D, 4 * D), P(None, None, "model")),
  "down": ((L, 4 * D, D), P(None, "model")),
}
SHAPES = {"embedding": ((TOKENS, D), P()), "layers": LAYERS}


def layer(x, w):
  q, k, v = jnp.einsum("btd,cdhk->cbthk", jax.nn.standardize(x), w["qkv"])
  heads = jax.nn.dot_product_attention(q, k, v, is_causal=True)
  # Contracting a sharded axis needs the sharding of the result.
  x += jnp.einsum("bthk,hkd->btd", heads, w["out"], out_sharding=P("data"))
  hidden = jax.nn.relu(jax.nn.standardize(x) @ w["up"])
  return x + jnp.matmul(hidden, w["down"], out_sharding=P("data")), None


def loss_of(params, text):
  x = params["embedding"].at[text[:, :-1]].get(out_sharding=P("data"))
  x, _ = jax.lax.scan(layer, x, params["layers"])
  entropy = optax.losses.softmax_cross_entropy_with_integer_labels
  return entropy(x @ params["embedding"].T, text[:, 1:]).mean()


def main(steps=60, output="sharded_transformer.png"):
  optimizer = orthograd_adamw(3e-3, batch_axes={"embedding": None, "layers": 0})

  @jax.jit
  def step(params, state, text):
    loss, grads = jax.value_and_grad(loss_of)(params, text)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state, loss

  text = jax.random.randint(jax.random.key(1), (64, 2), 0, TOKENS)
  for _ in range(30):  # each token is the sum of the last two, mod 16
    text = jnp.append(text, text[:, -2:].sum(1, keepdims=True) % TOKENS, 1)
  explicit = (jax.sharding.AxisType.Explicit,) * 2
  with jax.set_mesh(jax.make_mesh((2, 4), ("data", "model"), explicit)):
    keys = iter(jax.random.split(jax.random.key(0), 5))  # one for each leaf
    noise = lambda shape: 0.05 * jax.random.normal(next(keys), shape)
    place = lambda leaf: jax.device_put(noise(leaf[0]), leaf[1])
    params = jax.tree.map(place, SHAPES, is_leaf=lambda x: type(x) is tuple)
    state, losses = optimizer.init(params), []
    text = jax.device_put(text, P("data"))
    program = step.lower(params, state, text).compile().as_text()
    for _ in range(steps):
      params, state, loss = step(params, state, text)
      losses.append(float(loss))
  sent = re.findall(r"\[([\d,]*)\]\S* all-gather\(", program)
  gathered = max(math.prod(map(int, shape.split(","))) for shape in sent)
  print(f"loss {losses[0]:.3f} → {losses[-1]:.3f} after {steps} steps")
  print(f"largest all-gather: {gathered} numbers; a leaf has {L * 4 * D * D}")
  curve = {"loss": {"⊥AdamW": jnp.array([losses])}}
  plots.save(plots.curves(curve, range(steps), xlabel="step"), output)
  return losses, gathered


if __name__ == "__main__":
  main()
