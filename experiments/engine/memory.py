"""Estimates the memory of a run, and how many runs fit on a device."""

import os
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from experiments.config import Config, Method
from experiments.engine import methods, models, train
from experiments.engine.convolutions import keeps_patches
from experiments.shares import MOST_RUNS

# PEAK: the share of the layers' inputs and outputs that is alive at once.
# COPIES of the parameters: themselves, gradients, updates, and the kernels in
# the convolutions' dtype. The optimizer's state, SAM's other weights and an
# average come on top. On an H200, the estimate for ResNet-18 is 10 to
# 40 % above XLA's own count (`python -m benchmarks.engine` prints both).
PEAK, COPIES = 0.9, 4


def bytes_per_run(config: Config, method: Method, convolutions: str) -> int:
  """Estimates the memory that one more run takes on a device."""
  model = train.make_model(config, convolutions)
  activations = 0  # bytes

  def spy(call, args, kwargs, context):
    """Counts what a layer keeps of its input and output."""
    nonlocal activations
    module, x, out = context.module, args[0], call(*args, **kwargs)
    if isinstance(module, models.Conv):
      width = jnp.dtype(model.dtype).itemsize
      patches = keeps_patches(
        convolutions, x, module.size, module.stride, module.features
      )
      times = max(module.size**2 / module.stride**2, 1) if patches else 1
      activations += width * int(x.size * times + out.size)
    elif isinstance(module, models.BatchNorm):
      activations += out.size * out.dtype.itemsize
    return out

  with nn.intercept_methods(spy):
    images = jnp.zeros((config.batch_size, *config.data.shape))
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)
  kinds = models.kinds(model, shapes["params"])
  optimizer = methods.base(method.resolve(config), kinds)
  state = jax.eval_shape(optimizer.init, shapes["params"])
  copies = COPIES + (method.wrapper != "none")
  return int(PEAK * activations + copies * _bytes(shapes) + _bytes(state))


def _bytes(tree: Any) -> int:
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def device_memory() -> int:
  """Returns the bytes of memory that a device has."""
  device = jax.local_devices()[0]
  stats = device.memory_stats() if device.platform != "cpu" else None
  if stats and "bytes_limit" in stats:
    return int(stats["bytes_limit"])
  total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  return total // 2 // max(jax.local_device_count(), 1)


def runs_that_fit(
  config: Config, method: Method, convolutions: str, mesh: Any
) -> int:
  """Returns how many runs train together on a mesh: at least one a device."""
  free = device_memory() - (1 << 30)  # for the images
  fit = int(free // bytes_per_run(config, method, convolutions))
  return min(max(fit, 1), MOST_RUNS) * mesh.shape["run"]
