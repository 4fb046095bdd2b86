"""The engine: many runs at once, on any number of devices.

Runs of all seeds and optimizers share one compiled program: they are a leading
axis of every array, and SGD is ⊥Grad of strength 0. A run's randomness comes
from its seed alone, so that the optimizers of a seed get the same initial
weights, subset, order and augmentation, and so that a run that is resumed after
an epoch goes on as if nothing had happened.

The devices form a mesh: along its axis `run` each has its own runs and nothing
is exchanged; along its axis `batch` they share each batch, and sum up batch
norm's statistics and the gradients.
"""

import contextlib
import functools
from typing import Any, NamedTuple

import jax
from jax.experimental import mesh_utils, multihost_utils
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax

from experiments.cifar import cache
from experiments.config import OPTIMIZERS, Config
from experiments.engine import models
from orthograd_optax import orthograd_sgd

# Of the pixels' values from 0 to 1, in the three colours.
MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)
STD = np.array([0.2023, 0.1994, 0.2010], np.float32)
BORDER = 4
# How convolutions of many runs are computed, by `models.CONVOLUTIONS`: as one
# batched product of matrices, as one for each run, as the one or the other, as
# a grouped convolution; or each run's whole epoch after the other's.
METHODS = {
  "patches": "patches",
  "unrolled": "unrolled",
  "mixed": "mixed",
  "grouped": "direct",
  "sequential": "direct",
}


class Runs(NamedTuple):
  """What tells the runs of a group apart.

  Attributes:
    seed: (runs,).
    strength: (runs,), of ⊥Grad.
    subset: (runs, images), which of the training images a run has.
  """

  seed: Any
  strength: Any
  subset: Any


class State(NamedTuple):
  """What a step changes; each array's first axis is the run."""

  params: Any
  batch_stats: Any
  optimizer: Any


def make_mesh(batch: int = 1, devices: Any = None) -> Mesh:
  """All devices, of which so many share each batch."""
  devices = jax.devices() if devices is None else devices
  if batch < 1 or len(devices) % batch:
    raise ValueError(
      f"batch is {batch}, but must divide the number of devices, "
      f"{len(devices)}."
    )
  shape = (len(devices) // batch, batch)
  grid = mesh_utils.create_device_mesh(shape, devices)
  return Mesh(grid, ("run", "batch"))


def choose_method(method: str, config: Config) -> str:
  """The method; for "auto" the fastest, by `python -m benchmarks.engine`."""
  if method in METHODS:
    return method
  if method != "auto":
    raise ValueError(
      f"method is {method!r}, but must be one of auto, {', '.join(METHODS)}."
    )
  if jax.default_backend() == "gpu" and config.model != "small":
    return "mixed"
  # XLA's convolutions are slow in loops on a CPU. A TPU was not measured.
  return "patches"


def precision(config: Config) -> contextlib.AbstractContextManager:
  """In which float32's products are computed as the config says."""
  exact = config.precision == "float32"
  return jax.default_matmul_precision("highest" if exact else "default")


def make_model(config: Config, method: str) -> models.ResNet:
  dtype = jnp.bfloat16 if config.precision == "bfloat16" else jnp.float32
  make = models.MODELS[config.model]
  return make(dtype=dtype, method=METHODS[method], axis_name="batch")


def load_dataset(config: Config) -> cache.Cifar10:
  if config.dataset == "sample":
    return cache.load_sample()
  return cache.load_cifar10()


def normalize(images: jax.Array) -> jax.Array:
  """Images of grey levels from 0 to 255 as the networks take them."""
  row = lambda v: jnp.asarray(v).reshape(1, 1, 1, 3)
  return (images.astype(jnp.float32) / 255 - row(MEAN)) / row(STD)


def crop(images, index, offset, flip):
  """Some of the images, moved on a black border, some of them mirrored.

  Args:
    images: (all, 32, 32, 3).
    index: (n,), which of them.
    offset: (n, 2), down and right, from -4 to 4.
    flip: (n,), of booleans.

  Returns:
    Images (n, 32, 32, 3).
  """
  position = jnp.arange(32)[None]
  rows = position + offset[:, :1]
  columns = jnp.where(flip[:, None], 31 - position, position) + offset[:, 1:]
  inside = lambda i: (i >= 0) & (i < 32)
  valid = inside(rows)[:, :, None] & inside(columns)[:, None, :]
  found = images[
    index[:, None, None],
    jnp.clip(rows, 0, 31)[:, :, None],
    jnp.clip(columns, 0, 31)[:, None, :],
  ]
  return jnp.where(valid[..., None], found, jnp.zeros((), images.dtype))


def batches(run: Runs, epoch, config: Config):
  """Which images, with which augmentation, make up the batches of an epoch.

  Returns:
    Of shape (steps, batch, ...): indices, a mask that is false where the last
    batch has no image left, offsets, and which are mirrored.
  """
  n, size = run.subset.shape[0], config.batch_size
  steps = -(-n // size)
  key = jax.random.fold_in(jax.random.key(run.seed), epoch + 1)
  order, place, mirror = jax.random.split(key, 3)
  index = run.subset[jax.random.permutation(order, n)]
  index = jnp.pad(index, (0, steps * size - n))
  mask = jnp.arange(steps * size) < n
  if config.augment:
    offset = jax.random.randint(
      place, (steps * size, 2), -BORDER, BORDER + 1, jnp.int32
    )
    flip = jax.random.bernoulli(mirror, 0.5, (steps * size,))
  else:
    offset = jnp.zeros((steps * size, 2), jnp.int32)
    flip = jnp.zeros(steps * size, bool)
  split = lambda x: x.reshape(steps, size, *x.shape[1:])
  return jax.tree.map(split, (index, mask, offset, flip))


def make_optimizer(config: Config, strength, **options: Any):
  """The optimizer of many runs, each with its own strength."""
  return orthograd_sgd(
    config.learning_rate,
    momentum=config.momentum,
    weight_decay=config.weight_decay,
    strength=strength,
    eps=config.eps,
    batch_axes=0,
    **options,
  )


class Engine:
  """The compiled programs for groups of runs of one config.

  Attributes:
    config: what the runs have in common.
    diagnostics: whether an epoch also says how much of each kind of gradient
      was along the weights.
    options: of the optimizer.
    mesh: of axes `run` and `batch`.
    method: of :data:`METHODS`.
  """

  def __init__(
    self,
    config: Config,
    *,
    renormalize: bool = True,
    diagnostics: bool = False,
    mesh: Mesh | None = None,
    method: str = "auto",
  ):
    self.config, self.diagnostics = config, diagnostics
    self.options = {"renormalize": renormalize, "diagnostics": diagnostics}
    self.mesh = make_mesh() if mesh is None else mesh
    self.method = choose_method(method, config)
    self.model = make_model(config, self.method)
    self.parts = self.mesh.shape["batch"]
    if config.batch_size % self.parts:
      raise ValueError(
        f"batch_size is {config.batch_size}, but must be a multiple of the "
        f"{self.parts} devices that share a batch."
      )
    self.by_run = NamedSharding(self.mesh, P("run"))
    self.everywhere = NamedSharding(self.mesh, P())
    shard = functools.partial(
      jax.shard_map, mesh=self.mesh, check_vma=False, out_specs=P("run")
    )
    self.init = jax.jit(
      shard(self._init, in_specs=P("run")),
      out_shardings=self.by_run,
    )
    self.epoch = jax.jit(
      shard(self._epoch, in_specs=(P("run"), P("run"), P(), P(), P())),
      donate_argnums=0,
      out_shardings=self.by_run,
    )

  def place(self, runs: list[tuple[str, int]], labels: np.ndarray) -> Runs:
    """Puts the runs on the devices, so many that they can be dealt out evenly.

    Args:
      runs: (optimizer, seed); if need be, the last is repeated.
      labels: of the training images.
    """
    size = self.mesh.shape["run"]
    runs = runs + runs[-1:] * (-len(runs) % size)
    subsets = {
      seed: cache.class_balanced_subset(labels, self.config.per_class, seed)
      for seed in {seed for _, seed in runs}
    }
    arrays = Runs(
      seed=np.array([seed for _, seed in runs], np.int32),
      strength=np.array(
        [OPTIMIZERS[name].strength for name, _ in runs], np.float32
      ),
      subset=np.stack([subsets[seed] for _, seed in runs]).astype(np.int32),
    )
    return jax.tree.map(lambda x: put(x, self.by_run), arrays)

  def replicate(self, array: Any) -> jax.Array:
    """The same array on every device."""
    return put(np.asarray(array), self.everywhere)

  def _init(self, runs: Runs) -> State:
    def init(seed):
      key = jax.random.fold_in(jax.random.key(seed), 0)
      return models.init(self.model, key)

    variables = jax.vmap(init)(runs.seed)
    params, batch_stats = variables["params"], variables["batch_stats"]
    optimizer = make_optimizer(self.config, runs.strength, **self.options)
    return State(params, batch_stats, optimizer.init(params))

  def _epoch(self, state, runs, epoch, images, labels):
    """The runs' new states, and their losses and accuracies on the way."""
    together = functools.partial(
      self._epoch_together, epoch=epoch, images=images, labels=labels
    )
    with precision(self.config):
      if self.method != "sequential":
        return together(state, runs)
      alone = jax.tree.map(lambda x: x[:, None], (state, runs))
      found = jax.lax.map(lambda one: together(*one), alone)
      return jax.tree.map(lambda x: x[:, 0], found)

  def _epoch_together(self, state: State, runs: Runs, epoch, images, labels):
    optimizer = make_optimizer(self.config, runs.strength, **self.options)
    one = functools.partial(self._gradients, images=images, labels=labels)

    def step(state: State, batch):
      found = jax.vmap(one)(state.params, state.batch_stats, batch)
      grads, batch_stats, sums = found
      grads, sums = jax.lax.psum((grads, sums), "batch")
      # Not mapped over the runs, for a branch in it to stay one.
      updates, new = optimizer.update(grads, state.optimizer, state.params)
      params = optax.apply_updates(state.params, updates)
      return State(params, batch_stats, new), (*sums, self._radial(new, params))

    plan = lambda run: batches(run, epoch, self.config)
    state, (losses, rights, radial) = jax.lax.scan(
      step, state, jax.vmap(plan, out_axes=1)(runs)
    )
    n = runs.subset.shape[1]
    return state, {
      "loss": jnp.sum(losses, axis=0) / n,
      "top1": 100 * jnp.sum(rights, axis=0) / n,
      "weight_norm": jax.vmap(optax.tree.norm)(state.params),
      **jax.tree.map(lambda x: jnp.mean(x, axis=0), radial),
    }

  def _radial(self, optimizer: Any, params: Any) -> dict[str, jax.Array]:
    """The share of ‖g‖² along w at the last step, by kind of parameter."""
    if not self.diagnostics:
      return {}
    cosines = optax.tree.get(optimizer, "cosine")
    by_kind: dict[str, list[jax.Array]] = {}
    for path, kind in models.kinds(self.model, params).items():
      by_kind.setdefault(f"radial: {kind}", []).append(cosines[path] ** 2)
    return {k: jnp.mean(jnp.stack(xs), axis=0) for k, xs in by_kind.items()}

  def _gradients(self, params, batch_stats, batch, images, labels):
    """One run's, from this device's part of the batch.

    Returns:
      Gradients, new running statistics, and sums of losses and right answers;
      all but the statistics are to be summed over the devices.
    """
    local = self.config.batch_size // self.parts
    first = jax.lax.axis_index("batch") * local
    index, mask, offset, flip = jax.tree.map(
      lambda x: jax.lax.dynamic_slice_in_dim(x, first, local), batch
    )
    x = normalize(crop(images, index, offset, flip))
    weights = mask.astype(jnp.float32)
    count = jax.lax.psum(jnp.sum(weights), "batch")

    def objective(params):
      variables = {"params": params, "batch_stats": batch_stats}
      logits, new = self.model.apply(
        variables, x, mask, train=True, mutable=["batch_stats"]
      )
      losses = optax.softmax_cross_entropy_with_integer_labels(
        logits, labels[index]
      )
      right = jnp.sum(weights * (jnp.argmax(logits, axis=1) == labels[index]))
      loss = jnp.sum(weights * losses)
      return loss / count, (new["batch_stats"], (loss, right))

    # By the kernels as convolutions take them: their gradients come likewise,
    # in half the bytes.
    params = jax.tree.map(
      lambda x: x.astype(self.model.dtype) if x.ndim == 4 else x, params
    )
    grads, (new, sums) = jax.grad(objective, has_aux=True)(params)
    if self.parts > 1:  # to be summed up over the devices
      grads = optax.tree.cast(grads, jnp.float32)
    return grads, new, sums


def put(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
  """The array on the devices of all processes, each of which has all of it."""
  return jax.make_array_from_callback(
    array.shape, sharding, lambda index: array[index]
  )


def gather(tree: Any) -> Any:
  """All of the arrays, as NumPy's, in every process."""
  if all(x.is_fully_addressable for x in jax.tree.leaves(tree)):
    return jax.tree.map(np.asarray, tree)
  return multihost_utils.process_allgather(tree, tiled=True)
