"""ResNet-18, WRN-28-10 and a small network for the CPU, in Flax.

The networks follow their papers, for small images, with PyTorch's
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

from experiments.engine.convolutions import CONVOLUTIONS, power_of_two

Array = jax.Array
# Pixels that one block of a GPU sums for batch norm. More would leave cores
# idle; fewer would write more partial sums.
PIXELS_PER_SUM = 256
MOMENTUM, EPS = 0.1, 1e-5  # of batch norm


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
    x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
    return CONVOLUTIONS[self.method](x, kernel, self.stride)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def normalize(
  x: Array, scale: Array, bias: Array, weights: Array, axis_name: str | None
) -> tuple[Array, tuple[Array, Array, Array]]:
  """Normalizes (images, rows, columns, features) for each feature, in float32.

  An image counts in the statistics if its entry in `weights` is 1, not 0. Also
  returns the mean, variance and number of pixels, which have no gradient. Its
  own gradient takes two sums over pixels. The derived one takes three.
  """
  return _normalize_forward(x, scale, bias, weights, axis_name)[0]


def _normalize_forward(x, scale, bias, weights, axis_name):
  x32 = x.astype(jnp.float32)
  weighted = x32 * _by_image(weights)
  count = jnp.sum(weights) * (x.shape[1] * x.shape[2])
  sums = *_sum_pixels(weighted, weighted * x32), count
  if axis_name is not None:
    sums = jax.lax.psum(sums, axis_name)
  total, squares, count = sums
  mean = total / count
  var = jnp.maximum(squares / count - jnp.square(mean), 0)
  inverse = jax.lax.rsqrt(var + EPS)
  y = _affine(x, mean, scale * inverse, bias)
  return (y, (mean, var, count)), (x, scale, weights, mean, inverse, count)


def _normalize_backward(axis_name, kept, gradients):
  x, scale, weights, mean, inverse, count = kept
  g = gradients[0].astype(jnp.float32)
  centred = x.astype(jnp.float32) - _by_feature(mean)
  to_bias, product = _sum_pixels(g, g * centred)
  to_scale = product * inverse
  sums = to_bias, to_scale
  if axis_name is not None:
    sums = jax.lax.psum(sums, axis_name)
  shift, slope = (s / count for s in sums)
  through = _by_feature(shift) + centred * _by_feature(slope * inverse)
  to_x = _by_feature(scale * inverse) * (g - _by_image(weights) * through)
  return to_x.astype(x.dtype), to_scale, to_bias, jnp.zeros_like(weights)


normalize.defvjp(_normalize_forward, _normalize_backward)


def _affine(x: Array, mean: Array, gain: Array, bias: Array) -> Array:
  mean, gain, bias = map(_by_feature, (mean, gain, bias))
  return ((x.astype(jnp.float32) - mean) * gain + bias).astype(x.dtype)


def _by_image(vector: Array) -> Array:
  return vector[:, None, None, None]


def _by_feature(vector: Array) -> Array:
  return vector[None, None, None]


def _sum_pixels(*arrays: Array) -> list[Array]:
  """Sums over images and pixels, first within groups of images.

  A single sum over all pixels occupies few of a GPU's cores.
  """
  images, rows, columns, features = arrays[0].shape
  group = power_of_two(images, PIXELS_PER_SUM // (rows * columns))
  shape = images // group, group * rows * columns, features
  sums = [jnp.sum(x.reshape(shape), axis=1) for x in arrays]
  # Without a barrier, XLA would make it a single sum.
  return [jnp.sum(x, axis=0) for x in jax.lax.optimization_barrier(sums)]


class BatchNorm(nn.Module):
  """Batch norm over images and pixels, in float32."""

  axis_name: str | None = None  # of the mesh, if the batch is split over it

  @nn.compact
  def __call__(self, x, mask, train):
    features = x.shape[3]
    scale = self.param("scale", nn.initializers.ones, (features,))
    bias = self.param("bias", nn.initializers.zeros, (features,))
    stat = functools.partial(self.variable, "batch_stats")
    running_mean = stat("mean", jnp.zeros, (features,))
    running_var = stat("var", jnp.ones, (features,))
    if not train:
      gain = scale * jax.lax.rsqrt(running_var.value + EPS)
      return _affine(x, running_mean.value, gain, bias)
    weights = mask.astype(jnp.float32)
    normalized: Any = normalize(x, scale, bias, weights, self.axis_name)
    y, (mean, var, count) = normalized
    if not self.is_initializing():
      unbiased = var * (count / jnp.maximum(count - 1, 1))
      for running, new in ((running_mean, mean), (running_var, unbiased)):
        running.value = (1 - MOMENTUM) * running.value + MOMENTUM * new
    return y


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

  With :class:`BasicBlock`, a norm follows the stem; with
  :class:`PreActivationBlock`, a norm follows the last block.
  """

  block: Callable[..., Any]
  widths: Sequence[int]  # features of each stage
  blocks: Sequence[int]  # in each stage
  strides: Sequence[int]  # of the stem and each stage; 2 halves the image
  stem: int  # features of the first convolution
  dtype: Any = jnp.float32  # of the convolutions
  method: str = "direct"  # one of `convolutions.CONVOLUTIONS`
  axis_name: str | None = None  # as of `BatchNorm`
  classes: int = 10

  @nn.compact
  def __call__(self, x, mask=None, train=False):
    """Logits (images, classes) of normalized images."""
    if mask is None:
      mask = jnp.ones(len(x), bool)
    conv = functools.partial(Conv, dtype=self.dtype, method=self.method)
    norm = functools.partial(BatchNorm, axis_name=self.axis_name)
    after = self.block is BasicBlock
    first, *strides = self.strides
    x = conv(self.stem, stride=first)(x)
    if after:
      x = nn.relu(norm()(x, mask, train))
    stages = zip(self.widths, self.blocks, strides, strict=True)
    for width, count, stride in stages:
      for i in range(count):
        x = self.block(width, 1 if i else stride, conv, norm)(x, mask, train)
    if not after:
      x = nn.relu(norm()(x, mask, train))
    x = jnp.mean(x.astype(jnp.float32), axis=(1, 2))
    return Dense(self.classes)(x)


def init(
  model: ResNet, key: Array, shape: tuple[int, ...] = (32, 32, 3)
) -> dict[str, Any]:
  """Initializes for images of a shape, with one draw for all convolutions.

  Ten runs of the small network then compile in one second instead of 14.
  """
  shapes = jax.eval_shape(model.init, key, jnp.zeros((1, *shape)))
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
  dense = Dense(model.classes).init(dense_key, jnp.zeros((1, inputs)))["params"]
  variables["params"]["Dense_0"] = dense
  return variables


def kinds(model: ResNet, params: Any) -> Any:
  """Returns a tree of the kinds of parameters.

  The scale of a kernel followed by batch norm has no effect, so its gradient is
  already orthogonal to it.
  """
  after = model.block is BasicBlock

  convolutions = lambda layers: sum(name.startswith("Conv") for name in layers)

  def kind(path, _):
    *block, layer, name = (entry.key for entry in path)
    if layer.startswith("BatchNorm"):
      return f"norm {name}"
    if layer.startswith("Dense"):
      return f"dense {name}"
    if block:
      # A shortcut's convolution comes first, if there is one.
      normed = layer == f"Conv_{convolutions(params[block[0]]) - 2}"
    else:
      # The stem's output bypasses the first block's norm only if that block's
      # shortcut has no convolution.
      first = params.get("PreActivationBlock_0", ())
      normed = convolutions(first) == 3
    return "kernel, then norm" if after or normed else "kernel, no norm"

  return jax.tree_util.tree_map_with_path(kind, params)


# The models of `registry.MODELS`. Batch norm follows every kernel of ResNet-18
# but the last layer's. It has 11,173,962 parameters.
resnet18 = functools.partial(
  ResNet, BasicBlock, (64, 128, 256, 512), (2, 2, 2, 2), (1, 1, 2, 2, 2), 64
)
# 36,479,194 parameters.
wrn28_10 = functools.partial(
  ResNet, PreActivationBlock, (160, 320, 640), (4, 4, 4), (1, 1, 2, 2), 16
)
# 20,186 parameters, of the kind of WRN-28-10, for two cores and two minutes.
small = functools.partial(
  ResNet, PreActivationBlock, (16, 32), (1, 1), (2, 2, 2), 16
)
