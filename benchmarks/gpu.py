"""What ⊥Grad costs on a GPU: `python -m benchmarks.gpu`.

Times updates of SGD with momentum and weight decay, the parameters' included:
alone, after this package's ⊥Grad, and after the textbook form of it. They run
in a loop on the device, so that no host is waited for, and take turns. The
floor is what the bytes say at the bandwidth of a copy, measured in the same
run: SGD reads w, g and momentum and writes two of them, and ⊥Grad must read w
and g once more before it can write.

With `--name`, the figures go to a file in `benchmarks/results`, too, with the
hardware and versions.
"""

import argparse
import json
import pathlib
import platform
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.__main__ import textbook
from experiments import data, models
from orthograd_optax import orthograd

RESULTS = pathlib.Path(__file__).parent / "results"
Shapes = list[tuple[int, ...]]


def network(name: str) -> Shapes:
  """The shapes of the parameters of one of the experiments' networks."""
  init = lambda key: models.init(models.MODELS[name](), key)
  variables = jax.eval_shape(init, jax.random.key(0))
  return [x.shape for x in jax.tree.leaves(variables["params"])]


def gpt(depth: int = 24, width: int = 1024, tokens: int = 50257) -> Shapes:
  """The shapes of a decoder as large as GPT-2 medium, 355 M."""
  block: Shapes = [(width, 3 * width), (width, width), (width, 4 * width)]
  block += [(4 * width, width), *[(width,)] * 6, (3 * width,), (4 * width,)]
  return [(tokens, width), (1024, width), *block * depth, (width,), (width,)]


def square(millions: float, leaves: int) -> Shapes:
  """As many entries in as many matrices, and a vector for each."""
  side = max(int((1e6 * millions / leaves) ** 0.5), 1)
  return [(side, side), (side,)] * leaves


MODELS = {
  "ResNet-18": network("resnet18"),
  "WRN-28-10": network("wrn28_10"),
  "GPT": gpt(),
}
SIZES = {f"{n} M": square(n, 20) for n in (1, 4, 16, 64, 256, 1000)}
LEAVES = {f"{n} leaves": square(36, n // 2) for n in (10, 30, 100, 300, 1000)}
TRANSFORMS = {
  "SGD": optax.identity(),
  "⊥Grad": orthograd(),
  "textbook ⊥Grad": textbook(),
}


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


def floor(params, grads, sweeps: int) -> int:
  """Bytes, if w and g are swept once, or once more before they are."""
  w, g = (sum(x.nbytes for x in xs) for xs in (params, grads))
  momentum = sum(4 * x.size for x in params)
  return sweeps * (w + g) + w + 2 * momentum


def loop(transform, params, grads, steps: int):
  """So many updates as one program, what it starts from, and its making."""
  optimizer = optax.chain(
    transform,
    optax.add_decayed_weights(5e-4),
    optax.sgd(1e-6, momentum=0.9, accumulator_dtype=jnp.float32),
  )

  def run(carry, grads):
    def step(_, carry):
      # Else what depends on the gradients alone were computed once.
      (params, state), gs = jax.lax.optimization_barrier((carry, grads))
      updates, state = optimizer.update(gs, state, params)
      return optax.apply_updates(params, updates), state

    return jax.lax.fori_loop(0, steps, step, carry)

  carry = jax.tree.map(jnp.copy, params), optimizer.init(params)
  start = time.perf_counter()
  compiled = jax.jit(run, donate_argnums=0).lower(carry, grads).compile()
  seconds = time.perf_counter() - start
  memory = compiled.memory_analysis()
  temporary = memory.temp_size_in_bytes if memory else None
  return compiled, carry, seconds, temporary


def measure(shapes: Shapes, dtype: str, speed: float, steps: int, repeats: int):
  """A row for each transform; they take turns."""
  keys = jax.random.split(jax.random.key(0), 2)
  make = jax.jit(
    lambda key: [
      jax.random.normal(jax.random.fold_in(key, i), shape, dtype)
      for i, shape in enumerate(shapes)
    ]
  )
  params, grads = map(make, keys)
  loops = {
    name: loop(transform, params, grads, steps)
    for name, transform in TRANSFORMS.items()
  }
  carries = {name: found[1] for name, found in loops.items()}
  times: dict[str, list[float]] = {name: [] for name in loops}
  for i in range(1 + repeats):
    for name, (compiled, *_) in loops.items():
      start = time.perf_counter()
      carries[name] = jax.block_until_ready(compiled(carries[name], grads))
      if i:  # else a warm-up
        times[name].append(1e3 * (time.perf_counter() - start) / steps)
  for name, (_, _, seconds, temporary) in loops.items():
    sweeps = 1 if name == "SGD" else 2
    least = 1e3 * floor(params, grads, sweeps) / speed
    low, middle, high = np.quantile(times[name], [0.25, 0.5, 0.75])
    yield {
      "step": name,
      "leaves": len(shapes),
      "millions": sum(x.size for x in params) / 1e6,
      "ms": float(middle),
      "quartiles": [float(low), float(high)],
      "floor": least,
      "compile": seconds,
      "temporary": temporary,
    }


def main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--dtype",
    default="float32",
    choices=["float32", "bfloat16"],
    help="of parameters and gradients; momentum is float32 (float32)",
  )
  parser.add_argument(
    "--largest", type=float, default=1e4, help="millions of parameters (all)"
  )
  parser.add_argument("--steps", type=int, default=50, help="in a loop (50)")
  parser.add_argument("--repeats", type=int, default=7, help="of it (7)")
  parser.add_argument("--name", help="of the file in benchmarks/results")
  args = parser.parse_args()
  device = jax.devices()[0]
  speed = bandwidth(2048 if device.platform == "gpu" else 64)
  about = {
    "device": device.device_kind,
    "machine": platform.machine(),
    "jax": jax.__version__,
    "optax": optax.__version__,
    "dtype": args.dtype,
    "bandwidth": speed,
  }
  print(
    ", ".join(
      f"{k} {v:.3g}" if k == "bandwidth" else f"{k} {v}"
      for k, v in about.items()
    ),
    "\n",
  )
  print(
    "| model | leaves | M | step | ms (quartiles) | × floor | × SGD |"
    " compile, s | temporary, MB |"
  )
  print("|---|---:|---:|---|---:|---:|---:|---:|---:|")
  rows = []
  for model, shapes in (MODELS | SIZES | LEAVES).items():
    if sum(map(np.prod, shapes)) > 1e6 * args.largest:
      continue
    found = list(measure(shapes, args.dtype, speed, args.steps, args.repeats))
    for row in found:
      rows.append({"model": model} | row)
      low, high = row["quartiles"]
      print(
        f"| {model} | {row['leaves']} | {row['millions']:.1f} | {row['step']} |"
        f" {row['ms']:.3f} ({low:.3f}–{high:.3f}) |"
        f" {row['ms'] / row['floor']:.2f} | {row['ms'] / found[0]['ms']:.2f} |"
        f" {row['compile']:.1f} | {(row['temporary'] or np.nan) / 1e6:.1f} |",
        flush=True,
      )
  if args.name:
    RESULTS.mkdir(exist_ok=True)
    with data.replacing(RESULTS / f"{args.name}.json") as temporary:
      temporary.write_text(json.dumps({"about": about, "rows": rows}, indent=1))


if __name__ == "__main__":
  main()
