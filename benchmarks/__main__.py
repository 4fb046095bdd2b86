"""What ⊥Grad costs: `make bench`, `python -m benchmarks gpu`.

Times updates of SGD with momentum and weight decay, the parameters' included:
alone, after this package's ⊥Grad, after the textbook form of it, and as its
peers make them in PyTorch, where they can be imported (benchmarks/peers.py).
They take turns in one run, after warm-up, those in PyTorch with SGD once more;
what counts are the ratios. The floor is what the bytes say at the bandwidth of
a copy, measured in the same run: SGD reads w, g and momentum and writes two of
them, and ⊥Grad must read w and g once more before it can write.

`cpu` takes minutes; `gpu` adds bfloat16, whole training steps, and models of
1 M to 1 B parameters and of 10 to 1000 arrays. With `--name`, rows, table and
pictures go to benchmarks/results, with the hardware and versions.
"""

import argparse
from collections.abc import Callable, Iterator
import functools
import json
import math
import pathlib
import platform
from typing import Any

import jax
import optax

from benchmarks import peers, training, update
from experiments import files

RESULTS = pathlib.Path(__file__).parent / "results"
HEADER = (
  "| model | leaves | M | dtype | step | ms | × floor | × SGD (quartiles) |"
  " compile, s | temporary, MB |\n"
  "|---|---|---|---|---|---|---|---|---|---|"
)


Row = dict[str, Any]


def updates(
  model: str,
  shapes: update.Shapes,
  dtype: str,
  parallel: bool = True,
  beside: bool = False,
):
  """Rows of updates alone, also if g is nearly ∥ w, and beside the peers'."""

  def measure(steps: int, repeats: int, speed: float) -> Iterator[Row]:
    params, grads = (update.arrays(shapes, dtype, seed) for seed in (0, 1))
    near = (
      jax.tree.map(lambda w, g: w + g / 8, params, grads) if parallel else None
    )
    contenders = update.in_jax(params, grads, steps, parallel=near)
    found = [*update.rows(contenders, repeats)]
    others = peers.in_torch(params, grads, max(steps // 5, 1)) if beside else {}
    if others:
      # In turns of their own: after it waited for a host, a GPU may be slow.
      some = {update.SGD: contenders[update.SGD], **others}
      first, *rest = update.rows(some, repeats)
      found += [first | {"step": f"{update.SGD}, beside PyTorch"}, *rest]
    size = sum(map(math.prod, shapes)) / 1e6
    for row in found:
      sweeps = 1 if row["step"].startswith(update.SGD) else 2
      least = update.least_bytes(params, grads, sweeps)
      about = {"model": model, "leaves": len(shapes), "millions": size}
      yield about | {"dtype": dtype} | row | {"floor": 1e3 * least / speed}

  return measure


def steps_of(
  model: str, problem: Callable[[], training.Problem], alone: bool = False
):
  """Rows of whole training steps, in one program or, if so, one in each."""

  def measure(steps: int, repeats: int, speed: float) -> Iterator[Row]:
    params, inputs, gradients = problem()
    leaves = jax.tree.leaves(params)
    about = {
      "model": model,
      "leaves": len(leaves),
      "millions": sum(x.size for x in leaves) / 1e6,
      "dtype": "float32",
      "floor": None,
    }
    few = max(steps // 5, 1)  # each takes long enough
    parts = (1, gradients, steps) if alone else (few, gradients)
    contenders = update.in_jax(params, inputs, *parts)
    for row in update.rows(contenders, repeats):
      yield about | row

  return measure


def cases(suite: str):
  """What to measure."""
  resnet = update.network("resnet18")
  if suite == "cpu":
    yield updates("one matrix", [(4096, 4096)], "float32")
    yield updates("ResNet-18", resnet, "float32", beside=True)
    yield updates("transformer", update.decoder(12, 512), "float32")
    return
  models = {
    "ResNet-18": resnet,
    "WRN-28-10": update.network("wrn28_10"),
    "GPT": update.decoder(24, 1024, 50257),
  }
  for dtype in ("float32", "bfloat16"):
    for model, shapes in models.items():
      yield updates(model, shapes, dtype, beside=dtype == "float32")
  network = functools.partial(functools.partial, training.network)
  yield steps_of("ResNet-18, training", network("resnet18"))
  yield steps_of("WRN-28-10, training", network("wrn28_10"))
  yield steps_of("GPT, training", training.decoder)
  yield steps_of("ResNet-18, a step a call", network("resnet18"), alone=True)
  yield steps_of("WRN-28-10, a step a call", network("wrn28_10"), alone=True)
  for millions in (1, 4, 16, 64, 256, 1000):
    shapes = update.matrices(millions, 40)
    yield updates("by size", shapes, "float32", parallel=False)
  for leaves in (10, 30, 100, 300, 1000):
    shapes = update.matrices(36, leaves)
    yield updates("by leaves", shapes, "float32", parallel=False)


def about() -> dict[str, Any]:
  device = jax.devices()[0]
  return {
    "device": device.device_kind,
    "machine": platform.machine(),
    "python": platform.python_version(),
    "jax": jax.__version__,
    "optax": optax.__version__,
    **peers.versions(),
  }


def line(row: dict[str, Any]) -> str:
  low, middle, high = row["over_sgd"]
  floors = "" if row["floor"] is None else f"{row['ms'] / row['floor']:.2f}"
  compiling, temporary = (
    "" if x is None else f"{x / unit:.1f}"
    for x, unit in ((row["compile"], 1), (row["temporary"], 1e6))
  )
  return (
    f"| {row['model']} | {row['leaves']} | {row['millions']:.1f} |"
    f" {row['dtype']} | {row['step']} | {row['ms']:.3f} |"
    f" {floors} | {middle:.3f} ({low:.3f}–{high:.3f}) | {compiling} |"
    f" {temporary} |"
  )


def save(name: str, found: dict[str, Any], rows: list[dict[str, Any]]) -> None:
  RESULTS.mkdir(exist_ok=True)
  facts = ", ".join(f"{k} {v}" for k, v in found.items())
  lines = [f"# {facts}", "", HEADER, *map(line, rows)]
  texts = {
    "json": json.dumps({"about": found, "rows": rows}, indent=1),
    "md": "\n".join(lines) + "\n",
  }
  for suffix, text in texts.items():
    with files.replacing(RESULTS / f"{name}.{suffix}") as temporary:
      temporary.write_text(text, "utf-8")


def draw(name: str, rows: list[dict[str, Any]]) -> None:
  """The cost over the size and over the number of arrays, if measured."""
  from matplotlib import pyplot as plt

  panels = {"by size": "millions", "by leaves": "leaves"}
  if not all(any(r["model"] == model for r in rows) for model in panels):
    return
  figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
  for axis, (model, x) in zip(axes, panels.items(), strict=True):
    some = [row for row in rows if row["model"] == model]
    for step in dict.fromkeys(row["step"] for row in some):
      its = [row for row in some if row["step"] == step]
      axis.loglog([r[x] for r in its], [r["ms"] for r in its], "o-", label=step)
    floor = [row for row in some if row["step"] == update.OURS]
    axis.loglog(
      [r[x] for r in floor], [r["floor"] for r in floor], "k:", label="floor"
    )
    axis.set_xlabel(
      {"millions": "parameters, M", "leaves": "arrays, 36 M parameters"}[x]
    )
    axis.set_ylabel("an update, ms")
    axis.grid(alpha=0.3)
  axes[0].legend(frameon=False)
  with files.replacing(RESULTS / f"{name}.png") as temporary:
    figure.savefig(temporary, format="png", dpi=150)
  plt.close(figure)


def main():
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("suite", nargs="?", default="cpu", choices=["cpu", "gpu"])
  parser.add_argument(
    "--steps",
    type=int,
    help="updates at a time (cpu 1, gpu 25); a fifth of PyTorch's, and of "
    "training steps in one program",
  )
  parser.add_argument(
    "--repeats", type=int, help="of the timing (cpu 15, gpu 9)"
  )
  parser.add_argument("--name", help="of the files in benchmarks/results")
  args = parser.parse_args()
  on_gpu = args.suite == "gpu"
  device = jax.devices()[0]
  if on_gpu and device.platform != "gpu":
    parser.error(
      f"jax uses {device.device_kind}: `gpu` needs a GPU, and its jaxlib "
      '(`pip install "jax[cuda12]"`); `cpu` measures this machine.'
    )
  steps = args.steps or (25 if on_gpu else 1)
  repeats = args.repeats or (9 if on_gpu else 15)
  speed = update.bandwidth(2048 if on_gpu else 64)
  found = about() | {"bandwidth": f"{speed / 1e12:.3f} TB/s"}
  print(", ".join(f"{k} {v}" for k, v in found.items()), "\n", flush=True)
  print(HEADER)
  rows: list[dict[str, Any]] = []
  for measure in cases(args.suite):
    for row in measure(steps, repeats, speed):
      rows.append(row)
      print(line(row), flush=True)
    if args.name:  # now: what comes later may be cut off
      save(args.name, found, rows)
  if args.name:
    draw(args.name, rows)


if __name__ == "__main__":
  main()
