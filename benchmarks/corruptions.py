"""Measures the cost of CIFAR-10-C: `python -m benchmarks.corruptions`.

Makes every corruption at every severity, one set at a time, as an evaluation
does. Prints the time of the first call, which compiles, and of the second.
"""

import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

from experiments.datasets import cifar, corruptions


def main():
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.corruptions",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--images", type=int, default=10_000, help="images in a set (10000)"
  )
  args = parser.parse_args()
  sample = cifar.load_sample().test_images
  images = np.resize(sample, (args.images, *sample.shape[1:]))
  on_device = jnp.asarray(images)
  names = corruptions.ALL_CORRUPTIONS
  print(
    f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores, jax"
    f" {jax.__version__}; {args.images:,} images × 5 severities\n"
  )
  print("| | first, s | again, s | images/s |\n|---|---:|---:|---:|")
  totals = np.zeros(2)
  for name in names:
    spent = np.zeros(2)
    # jpeg runs on the host.
    source = images if name == "jpeg" else on_device
    for severity in range(1, 6):
      for i in range(2):
        start = time.perf_counter()
        key = jax.random.key(i)
        out = corruptions.corrupt(source, name, severity, key)
        jax.block_until_ready(out)
        spent[i] += time.perf_counter() - start
    totals += spent
    rate = 5 * args.images / spent[1]
    print(f"| {name} | {spent[0]:.2f} | {spent[1]:.2f} | {rate:,.0f} |")
  count = 5 * len(names) * args.images
  print(
    f"| all {count:,} | {totals[0]:.1f} | {totals[1]:.1f} |"
    f" {count / totals[1]:,.0f} |",
    flush=True,
  )


if __name__ == "__main__":
  main()
