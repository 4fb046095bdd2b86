"""How long an update takes, given the gradients.

That of SGD with momentum and weight decay, with the parameters': alone, after
this package's ⊥Grad, and after the textbook form of it. Several updates are one
program on the device, or training steps a program each, and what counts is how
much longer more programs take than one, so that no host is waited for.
"""

from collections.abc import Callable, Iterator
import itertools
import math
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.engine import models
from orthograd_optax import orthograd

Shapes = list[tuple[int, ...]]
SGD, OURS, TEXTBOOK = "SGD", "⊥Grad", "textbook ⊥Grad"
PARALLEL = "⊥Grad, g nearly ∥ w"  # where one sweep won't do a CPU
RATE, MOMENTUM, DECAY = 1e-6, 0.9, 5e-4
MORE = 3  # programs timed beyond the first


def network(name: str) -> Shapes:
  """The shapes of the parameters of one of the experiments' networks."""
  init = lambda key: models.init(models.MODELS[name](), key)
  variables = jax.eval_shape(init, jax.random.key(0))
  return [x.shape for x in jax.tree.leaves(variables["params"])]


def decoder(depth: int, width: int, tokens: int = 0) -> Shapes:
  """The shapes of a transformer, with its embeddings if it has tokens."""
  block: Shapes = [(width, 3 * width), (width, width), (width, 4 * width)]
  block += [(4 * width, width), *[(width,)] * 6, (3 * width,), (4 * width,)]
  ends: Shapes = [(tokens, width), (1024, width), (width,), (width,)]
  return block * depth + (ends if tokens else [])


def matrices(millions: float, leaves: int) -> Shapes:
  """As many entries in half as many matrices, and a vector for each."""
  side = max(int((2e6 * millions / leaves) ** 0.5), 1)
  return [(side, side), (side,)] * (leaves // 2)


def textbook(eps: float = 1e-30) -> optax.GradientTransformation:
  """Definition 3.1 as one would write it down, without any care."""

  def project(g, w):
    perpendicular = g - jnp.vdot(w, g) / jnp.vdot(w, w) * w
    length = jnp.linalg.norm(perpendicular)
    return perpendicular * (jnp.linalg.norm(g) / (length + eps))

  return optax.stateless(
    lambda updates, params: jax.tree.map(project, updates, params)
  )


class Contender(NamedTuple):
  """Something that makes updates.

  Attributes:
    run: makes n times so many updates, and waits for them.
    updates: how many.
    compile: seconds that it took to compile.
    temporary: bytes, beside what it reads and writes.
  """

  run: Callable[[int], Any]
  updates: int
  compile: float | None = None
  temporary: int | None = None


def arrays(shapes: Shapes, dtype: str, seed: int) -> list[jax.Array]:
  """Normal numbers; of one draw, which compiles sooner than many."""
  ends = np.cumsum([0, *map(math.prod, shapes)])

  @jax.jit
  def draw(key):
    flat = jax.random.normal(key, (ends[-1],), dtype)
    return [
      flat[start:end].reshape(shape)
      for shape, start, end in zip(shapes, ends, ends[1:], strict=False)
    ]

  return draw(jax.random.key(seed))


def compiled(
  transform: optax.GradientTransformation,
  params: Any,
  inputs: Any,
  steps: int,
  gradients: Callable[[Any, Any], Any] = lambda params, inputs: inputs,
  programs: int = 1,
) -> Callable[[Any], Contender]:
  """Of inputs, what makes so many updates by the gradients in each program."""
  optimizer = optax.chain(
    transform,
    optax.add_decayed_weights(DECAY),
    # Gradients stay the same: larger steps would make w parallel to them.
    optax.sgd(RATE, momentum=MOMENTUM, accumulator_dtype=jnp.float32),
  )

  def several(carry, inputs):
    def step(_, carry):
      # Else what depends on the inputs alone were computed once.
      (params, state), given = jax.lax.optimization_barrier((carry, inputs))
      grads = gradients(params, given)
      updates, state = optimizer.update(grads, state, params)
      return optax.apply_updates(params, updates), state

    return jax.lax.fori_loop(0, steps, step, carry)

  initial = params, optimizer.init(params)
  start = time.perf_counter()
  program = jax.jit(several, donate_argnums=0).lower(initial, inputs).compile()
  seconds = time.perf_counter() - start
  memory = program.memory_analysis()

  def contender(inputs):
    carry = jax.tree.map(jnp.copy, initial)

    def run(times):
      nonlocal carry
      for _ in range(times * programs):
        carry = program(carry, inputs)
      jax.block_until_ready(carry)

    updates = steps * programs
    return Contender(
      run, updates, seconds, memory and memory.temp_size_in_bytes
    )

  return contender


def in_jax(
  params: Any, inputs: Any, *args: Any, parallel: Any = None
) -> dict[str, Contender]:
  """What :func:`compiled` makes after each transform; of other inputs, too."""
  transforms = {SGD: optax.identity(), OURS: orthograd(), TEXTBOOK: textbook()}
  made = {k: compiled(t, params, inputs, *args) for k, t in transforms.items()}
  found = {name: make(inputs) for name, make in made.items()}
  if parallel is not None:
    found[PARALLEL] = made[OURS](parallel)
  return found


def bandwidth(megabytes: int, times: int = 50) -> float:
  """Bytes a second that are read and written where an array is changed."""
  change = lambda _, x: x * 1.0001
  run = jax.jit(
    lambda x: jax.lax.fori_loop(0, times, change, x), donate_argnums=0
  )
  x = jax.block_until_ready(run(jnp.ones(megabytes * 2**18, jnp.float32)))
  start = time.perf_counter()
  x = jax.block_until_ready(run(x))
  return times * 2 * x.nbytes / (time.perf_counter() - start)


def least_bytes(params, grads, sweeps: int) -> int:
  """If w and g are swept once, or once more before they can be written."""
  w, g = (sum(x.nbytes for x in xs) for xs in (params, grads))
  momentum = sum(4 * x.size for x in params)
  return sweeps * (w + g) + w + 2 * momentum


def time_of(contender: Contender, times: int) -> float:
  start = time.perf_counter()
  contender.run(times)
  return time.perf_counter() - start


def take_turns(
  contenders: dict[str, Contender], repeats: int
) -> dict[str, np.ndarray]:
  """Milliseconds an update, after a warm-up."""
  times: dict[str, list[float]] = {name: [] for name in contenders}
  for i, (name, contender) in itertools.product(
    range(2 + repeats), contenders.items()
  ):
    contender.run(1)  # after which caches hold what is its own
    one, several = (time_of(contender, n) for n in (1, 1 + MORE))
    if i >= 2:
      more = MORE * contender.updates
      times[name].append(1e3 * (several - one) / more)
  return {name: np.array(found) for name, found in times.items()}


def rows(
  contenders: dict[str, Contender], repeats: int
) -> Iterator[dict[str, Any]]:
  """A row for each contender."""
  times = take_turns(contenders, repeats)
  for name, contender in contenders.items():
    # Ratios of neighbours in time, so that a busy machine weighs on both.
    ratios = times[name] / times[SGD]
    yield {
      "step": name,
      "ms": float(np.median(times[name])),
      "over_sgd": [float(q) for q in np.quantile(ratios, [0.25, 0.5, 0.75])],
      "compile": contender.compile,
      "temporary": contender.temporary,
    }
