"""Grokking, the task that ⊥Grad was made for: PLAN.md, studies 11 and 20.

A ReLU network without biases learns a + b mod 113 from 40 % of all pairs, full
batch, as in Prieto et al, "Grokking at the Edge of Numerical Stability", 2025.
It memorizes the pairs first, and generalizes long after. All arms share a
seed's pairs and initial weights.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.stats

from experiments.engine.progress import Eta, Progress
from experiments.files import UserError
from experiments.standalone import Run, Task, digest
from experiments.tuning import Grid
from orthograd_optax import calibration, orthograd_adamw, stats

STUDY, SEEDS = "grokking", range(100, 110)
TUNED = 8.0  # AdamW's weight decay, chosen by the pilot
GOAL = 99.0  # % of the test pairs

Params = Any  # a list of three arrays; optax has a wider type
Rows = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The settings that all arms share."""

  modulus: int = 113  # of the sums of modulus² pairs
  train_share: float = 0.4  # of the pairs; the others are the test pairs
  width: int = 200  # of both hidden layers
  learning_rate: float = 0.01  # AdamW's, with betas 0.9, 0.999 and eps 1e-8
  steps: int = 500  # of the full batch
  evaluate_every: int = 5  # steps

  def __post_init__(self):
    if self.steps < 1 or self.steps % self.evaluate_every:
      raise UserError(
        f"steps is {self.steps}, but must be a multiple of "
        f"{self.evaluate_every}, the steps between two evaluations."
      )

  @functools.cached_property
  def hash(self) -> str:
    return digest(dataclasses.asdict(self))


class Arm(NamedTuple):
  """One side of a comparison: AdamW or ⊥AdamW, with a weight decay.

  Its loss is the cross-entropy of softmax, or else of StableMax.
  """

  orthograd: bool
  weight_decay: float
  stablemax: bool = False

  @property
  def key(self) -> str:
    """Returns the method's name in rows."""
    name = "orthograd_adamw" if self.orthograd else "adamw"
    name += f"_decay_{self.weight_decay:g}" if self.weight_decay else ""
    return f"{name}_stablemax" if self.stablemax else name

  @property
  def name(self) -> str:
    """Returns the arm's name on pages."""
    text = "⊥AdamW" if self.orthograd else "AdamW"
    text += f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
    return text + (", StableMax" if self.stablemax else "")


ADAMW, ORTHOGRAD = Arm(False, 0.0), Arm(True, 0.0)
STABLEMAX = Arm(False, 0.0, stablemax=True)
ARMS = ADAMW, ORTHOGRAD, Arm(False, TUNED), Arm(True, TUNED)
# The study at several learning rates, on seeds of its own.
RATES_STUDY, RATES_PILOT = "grokking_rates", "grokking_rates_pilot"
RATES = 0.003, 0.01, 0.03
RATES_SEEDS, RATES_PILOT_SEEDS = range(110, 120), range(903, 906)
RATES_STEPS = 2000
# Of AdamW and ⊥AdamW. The first and the last are a step beyond the grid.
DECAYS = Grid({"weight_decay": (0.1, 0.3, 1.0, 3.0, 8.0, 24.0, 72.0)})


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
  """Returns the labels of pairs."""
  return pairs.sum(axis=-1) % modulus


def logits(params: Params, pairs: jax.Array) -> jax.Array:
  """Returns the logits, of shape (pairs, modulus)."""
  first, second, last = params
  # `first` times the concatenation of two one-hot vectors.
  hidden = first[pairs[:, 0]] + first[len(first) // 2 + pairs[:, 1]]
  return jax.nn.relu(jax.nn.relu(hidden) @ second) @ last


def loss(
  params: Params, pairs: jax.Array, modulus: int, stablemax: Any = False
) -> jax.Array:
  its, labels = logits(params, pairs), sums(pairs, modulus)
  stable = calibration.stablemax_cross_entropy(its, labels)
  entropy = optax.losses.softmax_cross_entropy_with_integer_labels
  return jnp.where(stablemax, stable, entropy(its, labels)).mean()


def measure(
  params: Params, data: Pairs, modulus: int, stablemax: Any = False
) -> dict[str, Any]:
  """Metrics of the training and the test pairs; accuracies in %."""

  def one(pairs):
    its, labels = logits(params, pairs), sums(pairs, modulus)
    # A softmax of these logarithms gives StableMax's probabilities.
    log_s = jnp.sign(its) * jnp.log1p(jnp.abs(its))
    its = jnp.where(stablemax, log_s, its)
    return {
      "top1": 100 * calibration.accuracy(its, labels),
      "loss": calibration.nll(its, labels),
      "ece": calibration.ece(its, labels),
    }

  return {name: one(pairs) for name, pairs in data._asdict().items()}


def optimizer(recipe: Recipe, arm: Arm) -> optax.GradientTransformation:
  """Creates ⊥AdamW. Strength 0 gives AdamW, so all arms are one program."""
  return orthograd_adamw(
    recipe.learning_rate, weight_decay=arm.weight_decay, strength=arm.orthograd
  )


@functools.partial(jax.jit, static_argnames="recipe")
@functools.partial(jax.vmap, in_axes=(None, 0, 0, 0))
def advance(recipe: Recipe, carry, data: Pairs, arm: Arm):
  """Trains every run up to the next evaluation, and evaluates it."""
  tx = optimizer(recipe, arm)

  def step(carry, _):
    params, state = carry
    grads = jax.grad(loss)(params, data.train, recipe.modulus, arm.stablemax)
    updates, state = tx.update(grads, state, params)
    return (optax.apply_updates(params, updates), state), None

  carry, _ = jax.lax.scan(step, carry, length=recipe.evaluate_every)
  return carry, measure(carry[0], data, recipe.modulus, arm.stablemax)


def train(
  recipe: Recipe, runs: Sequence[Run], say: Progress
) -> Iterator[tuple[Run, int, dict[str, Any]]]:
  """Trains runs together. Yields each with a step and its metrics."""
  stack = lambda *each: np.stack(each)
  params = jax.tree.map(stack, *(init(recipe, run.seed) for run in runs))
  data = jax.tree.map(stack, *(split(recipe, run.seed) for run in runs))
  arms = jax.tree.map(
    lambda *x: np.array(x, np.float32), *(run.arm for run in runs)
  )
  start = lambda params, arm: (params, optimizer(recipe, arm).init(params))
  carry, every = jax.vmap(start)(params, arms), recipe.evaluate_every
  eta = Eta(recipe.steps // every)
  for step in range(every, recipe.steps + 1, every):
    with jax.default_matmul_precision("float32"):
      carry, measured = advance(recipe, carry, data, arms)
    measured = jax.device_get(measured)
    eta.tick()
    say(
      f"{runs[0].arm.key}, {len(runs)} runs: epoch {step} of {recipe.steps}, "
      f"test accuracy {measured['test']['top1'].mean():.1f} %, {eta}"
    )
    for i, run in enumerate(runs):
      its = jax.tree.map(lambda x, i=i: float(x[i]), measured)
      yield run, step, {"metrics": its["test"], "train": its["train"]}


def task(study: str, recipe: Recipe) -> Task:
  """Returns the task of a study. With the full batch, a step is an epoch."""
  its, dataset = dataclasses.asdict(recipe), f"addition mod {recipe.modulus}"
  return Task(study, dataset, its, functools.partial(train, recipe), at_once=10)


def run(folder: pathlib.Path, recipe: Recipe, seeds: Iterable[int]) -> Rows:
  """Trains the runs that a folder lacks, arm by arm. Returns their rows."""
  runs = [Run(arm, seed) for arm in ARMS for seed in seeds]
  return task(STUDY, recipe).rows(folder, runs)


def run_rates(
  folder: pathlib.Path, recipe: Recipe, seeds: Iterable[int]
) -> Rows:
  """Chooses weight decays at a learning rate, and trains all arms with them.

  The weight decay with the fewest steps to 99 % is chosen, for AdamW and for
  ⊥AdamW. Returns the rows at this learning rate.
  """

  def mean_steps(rows: Rows) -> dict[str, float]:
    each = steps_to_goal(rows, recipe).items()
    return {arm.key: float(np.mean(list(its.values()))) for arm, its in each}

  tuned = task(RATES_PILOT, recipe).tune(
    folder,
    {False: DECAYS, True: DECAYS},
    lambda orthograd, setting: Arm(orthograd, setting[0]),
    RATES_PILOT_SEEDS,
    mean_steps,
  )
  arms = ADAMW, ORTHOGRAD, *tuned, STABLEMAX
  runs = [Run(arm, seed) for arm in arms for seed in seeds]
  return task(RATES_STUDY, recipe).rows(folder, runs)


def run_and_describe(
  folder: pathlib.Path,
  rates: bool = False,
  steps: int | None = None,
  seeds: Sequence[int] | None = None,
) -> str:
  """Trains the study, or else the one at all learning rates.

  Returns:
    How many seeds of each arm reach 99 %, and their median steps; then the
    tests of PLAN.md, with Holm's adjustment over all of them.
  """
  train_all, its_seeds = (run_rates, RATES_SEEDS) if rates else (run, SEEDS)
  steps = steps or (RATES_STEPS if rates else Recipe().steps)
  goals, lines = {}, []
  for rate in RATES if rates else (Recipe().learning_rate,):
    recipe = Recipe(learning_rate=rate, steps=steps)
    rows = train_all(folder, recipe, seeds or its_seeds)
    goals[rate] = steps_to_goal(rows, recipe)
    for arm, its in goals[rate].items():
      reached = sum(step <= steps for step in its.values())
      lines.append(
        f"rate {rate:g}, {arm.key}: {reached} of {len(its)} seeds reach 99 %, "
        f"median {np.median(list(its.values())):g} of {steps} steps"
      )
  for (rate, name), (_, p) in tests(goals, steps).items():
    lines.append(f"rate {rate:g}, {name}: p {p:.4f}")
  return "\n".join(lines)


def tests(
  goals: Mapping[float, Mapping[Arm, Mapping[int, int]]], steps: int
) -> dict[tuple[float, str], tuple[float, float]]:
  """Tests each arm's steps to 99 %, by learning rate, as the plan says.

  Returns:
    For each learning rate and question, p without and with Holm's adjustment
    over all of them.
  """
  p_values = {}
  for rate, goal in goals.items():
    ours, bare = goal[ORTHOGRAD], goal[ADAMW]
    reached = [[n <= steps for n in its.values()] for its in (ours, bare)]
    table = [[its.count(True), its.count(False)] for its in reached]
    test: Any = scipy.stats.fisher_exact(table)
    p_values[rate, "⊥AdamW − AdamW: Fisher"] = float(test.pvalue)
    for arm, theirs in goal.items():
      both = [seed for seed in ours if seed in theirs]
      if arm != ADAMW and not arm.orthograd and len(both) > 1:
        a, b = ([its[seed] for seed in both] for its in (ours, theirs))
        p = stats.wilcoxon(a, b).pvalue
        p_values[rate, f"⊥AdamW − {arm.name}: Wilcoxon"] = p
  holm = stats.holm(list(p_values.values())).tolist()
  both = zip(p_values.values(), holm, strict=True)
  return dict(zip(p_values, both, strict=True))


def steps_to_goal(rows: Rows, recipe: Recipe) -> dict[Arm, dict[int, int]]:
  """Returns each seed's first evaluated step with 99 % test accuracy, by arm.

  A run that never reaches it counts as one step more than all steps.
  """
  steps: dict[Arm, dict[int, int]] = {}
  for row in rows:
    if row["config_hash"] == recipe.hash:
      its = steps.setdefault(Arm(**row["settings"]), {})
      reached = row["metrics"]["top1"] >= GOAL
      step = row["epoch"] if reached else recipe.steps + 1
      its[row["seed"]] = min(step, its.get(row["seed"], step))
  return steps
