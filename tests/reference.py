"""⊥Grad in float64 NumPy, from its definition, and jax of any version."""

import importlib
from typing import Any

import jax
import numpy as np

shard_map: Any = (
  jax
  if hasattr(jax, "shard_map")
  else importlib.import_module("jax.experimental.shard_map")  # jax 0.6.0
).shard_map


def project(w, g, *, strength=1.0, renormalize=True, eps=1e-30):
  """Definition 3.1 and its variant, for one vector of real numbers."""
  w, g = np.asarray(w), np.asarray(g)
  assert w.dtype == g.dtype == np.float64
  unit = w / max(np.abs(w).max(initial=0), 1e-300)
  unit = unit / max(np.sqrt(np.sum(unit * unit)), 1e-300)
  perpendicular = g - strength * np.sum(unit * g) * unit
  length = norm(perpendicular)
  if not renormalize or length == 0:
    return perpendicular
  return perpendicular * (norm(g) / (length + eps))


def norm(x) -> float:
  return float(np.sqrt(np.sum(np.asarray(x) ** 2)))


def real64(x):
  """As float64; a complex number is a pair of real ones."""
  x = np.asarray(x)
  if np.iscomplexobj(x):
    x = np.stack([x.real, x.imag])
  return x.astype(np.float64)


def enable_x64():
  """A context in which jax has float64."""
  if hasattr(jax, "enable_x64"):
    return jax.enable_x64(True)
  from jax.experimental import enable_x64 as context

  return context()
