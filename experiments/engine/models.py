"""ResNet-18, WRN-28-10 and a small network for the CPU, in Flax.

The networks follow their papers, for images of 32 × 32 pixels, with PyTorch's
conventions. Convolutions are initialized He-normal on their fan-out, the dense
layer uniform within ±1/√inputs. Batch norm keeps the unbiased variance.

Parameters, statistics and logits are float32. Convolutions compute in `dtype`.
A `mask` leaves images out of the batch's statistics.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

Array = jax.Array


def direct_conv(x: Array, kernel: Array, stride: int) -> Array:
  """XLA's own convolution. Mapped over runs, it is a grouped convolution."""
  reach = kernel.shape[0] // 2
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    ((reach, reach), (reach, reach)),
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


def _patches(x: Array, size: int, stride: int) -> Array:
  """The patch that a convolution sees at each of its output pixels."""
  rows, columns = (-(-n // stride) for n in x.shape[1:3])
  reach = size // 2
  x = jnp.pad(x, ((0, 0), (reach, reach), (reach, reach), (0, 0)))
  span = lambda i, n: slice(i, i + stride * (n - 1) + 1, stride)
  return jnp.concatenate(
    [
      x[:, span(i, rows), span(j, columns)]
      for i in range(size)
      for j in range(size)
    ],
    axis=3,
  )


def _multiply(patches: Array, kernel: Array) -> Array:
  return patches @ kernel.reshape(-1, kernel.shape[3])


def patches_conv(x: Array, kernel: Array, stride: int) -> Array:
  """A convolution as a matrix product, batched if mapped over runs."""
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
  """``move(x)`` for a function that only rearranges values.

  bfloat16 values are moved as pairs of channels, in half the time on an H200.
  """
  if x.dtype != jnp.bfloat16 or x.shape[-1] % 2:
    return move(x)
  pairs = x.reshape(*x.shape[:-1], -1, 2)
  moved = move(jax.lax.bitcast_convert_type(pairs, jnp.uint32))
  pairs = jax.lax.bitcast_convert_type(moved, jnp.bfloat16)
  return pairs.reshape(*moved.shape[:-1], -1)


def _unroll_over_runs(function: Callable[..., Array]) -> Callable[..., Array]:
  """A function that `vmap` calls once for each run, instead of batching it."""
  looped = jax.custom_batching.custom_vmap(function)

  @looped.def_vmap
  def rule(runs, batched, *args):
    outs = [
      function(*(x[i] if b else x for x, b in zip(args, batched, strict=True)))
      for i in range(runs)
    ]
    return jnp.stack(outs), True

  return looped


@functools.cache
def _unrolled(stride: int) -> Callable[[Array, Array], Array]:
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


def unrolled_conv(x: Array, kernel: Array, stride: int) -> Array:
  """XLA's own convolution, a separate one for each run."""
  return _unrolled(stride)(x, kernel)


def mixed_conv(x: Array, kernel: Array, stride: int) -> Array:
  """Unrolled over runs for large images, by patches for small ones.

  Patches of a large image take longer to write than to multiply. A small image
  of one run does not fill a GPU.
  """
  large = is_large(x.shape, kernel.shape[0])
  return (unrolled_conv if large else patches_conv)(x, kernel, stride)


def is_large(shape: Sequence[int], size: int) -> bool:
  """Whether a convolution of this array and size is slower by patches."""
  return shape[1] >= 16 and shape[3] >= 16 and size > 1


CONVOLUTIONS = {
  "direct": direct_conv,
  "mixed": mixed_conv,
  "patches": patches_conv,
  "unrolled": unrolled_conv,
}


class Conv(nn.Module):
  """A convolution without bias, padded to keep the size."""

  features: int
  size: int = 3
  stride: int = 1
  dtype: Any = jnp.float32
  method: str = "direct"

  @nn.compact
  def __call__(self, x):
    kernel = self.param(
      "kernel",
      nn.initializers.variance_scaling(2.0, "fan_out", "normal"),
      (self.size, self.size, x.shape[3], self.features),
    )
    convolve = CONVOLUTIONS[self.method]
    return convolve(
      x.astype(self.dtype), kernel.astype(self.dtype), self.stride
    )


class BatchNorm(nn.Module):
  """Batch norm over images and pixels, in float32.

  Attributes:
    axis_name: the mesh's axis that the batch is split over, if it is.
    by_image: whether to sum within each image first, also in the gradient. A
      single sum over all pixels occupies few of a GPU's cores.
  """

  axis_name: str | None = None
  by_image: bool = False
  momentum: float = 0.1
  eps: float = 1e-5

  @nn.compact
  def __call__(self, x, mask, train):
    features = x.shape[3]
    scale = self.param("scale", nn.initializers.ones, (features,))
    bias = self.param("bias", nn.initializers.zeros, (features,))
    stat = functools.partial(self.variable, "batch_stats")
    running_mean = stat("mean", jnp.zeros, (features,))
    running_var = stat("var", jnp.ones, (features,))
    mean, var = running_mean.value, running_var.value
    apart = jax.lax.optimization_barrier if self.by_image else lambda x: x
    x32 = x.astype(jnp.float32)
    if train:
      weights = mask.astype(jnp.float32)
      images = jnp.sum(x32, axis=(1, 2)), jnp.sum(x32 * x32, axis=(1, 2))
      sums = (
        *(jnp.sum(weights[:, None] * s, axis=0) for s in apart(images)),
        jnp.sum(weights) * (x.shape[1] * x.shape[2]),
      )
      if self.axis_name is not None:
        sums = jax.lax.psum(sums, self.axis_name)
      total, squares, count = sums
      mean = total / count
      var = jnp.maximum(squares / count - jnp.square(mean), 0)
      if not self.is_initializing():
        keep = 1 - self.momentum
        unbiased = var * (count / jnp.maximum(count - 1, 1))
        running_mean.value = keep * running_mean.value + self.momentum * mean
        running_var.value = keep * running_var.value + self.momentum * unbiased
    gain = scale * jax.lax.rsqrt(var + self.eps)
    shape = len(x), 1, 1, features
    mean, gain, bias = apart(
      tuple(jnp.broadcast_to(v, shape) for v in (mean, gain, bias))
    )
    return ((x32 - mean) * gain + bias).astype(x.dtype)


class Dense(nn.Module):
  """The last layer, in float32, with PyTorch's default initialisation."""

  features: int = 10

  @nn.compact
  def __call__(self, x):
    inputs = x.shape[1]
    bound = inputs**-0.5
    uniform = functools.partial(jax.random.uniform, minval=-bound, maxval=bound)
    kernel = self.param("kernel", uniform, (inputs, self.features))
    bias = self.param("bias", uniform, (self.features,))
    x = x.astype(jnp.float32)
    return jnp.dot(x, kernel, precision="highest") + bias[None]


class Block(nn.Module):
  """Two convolutions and a shortcut past them."""

  features: int
  stride: int
  conv: Callable[..., Any]
  norm: Callable[..., Any]


class BasicBlock(Block):
  """Has batch norm after each convolution, including the shortcut's."""

  @nn.compact
  def __call__(self, x, mask, train):
    shortcut = x
    y = self.conv(self.features, stride=self.stride)(x)
    y = nn.relu(self.norm()(y, mask, train))
    y = self.norm()(self.conv(self.features)(y), mask, train)
    if x.shape != y.shape:
      shortcut = self.conv(self.features, size=1, stride=self.stride)(x)
      shortcut = self.norm()(shortcut, mask, train)
    return nn.relu(y + shortcut)


class PreActivationBlock(Block):
  """Has batch norm before each convolution, and none in the shortcut."""

  @nn.compact
  def __call__(self, x, mask, train):
    y = nn.relu(self.norm()(x, mask, train))
    shortcut = x
    if x.shape[3] != self.features or self.stride > 1:
      shortcut = self.conv(self.features, size=1, stride=self.stride)(y)
    y = self.conv(self.features, stride=self.stride)(y)
    y = nn.relu(self.norm()(y, mask, train))
    return self.conv(self.features)(y) + shortcut


class ResNet(nn.Module):
  """Residual networks for small images.

  Attributes:
    block: the kind of block. With :class:`BasicBlock`, a norm follows the stem;
      with :class:`PreActivationBlock`, a norm follows the last block.
    widths: features of each stage.
    blocks: blocks of each stage.
    strides: 1 or 2 for the stem and for each stage; 2 halves the image.
    stem: features of the first convolution.
    dtype: of the convolutions.
    method: one of :data:`CONVOLUTIONS`.
    axis_name: the mesh's axis that a batch is split over, if it is.
  """

  block: Callable[..., Any]
  widths: Sequence[int]
  blocks: Sequence[int]
  strides: Sequence[int]
  stem: int
  dtype: Any = jnp.float32
  method: str = "direct"
  axis_name: str | None = None

  @nn.compact
  def __call__(self, x, mask=None, train=False):
    """Logits (images, 10) of normalized images (images, 32, 32, 3)."""
    if mask is None:
      mask = jnp.ones(len(x), bool)
    conv = functools.partial(Conv, dtype=self.dtype, method=self.method)
    norm = functools.partial(
      BatchNorm, axis_name=self.axis_name, by_image=self.method == "mixed"
    )
    after = self.block is BasicBlock
    first, *strides = self.strides
    x = conv(self.stem, stride=first)(x)
    if after:
      x = nn.relu(norm()(x, mask, train))
    for width, count, stride in zip(
      self.widths, self.blocks, strides, strict=True
    ):
      for i in range(count):
        x = self.block(width, 1 if i else stride, conv, norm)(x, mask, train)
    if not after:
      x = nn.relu(norm()(x, mask, train))
    x = jnp.mean(x.astype(jnp.float32), axis=(1, 2))
    return Dense()(x)


def init(model: ResNet, key: Array) -> dict[str, Any]:
  """Initializes as ``model.init`` does, with one draw for all convolutions.

  Ten runs of the small network then compile in one second instead of 14.
  """
  shapes = jax.eval_shape(
    lambda key: model.init(key, jnp.zeros((1, 32, 32, 3))), key
  )
  conv_key, dense_key = jax.random.split(key)
  kernels = [x for x in jax.tree.leaves(shapes) if x.ndim == 4]
  noise = jax.random.normal(conv_key, (sum(x.size for x in kernels),))
  used = 0

  def fill(path, leaf):
    nonlocal used
    if leaf.ndim == 4:
      part = noise[used : used + leaf.size].reshape(leaf.shape)
      used += leaf.size
      size, _, _, outputs = leaf.shape
      return part * (2 / (size * size * outputs)) ** 0.5
    ones = path[-1].key in ("scale", "var")
    return jnp.ones(leaf.shape) if ones else jnp.zeros(leaf.shape)

  variables = jax.tree_util.tree_map_with_path(fill, shapes)
  inputs = variables["params"]["Dense_0"]["kernel"].shape[0]
  dense = Dense().init(dense_key, jnp.zeros((1, inputs)))["params"]
  variables["params"]["Dense_0"] = dense
  return variables


def kinds(model: ResNet, params: Any) -> Any:
  """The kind of each parameter, as a tree. ⊥Grad acts differently on each.

  The scale of a kernel followed by batch norm has no effect, so its gradient is
  already orthogonal to it.
  """
  after = model.block is BasicBlock
  paths = [path.split("/") for path in by_path(params)]

  def convolutions(block):
    return sum(p[:-2] == block and "Conv" in p[-2] for p in paths)

  def kind(path, _):
    *block, layer, name = (entry.key for entry in path)
    if layer.startswith("BatchNorm"):
      return f"norm {name}"
    if layer.startswith("Dense"):
      return f"dense {name}"
    if block:
      # A shortcut's convolution comes first, if there is one.
      normed = layer == f"Conv_{convolutions(block) - 2}"
    else:
      # The stem's output bypasses the first block's norm only if that block's
      # shortcut has no convolution.
      normed = convolutions(["PreActivationBlock_0"]) == 3
    return "kernel, then norm" if after or normed else "kernel, no norm"

  return jax.tree_util.tree_map_with_path(kind, params)


def by_path(tree: Any) -> dict[str, Any]:
  """The leaves of nested dicts, by names such as "Dense_0/kernel"."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {"/".join(entry.key for entry in path): leaf for path, leaf in leaves}


MODELS: dict[str, Callable[..., ResNet]] = {
  # 11,173,962 parameters. Batch norm follows every kernel but the last layer's.
  "resnet18": functools.partial(
    ResNet,
    BasicBlock,
    (64, 128, 256, 512),
    (2, 2, 2, 2),
    (1, 1, 2, 2, 2),
    stem=64,
  ),
  # 36,479,194 parameters.
  "wrn28_10": functools.partial(
    ResNet, PreActivationBlock, (160, 320, 640), (4, 4, 4), (1, 1, 2, 2), 16
  ),
  # 20,186 parameters, of the kind of WRN-28-10, for two cores and two minutes.
  "small": functools.partial(
    ResNet,
    PreActivationBlock,
    (16, 32),
    (1, 1),
    (2, 2, 2),
    stem=16,
  ),
}
