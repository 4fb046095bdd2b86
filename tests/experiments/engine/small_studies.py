"""Trains tiny networks and studies, for several test files."""

import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys

import jax
import tiny

from experiments import __main__ as command
from experiments import datasets, rows
from experiments.engine import evaluate, group, runner, train

SAMPLE = datasets.load_sample()
TESTS = pathlib.Path(__file__).parents[2]


def start(method="patches", config=tiny.CONFIG, runs=tiny.RUNS, devices=(1, 1)):
  """An engine on so many devices for runs, and for each batch."""
  count, batch = devices
  mesh = train.make_mesh(batch, jax.devices()[: count * batch])
  engine = train.Engine(config, convolutions=method, mesh=mesh)
  placed = engine.place(runs, SAMPLE.train_labels)
  arrays = [
    engine.replicate(x) for x in (SAMPLE.train_images, SAMPLE.train_labels)
  ]
  return engine, placed, arrays


def train_all(*args, epochs=2, **options):
  engine, runs, arrays = start(*args, **options)
  state = engine.init(runs)
  actual = {}
  for epoch in range(epochs):
    state, actual = engine.epoch(state, runs, epoch, *arrays)
  return engine, state, train.gather(actual)


def launch(folder, cache_dir, *args, **variables):
  """A process that runs the study, on one device, with a cache of programs."""
  environment = os.environ | {
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "PYTHONPATH": str(TESTS.parent),
    "PYTHONUNBUFFERED": "1",
    "JAX_COMPILATION_CACHE_DIR": str(cache_dir),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
  }
  return subprocess.Popen(
    [sys.executable, TESTS / "tiny.py", folder, *args],
    env=environment | variables,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def finish(process):
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0, output
  return output


def named(runs):
  return [(run.method.name, run.seed) for run in runs]


def results(folder):
  """What was found, without when and where."""
  actual = {}
  for row in rows.read(folder / "rows.jsonl"):
    assert rows.key(row) not in actual
    names = ("metrics", "bins", "scaled", "scaled_half", "scaled_clean")
    actual[rows.key(row)] = {name: row.get(name) for name in names}
  return actual


@functools.cache
def shared_programs():
  study = tiny.STUDY.override(["corruptions="])
  mesh = train.make_mesh()
  engine = train.Engine(study.config, diagnostics=True, mesh=mesh)
  return engine, engine.epoch, evaluate.Evaluator(engine)


def groups(study, folder, **options):
  missing = rows.Missing(study, rows.Rows(folder / "rows.jsonl").keys)
  mesh = train.make_mesh(devices=jax.devices()[:1])
  return list(
    runner.make_groups(study, folder, missing, mesh, group.Options(**options))
  )


def begin(folder, manifest):
  """A group's folder, without checkpoints."""
  text = json.dumps(manifest)
  name = hashlib.sha256(text.encode()).hexdigest()[:16]
  path = folder / "checkpoints" / name / "runs.json"
  path.parent.mkdir(parents=True)
  path.write_text(text)
  return path


def run_command(monkeypatch, capsys, *args):
  monkeypatch.setattr(sys, "argv", ["experiments", *map(str, args)])
  command.main()
  return capsys.readouterr().out
