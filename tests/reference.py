"""⊥Grad in float64 NumPy, from its definition."""

import numpy as np


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
