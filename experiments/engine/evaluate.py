"""Evaluates a group's runs: from weights to logits, metrics and rows.

One set of images is evaluated at a time, for all runs. Ensembles are evaluated
from the runs' logits.
"""

from collections.abc import Iterable
import concurrent.futures
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import optax

from experiments import datasets
from experiments.datasets import corruptions, published
from experiments.engine import train
from orthograd_optax import calibration

CHUNK = 2500  # images at once
# Names in rows of the library's metrics. Rows have accuracies in per cent.
ROW_NAMES = {
  "accuracy": "top1",
  "top5_accuracy": "top5",
  "nll": "loss",
  "confidence": "max_softmax",
}
# Metrics that are measured after temperature scaling.
SCALED = ("loss", "ece", "brier", "entropy", "max_softmax", "wrong_confidence")


def images_of(
  dataset: str, test: datasets.Images, path: str | None = None
) -> tuple[Any, np.ndarray]:
  """Returns the images and labels of a set: "clean", or such as "fog/3".

  Args:
    dataset: the set's name in rows.
    test: has the test images.
    path: the folder of the published CIFAR-10-C; None to make it.

  Returns:
    Images (n, 32, 32, 3), uint8, and labels (n,). Every group and study gets
    the same corrupted images.
  """
  if dataset == "clean":
    return test.test_images, test.test_labels
  name, _, severity = dataset.partition("/")
  if path is not None:
    return published.load(path, name, int(severity))
  corruptions.check(name, int(severity))
  number = corruptions.ALL_CORRUPTIONS.index(name)
  key = jax.random.fold_in(jax.random.key(2019), number)
  key = jax.random.fold_in(key, int(severity))
  images = corruptions.corrupt(test.test_images, name, int(severity), key)
  return images, test.test_labels


class Sets:
  """Makes sets of images ahead of their use, in another thread.

  Most of the time is compilation, on the host, while the device trains. Sets
  stay in memory.
  """

  def __init__(self, test: datasets.Images, path: str | None = None):
    self._source = test, path
    self._asked: dict[str, concurrent.futures.Future[Any]] = {}
    self._thread = concurrent.futures.ThreadPoolExecutor(1)

  def ask(self, datasets: Iterable[str]) -> None:
    """Queues sets to be made, in this order, if they are not yet."""
    for name in datasets:
      if name not in self._asked:
        self._asked[name] = self._thread.submit(self._make, name)

  def _make(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    images, labels = images_of(name, *self._source)
    return np.asarray(images), labels

  def __getitem__(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns images and labels of a set, as :func:`images_of`. May wait."""
    asked = self._asked.get(name)
    if asked is None or asked.exception() is not None:
      # It may have failed for lack of memory, which training used.
      return self._make(name)
    return asked.result()

  def close(self) -> None:
    self._thread.shutdown(cancel_futures=True)


class Evaluated(NamedTuple):
  """Results on a set of images.

  Attributes:
    logits: (runs + ensembles, images, classes).
    metrics: results of :func:`metrics`, for runs and then ensembles.
    norms: (runs,), of the weights.
    own: (runs,), each run's own temperature, or None.
  """

  logits: jax.Array
  metrics: dict[str, Any]
  norms: jax.Array
  own: jax.Array | None


class Evaluator:
  """The compiled programs that evaluate an engine's runs.

  On a GPU, runs are evaluated one after the other: without gradients, one run
  fills it. On a CPU, they are evaluated together: convolutions in a loop are
  slow there.

  Attributes:
    engine: engine of the runs.
    convolutions: "sequential", or the engine's.
  """

  def __init__(self, engine: train.Engine, convolutions: str | None = None):
    self.engine = engine
    on_cpu = jax.default_backend() == "cpu"
    default = engine.convolutions if on_cpu else "sequential"
    self.convolutions = convolutions or default
    self.model = train.make_model(engine.config, self.convolutions)
    self._logits = jax.jit(
      jax.shard_map(
        self._apply,
        mesh=engine.mesh,
        in_specs=(P("run"), P("batch")),
        out_specs=P("run", "batch"),
        check_vma=False,
      )
    )
    axes = 0, None, None, None, 0
    self._metrics = jax.jit(jax.vmap(metrics, axes))
    # Its own program, so that the other metrics stay the same to the last bit.
    self._by_image = jax.jit(jax.vmap(temperature_by_image, axes))
    self._scaled = jax.jit(scaled, static_argnums=3)
    self._pool = jax.jit(with_ensembles, static_argnums=1)
    self.norms = jax.jit(jax.vmap(optax.tree.norm))
    self.temperatures = jax.jit(
      jax.shard_map(
        self._temperatures,
        mesh=engine.mesh,
        in_specs=(P("run"), P("run"), P(), P()),
        out_specs=P("run"),
        check_vma=False,
      )
    )

  def _apply(self, weights: train.Weights, images):
    normalize = functools.partial(train.normalize, data=self.engine.config.data)

    def one(weights):
      logits = jax.lax.map(
        lambda x: self.model.apply(weights._asdict(), normalize(x)), parts
      )
      return logits.reshape(len(images), -1)

    chunk = self._chunk(len(images))
    parts = images.reshape(-1, chunk, *images.shape[1:])
    return self._each_run(one, weights)

  def _temperatures(self, weights: train.Weights, own, images, labels):
    """Returns the temperature (runs,) that each run fits on its own images.

    Args:
      weights: weights of all runs.
      own: (runs, images), indices.
      images: training images.
      labels: labels of the training images.
    """
    data = self.engine.config.data

    def one(run):
      weights, own = run
      x = train.normalize(images[own], data)
      logits = self.model.apply(weights._asdict(), x)
      return calibration.fit_temperature(logits, labels[own])

    return self._each_run(one, (weights, own))

  def _each_run(self, function, runs):
    """Maps a function over the runs: together, or one after the other."""
    alone = self.convolutions == "sequential"
    with train.precision(self.engine.config):
      return jax.lax.map(function, runs) if alone else jax.vmap(function)(runs)

  def _chunk(self, images: int) -> int:
    """Returns how many of a device's images are evaluated at once."""
    runs_at_once = 1 if self.convolutions == "sequential" else 10
    return min(CHUNK // runs_at_once, images)

  def logits(self, weights: train.Weights, images: Any) -> jax.Array:
    """Logits (runs, images, classes) of images, uint8."""
    n, parts = len(images), self.engine.parts
    whole = parts * self._chunk(-(-n // parts))
    images = np.asarray(images)
    if extra := -n % whole:
      images = np.concatenate(
        [images, np.zeros_like(images[:1]).repeat(extra, 0)]
      )
    images = train.put(images, jax.NamedSharding(self.engine.mesh, P("batch")))
    return self._logits(weights, images)[:, :n]

  def __call__(
    self,
    weights: train.Weights,
    images: Any,
    labels: np.ndarray,
    clean: Evaluated | None = None,
    ensembles: tuple[tuple[int, ...], ...] = (),
    own: jax.Array | None = None,
  ) -> Evaluated:
    """Logits and metrics, without waiting for them.

    Args:
      weights: weights of all runs.
      images: (images, rows, columns, channels), uint8.
      labels: (images,).
      clean: results on clean images, for their temperature.
      ensembles: for each, the numbers of its runs.
      own: (runs,), each run's own temperature, not fitted on these images.
    """
    alone = self.logits(weights, images)
    logits = self._pool(alone, ensembles)
    halves = calibration.split(labels)
    temperature = clean and clean.metrics["metrics"]["temperature_half"]
    y = jnp.asarray(labels)
    given = logits, y, *halves
    content = self._metrics(*given, temperature)
    half = content["metrics"]["temperature_half"]
    by_image = self._by_image(*given, half)
    content["scaled_crossed"] = self._scaled(logits, y, by_image, ())
    if ensembles:
      each = by_image[: len(alone)]
      content["scaled_members"] = self._scaled(alone, y, each, ensembles)
    if own is not None:
      each = own[:, None]
      content["scaled_own"] = self._scaled(alone, y, each, ensembles)
    return Evaluated(logits, content, self.norms(weights.params), own)


def with_ensembles(logits: jax.Array, ensembles: Any) -> jax.Array:
  """Returns the logits of the runs, then of the ensembles."""
  logs = jax.nn.log_softmax(logits)
  pools = [
    jax.nn.logsumexp(logs[jnp.array(runs)], axis=0) - math.log(len(runs))
    for runs in ensembles
  ]
  return jnp.concatenate([logits, jnp.stack(pools)]) if pools else logits


def metrics(logits, labels, fit, judge, clean_temperature=None):
  """Returns the contents of a row, of one run's logits.

  Args:
    logits: (images, classes).
    labels: (images,).
    fit: indices of one half of the images, to fit a temperature on.
    judge: indices of the other half, to measure scaled metrics on.
    clean_temperature: fitted on the first half of the clean images; applied to
      the other half of these images.
  """
  scale = functools.partial(_scaled, logits, labels)
  on_test = calibration.fit_temperature(logits, labels)
  on_half = calibration.fit_temperature(logits[fit], labels[fit])
  bins = calibration.reliability(logits, labels)
  content = {
    "metrics": evaluate(logits, labels)
    | {"temperature": on_test, "temperature_half": on_half},
    # The paper fits on the test set itself. The half is held out.
    "scaled": scale(on_test, slice(None)),
    "scaled_half": scale(on_half, judge),
    "bins": {
      "count": bins.count,
      "confidence": bins.confidence,
      "accuracy": bins.accuracy,
    },
  }
  if clean_temperature is not None:
    # In use, there are no labels of shifted images to fit on.
    content["scaled_clean"] = scale(clean_temperature, judge)
  return content


def temperature_by_image(logits, labels, fit, judge, temperature):
  """Returns each image's temperature, fitted on the half that it is not in.

  Args:
    logits: (images, classes).
    labels: (images,).
    fit: indices of one half of the images.
    judge: indices of the other half.
    temperature: fitted on the first half.
  """
  other = calibration.fit_temperature(logits[judge], labels[judge])
  return jnp.full(len(labels), temperature).at[fit].set(other)


def scaled(logits, labels, temperature, ensembles):
  """Returns metrics of runs at a temperature, followed by the ensembles'.

  The networks of an ensemble are scaled before they are averaged.

  Args:
    logits: (runs, images, classes).
    labels: (images,).
    temperature: (runs, images), or (runs, 1).
    ensembles: for each, the numbers of its runs.
  """
  logits = with_ensembles(logits / temperature[..., None], ensembles)
  return jax.vmap(lambda z: _scaled(z, labels, 1.0, slice(None)))(logits)


def evaluate(logits, labels):
  """Computes the library's metrics, with the names and units of rows.

  Also the mean confidence of wrong answers.
  """
  wrong = jnp.argmax(logits, axis=-1) != labels
  confidence = jnp.max(jax.nn.softmax(logits), axis=-1)
  values = calibration.evaluate(logits, labels)
  return {
    ROW_NAMES.get(name, name): 100 * x if name.endswith("accuracy") else x
    for name, x in values.items()
  } | {"wrong_confidence": jnp.mean(confidence, where=wrong)}


def _scaled(logits, labels, temperature, part):
  values = evaluate(logits[part] / temperature, labels[part])
  return {name: values[name] for name in SCALED}


def rows(
  evaluated: Evaluated,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
  """Returns the contents of the rows of each run, and of each ensemble."""
  leaves, treedef = jax.tree.flatten(train.gather(evaluated.metrics))
  contents = [
    treedef.unflatten([shortest(leaf[i]) for leaf in leaves])
    for i in range(len(leaves[0]))
  ]
  norms = train.gather(evaluated.norms)
  runs, ensembles = contents[: len(norms)], contents[len(norms) :]
  for content, norm in zip(runs, norms, strict=True):
    content["metrics"]["weight_norm"] = shortest(norm)
    content.pop("scaled_members", None)  # of one network: its scaled_crossed
  if evaluated.own is not None:
    for content, own in zip(runs, train.gather(evaluated.own), strict=True):
      content["metrics"]["temperature_own"] = shortest(own)
  return runs, ensembles


def shortest(values: np.ndarray) -> Any:
  """Returns Python numbers with as few digits as identify the value."""
  if values.ndim:
    return [shortest(value) for value in values]
  return float(str(values))
