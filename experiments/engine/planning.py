"""The time and memory that a study takes."""

import collections
import pathlib
import time

import jax
import numpy as np

from experiments import registry, rows
from experiments.config import Study
from experiments.engine import memory, runner, train
from experiments.engine.group import Options


def plan(study: Study, folder: pathlib.Path, options: Options) -> str:
  """Returns runs, steps, memory, and the time as estimated from a few steps."""
  stored = rows.Rows(folder / "rows.jsonl", write=False)
  missing = rows.Missing(study, stored.keys)
  mesh = train.make_mesh(options.batch_devices)
  groups = list(runner.make_groups(study, folder, missing, mesh, options))
  config = study.config
  steps = config.epochs * config.steps
  done = sum(not missing(run) for run in study.runs)
  counts = collections.Counter(map(len, groups)).items()
  sizes = ", ".join(f"{count} × {size}" for size, count in counts)
  lines = [
    f"{study.name}: {registry.MODELS[config.model].label} on "
    f"{config.dataset}, {config.precision}",
    f"runs       {len(study.runs)}, {done} complete",
    f"training   {sizes or 'no'} runs together",
    f"steps      {steps:,} a run",
  ]
  if not groups:
    return "\n".join(lines)
  ways = train.choose_convolutions(options.convolutions, config)
  share = -(-len(groups[0]) // mesh.shape["run"])
  size = share * memory.bytes_per_run(config, groups[0][0].method, ways)
  lines.append(
    f"memory     about {size / 1e9:.1f} of "
    f"{memory.device_memory() / 1e9:.1f} GB a device, by {ways}"
  )
  if jax.default_backend() == "cpu" and config.model != "small":
    # It would compile for minutes.
    return "\n".join([*lines, "a step     not measured: this takes a GPU"])
  seconds, compiling = measure(study, groups[0], mesh, ways)
  per_run = seconds / len(groups[0])
  total = steps * per_run * sum(map(len, groups))
  lines += [
    f"compiling  {compiling:.0f} s",
    f"a step     {1e3 * seconds:.1f} ms, {1e3 * per_run:.2f} ms a run",
    f"in all     {total / 60:.1f} minutes of training, without evaluation",
  ]
  return "\n".join(lines)


def measure(study, runs, mesh, ways) -> tuple[float, float]:
  """Measures a group: seconds of a step, and of compiling."""
  # A CPU may take a second for a step.
  steps = 1 if jax.default_backend() == "cpu" else 8
  config, classes = study.config, len(study.config.data.classes)
  few = max(1, steps * config.batch_size // classes)
  config = config.replace(per_class=min(config.per_class, few))
  engine = train.Engine(
    config, diagnostics=study.diagnostics, mesh=mesh, convolutions=ways
  )
  # The time does not depend on the images.
  count = (config.per_class + config.calibrate) * classes
  images = np.zeros((count, *config.data.shape), np.uint8)
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
