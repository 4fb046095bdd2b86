"""CIFAR-10-C: 19 corruptions of 32 × 32 images, in 5 severities.

Parameters and quirks follow the published procedure (Hendrycks and Dietterich,
Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations, 2019; `make_cifar_c.py`). Results are truncated to whole grey
levels, not rounded. Glass blur copies pixels one way. Only five of the six
frost textures are used. The published noise has no seed, so only the
distribution of the random corruptions can be reproduced. Here, a key gives the
same images every time on the same platform.

Images are batches (n, 32, 32, 3) of grey levels from 0 to 255, as floats while
they are corrupted.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image
from scipy import ndimage, special

from experiments.datasets import frost as textures_of_frost
from experiments.datasets.jpeg import jpeg
from experiments.datasets.spatter import water as spatter_water

# Of severities 1 to 5. The first 15 are the benchmark's, the others are extra.
PARAMETERS: dict[str, tuple[Any, ...]] = {
  "gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10),
  "shot_noise": (500, 250, 100, 75, 50),
  "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),
  "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
  "glass_blur": ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)),
  "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
  "zoom_blur": (1.06, 1.11, 1.16, 1.21, 1.26),
  "snow": (
    (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
    (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
  ),
  "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
  "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
  "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
  "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
  "elastic": (
    (0, 0, 0.08),
    (0.05, 0.2, 0.07),
    (0.08, 0.06, 0.06),
    (0.1, 0.04, 0.05),
    (0.1, 0.03, 0.03),
  ),
  "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
  "jpeg": (80, 65, 58, 50, 40),
  "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2),
  "gaussian_blur": (0.4, 0.6, 0.7, 0.8, 1),
  "spatter": (
    (0.62, 0.1, 0.7, 0.7, 0.5, 0),
    (0.65, 0.1, 0.8, 0.7, 0.5, 0),
    (0.65, 0.3, 1, 0.69, 0.5, 0),
    (0.65, 0.1, 0.7, 0.69, 0.6, 1),
    (0.65, 0.1, 0.5, 0.68, 0.6, 1),
  ),
  "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}
ALL_CORRUPTIONS = tuple(PARAMETERS)
CORRUPTIONS, EXTRA_CORRUPTIONS = ALL_CORRUPTIONS[:15], ALL_CORRUPTIONS[15:]
SIZE = 32
einsum = functools.partial(jnp.einsum, precision="highest")


def dot(matrix, images):
  """Applies a matrix to the rows and to the columns of images."""
  matrix = jnp.asarray(matrix, jnp.float32)
  images = einsum("ij,njk...->nik...", matrix, images)
  return einsum("ij,nkj...->nki...", matrix, images)


def color(*channels: float) -> jax.Array:
  return jnp.array(channels).reshape(1, 1, 1, 3)


@functools.cache
def gaussian_matrix(sigma: float, mode: str = "nearest", truncate: float = 4.0):
  """Returns the matrix of SciPy's Gaussian filter, for a row of 32 numbers."""
  return ndimage.gaussian_filter1d(
    np.eye(SIZE), sigma, axis=0, mode=mode, truncate=truncate
  )


@functools.cache
def zoom_matrix(factor: float):
  """Returns the matrix that stretches a row's middle to 32 numbers."""
  crop = math.ceil(SIZE / factor)
  top = (SIZE - crop) // 2
  middle = np.eye(SIZE)[top : top + crop]
  zoomed = np.asarray(ndimage.zoom(middle, (factor, 1), order=1))
  trim = (len(zoomed) - SIZE) // 2
  return zoomed[trim : trim + SIZE]


# Noise.


def gaussian_noise(key, x, c):
  return x + 255 * c * jax.random.normal(key, x.shape)


def shot_noise(key, x, c):
  # There are only 256 rates, so photons are drawn by bisection in a table of
  # each rate. 10,000 images take 1.6 s on two cores of a Neoverse-N1;
  # jax.random.poisson takes 31 s.
  table = jnp.asarray(poisson_table(c))
  level, u = x.astype(int), jax.random.uniform(key, x.shape)
  photons = jnp.zeros_like(level)
  step = table.shape[1] // 2
  while step:
    more = u >= table[level, photons + step - 1]
    photons += step * more
    step //= 2
  # A hair is added, so that truncation keeps whole numbers.
  return photons * (255 / c) + 1e-3


@functools.cache
def poisson_table(c: float) -> np.ndarray:
  """Returns P(photons ≤ n) for n = 0, 1, 2, ..., for each grey level."""
  most = special.pdtrik(1 - 1e-9, float(c))
  counts = np.arange(2 ** math.ceil(math.log2(most + 2)))
  rates = np.arange(256)[:, None] * (c / 255)
  return special.pdtr(counts[None], rates).astype(np.float32)


def impulse_noise(key, x, c):
  flip, salt = jax.random.split(key)
  extreme = 255.0 * jax.random.bernoulli(salt, 0.5, x.shape)
  return jnp.where(jax.random.bernoulli(flip, c, x.shape), extreme, x)


def speckle_noise(key, x, c):
  return x + x * c * jax.random.normal(key, x.shape)


# Blur.


def gaussian_blur(_, x, blur):
  return dot(blur, x)


def defocus_blur(_, x, radius, alias):
  reach = np.arange(-8, 9)
  disk = reach[:, None] ** 2 + reach[None] ** 2 <= radius**2
  bell = np.exp(-(np.arange(-1, 2) ** 2) / (2 * alias**2))
  bell /= bell.sum()
  kernel = disk / disk.sum()
  for axis in (0, 1):
    kernel = ndimage.convolve1d(kernel, bell, axis=axis, mode="constant")
  padded = jnp.pad(x, ((0, 0), (8, 8), (8, 8), (0, 0)), mode="reflect")
  total = jnp.zeros_like(x)
  for i, j in np.argwhere(kernel > 1e-12):
    total += kernel[i, j] * padded[:, i : i + SIZE, j : j + SIZE]
  return total


def glass_blur(key, x, blur, rounds):
  x = jnp.floor(dot(blur, x))
  inside = np.arange(SIZE) >= 2
  inside = (inside[:, None] & inside[None])[None, ..., None]
  for i, k in enumerate(jax.random.split(key, 2)):
    # From the last pixel to the first, each keeps its own colour or takes
    # a neighbour's, above or to the left, which has not changed yet.
    up, left = (
      jax.random.bernoulli(half, 0.5, (*x.shape[:3], 1))
      for half in jax.random.split(k)
    )
    above, before = jnp.roll(x, 1, axis=1), jnp.roll(x, 1, axis=2)
    corner = jnp.roll(above, 1, axis=2)
    moved = jnp.where(
      up, jnp.where(left, corner, above), jnp.where(left, before, x)
    )
    x = jnp.where(inside & (i < rounds), moved, x)
  return dot(blur, x)


@functools.cache
def motion_weights(radius: int, sigma: float, most: int):
  """Returns each step's weight along the motion, padded to 2 × most + 1."""
  steps = np.arange(2 * most + 1)
  weights = np.exp(-(steps**2) / (2 * sigma**2)) * (steps <= 2 * radius)
  return weights / weights.sum()


def _motion(x, angle, weights):
  """Applies ImageMagick's motion blur, at each image's own angle in degrees."""
  radians = jnp.deg2rad(angle)
  down, right = jnp.sin(radians), jnp.cos(radians)
  position = jnp.arange(SIZE)
  total = jnp.zeros_like(x)

  def shift(image, dy, dx):
    rows = jnp.clip(position + dy, 0, SIZE - 1)
    columns = jnp.clip(position + dx, 0, SIZE - 1)
    return image[rows][:, columns]

  for i in range(len(weights)):
    dy = jnp.ceil(i * down - 0.5).astype(int)
    dx = jnp.ceil(i * right - 0.5).astype(int)
    total += weights[i] * jax.vmap(shift)(x, dy, dx)
  return jnp.floor(total + 1e-3)


def motion_blur(key, x, weights):
  angle = jax.random.uniform(key, x.shape[:1], minval=-45, maxval=45)
  return _motion(x, angle, weights)


def zoom_blur(_, x, c):
  factors = np.arange(1, c, 0.01)
  total = x
  for factor in factors:
    total += dot(zoom_matrix(float(factor)), x)
  return total / (len(factors) + 1)


# Weather.


def snow(key, x, loc, scale, zoom, threshold, weights, mix):
  noise, turn = jax.random.split(key)
  layer = loc + scale * jax.random.normal(noise, x.shape[:3])
  layer = dot(zoom, layer)
  layer = jnp.where(layer < threshold, 0, layer)
  layer = jnp.floor(255 * jnp.clip(layer, 0, 1))[..., None]
  angle = jax.random.uniform(turn, x.shape[:1], minval=-135, maxval=-45)
  layer = _motion(layer, angle, weights)
  grey = jnp.sum(x * color(0.299, 0.587, 0.114), axis=3, keepdims=True)
  x = mix * x + (1 - mix) * jnp.maximum(x, 1.5 * grey + 127.5)
  return x + layer + jnp.rot90(layer, 2, axes=(1, 2))


def fog(key, x, weight, decay):
  brightest = jnp.max(x, axis=(1, 2, 3), keepdims=True) / 255
  plasma = _plasma(key, len(x), decay)[..., None]
  return (x + 255 * weight * plasma) * (brightest / (brightest + weight))


def _plasma(key, n, decay):
  """Clouds by the diamond-square algorithm, from 0 to 1."""
  clouds = jnp.zeros((n, SIZE, SIZE))
  noise = jax.random.uniform(key, (n, SIZE * SIZE), minval=-1, maxval=1)
  step, wobble = SIZE, 100.0
  used = 0

  def mean(total):
    nonlocal used
    part = noise[:, used : used + total[0].size].reshape(total.shape)
    used += total[0].size
    return total / 4 + wobble**2 * part  # the square, as published

  while step >= 2:
    half = step // 2
    corners = clouds[:, ::step, ::step]
    total = corners + jnp.roll(corners, -1, axis=1)
    total += jnp.roll(total, -1, axis=2)
    middle = mean(total)
    clouds = clouds.at[:, half::step, half::step].set(middle)
    total = middle + jnp.roll(middle, 1, axis=1)
    total += corners + jnp.roll(corners, -1, axis=2)
    clouds = clouds.at[:, ::step, half::step].set(mean(total))
    total = middle + jnp.roll(middle, 1, axis=2)
    total += corners + jnp.roll(corners, -1, axis=1)
    clouds = clouds.at[:, half::step, ::step].set(mean(total))
    step, wobble = half, wobble / decay
  clouds -= jnp.min(clouds, axis=(1, 2), keepdims=True)
  return clouds / jnp.max(clouds, axis=(1, 2), keepdims=True)


def spatter(key, x, mud, loc, scale, blur, threshold, strength):
  layer = loc + scale * jax.random.normal(key, x.shape[:3])
  layer = dot(blur, layer)
  layer = jnp.where(layer < threshold, 0, layer)
  if mud:
    mask = dot(strength, (layer > threshold).astype(x.dtype))
    mask = jnp.where(mask < 0.8, 0, mask)[..., None]
    return x * (1 - mask) + mask * color(63.0, 42.0, 20.0)
  # The published code casts to a byte, so values above 255 wrap around.
  layer = jnp.floor(layer * 255) % 256
  mask = strength * spatter_water(layer)[..., None]
  return x + mask * color(175.0, 238.0, 238.0)


def frost(key, x, own, ice, textures, heights, widths):
  which, rows, columns = jax.random.split(key, 3)
  index = jax.random.randint(which, x.shape[:1], 0, len(heights))
  # From 0 up to the last place that fits, exclusive.
  place = lambda key, size: jax.random.randint(
    key, x.shape[:1], 0, size[index] - SIZE
  )
  crop = lambda i, row, column: jax.lax.dynamic_slice(
    textures, (i, row, column, 0), (1, SIZE, SIZE, 3)
  )[0]
  crops = jax.vmap(crop)(index, place(rows, heights), place(columns, widths))
  return own * x + ice * crops.astype(x.dtype) + 1e-3


# Colour.


def brightness(_, x, c):
  value = jnp.max(x, axis=3, keepdims=True)
  brighter = jnp.minimum(value + 255 * c, 255)
  # Hue and saturation stay, so all channels grow by one factor. Black has
  # neither.
  grown = x * (brighter / jnp.maximum(value, 1))
  return jnp.where(value > 0, grown, brighter) + 1e-3


def saturate(_, x, factor, offset):
  value = jnp.max(x, axis=3, keepdims=True)
  spread = value - jnp.min(x, axis=3, keepdims=True)
  saturation = spread / jnp.maximum(value, 1)
  new = jnp.clip(saturation * factor + offset, 0, 1)
  # Each channel's distance to the largest grows with the saturation. Grey
  # counts as red, hue 0.
  share = (value - x) / jnp.maximum(spread, 1)
  share = jnp.where(spread > 0, share, color(0.0, 1.0, 1.0))
  return value * (1 - new * share) + 1e-3


def contrast(_, x, c):
  mean = jnp.mean(x, axis=(1, 2), keepdims=True)
  return (x - mean) * c + mean


# Shape.


def elastic(key, x, alpha, blur, reach):
  affine, *noises = jax.random.split(key, 3)
  before = jnp.array([[26.0, 26.0], [26.0, 6.0], [6.0, 6.0]])
  after = before[None] + jax.random.uniform(
    affine, (len(x), 3, 2), minval=-reach, maxval=reach
  )
  # The affine map that takes the moved points back.
  ones = jnp.ones((len(x), 3, 1))
  back = jnp.linalg.solve(
    jnp.concatenate([after, ones], axis=2),
    jnp.broadcast_to(before, after.shape),
  )
  rows, columns = jnp.indices((SIZE, SIZE))
  grid = jnp.stack([columns, rows, jnp.ones_like(rows)], axis=2)
  source = einsum("ijk,nkl->nijl", grid.astype(x.dtype), back)
  source = jnp.round(source * 32) / 32  # OpenCV's resolution
  x = _bilinear(x, source[..., 1], source[..., 0], repeated=False)
  dx, dy = (
    alpha * dot(blur, jax.random.uniform(k, x.shape[:3], minval=-1, maxval=1))
    for k in noises
  )
  return _bilinear(x, rows[None] + dy, columns[None] + dx, repeated=True)


def _reflect(i, repeated):
  """Reflects indices at the edge, whose pixel is there once, or repeated."""
  period = 2 * SIZE - 2 + 2 * repeated
  i = i % period
  return jnp.minimum(i, period - repeated - i)


def _bilinear(images, rows, columns, repeated):
  """Interpolates images, which are reflected at the edges."""
  reflect = functools.partial(_reflect, repeated=repeated)
  low_row, low_column = jnp.floor(rows), jnp.floor(columns)
  down, right = (rows - low_row)[..., None], (columns - low_column)[..., None]
  low_row, low_column = low_row.astype(int), low_column.astype(int)
  at = jax.vmap(lambda image, i, j: image[i, j])

  def pixel(i, j):
    return at(images, reflect(low_row + i), reflect(low_column + j))

  top = pixel(0, 0) * (1 - right) + pixel(0, 1) * right
  bottom = pixel(1, 0) * (1 - right) + pixel(1, 1) * right
  return top * (1 - down) + bottom * down


@functools.cache
def box_matrix(inputs: int, outputs: int):
  """Returns the matrix of Pillow's box filter, padded to 32 × 32."""
  rows = Image.fromarray(np.eye(inputs, dtype=np.float32))
  matrix = np.asarray(rows.resize((inputs, outputs), Image.Resampling.BOX))
  return np.pad(matrix, ((0, SIZE - outputs), (0, SIZE - inputs)))


def pixelate(_, x, smaller, back):
  for matrix in (smaller, back):
    matrix = jnp.asarray(matrix, x.dtype)
    # Pillow rounds after each direction.
    x = jnp.round(einsum("ij,nkjc->nkic", matrix, x) + 1e-4)
    x = jnp.round(einsum("ij,njkc->nikc", matrix, x) + 1e-4)
  return x


def _prepare(name: str, c: tuple[Any, ...]) -> tuple[Any, Any]:
  """Returns a corruption's static arguments and its traced ones.

  Severities that differ only in traced ones share one compiled program.
  """
  match name:
    case "defocus_blur" | "shot_noise" | "zoom_blur":
      return c, ()
    case "elastic":
      alpha, sigma, reach = (SIZE * value for value in c)
      smooth = functools.partial(gaussian_matrix, mode="reflect", truncate=3.0)
      return (), (alpha, smooth(sigma) if sigma else np.eye(SIZE), reach)
    case "frost":
      return (), (*c, *textures_of_frost.load_frost())
    case "gaussian_blur":
      return (), (gaussian_matrix(*c),)
    case "glass_blur":
      sigma, rounds = c
      return (), (gaussian_matrix(sigma), rounds)
    case "motion_blur":
      return (), (motion_weights(*c, most=9),)
    case "pixelate":
      small = int(SIZE * c[0])
      return (), (box_matrix(SIZE, small), box_matrix(small, SIZE))
    case "snow":
      loc, scale, zoom, threshold, radius, sigma, mix = c
      weights = motion_weights(radius, sigma, most=14)
      return (), (loc, scale, zoom_matrix(zoom), threshold, weights, mix)
    case "spatter":
      loc, scale, sigma, threshold, strength, mud = c
      if mud:
        strength = gaussian_matrix(strength)
      return (mud,), (loc, scale, gaussian_matrix(sigma), threshold, strength)
  return (), c


def check_name(name: str, severity: int) -> None:
  """Raises a ValueError if there is no such corruption or severity."""
  if name not in PARAMETERS:
    raise ValueError(
      f"name is {name!r}, but must be one of {', '.join(ALL_CORRUPTIONS)}."
    )
  if severity not in (1, 2, 3, 4, 5):
    raise ValueError(f"severity is {severity!r}, but must be 1, 2, 3, 4 or 5.")


def corrupt(images: Any, name: str, severity: int, key: jax.Array) -> jax.Array:
  """Corrupts images (n, 32, 32, 3), uint8, as CIFAR-10-C does.

  The name is one of :data:`ALL_CORRUPTIONS`, the severity from 1 to 5.
  Brightness, contrast, jpeg, pixelate, saturate and the gaussian, defocus and
  zoom blur do not use the key.

  Examples:
    >>> import jax
    >>> from experiments import datasets
    >>> images = datasets.load_sample().test_images[:8]
    >>> foggy = datasets.corrupt(images, "fog", 3, jax.random.key(0))
    >>> print(foggy.shape, foggy.dtype)
    (8, 32, 32, 3) uint8
  """
  check_name(name, severity)
  shape, dtype = np.shape(images), getattr(images, "dtype", None)
  if len(shape) != 4 or shape[1:] != (SIZE, SIZE, 3) or dtype != np.uint8:
    raise ValueError(
      f"images has shape {shape} and dtype {dtype}, but must be uint8 of shape "
      "(n, 32, 32, 3)."
    )
  c = PARAMETERS[name][severity - 1]
  if name == "jpeg":
    return jnp.asarray(jpeg(np.asarray(images), c))
  fixed, given = _prepare(name, c if isinstance(c, tuple) else (c,))
  # An int has another dtype, which would compile another program.
  given = jax.tree.map(lambda v: float(v) if isinstance(v, int) else v, given)
  return _corrupt(key, jnp.asarray(images), given, fixed, name)


@functools.partial(jax.jit, static_argnames=("fixed", "name"))
def _corrupt(key, images, given, fixed, name):
  function = globals()[name]  # It has the name of the corruption.
  x = function(key, images.astype(jnp.float32), *fixed, *given)
  return jnp.clip(x, 0, 255).astype(jnp.uint8)
