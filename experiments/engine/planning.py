"""The time and memory that a study takes."""

import collections
from collections.abc import Iterable
import dataclasses
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np

from experiments import registry, rows
from experiments.config import Config, Study
from experiments.engine import memory, runner, train
from experiments.engine.group import Options


def plan(study: Study, folder: pathlib.Path, options: Options) -> str:
  """Returns runs, steps, memory, and the time as estimated from a few steps.

  A CPU would compile a large network for minutes, so there its time is the time
  of the arithmetic alone.
  """
  stored = rows.Rows(folder / "rows.jsonl", write=False)
  missing = runner.Missing(study, stored.keys)
  mesh = train.make_mesh(options.batch_devices)
  groups = list(runner.make_groups(study, folder, missing, mesh, options))
  config = study.config
  steps = config.epochs * config.steps
  done = sum(not missing(run) for run in study.runs)
  lines = [
    f"{study.name}: {registry.MODELS[config.model].label} on "
    f"{config.dataset}, {config.precision}",
    f"runs       {len(study.runs)}, {done} complete",
    f"training   {describe_groups(map(len, groups))}",
    f"steps      {steps:,} a run",
  ]
  if groups:
    ways = train.choose_convolutions(options.convolutions, config)
    share = -(-len(groups[0]) // mesh.shape["run"])
    size = share * memory.bytes_per_run(config, groups[0][0].method, ways)
    lines.append(
      f"memory     about {size / 1e9:.1f} of "
      f"{memory.device_memory() / 1e9:.1f} GB a device, by {ways}"
    )
    if jax.default_backend() == "cpu" and config.model != "small":
      seconds, least = len(groups[0]) * arithmetic(config), "at least "
    else:
      seconds, compiling = measure(study, groups[0], mesh, options)
      least = ""
      lines.append(f"compiling  {compiling:.0f} s")
    total = steps * sum(seconds * len(g) / len(groups[0]) for g in groups)
    lines += [
      f"a step     {least}{1e3 * seconds:.1f} ms, "
      f"{1e3 * seconds / len(groups[0]):.2f} ms a run",
      f"in all     {least}{total / 60:.1f} minutes of training, without "
      "evaluation",
    ]
  return "\n".join(lines)


def describe_groups(sizes: Iterable[int]) -> str:
  """Describes the groups that train one after another, by size.

  Examples:
    >>> print(describe_groups([10]))
    1 group of 10
    >>> print(describe_groups([10, 10, 4]))
    2 groups of 10, 1 group of 4
    >>> print(describe_groups([]))
    no groups: every run is complete
  """
  counts = collections.Counter(sizes)
  texts = [
    f"{count} group{'s' if count > 1 else ''} of {size}"
    for size, count in counts.items()
  ]
  return ", ".join(texts) or "no groups: every run is complete"


def arithmetic(config: Config, size: int = 2048) -> float:
  """Returns the seconds that this device multiplies for a step of one run.

  Its speed is the speed of a float32 product of two `size` × `size` matrices.
  """
  matrix = jnp.ones((size, size))
  times = []
  for _ in range(3):
    start = time.perf_counter()
    jax.block_until_ready(matrix @ matrix)
    times.append(time.perf_counter() - start)
  # The gradient takes two more products for each product.
  products = 3 * config.batch_size * memory.products_per_image(config)
  return products / size**3 * min(times)


def measure(study, runs, mesh, options) -> tuple[float, float]:
  """Measures a group: seconds of a step, and of compiling."""
  # A CPU may take a second for a step.
  steps = 1 if jax.default_backend() == "cpu" else 8
  data = study.config.data
  classes = len(data.classes)
  small = max(1, steps * study.config.batch_size // classes)
  small = min(study.config.per_class, small)
  config = dataclasses.replace(study.config, per_class=small)
  engine = train.Engine(
    config,
    diagnostics=study.diagnostics,
    mesh=mesh,
    convolutions=options.convolutions,
  )
  # The time does not depend on the images.
  images = np.zeros((small * classes, *data.shape), np.uint8)
  labels = np.arange(len(images), dtype=np.int32) % classes
  placed = engine.place(runs, labels)
  arrays = engine.replicate(images), engine.replicate(labels)
  state, times = engine.init(placed), []
  for epoch in range(3):
    start = time.perf_counter()
    state, out = engine.epoch(state, placed, epoch, *arrays)
    jax.block_until_ready(out)
    times.append(time.perf_counter() - start)
  best = min(times[1:])
  return best / config.steps, times[0] - best
