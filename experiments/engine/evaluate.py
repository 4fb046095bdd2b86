"""From weights to rows: logits of a group's runs, and all that is said of them.

Sets of images come one at a time, and so do the metrics of all runs on each.
"""

from collections.abc import Iterable
import concurrent.futures
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax

from experiments.cifar import cache, corruptions, published
from experiments.engine import train
from orthograd_optax import calibration

CHUNK = 2500  # images at once
# What temperature scaling is judged by.
SCALED = ("loss", "ece", "brier", "entropy", "max_softmax")


def images_of(
  dataset: str, test: cache.Cifar10, path: str | None = None
) -> tuple[Any, np.ndarray]:
  """The images and labels of a set: "clean", or such as "fog/3".

  Args:
    dataset: its name in rows.
    test: whose test images to take, or to corrupt.
    path: of the published CIFAR-10-C, to take instead of making it.

  Returns:
    Images (n, 32, 32, 3), uint8, and labels (n,). Corruptions have a key of
    their own, so that they are the same for every group and study.
  """
  if dataset == "clean":
    return test.test_images, test.test_labels
  name, _, severity = dataset.partition("/")
  if path is not None:
    return published.load(path, name, int(severity))
  name = corruptions.check(name, int(severity))
  number = corruptions.ALL_CORRUPTIONS.index(name)
  key = jax.random.fold_in(jax.random.key(2019), number)
  key = jax.random.fold_in(key, int(severity))
  images = corruptions.corrupt(test.test_images, name, int(severity), key)
  return images, test.test_labels


class Sets:
  """Sets of images that are made ahead of their use, in another thread.

  Most of that is compiling, which takes no time from a device that trains
  meanwhile. What was asked for is kept.
  """

  def __init__(self, test: cache.Cifar10, path: str | None = None):
    self._source = test, path
    self._asked: dict[str, concurrent.futures.Future[Any]] = {}
    self._thread = concurrent.futures.ThreadPoolExecutor(1)

  def ask(self, datasets: Iterable[str]) -> None:
    """Has them made, in this order, unless they are or will be."""
    for name in datasets:
      if name not in self._asked:
        self._asked[name] = self._thread.submit(self._make, name)

  def _make(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = images_of(name, *self._source)
    return np.asarray(images), labels

  def __getitem__(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Its images and labels, of :func:`images_of`; it may take a while."""
    asked = self._asked.get(name)
    if asked is None or asked.exception() is not None:
      # One that failed may have lacked the memory that training took.
      return self._make(name)
    return asked.result()

  def close(self) -> None:
    self._thread.shutdown(cancel_futures=True)


class Evaluator:
  """The compiled programs that evaluate an engine's runs.

  Without gradients, one run fills a GPU, so the runs come one after the other;
  on a CPU, where convolutions in a loop are slow, they come together.

  Attributes:
    engine: whose runs.
    method: "sequential", or the engine's.
  """

  def __init__(self, engine: train.Engine, method: str | None = None):
    self.engine = engine
    on_cpu = jax.default_backend() == "cpu"
    self.method = method or (engine.method if on_cpu else "sequential")
    self.model = train.make_model(engine.config, self.method)
    self._logits = jax.jit(
      jax.shard_map(
        self._apply,
        mesh=engine.mesh,
        in_specs=(P("run"), P("run"), P("batch")),
        out_specs=P("run", "batch"),
        check_vma=False,
      )
    )
    self._metrics = jax.jit(jax.vmap(metrics, in_axes=(0, None, None, None)))
    self.norms = jax.jit(jax.vmap(optax.tree.norm))

  def _apply(self, params, batch_stats, images):
    def one(variables):
      logits = jax.lax.map(
        lambda x: self.model.apply(variables, train.normalize(x)), parts
      )
      return logits.reshape(len(images), -1)

    chunk = self._chunk(len(images))
    parts = images.reshape(-1, chunk, *images.shape[1:])
    variables = {"params": params, "batch_stats": batch_stats}
    with train.precision(self.engine.config):
      if self.method == "sequential":
        return jax.lax.map(one, variables)
      return jax.vmap(one)(variables)

  def _chunk(self, images: int) -> int:
    """How many of a device's images are evaluated at once."""
    runs_at_once = 1 if self.method == "sequential" else 10
    return min(CHUNK // runs_at_once, images)

  def logits(self, state: train.State, images: Any) -> jax.Array:
    """Logits (runs, images, 10) of images (images, 32, 32, 3), uint8."""
    n, parts = len(images), self.engine.parts
    whole = parts * self._chunk(-(-n // parts))
    images = np.asarray(images)
    if extra := -n % whole:
      images = np.concatenate(
        [images, np.zeros_like(images[:1]).repeat(extra, 0)]
      )
    images = train.put(images, jax.NamedSharding(self.engine.mesh, P("batch")))
    return self._logits(state.params, state.batch_stats, images)[:, :n]

  def __call__(
    self, state: train.State, images: Any, labels: np.ndarray
  ) -> tuple[dict[str, Any], jax.Array]:
    """What :func:`rows` are made of, and logits, without waiting for either."""
    logits = self.logits(state, images)
    halves = calibration.split(labels)
    found = self._metrics(logits, jnp.asarray(labels), *halves)
    found["metrics"]["weight_norm"] = self.norms(state.params)
    return found, logits


def metrics(logits, labels, fit, judge):
  """All that a row says of one run's logits.

  Args:
    logits: (images, 10).
    labels: (images,).
    fit: the images of one half, to fit a temperature on.
    judge: those of the other half, to judge it by.
  """
  scale = functools.partial(_scaled, logits, labels)
  on_test = calibration.fit_temperature(logits, labels)
  on_half = calibration.fit_temperature(logits[fit], labels[fit])
  bins = calibration.reliability(logits, labels)
  return {
    "metrics": dict(calibration.evaluate(logits, labels))
    | {"temperature": on_test, "temperature_half": on_half},
    # Fitted on the test set itself, as the paper does; and on one half of it,
    # judged by the other.
    "scaled": scale(on_test, slice(None)),
    "scaled_half": scale(on_half, judge),
    "bins": {
      "count": bins.count,
      "confidence": bins.confidence,
      "accuracy": bins.accuracy,
    },
  }


def _scaled(logits, labels, temperature, part):
  found = calibration.evaluate(logits[part] / temperature, labels[part])
  return {name: found[name] for name in SCALED}


def rows(found: Any) -> list[dict[str, Any]]:
  """For each run what a row says of a set of images."""
  leaves, treedef = jax.tree.flatten(train.gather(found))
  return [
    treedef.unflatten([shortest(leaf[i]) for leaf in leaves])
    for i in range(len(leaves[0]))
  ]


def shortest(values: np.ndarray) -> Any:
  """Plain numbers of as few digits as tell them from their neighbours."""
  if values.ndim:
    return [shortest(value) for value in values]
  return float(str(values))
