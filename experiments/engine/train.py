"""The engine: trains many runs at once, on any number of devices.

Runs that differ only in seed and numbers share one compiled program: the run is
the leading axis of every array. SGD is ⊥Grad of strength 0.

All randomness of a run comes from its seed and the epoch. So a seed's methods
share initial weights, subset, order and augmentation, and a resumed run ends
like one that was not interrupted.

The devices form a mesh. Along its axis `run`, each device has its own runs, and
nothing is exchanged. Along its axis `batch`, devices share each batch, and sum
batch norm's statistics and the gradients.
"""

from collections.abc import Sequence
import contextlib
import functools
import os
from typing import Any, NamedTuple

from flax.traverse_util import flatten_dict
import jax
from jax.experimental import mesh_utils, multihost_utils
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
import optax

from experiments import datasets, registry
from experiments.config import Config, ConfigError, Method, Run
from experiments.datasets import Images
from experiments.engine import methods, models
from experiments.engine.convolutions import CONVOLUTIONS, has_pallas

# For the training program on a GPU: CUDA graphs run independent kernels at the
# same time. README.md says what this gains, and why convolutions are left out.
COMPILER_OPTIONS = {"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT"}


class Runs(NamedTuple):
  """What differs between the runs of a group."""

  seed: Any  # (runs,)
  method: Method  # Its numbers are (runs,); all runs share its structure.
  subset: Any  # (runs, images), indices of a run's training images
  labels: Any = None  # (runs, all), with label noise
  own: Any = None  # (runs, images), to fit a temperature on, with `calibrate`


class Weights(NamedTuple):
  """The variables of `models.ResNet`. Each array's first axis is the run."""

  params: Any
  batch_stats: Any


class State(NamedTuple):
  """What a step changes."""

  weights: Weights
  optimizer: methods.OptimizerState
  average: Weights | None  # of the weights over steps, if the method has one

  @property
  def evaluated(self) -> Weights:
    return self.weights if self.average is None else self.average


class Batch(NamedTuple):
  """The images of a batch, and their augmentation."""

  image: jax.Array  # (images,), indices of training images
  mask: jax.Array  # (images,), false for the padding of the last batch
  offset: jax.Array  # (images, 2), down and right
  flip: jax.Array  # (images,), whether an image is mirrored
  mix: methods.Mix | None


def make_mesh(batch: int = 1, devices: Any = None) -> Mesh:
  """Makes a mesh of all devices. `batch` of them share each batch."""
  devices = jax.devices() if devices is None else devices
  if batch < 1 or len(devices) % batch:
    raise ConfigError(
      f"batch is {batch}, but must divide the number of devices, "
      f"{len(devices)}."
    )
  shape = (len(devices) // batch, batch)
  grid = mesh_utils.create_device_mesh(shape, devices)
  return Mesh(grid, ("run", "batch"))


def choose_convolutions(name: str, config: Config) -> str:
  """Returns the name, or the fastest for "auto" by `benchmarks.engine`."""
  on_gpu = jax.default_backend() == "gpu"
  if name == "pallas" and on_gpu and not has_pallas():
    raise ConfigError(
      "convolutions is 'pallas', which needs an Ampere or Hopper GPU and a jax "
      "with Pallas' Triton backend. Use auto."
    )
  known = ["auto", *CONVOLUTIONS]
  if name not in known:
    raise ValueError(
      f"convolutions is {name!r}, but must be one of {', '.join(known)}."
    )
  if name != "auto":
    return name
  if not on_gpu or config.model == "small":
    # On a CPU, XLA's convolutions are slow in loops. TPUs were not measured.
    return "patches"
  plain = config.precision != "bfloat16" or wants_determinism()
  return "mixed" if plain or not has_pallas() else "pallas"


def wants_determinism() -> bool:
  return "deterministic_ops" in os.environ.get("XLA_FLAGS", "")


def compiler_options() -> dict[str, str]:
  """Returns the entries of :data:`COMPILER_OPTIONS` to compile with.

  Entries that XLA_FLAGS sets or that the installed compiler rejects are left
  out: all of them without a GPU, or with deterministic operations.
  """
  options = {}
  if jax.default_backend() == "gpu" and not wants_determinism():
    for name, value in COMPILER_OPTIONS.items():
      with contextlib.suppress(jax.errors.JaxRuntimeError):
        if name not in os.environ.get("XLA_FLAGS", ""):
          jax.jit(lambda: 0, compiler_options={name: value})()
          options[name] = value
  return options


def make_model(config: Config, convolutions: str) -> models.ResNet:
  dtype = jnp.bfloat16 if config.precision == "bfloat16" else jnp.float32
  return registry.MODELS[config.model](
    dtype=dtype,
    method=convolutions,
    axis_name="batch",
    classes=len(config.data.classes),
  )


def load_dataset(config: Config) -> Images:
  """Loads the images that a run trains on and is evaluated on."""
  images = config.data.load()
  if config.evaluate_on == "held_out":
    return datasets.hold_out(images, config.data.held_out)
  if config.reserve:
    others = datasets.hold_out(images, config.data.held_out)
    return Images(*others[:2], *images[2:])
  return images


def normalize(images: jax.Array, data: datasets.Dataset) -> jax.Array:
  """Normalizes images of grey levels from 0 to 255 for the networks."""
  row = lambda v: jnp.asarray(v, jnp.float32).reshape(1, 1, 1, -1)
  return (images.astype(jnp.float32) / 255 - row(data.mean)) / row(data.std)


def crop(images, index, offset, flip):
  """Selects images, shifts them into a black border, and mirrors some.

  Images are (all, rows, columns, channels); the rest is as in :class:`Batch`.
  """
  height, width = images.shape[1:3]
  rows = jnp.arange(height)[None] + offset[:, :1]
  position = jnp.arange(width)[None]
  mirrored = jnp.where(flip[:, None], width - 1 - position, position)
  columns = mirrored + offset[:, 1:]
  inside = lambda i, size: (i >= 0) & (i < size)
  valid = inside(rows, height)[:, :, None] & inside(columns, width)[:, None, :]
  pixels = images[
    index[:, None, None],
    jnp.clip(rows, 0, height - 1)[:, :, None],
    jnp.clip(columns, 0, width - 1)[:, None, :],
  ]
  return jnp.where(valid[..., None], pixels, jnp.zeros((), images.dtype))


def batches(run: Runs, epoch: Any, size: int, data: datasets.Dataset) -> Batch:
  """Returns an epoch's batches of `size` images, along the first axis."""
  n = run.subset.shape[0]
  steps = -(-n // size)
  key = jax.random.fold_in(jax.random.key(run.seed), epoch + 1)
  order, place, mirror = jax.random.split(key, 3)
  index = run.subset[jax.random.permutation(order, n)]
  index = jnp.pad(index, (0, steps * size - n))
  mask = jnp.arange(steps * size) < n
  if run.method.augmentation == "none":
    offset = jnp.zeros((steps * size, 2), jnp.int32)
    flip = jnp.zeros(steps * size, bool)
  else:
    offset = jax.random.randint(
      place, (steps * size, 2), -data.border, data.border + 1, jnp.int32
    )
    flip = jax.random.bernoulli(mirror, data.mirror / 2, (steps * size,))
  split = lambda x: x.reshape(steps, size, *x.shape[1:])
  index, mask, offset, flip = map(split, (index, mask, offset, flip))
  keys = jax.random.split(jax.random.fold_in(key, 0), steps)
  mix = jax.vmap(methods.mix, (None, 0, 0))(run.method, keys, mask)
  return Batch(index, mask, offset, flip, mix)


class Engine:
  """The compiled programs for groups of runs of one config.

  With `diagnostics`, an epoch also returns how much of the gradient is along
  the weights, by kind of parameter.
  """

  def __init__(
    self,
    config: Config,
    *,
    diagnostics: bool = False,
    mesh: Mesh | None = None,
    convolutions: str = "auto",
  ):
    self.config, self.diagnostics = config, diagnostics
    self.mesh = make_mesh() if mesh is None else mesh
    self.convolutions = choose_convolutions(convolutions, config)
    self.model = make_model(config, self.convolutions)
    self.parts = self.mesh.shape["batch"]
    if config.batch_size % self.parts:
      raise ConfigError(
        f"batch_size is {config.batch_size}, but must be a multiple of the "
        f"{self.parts} devices that share a batch."
      )
    init = lambda: models.init(self.model, jax.random.key(0), config.data.shape)
    self.kinds = models.kinds(self.model, jax.eval_shape(init)["params"])
    self.by_run = NamedSharding(self.mesh, P("run"))
    self.init = self.jit(
      self._init, P("run"), P("run"), out_shardings=self.by_run
    )
    self.epoch = self.jit(
      self._epoch,
      (P("run"), P("run"), P(), P(), P()),
      P("run"),
      donate_argnums=0,
      out_shardings=self.by_run,
      compiler_options=compiler_options() or None,
    )

  def jit(self, function: Any, inputs: Any, outputs: Any, **options: Any):
    """Compiles a function of shards, in the config's precision of products."""
    exact = self.config.precision == "float32"
    precise = jax.default_matmul_precision("highest" if exact else "default")
    sharded = jax.shard_map(
      precise(function),
      mesh=self.mesh,
      in_specs=inputs,
      out_specs=outputs,
      check_vma=False,
    )
    return jax.jit(sharded, **options)

  def place(self, runs: Sequence[Run], labels: np.ndarray) -> Runs:
    """Puts runs of one structure on the devices, the same number on each.

    The last run is repeated to fill the devices. The labels are of all training
    images.
    """
    config, size = self.config, self.mesh.shape["run"]
    runs = [*runs, *[runs[-1]] * (-len(runs) % size)]
    seeds = [run.seed for run in runs]
    resolved = [run.method.resolve(config) for run in runs]
    drawn = [draw_images(config, labels, seed) for seed in seeds]
    subset, own = (np.array(x, np.int32) for x in zip(*drawn, strict=True))
    pairs = zip(seeds, subset, strict=True) if config.label_noise else ()
    noisy = [noisy_labels(config, labels, *pair) for pair in pairs]
    arrays = Runs(
      seed=np.array(seeds, np.int32),
      method=jax.tree.map(lambda *x: np.array(x, np.float32), *resolved),
      subset=subset,
      labels=np.array(noisy) if noisy else None,
      own=own if config.calibrate else None,
    )
    return jax.tree.map(lambda x: put(x, self.by_run), arrays)

  def replicate(self, array: Any) -> jax.Array:
    """Returns the same array on every device."""
    return put(np.asarray(array), NamedSharding(self.mesh, P()))

  def _init(self, runs: Runs) -> State:
    def init(seed):
      key = jax.random.fold_in(jax.random.key(seed), 0)
      return models.init(self.model, key, self.config.data.shape)

    weights = Weights(**jax.vmap(init)(runs.seed))
    optimizer = methods.init(
      runs.method, self.kinds, weights.params, diagnostics=self.diagnostics
    )
    averaged = runs.method.wrapper == "average"
    return State(weights, optimizer, weights if averaged else None)

  def _epoch(self, state: State, runs: Runs, epoch, images, labels):
    """Trains an epoch. Returns the runs' states, losses and accuracies."""
    config, method = self.config, runs.method
    gradients = functools.partial(self._gradients, images=images)
    if runs.labels is not None:
      labels = runs.labels
    axes = 0, 0, 0, None if runs.labels is None else 0

    def step(state: State, now):
      number, batch = now
      grads, batch_stats, sums = jax.vmap(gradients, axes)(
        method, state.weights, batch, labels
      )
      grads, sums = jax.lax.psum((grads, sums), "batch")
      params, optimizer = methods.update(
        method,
        self.kinds,
        grads,
        state.optimizer,
        state.weights.params,
        progress=number / (config.epochs * config.steps),
        eps=config.eps,
        diagnostics=self.diagnostics,
      )
      weights, average = Weights(params, batch_stats), state.average
      if average is not None:
        average = methods.average(method, average, weights, number)
      outputs = *sums, self._radial(optimizer)
      return State(weights, optimizer, average), outputs

    plan = jax.vmap(
      lambda run: batches(run, epoch, config.batch_size, config.data),
      out_axes=1,
    )
    numbers = epoch * config.steps + jnp.arange(config.steps)
    state, (losses, rights, radial) = jax.lax.scan(
      step, state, (numbers, plan(runs))
    )
    n = runs.subset.shape[1]
    return state, {
      "loss": jnp.sum(losses, axis=0) / n,
      "top1": 100 * jnp.sum(rights, axis=0) / n,
      "weight_norm": jax.vmap(optax.tree.norm)(state.weights.params),
      **jax.tree.map(lambda x: jnp.mean(x, axis=0), radial),
    }

  def _radial(self, optimizer: methods.OptimizerState) -> dict[str, jax.Array]:
    """Returns the share of ‖g‖² along w at the last step, by parameter kind."""
    cosines = optax.tree.get(optimizer.orthograd, "cosine", {})
    by_kind: dict[str, list[jax.Array]] = {}
    for path, kind in flatten_dict(self.kinds, sep="/").items():
      if path in cosines:  # ⊥Grad acts on it
        by_kind.setdefault(f"radial: {kind}", []).append(cosines[path] ** 2)
    return {k: jnp.mean(jnp.stack(xs), axis=0) for k, xs in by_kind.items()}

  def _gradients(self, method, weights: Weights, batch: Batch, labels, images):
    """Returns gradients, new statistics, and sums of losses and right answers.

    They are of one run, from this device's part of the batch. The caller sums
    all but the statistics over the devices.
    """
    x, mask, targets = self._examples(batch, images, labels)
    valid = mask.astype(jnp.float32)
    count = jax.lax.psum(jnp.sum(valid), "batch")

    def objective(params):
      logits, new = self.model.apply(
        {"params": params, "batch_stats": weights.batch_stats},
        x,
        mask,
        train=True,
        mutable=["batch_stats"],
      )
      loss = right = jnp.zeros(())
      for share, label in targets:
        losses = methods.per_example_loss(method, logits, label)
        loss += share * jnp.sum(valid * losses)
        right += share * jnp.sum(valid * (jnp.argmax(logits, axis=1) == label))
      return loss / count, (new["batch_stats"], (loss, right))

    def gradients(params):
      # Differentiate by kernels in the convolutions' dtype: their gradients
      # then have half the bytes.
      params = jax.tree.map(
        lambda x: x.astype(self.model.dtype) if x.ndim == 4 else x, params
      )
      grads, aux = jax.grad(objective, has_aux=True)(params)
      if self.parts > 1:  # The sum over devices needs float32.
        grads = optax.tree.cast(grads, jnp.float32)
      return grads, aux

    grads, (new, sums) = gradients(weights.params)
    if method.wrapper == "sam":
      grads = jax.lax.psum(grads, "batch")
      grads, _ = gradients(methods.ascend(method, weights.params, grads))
    return grads, new, sums

  def _examples(self, batch: Batch, images, labels):
    """This device's pixels, mask, and (share, labels) of each mixed part."""
    config = self.config
    size = config.batch_size // self.parts
    first = jax.lax.axis_index("batch") * size
    part = functools.partial(
      jax.tree.map, lambda x: jax.lax.dynamic_slice_in_dim(x, first, size)
    )
    which = batch.image, batch.offset, batch.flip
    mask, mine = part((batch.mask, which))
    x, label = normalize(crop(images, *mine), config.data), labels[mine[0]]
    if batch.mix is None:
      return x, mask, [(1.0, label)]
    partner, share = batch.mix
    other = part(jax.tree.map(lambda x: x[partner], which))
    x = share * x + (1 - share) * normalize(crop(images, *other), config.data)
    return x, mask, [(share, label), (1 - share, labels[other[0]])]


def draw_images(
  config: Config, labels: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Draws a run's images, the same number of each class, by the seed.

  Returns the indices of those to train on and to fit a temperature on.
  """
  block, fold = divmod(seed, config.seeds_per_subset)
  per_class = config.per_class + config.calibrate
  drawn = datasets.class_balanced_subset(labels, per_class, block)
  shuffled = np.random.RandomState([block, 2]).permutation(drawn)
  order = np.argsort(labels[shuffled], kind="stable")
  by_class = shuffled[order].reshape(-1, per_class)
  # The next fold begins where this one ends.
  by_class = np.roll(by_class, -fold * config.calibrate, axis=1)
  own, train = np.split(by_class, [config.calibrate], axis=1)
  return np.sort(train, axis=None), np.sort(own, axis=None)


def noisy_labels(
  config: Config, labels: np.ndarray, seed: int, subset: np.ndarray
) -> np.ndarray:
  """Returns all labels, with wrong ones for some of a run's images."""
  random = np.random.RandomState([seed, 1])  # not the subset's stream
  count = round(config.label_noise * len(subset))
  chosen = random.permutation(subset)[:count]
  noisy, classes = np.array(labels, np.int32), len(config.data.classes)
  noisy[chosen] += random.randint(1, classes, count)
  return noisy % classes


def put(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
  """Shards an array, which every process has, over all devices."""
  return jax.make_array_from_callback(
    array.shape, sharding, lambda index: array[index]
  )


def gather(tree: Any) -> Any:
  """Returns the whole arrays, as NumPy's, in every process."""
  if all(x.is_fully_addressable for x in jax.tree.leaves(tree)):
    return jax.device_get(tree)  # starts all copies before it waits for one
  return multihost_utils.process_allgather(tree, tiled=True)
