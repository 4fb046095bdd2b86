"""Measures the cost of a training step: `python -m benchmarks.engine`.

Times whole epochs of the engine, after warm-up, with ⊥Grad and without, for
each way to compute the convolutions of many runs. Prints milliseconds per step
and run, beside the time of the arithmetic alone. On one GPU:

    python -m benchmarks.engine --model resnet18 --runs 1 10 20 40

With --evaluate, times sets of 10,000 images instead, such as CIFAR-10-C's: the
logits alone, and all until rows could be written, as in a study.

    python -m benchmarks.engine --model resnet18 --evaluate 250 500 1000 2500
"""

import argparse
import dataclasses
import time

import jax
import numpy as np

from experiments.config import ORTHOGRAD, SGD, Config, Run
from experiments.engine import evaluate, memory, train
from experiments.engine.convolutions import CONVOLUTIONS

# GFLOP of a training step, for one image.
GFLOP = {"resnet18": 3.34, "wrn28_10": 31.5, "small": 0.0039}
PEAK = {"NVIDIA H200": 790.0}  # TFLOP/s in bfloat16, dense, as measured
IMAGES = 10_000  # in a set to evaluate on


def begin(config: Config, ways: str, runs: int, plain: bool = False):
  """Returns an engine, the sample, and a group of runs on the device."""
  engine = train.Engine(config, convolutions=ways)
  images = train.load_dataset(dataclasses.replace(config, dataset="sample"))
  pair = [SGD, ORTHOGRAD]
  if plain:
    pair = [dataclasses.replace(method, where="none") for method in pair]
  group = [Run(pair[i % 2], i // 2) for i in range(runs)]
  return engine, images, engine.place(group, images.train_labels)


def measure(config: Config, ways: str, runs: int, plain: bool, repeats: int):
  """Seconds of each epoch, seconds to compile it, and its memory in bytes."""
  engine, images, placed = begin(config, ways, runs, plain)
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


def measure_evaluation(config, runs: int, chunk: int, repeats: int):
  """Seconds of a set's logits, of all its rows, and to compile both."""
  evaluate.CHUNK = chunk
  engine, images, placed = begin(config, "auto", runs)
  evaluator = evaluate.Evaluator(engine)
  weights = engine.init(placed).evaluated
  pixels = np.resize(
    images.test_images, (IMAGES, *images.test_images.shape[1:])
  )
  labels = np.resize(images.test_labels, IMAGES)
  start = time.perf_counter()
  clean = evaluator(weights, pixels, labels)
  evaluate.rows(evaluator(weights, pixels, labels, clean))
  compiling = time.perf_counter() - start
  start = time.perf_counter()
  for _ in range(repeats):
    jax.block_until_ready(evaluator.logits(weights, pixels))
  logits = (time.perf_counter() - start) / repeats
  start = time.perf_counter()
  before = evaluator(weights, pixels, labels, clean)
  for _ in range(repeats - 1):
    evaluated = evaluator(weights, pixels, labels, clean)
    evaluate.rows(before)
    before = evaluated
  evaluate.rows(before)
  return logits, (time.perf_counter() - start) / repeats, compiling


def print_evaluation(config: Config, args: argparse.Namespace) -> None:
  """Prints a row for each chunk and number of runs."""
  floor = GFLOP[args.model] / 3 * IMAGES / PEAK.get(device_kind(), np.nan)
  print(
    f"{IMAGES:,} images; arithmetic floor {floor:.1f} ms a run\n\n| images at "
    "once | runs | logits, ms a run | × floor | rows too, ms a run | first, s |"
    "\n|---:|---:|---:|---:|---:|---:|"
  )
  for chunk in args.evaluate:
    for runs in args.runs:
      *times, first = measure_evaluation(config, runs, chunk, args.repeats)
      logits, rows = (1e3 * seconds / runs for seconds in times)
      print(
        f"| {chunk} | {runs} | {logits:.1f} | {logits / floor:.1f} |"
        f" {rows:.1f} | {first:.0f} |",
        flush=True,
      )


def device_kind() -> str:
  return jax.devices()[0].device_kind


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
    choices=list(CONVOLUTIONS),
    default=list(CONVOLUTIONS),
    help="ways to compute convolutions (all)",
  )
  parser.add_argument(
    "--precision", default="bfloat16", help="dtype (bfloat16)"
  )
  parser.add_argument(
    "--per-class", type=int, default=64, help="images of each class (64)"
  )
  parser.add_argument(
    "--repeats", type=int, default=2, help="epochs, or sets, timed (2)"
  )
  parser.add_argument(
    "--evaluate",
    type=int,
    nargs="*",
    metavar="IMAGES",
    help="time the evaluation, with so many images at once (2500)",
  )
  args = parser.parse_args()
  config = Config(
    model=args.model, precision=args.precision, per_class=args.per_class
  )
  if args.evaluate is not None:
    args.evaluate = args.evaluate or [evaluate.CHUNK]
    return print_evaluation(config, args)
  steps, device = config.steps, device_kind()
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
