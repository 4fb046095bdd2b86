"""Measures the cost of a training step: `python -m benchmarks.engine`.

Times whole epochs of the engine, after warm-up, with ⊥Grad and without, for
each way to compute the convolutions of many runs. Prints milliseconds per step
and run, beside the time of the arithmetic alone. On one GPU:

    python -m benchmarks.engine --model resnet18 --runs 1 10 20 40
"""

import argparse
import dataclasses
import time

import jax
import numpy as np

from experiments.config import ORTHOGRAD, SGD, Config, Run
from experiments.engine import memory, train

# GFLOP of a training step, for one image.
GFLOP = {"resnet18": 3.34, "wrn28_10": 31.5, "small": 0.0039}
PEAK = {"NVIDIA H200": 790.0}  # TFLOP/s in bfloat16, dense, as measured


def measure(config: Config, ways: str, runs: int, plain: bool, repeats: int):
  """Seconds of each epoch, seconds to compile it, and its memory in bytes."""
  engine = train.Engine(config, convolutions=ways)
  images = train.load_dataset(dataclasses.replace(config, dataset="sample"))
  pair = [SGD, ORTHOGRAD]
  if plain:
    pair = [dataclasses.replace(method, where="none") for method in pair]
  group = [Run(pair[i % 2], i // 2) for i in range(runs)]
  placed = engine.place(group, images.train_labels)
  arrays = [
    engine.replicate(x) for x in (images.train_images, images.train_labels)
  ]
  state = engine.init(placed)
  start = time.perf_counter()
  compiled = engine.epoch.lower(state, placed, 0, *arrays).compile()
  compiling = time.perf_counter() - start
  times = []
  for epoch in range(1 + repeats):
    start = time.perf_counter()
    state, metrics = compiled(state, placed, epoch, *arrays)
    jax.block_until_ready(metrics)
    times.append(time.perf_counter() - start)
  analysis = compiled.memory_analysis()
  size = (
    analysis.temp_size_in_bytes + analysis.argument_size_in_bytes
    if analysis
    else np.nan
  )
  return times[1:], compiling, size


def main():
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.engine",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--model", default="small", choices=list(GFLOP), help="network (small)"
  )
  parser.add_argument(
    "--runs", type=int, nargs="+", default=[10], help="runs at once (10)"
  )
  parser.add_argument(
    "--methods",
    nargs="+",
    default=list(train.CONVOLUTIONS),
    help="ways to compute convolutions (all)",
  )
  parser.add_argument(
    "--precision", default="bfloat16", help="dtype (bfloat16)"
  )
  parser.add_argument(
    "--per-class", type=int, default=64, help="images of each class (64)"
  )
  parser.add_argument("--repeats", type=int, default=2, help="epochs timed (2)")
  args = parser.parse_args()
  config = Config(
    model=args.model, precision=args.precision, per_class=args.per_class
  )
  steps = config.steps
  device = jax.devices()[0].device_kind
  floor = GFLOP[args.model] * config.batch_size / PEAK.get(device, np.nan)
  print(
    f"{device}, jax {jax.__version__}, {args.model}, {args.precision}, batch"
    f" {config.batch_size}, {steps} steps an epoch; arithmetic floor"
    f" {floor:.3f} ms\n"
  )
  print(
    "| method | runs | ms a step and run | img/s | TFLOP/s | × floor | SGD"
    " alone, ms | ⊥Grad adds | compile, s | GB | estimate, GB |"
  )
  print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
  for method in args.methods:
    for runs in args.runs:
      try:
        measured = [
          measure(config, method, runs, plain, args.repeats)
          for plain in (False, True)
        ]
      except Exception as error:  # such as out of memory
        print(f"| {method} | {runs} | {str(error).splitlines()[0][:200]} |")
        continue
      (times, compiling, size), (plain, *_) = measured
      ms, base = (
        1e3 * float(np.median(t)) / steps / runs for t in (times, plain)
      )
      rate = config.batch_size / ms * 1e3
      estimate = runs * memory.bytes_per_run(config, SGD, method)
      print(
        f"| {method} | {runs} | {ms:.3f} | {rate:,.0f} |"
        f" {rate * GFLOP[args.model] / 1e3:.1f} | {ms / floor:.1f} |"
        f" {base:.3f} | {100 * (ms / base - 1):.1f} % | {compiling:.0f} |"
        f" {size / 1e9:.2f} | {estimate / 1e9:.2f} |",
        flush=True,
      )


if __name__ == "__main__":
  main()
