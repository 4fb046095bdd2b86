"""Measures how long an update of many leaves takes to trace and to lower.

Prints CPU seconds for ⊥Grad, for its textbook form and for Adam, and ratios to
the textbook form, with all leaves of one shape and with 300 shapes:

    python -m benchmarks.tracing
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks import update
from orthograd_optax import orthograd

CONTENDERS = {
  update.TEXTBOOK: update.textbook(),
  update.OURS: orthograd(),
  "Adam": optax.adam(1e-3),
}


def tree(leaves: int, shapes: int) -> Any:
  """Returns abstract matrices, and a vector after every two of them."""
  return [
    jax.ShapeDtypeStruct((8 + i % shapes, 16)[: 2 if i % 3 else 1], jnp.float32)
    for i in range(leaves)
  ]


def seconds(transform: Any, params: Any) -> tuple[float, float]:
  """Returns the CPU seconds of tracing and of lowering."""
  jax.clear_caches()
  few = params[:2]  # warms up what does not depend on the leaves
  jax.jit(transform.update).trace(few, jax.eval_shape(transform.init, few), few)
  state = jax.eval_shape(transform.init, params)
  times = [time.process_time()]
  traced = jax.jit(transform.update).trace(params, state, params)
  times.append(time.process_time())
  traced.lower()
  times.append(time.process_time())
  return times[1] - times[0], times[2] - times[1]


def table(leaves: int, shapes: tuple[int, ...]) -> str:
  lines = [
    f"| {leaves:,} leaves | shapes | trace, s | lower, s | ratio of traces |",
    "|---|---:|---:|---:|---:|",
  ]
  for number in shapes:
    params = tree(leaves, number)
    times = {name: seconds(t, params) for name, t in CONTENDERS.items()}
    for name, (trace, lower) in times.items():
      ratio = trace / times[update.TEXTBOOK][0]
      cells = f"{number} | {trace:.2f} | {lower:.2f} | {ratio:.2f}"
      lines.append(f"| {name} | {cells} |")
  return "\n".join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.tracing",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--leaves", type=int, default=1500, help="number of leaves (default: 1500)"
  )
  args = parser.parse_args()
  print(table(args.leaves, (1, 300)))


if __name__ == "__main__":
  main()
