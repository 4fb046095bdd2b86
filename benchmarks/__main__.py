"""What ⊥Grad adds to an optimizer step: `make bench`, `python -m benchmarks`.

Times one jitted, donated step of SGD with momentum and weight decay, given the
gradients: alone, with this package's ⊥Grad before it, and with the textbook
form of it. They take turns in one run, after warm-up; what counts are the
ratios to plain SGD. The floor is what the bytes say: SGD reads three arrays and
writes two, and ⊥Grad must read two of them once more, before it can write.
"""

import argparse
import itertools
import platform
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from orthograd_optax import orthograd

FLOOR = 7 / 5  # arrays of the size of the model read or written


def textbook(eps: float = 1e-30) -> optax.GradientTransformation:
  """Definition 3.1 as one would write it down, without any care."""

  def project(g, w):
    perpendicular = g - jnp.vdot(w, g) / jnp.vdot(w, w) * w
    length = jnp.linalg.norm(perpendicular)
    return perpendicular * (jnp.linalg.norm(g) / (length + eps))

  return optax.stateless(
    lambda updates, params: jax.tree.map(project, updates, params)
  )


def resnet18() -> list[tuple[int, ...]]:
  """The shapes of the 62 parameters of ResNet-18 for CIFAR-10."""
  shapes = [(3, 3, 3, 64), *[(3, 3, 64, 64)] * 4, *[(64,)] * 10]
  for n in (128, 256, 512):
    shapes += [(3, 3, n // 2, n), *[(3, 3, n, n)] * 3, (1, 1, n // 2, n)]
    shapes += [(n,)] * 10
  return [*shapes, (512, 10), (10,)]


def transformer(depth: int = 12, width: int = 512) -> list[tuple[int, ...]]:
  """The shapes of a decoder without its embedding."""
  block = [(width, 3 * width), (width, width), (width, 4 * width)]
  block += [(4 * width, width), *[(width,)] * 4, (3 * width,), (4 * width,)]
  return block * depth


MODELS = {
  "one matrix of 16 M": [(4096, 4096)],
  "ResNet-18": resnet18(),
  "transformer, 12 layers": transformer(),
}
PARALLEL = "⊥Grad, g nearly ∥ w"  # where one sweep won't do
TRANSFORMS = {
  "SGD": optax.identity(),
  "⊥Grad": orthograd(),
  PARALLEL: orthograd(),
  "textbook ⊥Grad": textbook(),
}


def compile_step(transform, params, grads):
  """A compiled step, what it takes to compile it, and its temporaries."""
  # The gradients stay the same; larger steps would make w parallel to them.
  optimizer = optax.chain(
    transform, optax.add_decayed_weights(5e-4), optax.sgd(1e-6, momentum=0.9)
  )

  def step(params, state, grads):
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  params = jax.tree.map(jnp.copy, params)
  state = optimizer.init(params)
  jitted = jax.jit(step, donate_argnums=(0, 1))
  start = time.perf_counter()
  compiled = jitted.lower(params, state, grads).compile()
  seconds = time.perf_counter() - start
  memory = compiled.memory_analysis()
  temporary = memory.temp_size_in_bytes if memory else np.nan
  return compiled, params, state, seconds, temporary


def measure(shapes, dtype, repeats):
  """For each transform: its times, compile time and temporaries."""
  keys = jax.random.split(jax.random.key(0), 2 * len(shapes))
  make = lambda keys: [
    jax.random.normal(k, s, dtype) for k, s in zip(keys, shapes, strict=True)
  ]
  params, grads = make(keys[: len(shapes)]), make(keys[len(shapes) :])
  steps = {
    name: compile_step(transform, params, grads)
    for name, transform in TRANSFORMS.items()
  }
  carries = {name: step[1:3] for name, step in steps.items()}
  parallel = jax.tree.map(lambda w, g: w + g / 8, params, grads)
  times = {name: [] for name in steps}
  for i, name in itertools.product(range(3 + repeats), steps):
    gs = parallel if name == PARALLEL else grads
    start = time.perf_counter()
    carries[name] = jax.block_until_ready(steps[name][0](*carries[name], gs))
    if i >= 3:  # warm-up
      times[name].append(time.perf_counter() - start)
  return {name: (times[name], *steps[name][3:]) for name in steps}


def main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--repeats", type=int, default=50, help="timed steps of each (50)"
  )
  parser.add_argument(
    "--dtype", default="float32", choices=["float32", "bfloat16"]
  )
  args = parser.parse_args()
  print(
    f"{jax.devices()[0].device_kind}, {platform.machine()}, jax"
    f" {jax.__version__}, optax {optax.__version__}, {args.dtype}, median of"
    f" {args.repeats} steps; floor of ⊥Grad: {FLOOR:.2f} × SGD\n"
  )
  print(
    "| model | step | ms | × SGD (quartiles) | compile, s | temporary, MB |"
  )
  print("|---|---|---|---|---|---|")
  for model, shapes in MODELS.items():
    found = measure(shapes, args.dtype, args.repeats)
    base = np.array(found["SGD"][0])
    for name, (times, seconds, temporary) in found.items():
      # Ratios of neighbours in time, so that a busy machine weighs on both.
      low, middle, high = np.quantile(np.array(times) / base, [0.25, 0.5, 0.75])
      print(
        f"| {model} | {name} | {1e3 * np.median(times):.2f} | {middle:.2f}"
        f" ({low:.2f}–{high:.2f}) | {seconds:.1f} | {temporary / 1e6:.1f} |",
        flush=True,
      )


if __name__ == "__main__":
  main()
