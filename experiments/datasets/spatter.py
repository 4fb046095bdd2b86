"""Water on a lens: OpenCV's steps, in JAX, for 32 × 32 images."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

SIZE = 32
UNIT = 1 << 16  # OpenCV's fixed-point distance of one pixel


def water(layer):
  """Returns the amount of water, at most 1, from a layer of its density.

  The layer (n, 32, 32) has whole numbers from 0 to 255.
  """
  distance = distance_transform(canny(layer, 50, 150))
  # The truncated mean of nine. Integers make it exact.
  total = correlate(jnp.minimum(distance, 20 * UNIT), np.ones((3, 3), int))
  x = equalize((total // (9 * UNIT)).astype(layer.dtype))
  kernel = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
  x = jnp.clip(correlate(x, kernel), 0, 255)
  x = layer * jnp.floor(correlate(x, np.full((3, 3), 1 / 9)) + 0.5)
  return x / jnp.max(x, axis=(1, 2), keepdims=True)


def correlate(x, kernel, border="reflect"):
  """Applies a 3 × 3 filter. ``jnp.pad`` of mode `border` extends the images."""
  padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1)), mode=border)
  total = jnp.zeros_like(x)
  for i, j in np.ndindex(3, 3):
    total += kernel[i, j].item() * padded[:, i : i + SIZE, j : j + SIZE]
  return total


def canny(x, low, high):
  """Finds Canny's edges, with the L1 norm of the gradient."""
  across = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]])
  dx, dy = (correlate(x, kernel, "edge") for kernel in (across, across.T))
  size = jnp.abs(dx) + jnp.abs(dy)
  around = jnp.pad(size, ((0, 0), (1, 1), (1, 1)))
  at = lambda i, j: around[:, 1 + i : 1 + i + SIZE, 1 + j : 1 + j + SIZE]
  flat = jnp.abs(dy) < np.tan(np.pi / 8) * jnp.abs(dx)
  steep = jnp.abs(dy) > np.tan(3 * np.pi / 8) * jnp.abs(dx)
  falling = dx * dy < 0
  # An edge is at least as large as both neighbours across it. Along an axis,
  # the later of two equal ones counts.
  neighbour = lambda step: jnp.select(
    [flat, steep, falling],
    [at(0, step), at(step, 0), at(step, -step)],
    at(step, step),
  )
  first, second = neighbour(-1), neighbour(1)
  axial = flat | steep
  ridge = (size > first) & jnp.where(axial, size >= second, size > second)
  weak = ridge & (size > low)

  def grow(state):
    edges, _ = state
    wide = jax.lax.reduce_window(
      edges, False, jnp.logical_or, (1, 3, 3), (1, 1, 1), "SAME"
    )
    grown = wide & weak
    return grown | edges, jnp.any(grown & ~edges)

  start = weak & (size > high), jnp.array(True)
  edges, _ = jax.lax.while_loop(lambda state: state[1], grow, start)
  return edges


def distance_transform(edges):
  """Computes OpenCV's distance to the nearest edge, by a 5 × 5 mask, in UNITs.

  Exact up to 20 pixels. Larger distances are only known to be larger.
  """
  costs = {(0, 1): 1.0, (1, 1): 1.4, (1, 2): 2.1969}
  steps = {
    (i, j): round(costs[reach] * UNIT)
    for i in range(-2, 3)
    for j in range(-2, 3)
    if (reach := (min(abs(i), abs(j)), max(abs(i), abs(j)))) in costs
  }
  far = 1000 * UNIT

  def relax(_, distance):
    padded = jnp.pad(distance, ((0, 0), (2, 2), (2, 2)), constant_values=far)
    for (i, j), cost in steps.items():
      moved = padded[:, 2 + i : 2 + i + SIZE, 2 + j : 2 + j + SIZE]
      distance = jnp.minimum(distance, moved + cost)
    return distance

  return jax.lax.fori_loop(0, 20, relax, jnp.where(edges, 0, far))


def equalize(x):
  """Equalizes the histogram of 256 grey levels, as OpenCV does."""
  n = len(x)
  levels = x.reshape(n, -1).astype(jnp.int32)
  histogram = jax.vmap(functools.partial(jnp.bincount, length=256))(levels)
  total = SIZE * SIZE
  lowest = jnp.argmax(histogram > 0, axis=1)
  at_lowest = jnp.take_along_axis(histogram, lowest[:, None], axis=1)
  below = jnp.cumsum(histogram, axis=1) - at_lowest
  table = jnp.round(below * (255.0 / jnp.maximum(total - at_lowest, 1)))
  table = jnp.where(at_lowest == total, lowest[:, None].astype(x.dtype), table)
  return jnp.take_along_axis(table, levels, axis=1).reshape(x.shape)
