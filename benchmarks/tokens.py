"""Measures `tally` of tokens beside their cross-entropy.

Prints the time and the peak memory of both, and ratios, by default for a batch
of a language model, 8 × 1,024 tokens with a vocabulary of 50,257:

    python -m benchmarks.tokens

The ratio is at most 1.5 on a CPU.
"""

import argparse
from collections.abc import Callable
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from orthograd_optax import calibration


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
  return jnp.mean(losses)


CONTENDERS: dict[str, Callable] = {
  "cross-entropy": cross_entropy,
  "tally (all metrics of evaluate)": calibration.tally,
}


def measure(
  logits: jax.Array, labels: jax.Array, repeats: int
) -> dict[str, tuple[float, float]]:
  """Returns seconds, the least of some turns, and peak bytes, by name."""
  compiled = {
    name: jax.jit(f).lower(logits, labels).compile()
    for name, f in CONTENDERS.items()
  }
  seconds = dict.fromkeys(compiled, np.inf)
  for _ in range(1 + repeats):  # The first turn warms up.
    for name, program in compiled.items():
      start = time.perf_counter()
      jax.block_until_ready(program(logits, labels))
      seconds[name] = min(seconds[name], time.perf_counter() - start)
  measured = {}
  for name, program in compiled.items():
    memory = program.memory_analysis()
    sizes = "argument", "output", "temp"
    peak = sum(getattr(memory, f"{x}_size_in_bytes") for x in sizes)
    measured[name] = seconds[name], float(peak)
  return measured


def table(measured: dict[str, tuple[float, float]]) -> str:
  lines = ["| | s | ratio | peak, MB | ratio |", "|---|---:|---:|---:|---:|"]
  first = next(iter(measured.values()))
  for name, (seconds, peak) in measured.items():
    time, memory = seconds / first[0], peak / first[1]
    cells = f"{seconds:.3f} | {time:.2f} | {peak / 1e6:.0f} | {memory:.2f}"
    lines.append(f"| {name} | {cells} |")
  return "\n".join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.tokens",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("--sequences", type=int, default=8, help="sequences (default: 8)")
  add("--length", type=int, default=1024, help="tokens of each (1024)")
  add("--vocabulary", type=int, default=50_257, help="classes (50257)")
  add("--dtype", default="float32", help="float32 or bfloat16 (float32)")
  add("--repeats", type=int, default=5, help="turns; the fastest counts (5)")
  args = parser.parse_args()
  shape = args.sequences, args.length, args.vocabulary
  logits = jax.random.normal(jax.random.key(0), shape, args.dtype)
  labels = jax.random.randint(jax.random.key(1), shape[:2], 0, shape[2])
  print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
  print(f"{' × '.join(map(str, shape))} logits, {logits.nbytes / 1e9:.2f} GB\n")
  print(table(measure(3 * logits, labels, args.repeats)))


if __name__ == "__main__":
  main()
