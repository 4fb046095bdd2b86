"""Grokking, the task that ⊥Grad was made for: study 11 of PLAN.md.

A network memorizes sums mod 113 first, and generalizes long after.

    python -m experiments grokking --pilot    chooses AdamW's weight decay
    python -m experiments grokking            trains, and writes the page

A ReLU network without biases learns a + b mod 113 from 40 % of all pairs, full
batch, as in Prieto et al, "Grokking at the Edge of Numerical Stability", 2025.
All arms share a seed's pairs and initial weights.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import time
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from experiments.engine.progress import Eta, Progress
from experiments.engine.rows import Rows, environment, now, read
from experiments.files import UserError
from orthograd_optax import calibration, orthograd_adamw

STUDY, PILOT = "grokking", "grokking_pilot"
TUNED = 8.0  # AdamW's weight decay, chosen by the pilot
GOAL = 99.0  # % of the test pairs

Params = Any  # a list of three arrays; optax has a wider type


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The settings that all arms share.

  Attributes:
    modulus: of the sums; there are modulus² pairs.
    train_share: of the pairs; the others are the test pairs.
    width: of both hidden layers.
    learning_rate: of AdamW, whose betas are 0.9 and 0.999 and eps 1e-8.
    steps: of the full batch.
    evaluate_every: steps between two evaluations.
  """

  modulus: int = 113
  train_share: float = 0.4
  width: int = 200
  learning_rate: float = 0.01
  steps: int = 500
  evaluate_every: int = 5

  def __post_init__(self):
    if self.steps < 1 or self.steps % self.evaluate_every:
      raise UserError(
        f"steps is {self.steps}, but must be a multiple of "
        f"{self.evaluate_every}, the steps between two evaluations."
      )

  @property
  def hash(self) -> str:
    content = json.dumps(dataclasses.asdict(self), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


class Arm(NamedTuple):
  """One side of a comparison: AdamW or ⊥AdamW, with a weight decay."""

  orthograd: bool
  weight_decay: float

  @property
  def key(self) -> str:
    """The arm's name in rows, under `optimizer`."""
    name = "orthograd_adamw" if self.orthograd else "adamw"
    return f"{name}_decay_{self.weight_decay:g}" if self.weight_decay else name


ADAMW, ORTHOGRAD = Arm(False, 0.0), Arm(True, 0.0)
ARMS = ADAMW, ORTHOGRAD, Arm(False, TUNED), Arm(True, TUNED)
PILOT_ARMS = tuple(Arm(False, decay) for decay in (0.3, 1.0, 3.0, 8.0, 24.0))
# Arms and seeds.
STUDIES = {
  STUDY: (ARMS, range(100, 110)),
  PILOT: (PILOT_ARMS, range(900, 903)),
}


class Pairs(NamedTuple):
  """Integer arrays of shape (pairs, 2)."""

  train: Any
  test: Any


def split(recipe: Recipe, seed: int) -> Pairs:
  """Splits all pairs at random, by the seed."""
  m = recipe.modulus
  pairs = np.stack(np.divmod(np.arange(m * m), m), axis=1)
  shuffled = np.random.default_rng([seed, 0]).permutation(pairs)
  size = int(recipe.train_share * len(pairs))
  return Pairs(shuffled[:size], shuffled[size:])


def init(recipe: Recipe, seed: int) -> list[np.ndarray]:
  """Weights as PyTorch's Linear draws them: U(-1/√inputs, 1/√inputs)."""
  random = np.random.default_rng([seed, 1])
  sizes = 2 * recipe.modulus, recipe.width, recipe.width, recipe.modulus
  shapes = zip(sizes[:-1], sizes[1:], strict=True)
  draw = lambda shape: random.uniform(-1, 1, shape) / np.sqrt(shape[0])
  return [draw(shape).astype(np.float32) for shape in shapes]


def sums(pairs: jax.Array, modulus: int) -> jax.Array:
  """The labels of pairs."""
  return pairs.sum(axis=-1) % modulus


def logits(params: Params, pairs: jax.Array) -> jax.Array:
  """The logits, of shape (pairs, modulus)."""
  first, second, last = params
  # `first` times the concatenation of two one-hot vectors.
  hidden = first[pairs[:, 0]] + first[len(first) // 2 + pairs[:, 1]]
  return jax.nn.relu(jax.nn.relu(hidden) @ second) @ last


def loss(params: Params, pairs: jax.Array, modulus: int) -> jax.Array:
  entropy = optax.losses.softmax_cross_entropy_with_integer_labels
  return entropy(logits(params, pairs), sums(pairs, modulus)).mean()


def measure(params: Params, data: Pairs, modulus: int) -> dict[str, Any]:
  """Metrics of the training and the test pairs; accuracies in %."""

  def one(pairs):
    its, labels = logits(params, pairs), sums(pairs, modulus)
    return {
      "top1": 100 * calibration.accuracy(its, labels),
      "loss": calibration.nll(its, labels),
      "ece": calibration.ece(its, labels),
    }

  return {name: one(pairs) for name, pairs in data._asdict().items()}


def optimizer(
  recipe: Recipe, strength: Any, decay: Any
) -> optax.GradientTransformation:
  """⊥AdamW. With strength 0 it is AdamW, so all arms are one program."""
  return orthograd_adamw(
    recipe.learning_rate, weight_decay=decay, strength=strength
  )


@functools.partial(jax.jit, static_argnames="recipe")
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0, None, None))
def advance(
  recipe: Recipe, params, state, data: Pairs, strength, decay
) -> tuple[Params, Any, dict[str, Any]]:
  """Trains every seed up to the next evaluation, and evaluates it."""
  tx = optimizer(recipe, strength, decay)

  def step(carry, _):
    params, state = carry
    grads = jax.grad(loss)(params, data.train, recipe.modulus)
    updates, state = tx.update(grads, state, params)
    return (optax.apply_updates(params, updates), state), None

  carry = params, state
  (params, state), _ = jax.lax.scan(step, carry, length=recipe.evaluate_every)
  return params, state, measure(params, data, recipe.modulus)


def train(
  recipe: Recipe, arm: Arm, seeds: Sequence[int], say: Any
) -> Iterable[tuple[int, int, dict[str, Any]]]:
  """Trains an arm. Yields seed, step and metrics."""
  stack = lambda *runs: np.stack(runs)
  params = jax.tree.map(stack, *(init(recipe, seed) for seed in seeds))
  data = jax.tree.map(stack, *(split(recipe, seed) for seed in seeds))
  strength, decay = np.float32(arm.orthograd), np.float32(arm.weight_decay)
  state = jax.vmap(optimizer(recipe, strength, decay).init)(params)
  steps = range(0, recipe.steps, recipe.evaluate_every)
  eta = Eta(len(steps))
  for before in steps:
    step = before + recipe.evaluate_every
    with jax.default_matmul_precision("float32"):
      params, state, found = advance(
        recipe, params, state, data, strength, decay
      )
    found = jax.device_get(found)
    eta.tick()
    say(
      f"{arm.key}, {len(seeds)} seeds: epoch {step} of {recipe.steps}, test "
      f"accuracy {found['test']['top1'].mean():.1f} %, {eta}"
    )
    for i, seed in enumerate(seeds):
      yield seed, step, jax.tree.map(lambda x, i=i: float(x[i]), found)


def run(
  folder: pathlib.Path,
  study: str,
  recipe: Recipe,
  seeds: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
  """Trains the runs that a folder lacks, arm by arm, and adds their rows.

  Args:
    folder: of the rows.
    study: one of `STUDIES`.
    recipe: what all arms share.
    seeds: by default the study's.

  Returns:
    All rows of the folder.
  """
  folder.mkdir(parents=True, exist_ok=True)
  rows, say = Rows(folder / "rows.jsonl"), Progress()
  dataset = f"addition mod {recipe.modulus}"
  arms, its_seeds = STUDIES[study]
  for arm in arms:
    done = lambda seed, arm=arm: (
      (recipe.hash, arm.key, seed, recipe.steps, dataset) in rows.keys
    )
    missing = [seed for seed in seeds or its_seeds if not done(seed)]
    if not missing:
      continue
    start, new = time.monotonic(), []
    for seed, step, found in train(recipe, arm, missing, say):
      row = {"study": study, "optimizer": arm.key, **arm._asdict()}
      # With the full batch, a step is an epoch.
      row |= {"seed": seed, "epoch": step, "dataset": dataset}
      row |= {"metrics": found["test"], "train": found["train"]}
      row |= {"config": dataclasses.asdict(recipe), "config_hash": recipe.hash}
      row |= {"wall_time": round(time.monotonic() - start, 1), "time": now()}
      new.append(row | environment() | {"cores": os.cpu_count()})
    # Sorted, so that a run whose last row is written is complete.
    rows.append(sorted(new, key=lambda row: (row["seed"], row["epoch"])))
    say(f"{arm.key}: {time.monotonic() - start:.0f} s")
  return list(read(rows.path))


def steps_to_goal(
  rows: Iterable[Mapping[str, Any]], arm: Arm, recipe: Recipe
) -> dict[int, int]:
  """For each seed, the first evaluated step with 99 % test accuracy.

  A run that never reaches it counts as one step more than all steps.
  """
  found: dict[int, int] = {}
  for row in rows:
    if (row["config_hash"], row["optimizer"]) == (recipe.hash, arm.key):
      reached = row["metrics"]["top1"] >= GOAL
      step = row["epoch"] if reached else recipe.steps + 1
      found[row["seed"]] = min(step, found.get(row["seed"], step))
  return found


def pilot_steps(
  rows: Iterable[Mapping[str, Any]], recipe: Recipe
) -> dict[float, list[int]]:
  """For each weight decay of the pilot, the steps to 99 % of its seeds."""
  pilot = [row for row in rows if row["study"] == PILOT]
  return {
    decay: list(steps_to_goal(pilot, Arm(False, decay), recipe).values())
    for decay in sorted({row["weight_decay"] for row in pilot})
  }


def choose(steps: Mapping[float, Sequence[int]]) -> float:
  """The weight decay with the fewest steps to 99 %, mean of the seeds.

  Examples:
    >>> choose({1.0: [501, 320, 330], 3.0: [180, 190, 170]})
    3.0
  """
  return min(steps, key=lambda decay: np.mean(steps[decay]))


def pilot_text(rows: Iterable[Mapping[str, Any]], recipe: Recipe) -> str:
  """The pilot's steps to 99 %, and its choice."""
  steps = pilot_steps(rows, recipe)
  lines = [
    f"{decay:4g}  {np.mean(its):.1f}  {its}" for decay, its in steps.items()
  ]
  chosen = f"Chosen: weight decay {choose(steps):g}."
  return "\n".join(["AdamW's steps to 99 % by weight decay:", *lines, chosen])
