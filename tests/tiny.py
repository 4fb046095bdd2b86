"""A network and a study in small, for tests that train.

As a program, it runs the study: `tiny.py FOLDER [process port]`.
"""

import dataclasses
import functools
import json
import os
import pathlib
import sys

import pytest

from experiments import datasets, registry, rows
from experiments.config import ORTHOGRAD, SGD, Config, Run, Study
from experiments.engine import models

MODEL = registry.Part(
  "a tiny ResNet",
  functools.partial(
    models.ResNet, models.PreActivationBlock, (8,), (1,), (2, 2), stem=4
  ),
)
# 70 images in batches of 16: the last one has 6.
CONFIG = Config(
  model="small",
  dataset="sample",
  per_class=7,
  epochs=4,
  batch_size=16,
  learning_rate=0.05,
  precision="float32",
)
STUDY = Study(
  name="tiny",
  config=CONFIG,
  seeds=2,
  evaluate_every=2,
  corruptions=("contrast",),
  corrupted_at=(2,),
  diagnostics=True,
)
TEST_IMAGES = 100
RUNS = [Run(method, seed) for seed in (0, 1) for method in (SGD, ORTHOGRAD)]


@functools.cache
def sample() -> datasets.Images:
  """The sample, without most of its test images."""
  whole = datasets.load_sample()
  return whole._replace(
    test_images=whole.test_images[:TEST_IMAGES],
    test_labels=whole.test_labels[:TEST_IMAGES],
  )


def use(patch: pytest.MonkeyPatch) -> None:
  """Makes the network and the smaller sample known."""
  fewer = sample()
  patch.setitem(registry.MODELS, "small", MODEL)
  tiny = dataclasses.replace(datasets.DATASETS["sample"], load=lambda: fewer)
  patch.setitem(datasets.DATASETS, "sample", tiny)


def write(folder, study, *others):
  """Writes the folder of a study, with rows of it and of others."""
  folder.mkdir(exist_ok=True)
  settings = json.dumps(dataclasses.asdict(study))
  (folder / "study.json").write_text(settings)
  made = rows.Rows(folder / "rows.jsonl")
  for each in (study, *others):
    made.append(
      {
        "study": each.name,
        "config_hash": each.config.hash,
        "config": dataclasses.asdict(each.config),
        "method": run.method.name,
        "settings": dataclasses.asdict(run.method),
        "seed": run.seed,
        "epoch": each.config.epochs,
        "dataset": "clean",
        "metrics": {"loss": 1.0},
      }
      for run in each.runs
    )


def main(folder: str, process: str = "0", port: str | None = None) -> None:
  import jax

  from experiments.engine import group, runner

  use(pytest.MonkeyPatch())
  if port is not None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(process))
  settings = filter(None, os.environ.get("TINY", "").split())
  study = STUDY.override(list(settings))
  options = group.Options(
    checkpoint_every=1,
    batch_devices=int(os.environ.get("TINY_BATCH_DEVICES", "1")),
  )
  runner.run_study(study, pathlib.Path(folder), options, print)


if __name__ == "__main__":
  main(*sys.argv[1:])
