"""Measures the cost of metrics: `python -m benchmarks.calibration`.

Times each metric over seeds × sets of images, in one jitted call, after
warm-up. Prints it as a multiple of the time to read the logits once.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np

from orthograd_optax import calibration

METRICS = {
  "evaluate (all ten)": calibration.evaluate,
  "reliability": calibration.reliability,
  "nll": calibration.nll,
  "ece": calibration.ece,
  "ece, equal mass": functools.partial(calibration.ece, binning="mass"),
  "classwise_ece": calibration.classwise_ece,
  "smooth_ece": calibration.smooth_ece,
  "aurc": calibration.aurc,
  "fit_temperature": calibration.fit_temperature,
}


def milliseconds(function, *args, repeats: int = 5) -> float:
  jax.block_until_ready(function(*args))
  times = []
  for _ in range(repeats):
    start = time.perf_counter()
    jax.block_until_ready(function(*args))
    times.append(time.perf_counter() - start)
  return 1e3 * float(np.median(times))


def main():
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.calibration",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = functools.partial(parser.add_argument, type=int)
  add("--seeds", default=4, help="networks (default: 4)")
  add("--sets", default=5, help="sets of images, such as corruptions (5)")
  add("--images", default=10_000, help="images in a set (10000)")
  add("--classes", default=10, help="classes (10)")
  args = parser.parse_args()

  labels = jnp.arange(args.images) % args.classes
  shape = (args.seeds, args.sets, args.images, args.classes)
  logits = 4 * jax.random.normal(jax.random.key(0), shape)
  read = jax.jit(lambda z: jnp.sum(z, axis=(2, 3)))
  once = milliseconds(read, logits)
  device = jax.devices()[0]
  print(f"{device.device_kind}, jax {jax.__version__}")
  size = " × ".join(map(str, shape))
  print(f"{size} logits, {logits.nbytes / 1e9:.2f} GB\n")
  print("| | ms | × reading the logits |\n|---|---:|---:|")
  print(f"| reading the logits | {once:.1f} | 1.0 |")
  for name, metric in METRICS.items():
    # Map over one seed at a time, to save memory.
    over_sets = jax.vmap(metric, in_axes=(0, None))
    each = jax.jit(
      lambda z, y, f=over_sets: jax.lax.map(lambda seed: f(seed, y), z)
    )
    spent = milliseconds(each, logits, labels)
    print(f"| {name} | {spent:.1f} | {spent / once:.1f} |", flush=True)


if __name__ == "__main__":
  main()
