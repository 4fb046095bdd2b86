"""Parameters and gradients of two layers, their first update, and errors."""

from typing import Any

import jax
import jax.numpy as jnp

PARAMS = {
  "a": {"kernel": jnp.arange(1.0, 7.0).reshape(2, 3), "bias": jnp.ones(3)},
  "b": {"kernel": jnp.array([[1.0, -2.0], [0.5, 3.0]])},
}
GRADS = jax.tree.map(jnp.cos, PARAMS)


def update(transform, grads=GRADS, params=PARAMS) -> tuple[Any, Any]:
  return transform.update(grads, transform.init(params), params)


def assert_words(error: Any, *words: str) -> None:
  missing = [word for word in words if word not in str(error.value)]
  assert not missing, f"{missing} not in: {error.value}"
