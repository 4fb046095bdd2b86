"""Convolutions of many runs at once, each with its own images and kernels.

All take images (images, rows, columns, channels) and a kernel (size, size,
channels, features), pad to keep the size, and are mapped over runs. Which is
fastest depends on the device and on the shapes: `python -m benchmarks.engine`.
"""

from collections.abc import Callable, Sequence
import functools
import itertools
import math
from typing import Any
import warnings

import jax
import jax.numpy as jnp

Array = jax.Array


def direct_conv(x: Array, kernel: Array, stride: int) -> Array:
  """Calls XLA's own convolution. Mapped over runs, it is a grouped one."""
  reach = kernel.shape[0] // 2
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    ((reach, reach), (reach, reach)),
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


def _patches(x: Array, size: int, stride: int) -> Array:
  """Returns the patch that a convolution sees at each of its output pixels."""
  rows, columns = (-(-n // stride) for n in x.shape[1:3])
  reach = size // 2
  x = jnp.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)))
  span = lambda i, n: slice(i, i + stride * (n - 1) + 1, stride)
  taps = itertools.product(range(size), range(size))
  patches = [x[:, span(i, rows), span(j, columns)] for i, j in taps]
  return jnp.concatenate(patches, axis=3)


def _multiply(patches: Array, kernel: Array) -> Array:
  return patches @ kernel.reshape(-1, kernel.shape[3])


def patches_conv(x: Array, kernel: Array, stride: int) -> Array:
  """Computes a convolution as a product of matrices."""
  if stride == 1 and kernel.shape[0] > 1:
    return _same_size_conv(x, kernel)
  return _multiply(_patches(x, kernel.shape[0], stride), kernel)


@jax.custom_vjp
def _same_size_conv(x: Array, kernel: Array) -> Array:
  """Its gradient is a convolution by patches too, not a sum of slices."""
  return _same_size_forward(x, kernel)[0]


def _same_size_forward(x, kernel):
  patches = _move_pairs(lambda x: _patches(x, kernel.shape[0], 1), x)
  return _multiply(patches, kernel), (patches, kernel)


def _same_size_backward(kept, g):
  patches, kernel = kept
  _, to_kernel = jax.vjp(functools.partial(_multiply, patches), kernel)
  mirrored = kernel[::-1, ::-1].swapaxes(2, 3)
  return _same_size_conv(g, mirrored), *to_kernel(g)


_same_size_conv.defvjp(_same_size_forward, _same_size_backward)


def _move_pairs(move: Callable[[Array], Array], x: Array) -> Array:
  """Calls ``move(x)``, a function that only rearranges values.

  bfloat16 values are moved as pairs of channels, in half the time on an H200.
  """
  if x.dtype != jnp.bfloat16 or x.shape[-1] % 2:
    return move(x)
  pairs = x.reshape(*x.shape[:-1], -1, 2)
  moved = move(jax.lax.bitcast_convert_type(pairs, jnp.uint32))
  pairs = jax.lax.bitcast_convert_type(moved, jnp.bfloat16)
  return pairs.reshape(*moved.shape[:-1], -1)


def _unroll_over_runs(function: Callable[..., Array]) -> Callable[..., Array]:
  """Makes `vmap` call a function once for each run, instead of batching it."""
  looped = jax.custom_batching.custom_vmap(function)

  @looped.def_vmap
  def rule(runs, batched, *args):
    pairs = list(zip(args, batched, strict=True))
    outs = [
      function(*(x[i] if b else x for x, b in pairs)) for i in range(runs)
    ]
    return jnp.stack(outs), True

  return looped


@functools.cache
def _unrolled(stride: int) -> Callable[[Array, Array], Array]:
  """Returns XLA's own convolution, called separately for each run."""
  direct = functools.partial(direct_conv, stride=stride)
  forward = _unroll_over_runs(direct)
  to_x = _unroll_over_runs(lambda x, k, g: jax.vjp(direct, x, k)[1](g)[0])
  to_kernel = _unroll_over_runs(lambda x, k, g: jax.vjp(direct, x, k)[1](g)[1])
  conv = jax.custom_vjp(lambda x, kernel: forward(x, kernel))
  conv.defvjp(
    lambda x, kernel: (forward(x, kernel), (x, kernel)),
    lambda kept, g: (to_x(*kept, g), to_kernel(*kept, g)),
  )
  return conv


def mixed_conv(x: Array, kernel: Array, stride: int) -> Array:
  """Unrolls large images over runs, and computes small ones by patches.

  Patches of a large image take longer to write than to multiply. A small image
  of one run does not fill a GPU.
  """
  if _is_large(x, kernel.shape[0]):
    return _unrolled(stride)(x, kernel)
  return patches_conv(x, kernel, stride)


def _is_large(x: Any, size: int) -> bool:
  return x.shape[1] >= 16 and x.shape[3] >= 16 and size > 1


# The tile of a product in Pallas. A layer of 64 channels has one tile of half
# the width. Several of these are slower than cuDNN: on an H200, they add 7 % to
# WRN-28-10's step.
TILE, NARROW = 128, 64
# Pixels that one block of a GPU sums for the gradient of a kernel.
PIXELS_PER_BLOCK, MOST_BLOCKS = 8192, 8


def pallas_conv(x: Array, kernel: Array, stride: int) -> Array:
  """Computes an implicit GEMM in Pallas if the shapes fit, else `mixed_conv`.

  It multiplies patches without writing them to memory, for all runs at once.
  """
  if fits_pallas(x, kernel.shape[0], stride, kernel.shape[3]):
    return _implicit_gemm(x, kernel)
  return mixed_conv(x, kernel, stride)


def fits_pallas(x: Any, size: int, stride: int, features: int) -> bool:
  """Returns whether :func:`pallas_conv` computes this convolution itself."""
  *pixels, channels = x.shape
  return (
    (size, stride, x.dtype) == (3, 1, jnp.bfloat16)
    and all(n == NARROW or n % TILE == 0 for n in (channels, features))
    and math.prod(pixels) % TILE == 0
  )


def keeps_patches(
  name: str, x: Any, size: int, stride: int, features: int
) -> bool:
  """Returns whether a convolution keeps its patches for the gradient."""
  fits = fits_pallas(x, size, stride, features)
  if name == "direct" or (name == "pallas" and fits):
    return False
  return name == "patches" or not _is_large(x, size)


@functools.cache
def has_pallas() -> bool:
  """Returns whether this GPU compiles the kernels and computes them correctly.

  They need an NVIDIA GPU (Ampere to Hopper) with enough shared memory, and
  Pallas' Triton backend, which jax will remove.
  """
  version = getattr(jax.devices()[0], "compute_capability", "")
  if not str(version).startswith(("8.", "9.")):
    return False
  keys = jax.random.split(jax.random.key(0), 3)
  images, taps = (2, 8, 8, TILE), (3, 3, TILE, TILE)
  normal = functools.partial(jax.random.normal, dtype=jnp.bfloat16)
  arrays = list(map(normal, keys, (images, taps, images)))

  @functools.partial(jax.jit, static_argnums=0)
  def values(convolve, x, kernel, out):
    y, pull = jax.vjp(lambda x, k: convolve(x, k, 1), x, kernel)
    return [v.astype(jnp.float32) for v in (y, *pull(out))]

  try:
    computed = values(pallas_conv, *arrays)
  except Exception:  # A missing or changed backend may raise anything.
    return False
  pairs = zip(computed, values(patches_conv, *arrays), strict=True)
  return all(bool(jnp.allclose(*pair, rtol=0.02, atol=0.5)) for pair in pairs)


def power_of_two(number: int, most: int) -> int:
  """Returns the largest power of two that divides a number, up to a limit.

  Examples:
    >>> power_of_two(640, 128), power_of_two(96, 128), power_of_two(64, 20)
    (128, 32, 16)
  """
  power = 1
  while number % (2 * power) == 0 and 2 * power <= most:
    power *= 2
  return power


@jax.custom_vjp
def _implicit_gemm(x: Array, kernel: Array) -> Array:
  """Multiplies each tap of a 3 × 3 kernel by the image shifted to it."""
  *pixels, channels = x.shape
  features = kernel.shape[3]
  count = math.prod(pixels)
  columns, depth = power_of_two(features, TILE), NARROW
  parts = channels // depth

  def body(pl, load, x_ref, kernel_ref, out_ref):
    row, column = pl.program_id(0), pl.program_id(1)
    index = row * TILE + jnp.arange(TILE)
    shifted = _shifted(load, x_ref, pixels, index)

    def step(i, total):
      patch = shifted(_divide(i, parts), _remainder(i, parts) * depth, depth)
      taps = pl.ds(i * depth, depth), pl.ds(column * columns, columns)
      return total + _dot(patch, load(kernel_ref.at[taps]), 1)

    total = jnp.zeros((TILE, columns), jnp.float32)
    total = jax.lax.fori_loop(0, 9 * parts, step, total)
    out_ref[...] = total.astype(out_ref.dtype)

  out = _call(
    body,
    x.reshape(count, channels),
    kernel.reshape(9 * channels, features),
    out=jax.ShapeDtypeStruct((count, features), x.dtype),
    tile=(TILE, columns),
  )
  return out.reshape(*pixels, features)


def _to_kernel(x: Array, g: Array) -> Array:
  """Returns the gradient of the kernel, from the output's gradient.

  A few channels have too few tiles to fill a GPU, so pixels are in blocks.
  """
  *pixels, channels = x.shape
  features = g.shape[3]
  count = math.prod(pixels)
  rows, columns = (power_of_two(n, TILE) for n in (channels, features))
  depth = NARROW
  blocks = min(MOST_BLOCKS, count // PIXELS_PER_BLOCK)
  blocks = power_of_two(count // depth, blocks)
  steps = count // depth // blocks

  def body(pl, load, x_ref, g_ref, out_ref):
    tap, block, row, column = (pl.program_id(i) for i in range(4))

    def step(i, total):
      first = (block * steps + i) * depth
      shifted = _shifted(load, x_ref, pixels, first + jnp.arange(depth))
      patch = shifted(tap, row * rows, rows)
      span = pl.ds(first, depth), pl.ds(column * columns, columns)
      return total + _dot(patch, load(g_ref.at[span]), 0)

    total = jnp.zeros((rows, columns), jnp.float32)
    total = jax.lax.fori_loop(0, steps, step, total)
    out_ref[...] = total.astype(out_ref.dtype)[None, None]

  dtype = x.dtype if blocks == 1 else jnp.float32
  out = _call(
    body,
    x.reshape(count, channels),
    g.reshape(count, features),
    out=jax.ShapeDtypeStruct((9, blocks, channels, features), dtype),
    tile=(1, 1, rows, columns),
  )
  out = jnp.sum(out, axis=1).astype(x.dtype)
  return out.reshape(3, 3, channels, features)


_implicit_gemm.defvjp(
  lambda x, kernel: (_implicit_gemm(x, kernel), (x, kernel)),
  lambda kept, g: (
    _implicit_gemm(g, kept[1][::-1, ::-1].swapaxes(2, 3)),
    _to_kernel(kept[0], g),
  ),
)


def _shifted(load: Any, ref: Any, pixels: Sequence[int], index: Array) -> Any:
  """Returns a function that loads pixels as a tap of the kernel sees them.

  Its arguments are the tap, 0 to 8, the first channel, and the number of
  channels. It returns an array (n, channels), 0 outside the image.

  Args:
    load: `load` of Pallas' Triton backend.
    ref: the images, as (pixels, channels).
    pixels: how many images, rows and columns.
    index: (n,), the pixels under the centre of the kernel.
  """
  _, rows, columns = pixels
  row = _remainder(_divide(index, columns), rows)
  column = _remainder(index, columns)

  def shifted(tap, first, width):
    down, right = _divide(tap, 3) - 1, _remainder(tap, 3) - 1
    i, j = row + down, column + right
    inside = (i >= 0) & (i < rows) & (j >= 0) & (j < columns)
    source = index + (down * columns + right)
    where = source[:, None], (first + jnp.arange(width))[None]
    shape = len(index), width
    where = tuple(jnp.broadcast_to(v, shape) for v in where)
    inside = jnp.broadcast_to(inside[:, None], shape)
    return load(ref.at[where], mask=inside, other=0.0)

  return shifted


def _dot(a: Array, b: Array, axis: int) -> Array:
  dimensions = ((axis,), (0,)), ((), ())
  return jax.lax.dot_general(
    a, b, dimensions, preferred_element_type=jnp.float32
  )


# `//` and `%` also handle negative numbers, which takes time in a kernel.
def _divide(a: Array, b: int) -> Array:
  return jax.lax.div(a, jnp.full_like(a, b))


def _remainder(a: Array, b: int) -> Array:
  return jax.lax.rem(a, jnp.full_like(a, b))


def _call(body: Callable[..., None], *args: Array, out: Any, tile: Any):
  """Calls a Pallas kernel for each tile of its output. A CPU interprets it."""
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import triton

  message = "The Pallas Triton backend is deprecated"
  warnings.filterwarnings("ignore", message, DeprecationWarning)
  return pl.pallas_call(
    functools.partial(body, pl, triton.load),
    grid=tuple(n // t for n, t in zip(out.shape, tile, strict=True)),
    out_specs=pl.BlockSpec(tile, lambda *index: index),
    out_shape=out,
    compiler_params=triton.CompilerParams(
      num_warps=8 if tile[-1] == TILE else 4, num_stages=4
    ),
    interpret=jax.default_backend() == "cpu",
  )(*args)


CONVOLUTIONS = {
  "direct": direct_conv,
  "mixed": mixed_conv,
  "pallas": pallas_conv,
  "patches": patches_conv,
}
