"""Language: does ⊥Grad help a transformer that predicts bytes? See PLAN.md.

The text is Python and English: sources and docs of the standard library and of
installed packages. The hash of a package's name decides whether it is for
training, for choosing or for testing. The rows have the text's size and hash;
nothing else of it is kept.

All arms share a seed's initial weights and batches, and are one compiled
program. Each has the learning rate with the lowest loss on the text for
choosing.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import math
import pathlib
import sys
import sysconfig
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.engine.progress import Eta, Progress
from experiments.files import UserError
from experiments.rows import read
from experiments.standalone import Run, Task
from experiments.tuning import Grid
from orthograd_optax import calibration, orthograd_adamw

STUDY, TUNING = "language", "language_tuning"
SEEDS, TUNING_SEEDS = range(100, 105), (900,)
DECAYS = {"usual": 0.1, "weak": 0.01}
# The first and the last are a step beyond the grid.
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SUFFIXES = (".py", ".pyi", ".md", ".rst", ".txt")

Params = Any  # a tree of arrays; optax has a wider type
Rows = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The settings that all arms share."""

  layers: int = 6  # blocks of attention and two dense layers
  width: int = 384
  heads: int = 6
  context: int = 256  # bytes that a prediction can see; a window has one more
  batch: int = 64  # windows
  steps: int = 3000
  warm_up: float = 0.05  # of the steps; then the rate falls as a cosine
  package_bytes: int = 2**19  # most text from a package
  train_bytes: int = 2**24  # most text to train on
  windows: int = 4096  # most to evaluate on
  precision: str = "bfloat16"  # of products; the others are float32


# To try the study out.
SMALL = Recipe(
  layers=1,
  width=32,
  heads=2,
  context=64,
  batch=8,
  steps=20,
  package_bytes=2**12,
  windows=32,
  precision="float32",
)


class Arm(NamedTuple):
  """AdamW or ⊥AdamW, with a weight decay and a learning rate."""

  orthograd: bool
  weight_decay: float
  learning_rate: float

  @property
  def key(self) -> str:
    """Returns the arm's name in rows, such as `adamw_usual`."""
    (decay,) = (k for k, v in DECAYS.items() if v == self.weight_decay)
    return f"{'orthograd_' * self.orthograd}adamw_{decay}"


class TuningArm(Arm):
  """An arm whose name in rows tells its learning rate."""

  @property
  def key(self) -> str:
    return f"{super().key}_{self.learning_rate:g}"


# Pairs to compare: without ⊥Grad and with it.
PAIRS = tuple(
  tuple(Arm(orthograd, decay, 0.0) for orthograd in (False, True))
  for decay in DECAYS.values()
)


class Text(NamedTuple):
  """Text as uint8, by what it is for."""

  train: np.ndarray  # (bytes,)
  held_out: np.ndarray  # (windows, context + 1), to choose settings on
  test: np.ndarray  # (windows, context + 1)
  facts: dict[str, dict[str, Any]]  # packages, files, bytes and SHA-256 of each


def text_folders() -> list[pathlib.Path]:
  """Returns the folders of the standard library and installed packages."""
  installed = ("site-packages", "dist-packages")
  paths = [sysconfig.get_paths()["stdlib"]]
  paths += [p for p in sys.path if pathlib.Path(p).name in installed]
  return [pathlib.Path(path) for path in dict.fromkeys(paths)]


def collect(recipe: Recipe) -> Text:
  """Collects text from :func:`text_folders`.

  A package is whole in one part. A file that another package has, too, is read
  once.
  """
  packages = collections.defaultdict(list)  # of digests of names, and paths
  for folder in text_folders():
    for path in folder.rglob("*"):
      inside = path.relative_to(folder)
      skipped = {"site-packages", "dist-packages", "_vendor"} & {*inside.parts}
      first = inside.parts[0]
      if path.suffix in SUFFIXES and not skipped and path.is_file():
        if not first.endswith(".dist-info"):
          package = _digest(first.partition(".")[0])
          packages[package].append((_digest(inside.as_posix()), path))
  parts = {name: bytearray() for name in ("train", "held_out", "test")}
  facts: dict[str, Any] = {k: {"packages": 0, "files": 0} for k in parts}
  seen: set[bytes] = set()
  for package, files in sorted(packages.items()):
    # 10 % of the packages each are held out and for testing.
    place = package[0] / 256
    part = "test" if place < 0.1 else "held_out" if place < 0.2 else "train"
    its = bytearray()
    for _, path in sorted(files, key=lambda file: file[0]):
      try:
        content = path.read_bytes()
      except OSError:  # not readable, or gone
        content = b""
      digest = hashlib.sha256(content).digest()
      if digest in seen or len(its) + len(content) >= recipe.package_bytes:
        continue
      seen.add(digest)
      its += content + b"\0"
      facts[part]["files"] += 1
    parts[part] += its
    facts[part]["packages"] += bool(its)
  arrays = {k: np.frombuffer(bytes(v), np.uint8) for k, v in parts.items()}
  for name, array in arrays.items():
    if len(array) < 4 * (recipe.context + 1):
      raise UserError(
        f"The {name} text has {len(array)} bytes, but needs at least "
        f"{4 * (recipe.context + 1)}. Install more packages: their sources and "
        "docs are the text."
      )
  train = arrays["train"][: recipe.train_bytes]
  held_out, test = (_windows(arrays[k], recipe) for k in ("held_out", "test"))
  for part, its in zip(facts.values(), (train, held_out, test), strict=True):
    part["bytes"] = its.size
    part["sha256"] = hashlib.sha256(its.tobytes()).hexdigest()
  return Text(train, held_out, test, facts)


def _digest(name: str) -> bytes:
  return hashlib.sha256(name.encode(errors="surrogateescape")).digest()


def _windows(text: np.ndarray, recipe: Recipe) -> np.ndarray:
  """Windows at even distances, which share no byte to predict."""
  count = min(recipe.windows, (len(text) - 1) // recipe.context)
  last = len(text) - recipe.context - 1
  starts = np.linspace(0, last, count).astype(int)
  return text[starts[:, None] + np.arange(recipe.context + 1)]


def init(recipe: Recipe, seed: int) -> Params:
  """Draws initial weights: normal, smaller where blocks add to their input."""
  random, d = np.random.default_rng([seed, 1]), recipe.width

  def draw(*shape, scale=0.02):
    return (scale * random.standard_normal(shape)).astype(np.float32)

  adding = 0.02 / math.sqrt(2 * recipe.layers)
  block = lambda: {
    "norm_1": np.ones(d, np.float32),
    "inputs": draw(d, 3 * d),
    "outputs": draw(d, d, scale=adding),
    "norm_2": np.ones(d, np.float32),
    "expand": draw(d, 4 * d),
    "contract": draw(4 * d, d, scale=adding),
  }
  return {
    "bytes": draw(256, d),
    "positions": draw(recipe.context, d),
    "blocks": [block() for _ in range(recipe.layers)],
    "norm": np.ones(d, np.float32),
    "head": draw(d, 256),
  }


def logits(recipe: Recipe, params: Params, inputs: jax.Array) -> jax.Array:
  """Computes logits (windows, bytes, 256) of the byte after each input."""
  params = optax.tree.cast(params, jnp.dtype(recipe.precision))
  windows, length = inputs.shape
  heads = (windows, length, recipe.heads, recipe.width // recipe.heads)

  def normalize(x, scale):
    x32 = x.astype(jnp.float32)
    mean = jnp.mean(x32**2, axis=-1, keepdims=True)
    x = (x32 * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype)
    return x * scale[None, None]

  x = params["bytes"][inputs] + params["positions"][None, :length]
  for block in params["blocks"]:
    mixed = normalize(x, block["norm_1"]) @ block["inputs"]
    q, k, v = (part.reshape(heads) for part in jnp.split(mixed, 3, axis=-1))
    seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x += seen.reshape(x.shape) @ block["outputs"]
    hidden = jax.nn.gelu(normalize(x, block["norm_2"]) @ block["expand"])
    x += hidden @ block["contract"]
  last = normalize(x, params["norm"]) @ params["head"]
  return last.astype(jnp.float32)


def loss(recipe: Recipe, params: Params, windows: jax.Array) -> jax.Array:
  """Returns the mean cross-entropy, in nats per byte."""
  entropy = optax.losses.softmax_cross_entropy_with_integer_labels
  inputs, labels = windows[:, :-1], windows[:, 1:].astype(jnp.int32)
  return jnp.mean(entropy(logits(recipe, params, inputs), labels))


def optimizer(recipe: Recipe, arm: Arm) -> optax.GradientTransformation:
  """Creates ⊥AdamW with warm-up and cosine. Strength 0 gives AdamW.

  Only matrices decay.
  """
  warm_up = round(recipe.warm_up * recipe.steps)
  schedule = optax.warmup_cosine_decay_schedule(0.0, 1.0, warm_up, recipe.steps)
  return orthograd_adamw(
    lambda count: arm.learning_rate * schedule(count),
    b2=0.95,
    weight_decay=arm.weight_decay,
    mask=lambda params: jax.tree.map(lambda w: w.ndim > 1, params),
    strength=jnp.asarray(arm.orthograd, jnp.float32),
  )


@functools.partial(
  jax.jit, static_argnames=("recipe", "steps"), donate_argnames="carry"
)
def advance(recipe: Recipe, carry, arms: Arm, seeds, text, first, steps: int):
  """Trains all runs for some steps. Returns the carry, and losses (runs,)."""

  def train(carry, arm, seed):
    tx = optimizer(recipe, arm)

    def step(carry, number):
      params, state = carry
      key = jax.random.fold_in(jax.random.key(seed), number)
      last = len(text) - recipe.context
      starts = jax.random.randint(key, (recipe.batch, 1), 0, last)
      windows = text[starts + jnp.arange(recipe.context + 1)[None]]
      value, grads = jax.value_and_grad(
        lambda params: loss(recipe, params, windows)
      )(params)
      updates, state = tx.update(grads, state, params)
      return (optax.apply_updates(params, updates), state), value

    carry, losses = jax.lax.scan(step, carry, first + jnp.arange(steps))
    return carry, jnp.mean(losses)

  return jax.vmap(train)(carry, arms, seeds)


def train(
  recipe: Recipe,
  text: np.ndarray,
  windows: np.ndarray,
  runs: Sequence[Run],
  say: Progress,
) -> Iterator[tuple[Run, int, dict[str, Any]]]:
  """Trains runs together, and evaluates them on windows.

  Yields each with its last step and its metrics.
  """
  stack = lambda *each: jnp.stack(each)
  params = jax.tree.map(stack, *(init(recipe, run.seed) for run in runs))
  arms = jax.tree.map(
    lambda *x: np.array(x, np.float32), *(Arm(*r.arm) for r in runs)
  )
  start = lambda params, arm: (params, optimizer(recipe, arm).init(params))
  carry = jax.vmap(start)(params, arms)
  seeds, text_ = jnp.array([run.seed for run in runs]), jnp.asarray(text)
  length = math.gcd(recipe.steps, 100)
  eta = Eta(recipe.steps // length)
  for first in range(0, recipe.steps, length):
    carry, losses = advance(recipe, carry, arms, seeds, text_, first, length)
    bits = np.mean(jax.device_get(losses)) / math.log(2)
    eta.tick()
    say(
      f"{len(runs)} runs: epoch {first + length} of {recipe.steps} steps, "
      f"{bits:.3f} bits a byte, {eta}"
    )
  for i, run in enumerate(runs):
    params = jax.tree.map(lambda x, i=i: x[i], carry[0])
    measured = jax.device_get(measure(recipe, params, windows))
    yield run, recipe.steps, jax.tree.map(float, measured)


@functools.partial(jax.jit, static_argnames="recipe")
def measure(recipe: Recipe, params: Params, windows: jax.Array):
  """Computes what a run's row has: metrics of the bytes, and after T.

  The temperature of the first half of the windows is applied to the second half
  and the other way round. The halves have different packages, except for one.
  """
  one = lambda window: logits(recipe, params, window[None, :-1])[0]
  z = jax.lax.map(one, windows, batch_size=recipe.batch).reshape(-1, 256)
  labels = windows[:, 1:].reshape(-1).astype(jnp.int32)
  half = len(windows) // 2 * recipe.context
  first = calibration.fit_temperature(z[:half], labels[:half])
  second = calibration.fit_temperature(z[half:], labels[half:])
  scaled = jnp.concatenate([z[:half] / second, z[half:] / first])

  def metrics(z):
    return {
      "loss": calibration.nll(z, labels),
      "top1": 100 * calibration.accuracy(z, labels),
      "ece": calibration.ece(z, labels),
    }

  content = metrics(z) | {"temperature": jnp.sqrt(first * second)}
  return {"metrics": content, "scaled_crossed": metrics(scaled)}


def run(folder: pathlib.Path, recipe: Recipe, seeds: Iterable[int]) -> Rows:
  """Chooses each arm's learning rate, and trains all seeds at it.

  Returns the rows of the study. What the folder has is not trained again.
  """
  text = collect(recipe)
  config = dataclasses.asdict(recipe) | {"text": text.facts}
  for row in read(folder / "rows.jsonl"):
    other = row["config"]
    if other != config and other | {"text": text.facts} == config:
      raise UserError(
        f"{folder} has rows of another text, because other packages were "
        "installed. Install the same ones, or give --output a new folder."
      )

  def task(study, dataset, windows):
    its = functools.partial(train, recipe, text.train, windows)
    return Task(study, dataset, config, its, at_once=4)

  arms = [arm for pair in PAIRS for arm in pair]
  chosen = task(TUNING, "held_out", text.held_out).tune(
    folder,
    dict.fromkeys(arms, Grid({"learning_rate": RATES})),
    lambda arm, setting: TuningArm(arm.orthograd, arm.weight_decay, setting[0]),
    TUNING_SEEDS,
    mean_losses,
  )
  main = task(STUDY, "clean", text.test)
  runs = [Run(Arm(*arm), seed) for arm in chosen for seed in seeds]
  return main.rows(folder, runs)


def mean_losses(rows: Rows) -> dict[str, float]:
  """Returns each arm's mean loss over seeds, infinite if one diverged."""
  values: dict[str, list[float]] = collections.defaultdict(list)
  for row in rows:
    value = row["metrics"]["loss"]
    values[row["method"]].append(math.inf if value is None else value)
  return {name: float(np.mean(each)) for name, each in values.items()}
