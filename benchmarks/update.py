"""Times an update, given the gradients.

An update is SGD with momentum and weight decay, parameters included: alone,
after this package's ⊥Grad, and after the textbook form of ⊥Grad. One program on
the device makes several updates; training steps may be one program each. The
time of an update is the time that more programs take beyond one. Waiting for
the host therefore does not count.
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

from experiments import registry
from experiments.engine import models
from orthograd_optax import orthograd

Shapes = list[tuple[int, ...]]
SGD, OURS, TEXTBOOK = "SGD", "⊥Grad", "textbook ⊥Grad"
PARALLEL = "⊥Grad, g nearly ∥ w"
RATE, MOMENTUM, DECAY = 1e-6, 0.9, 5e-4
MORE_PROGRAMS = 3  # programs timed beyond the first


def network(name: str) -> Shapes:
  """Returns the shapes of the parameters of an experiments' network."""
  init = lambda key: models.init(registry.MODELS[name](), key)
  variables = jax.eval_shape(init, jax.random.key(0))
  return [x.shape for x in jax.tree.leaves(variables["params"])]


def decoder(depth: int, width: int, tokens: int = 0) -> Shapes:
  """Returns the shapes of a transformer; with tokens, its embeddings too."""
  block: Shapes = [(width, 3 * width), (width, width), (width, 4 * width)]
  block += [(4 * width, width), *[(width,)] * 6, (3 * width,), (4 * width,)]
  ends: Shapes = [(tokens, width), (1024, width), (width,), (width,)]
  return block * depth + (ends if tokens else [])


def matrices(millions: float, leaves: int) -> Shapes:
  """Returns square matrices, and a vector for each."""
  side = max(int((2e6 * millions / leaves) ** 0.5), 1)
  return [(side, side), (side,)] * (leaves // 2)


def textbook(eps: float = 1e-30) -> optax.GradientTransformation:
  """Computes ⊥Grad by its definition, leaf by leaf."""

  def project(g, w):
    perpendicular = g - jnp.vdot(w, g) / jnp.vdot(w, w) * w
    length = jnp.linalg.norm(perpendicular)
    return perpendicular * (jnp.linalg.norm(g) / (length + eps))

  return optax.stateless(
    lambda updates, params: jax.tree.map(project, updates, params)
  )


class Contender(NamedTuple):
  """One of the implementations that are timed.

  Attributes:
    run: ``run(n)`` makes ``n * updates`` updates, and waits for them.
    updates: number of updates in one call of the program.
    compile: seconds to compile.
    temporary: bytes of temporary memory.
  """

  run: Callable[[int], Any]
  updates: int
  compile: float | None = None
  temporary: int | None = None


def arrays(shapes: Shapes, dtype: str, seed: int) -> list[jax.Array]:
  """Draws normal numbers at once, which compiles faster than many draws."""
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
  """Compiles a program of ``steps`` updates.

  Args:
    transform: placed before SGD.
    params: initial parameters.
    inputs: an example of the inputs of ``gradients``.
    steps: updates in one program.
    gradients: a function from (params, inputs) to gradients. By default, the
      inputs are the gradients.
    programs: calls of the program in each ``run``.

  Returns:
    A function from inputs to a :class:`Contender`.
  """
  optimizer = optax.chain(
    transform,
    optax.add_decayed_weights(DECAY),
    # Use a tiny rate. Gradients are constant, and w would become parallel to
    # them.
    optax.sgd(RATE, momentum=MOMENTUM, accumulator_dtype=jnp.float32),
  )

  def several(carry, inputs):
    def step(_, carry):
      # Otherwise XLA computes what depends on the inputs alone only once.
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
  """Returns the contenders in JAX, by name.

  Args:
    params: initial parameters.
    inputs: inputs of the gradients.
    *args: further arguments of :func:`compiled`.
    parallel: gradients nearly parallel to the parameters, if these are to be
      timed too.
  """
  transforms = {SGD: optax.identity(), OURS: orthograd(), TEXTBOOK: textbook()}
  makers = {
    k: compiled(t, params, inputs, *args) for k, t in transforms.items()
  }
  contenders = {name: make(inputs) for name, make in makers.items()}
  if parallel is not None:
    contenders[PARALLEL] = makers[OURS](parallel)
  return contenders


def bandwidth(megabytes: int, times: int = 50) -> float:
  """Measures an in-place change of an array, in bytes per second."""
  change = lambda _, x: x * 1.0001
  run = jax.jit(
    lambda x: jax.lax.fori_loop(0, times, change, x), donate_argnums=0
  )
  x = jax.block_until_ready(run(jnp.ones(megabytes * 2**18, jnp.float32)))
  start = time.perf_counter()
  x = jax.block_until_ready(run(x))
  return times * 2 * x.nbytes / (time.perf_counter() - start)


def least_bytes(params, grads, sweeps: int) -> int:
  """Returns the least bytes of an update with so many sweeps over w and g."""
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
  """Times all contenders in turns, after a warm-up; milliseconds an update."""
  times: dict[str, list[float]] = {name: [] for name in contenders}
  for i, (name, contender) in itertools.product(
    range(2 + repeats), contenders.items()
  ):
    contender.run(1)  # fills the caches with its own data
    one, several = (time_of(contender, n) for n in (1, 1 + MORE_PROGRAMS))
    if i >= 2:
      updates = MORE_PROGRAMS * contender.updates
      times[name].append(1e3 * (several - one) / updates)
  return {name: np.array(values) for name, values in times.items()}


def rows(
  contenders: dict[str, Contender], repeats: int
) -> Iterator[dict[str, Any]]:
  """Times the contenders, and yields a row for each."""
  times = take_turns(contenders, repeats)
  for name, contender in contenders.items():
    # Divide neighbours in time, so that a busy machine slows both.
    ratios = times[name] / times[SGD]
    yield {
      "step": name,
      "ms": float(np.median(times[name])),
      "over_sgd": [float(q) for q in np.quantile(ratios, [0.25, 0.5, 0.75])],
      "compile": contender.compile,
      "temporary": contender.temporary,
    }
