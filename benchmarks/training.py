"""Models whose whole training steps are timed."""

from collections.abc import Callable
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp
import optax

from experiments import registry
from experiments.engine import models

# Parameters, inputs, and a function of both to the gradients.
Problem = tuple[Any, Any, Callable[[Any, Any], Any]]


class Decoder(nn.Module):
  """A language model of the size of GPT-2 medium: 355 M parameters."""

  depth: int = 24
  width: int = 1024
  heads: int = 16
  tokens: int = 50257
  context: int = 1024

  @nn.compact
  def __call__(self, tokens):
    bf16 = {"dtype": jnp.bfloat16}
    embed = nn.Embed(self.tokens, self.width, **bf16)
    places = nn.Embed(self.context, self.width, **bf16)
    x = embed(tokens) + places(jnp.arange(tokens.shape[1]))[None]
    split = (*tokens.shape, self.heads, self.width // self.heads)
    for _ in range(self.depth):
      y = nn.Dense(3 * self.width, **bf16)(nn.LayerNorm(**bf16)(x))
      q, k, v = (part.reshape(split) for part in jnp.split(y, 3, axis=-1))
      y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
      x += nn.Dense(self.width, **bf16)(y.reshape(x.shape))
      y = nn.Dense(4 * self.width, **bf16)(nn.LayerNorm(**bf16)(x))
      x += nn.Dense(self.width, **bf16)(nn.gelu(y))
    return embed.attend(nn.LayerNorm(**bf16)(x)).astype(jnp.float32)


def network(name: str, batch: int = 64) -> Problem:
  """Returns the training of a network of the experiments."""
  model = registry.MODELS[name](dtype=jnp.bfloat16)
  keys = jax.random.split(jax.random.key(0), 3)
  variables = jax.jit(lambda key: models.init(model, key))(keys[0])
  images = jax.random.normal(keys[1], (batch, 32, 32, 3))
  labels = jax.random.randint(keys[2], (batch,), 0, 10)

  def loss(params, inputs):
    images, labels = inputs
    both = {"params": params, "batch_stats": variables["batch_stats"]}
    logits, _ = model.apply(both, images, train=True, mutable="batch_stats")
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.mean(losses)

  return variables["params"], (images, labels), jax.grad(loss)


def decoder(batch: int = 8, model: Decoder | None = None) -> Problem:
  """Returns the training of a language model."""
  model = model or Decoder()
  keys = jax.random.split(jax.random.key(0), 2)
  shape = batch, model.context + 1
  tokens = jax.random.randint(keys[1], shape, 0, model.tokens)
  params = jax.jit(model.init)(keys[0], tokens[:1, :-1])["params"]

  def loss(params, tokens):
    logits: Any = model.apply({"params": params}, tokens[:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(
      logits, tokens[:, 1:]
    )
    return jnp.mean(losses)

  return params, tokens, jax.grad(loss)
