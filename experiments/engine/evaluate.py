"""Evaluates a group's runs: from weights to logits, metrics and rows.

One set of images is evaluated at a time, for all runs. Ensembles are evaluated
from the runs' logits.

In functions of one run, logits are (images, classes), and labels (images,).
`fit` has the indices of one half of the images, `judge` of the other half.
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
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the images and labels of a set: "clean", or such as "fog/3".

  They are of the published CIFAR-10-C in the folder `path`, or made: the same
  for every group and study.
  """
  if dataset == "clean":
    return test.test_images, test.test_labels
  name, _, severity = dataset.partition("/")
  if path is not None:
    return published.load(path, name, int(severity))
  number = corruptions.ALL_CORRUPTIONS.index(name)
  key = jax.random.fold_in(jax.random.key(2019), number)
  key = jax.random.fold_in(key, int(severity))
  images = corruptions.corrupt(test.test_images, name, int(severity), key)
  return np.asarray(images), test.test_labels


class Sets:
  """Makes sets of images ahead of their use, in another thread.

  Most of the time is compilation, on the host, while the device trains.
  """

  def __init__(self, test: datasets.Images, path: str | None = None):
    self._make = lambda name: images_of(name, test, path)
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    # Without a reference to itself, which would keep its sets.
    submit = functools.partial(self._thread.submit, self._make)
    self._submit = functools.cache(submit)

  def ask(self, names: Iterable[str]) -> list[concurrent.futures.Future[Any]]:
    """Queues sets to be made, in this order."""
    return list(map(self._submit, names))

  def __getitem__(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns images and labels of a set, once they are made."""
    (made,) = self.ask([name])
    # It may have failed for lack of memory, which training used.
    return self._make(name) if made.exception() else made.result()

  def close(self) -> None:
    self._thread.shutdown(cancel_futures=True)


class Evaluated(NamedTuple):
  """Results on a set of images."""

  logits: jax.Array  # (runs + ensembles, images, classes)
  contents: dict[str, Any]  # of rows, in the same order
  of_runs: dict[str, jax.Array]  # (runs,), further metrics


class Evaluator:
  """The compiled programs that evaluate an engine's runs.

  On a GPU, runs are evaluated one after the other: without gradients, one run
  fills it. On a CPU, they are evaluated together: convolutions in a loop are
  slow there.
  """

  def __init__(self, engine: train.Engine, sequential: bool | None = None):
    self.engine = engine
    on_cpu = jax.default_backend() == "cpu"
    self.sequential = not on_cpu if sequential is None else sequential
    convolutions = "direct" if self.sequential else engine.convolutions
    self.model = train.make_model(engine.config, convolutions)
    self._logits = engine.jit(
      self._apply, (P("run"), P("batch")), P("run", "batch")
    )
    axes = 0, None, None, None, 0
    self._metrics = jax.jit(jax.vmap(metrics, axes))
    # Its own program, so that the other metrics stay the same to the last bit.
    self._by_image = jax.jit(jax.vmap(temperature_by_image, axes))
    self._scaled = jax.jit(scaled, static_argnums=3)
    self._pool = jax.jit(with_ensembles, static_argnums=1)
    self.norms = jax.jit(jax.vmap(optax.tree.norm))
    self.temperatures = engine.jit(
      self._temperatures, (P("run"), P("run"), P(), P()), P("run")
    )

  def _apply(self, weights: train.Weights, images):
    chunk = self._chunk(len(images))
    parts = images.reshape(-1, chunk, *images.shape[1:])

    def one(weights):
      apply = functools.partial(self._network, weights)
      return jax.lax.map(apply, parts).reshape(len(images), -1)

    return self._each_run(one, weights)

  def _temperatures(self, weights: train.Weights, own, images, labels):
    """Fits each run's temperature on its own of the training images."""

    def one(run):
      weights, own = run
      logits = self._network(weights, images[own])
      return calibration.fit_temperature(logits, labels[own])

    return self._each_run(one, (weights, own))

  def _network(self, weights: train.Weights, images):
    x = train.normalize(images, self.engine.config.data)
    return self.model.apply(weights._asdict(), x)

  def _each_run(self, function, runs):
    """Maps a function over the runs: together, or one after the other."""
    if self.sequential:
      return jax.lax.map(function, runs)
    return jax.vmap(function)(runs)

  def _chunk(self, images: int) -> int:
    """Returns how many of a device's images are evaluated at once."""
    return min(CHUNK // (1 if self.sequential else 10), images)

  def logits(self, weights: train.Weights, images: Any) -> jax.Array:
    """Logits (runs, images, classes) of images, uint8."""
    n, parts = len(images), self.engine.parts
    whole = parts * self._chunk(-(-n // parts))
    images = np.pad(images, [(0, -n % whole), (0, 0), (0, 0), (0, 0)])
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
    """Computes logits and metrics, without waiting for them.

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
    temperature = clean and clean.contents["metrics"]["temperature_half"]
    y = jnp.asarray(labels)
    given = logits, y, *calibration.split(labels)
    content = self._metrics(*given, temperature)
    half = content["metrics"]["temperature_half"]
    by_image = self._by_image(*given, half)
    content["scaled_crossed"] = self._scaled(logits, y, by_image, ())
    if ensembles:
      content["scaled_members"] = self._scaled(
        alone, y, by_image[: len(alone)], ensembles
      )
    of_runs = {"weight_norm": self.norms(weights.params)}
    if own is not None:
      content["scaled_own"] = self._scaled(alone, y, own[:, None], ensembles)
      of_runs["temperature_own"] = own
    return Evaluated(logits, content, of_runs)


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

  `clean_temperature` was fitted on the first half of the clean images. It is
  applied to the other half of these images.
  """
  scale = functools.partial(_scaled, logits, labels)
  on_test = calibration.fit_temperature(logits, labels)
  on_half = calibration.fit_temperature(logits[fit], labels[fit])
  bins = vars(calibration.reliability(logits, labels))
  content = {
    "metrics": evaluate(logits, labels)
    | {"temperature": on_test, "temperature_half": on_half},
    # The paper fits on the test set itself. The half is held out.
    "scaled": scale(on_test, slice(None)),
    "scaled_half": scale(on_half, judge),
    "bins": bins,
  }
  if clean_temperature is not None:
    # In use, there are no labels of shifted images to fit on.
    content["scaled_clean"] = scale(clean_temperature, judge)
  return content


def temperature_by_image(logits, labels, fit, judge, temperature):
  """Returns each image's temperature, fitted on the half that it is not in.

  `temperature` was fitted on the first half.
  """
  other = calibration.fit_temperature(logits[judge], labels[judge])
  return jnp.full(len(labels), temperature).at[fit].set(other)


def scaled(logits, labels, temperature, ensembles):
  """Returns metrics of runs at a temperature, followed by the ensembles'.

  The networks of an ensemble are scaled before they are averaged. Temperatures
  are (runs, images) or (runs, 1).
  """
  logits = with_ensembles(logits / temperature[..., None], ensembles)
  return jax.vmap(lambda z: _scaled(z, labels, 1.0, slice(None)))(logits)


def evaluate(logits, labels):
  """Computes metrics, with the names and units of rows."""
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
  contents = by_run(train.gather(evaluated.contents))
  added = by_run(train.gather(evaluated.of_runs))
  runs, ensembles = contents[: len(added)], contents[len(added) :]
  for content, its in zip(runs, added, strict=True):
    content["metrics"] |= its
    content.pop("scaled_members", None)  # of one network: its scaled_crossed
  return runs, ensembles


def by_run(tree: Any) -> list[Any]:
  """Returns the tree of each run, of arrays whose first axis is the run."""
  leaves, treedef = jax.tree.flatten(tree)
  return [
    treedef.unflatten([shortest(leaf[i]) for leaf in leaves])
    for i in range(len(leaves[0]))
  ]


def shortest(values: np.ndarray) -> Any:
  """Returns Python numbers with as few digits as identify the value."""
  if values.ndim:
    return [shortest(value) for value in values]
  return float(str(values))
