"""Weights and gradients of one vector, and their projection in float64."""

import numpy as np
import reference
from reference import norm, real64


def expected(w, g, **options):
  return reference.project(real64(w), real64(g), **options)


def amplification(w, g) -> float:
  """‖g‖ / ‖g⊥‖, by which rounding is amplified in the result."""
  length = norm(expected(w, g, renormalize=False))
  return norm(real64(g)) / length if length else np.inf


def random_pair(shape, seed=0):
  return np.random.default_rng(seed).normal(size=(2, *shape)).astype("float32")
