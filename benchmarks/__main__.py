"""Measures the cost of ⊥Grad: `make bench`, `python -m benchmarks gpu`.

An update is SGD with momentum and weight decay, parameters included. These
contenders are timed:

- SGD;
- SGD after this package's ⊥Grad;
- SGD after the textbook form of ⊥Grad;
- ⊥Grad in PyTorch, where it can be imported (benchmarks/peers.py).

Contenders take turns in one run, after warm-up. Compare the ratios, not the
milliseconds. PyTorch's contenders take turns with SGD in a second round.

The floor is the time to move the bytes, at the bandwidth of a copy measured in
the same run. SGD reads w, g and momentum, and writes w and momentum. ⊥Grad
reads w and g once more, before it can write.

`cpu` takes minutes. `gpu` adds bfloat16, whole training steps, and models of
1 M to 1 B parameters and of 10 to 1000 leaves. With `--name`, rows, table and
picture are saved in benchmarks/results, with the hardware and versions. `draw`
measures nothing: it draws the picture again from the rows saved as NAME.
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
from orthograd_optax import plots
from orthograd_optax.plots import style

RESULTS = pathlib.Path(__file__).parent / "results"
HEADER = (
  "| model | leaves | M | dtype | step | ms | × floor | × SGD (quartiles) |"
  " compile, s | temporary, MB |\n"
  "|---|---|---|---|---|---|---|---|---|---|"
)
NOTE = (
  "M: millions of parameters. × floor: time over the time to move the bytes. "
  "× SGD: time over SGD's of the same model, median and quartiles of the turns."
)


Row = dict[str, Any]


def updates(
  model: str,
  shapes: update.Shapes,
  dtype: str,
  parallel: bool = True,
  beside: bool = False,
):
  """Measures updates alone.

  Args:
    model: name of the model in the rows.
    shapes: shapes of the parameters.
    dtype: dtype of parameters and gradients.
    parallel: whether to time ⊥Grad also with g nearly parallel to w.
    beside: whether to time the peers in PyTorch as well.

  Returns:
    A function of (steps, repeats, bandwidth in bytes a second) that yields
    rows.
  """

  def measure(steps: int, repeats: int, speed: float) -> Iterator[Row]:
    params, grads = (update.arrays(shapes, dtype, seed) for seed in (0, 1))
    near = (
      jax.tree.map(lambda w, g: w + g / 8, params, grads) if parallel else None
    )
    contenders = update.in_jax(params, grads, steps, parallel=near)
    rows = [*update.rows(contenders, repeats)]
    in_torch = (
      peers.in_torch(params, grads, max(steps // 5, 1)) if beside else {}
    )
    if in_torch:
      # A second round: a GPU that waited for its host may be slow afterwards.
      again = {update.SGD: contenders[update.SGD], **in_torch}
      sgd, *others = update.rows(again, repeats)
      rows += [sgd | {"step": f"{update.SGD}, beside PyTorch"}, *others]
    size = sum(map(math.prod, shapes)) / 1e6
    for row in rows:
      sweeps = 1 if row["step"].startswith(update.SGD) else 2
      least = update.least_bytes(params, grads, sweeps)
      about = {"model": model, "leaves": len(shapes), "millions": size}
      yield about | {"dtype": dtype} | row | {"floor": 1e3 * least / speed}

  return measure


def steps_of(
  model: str, problem: Callable[[], training.Problem], alone: bool = False
):
  """Measures whole training steps.

  Args:
    model: name of the model in the rows.
    problem: makes parameters, inputs and the function of gradients.
    alone: whether each step is a program of its own. By default, several steps
      are one program.

  Returns:
    A function of (steps, repeats, bandwidth in bytes a second) that yields
    rows.
  """

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
    fewer = max(steps // 5, 1)  # a training step takes longer than an update
    options = (1, gradients, steps) if alone else (fewer, gradients)
    contenders = update.in_jax(params, inputs, *options)
    for row in update.rows(contenders, repeats):
      yield about | row

  return measure


def cases(suite: str):
  """Yields the measurements of a suite, ``"cpu"`` or ``"gpu"``."""
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
  """Returns the hardware and the versions."""
  device = jax.devices()[0]
  return {
    "device": device.device_kind,
    "machine": platform.machine(),
    "python": platform.python_version(),
    "jax": jax.__version__,
    "optax": optax.__version__,
    **peers.versions(),
  }


def line(row: Row) -> str:
  """Returns a row as a line of the table."""
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


def save(name: str, about: dict[str, Any], rows: list[Row]) -> None:
  """Writes rows (.json) and table (.md) to benchmarks/results."""
  table = "\n".join([NOTE, "", HEADER, *map(line, rows)])
  write(name, f"Time of an update: {name}", table, about, rows)


def write(
  stem: str, title: str, table: str, about: dict[str, Any], rows: list[Row]
) -> None:
  """Writes a page (.md), and what it is of (.json), to benchmarks/results."""
  RESULTS.mkdir(exist_ok=True)
  facts = ", ".join(f"{k} {v}" for k, v in about.items())
  texts = {
    "json": json.dumps({"about": about, "rows": rows}, indent=1) + "\n",
    "md": f"# {title}\n\n{facts}.\n\n{table}\n",
  }
  for suffix, text in texts.items():
    with files.replacing(RESULTS / f"{stem}.{suffix}") as temporary:
      temporary.write_text(text, "utf-8")


def draw(name: str, device: str, rows: list[Row]) -> bool:
  """Draws time by size and by number of leaves.

  Returns:
    Whether both were measured. If not, nothing is drawn.
  """
  panels = {"by size": "millions", "by leaves": "leaves"}
  if not all(any(r["model"] == model for r in rows) for model in panels):
    return False
  title = f"Time of an update on {device}"
  with style.figure(8.4, 3.6, title) as figure:
    axes = figure.subplots(1, 2)
    for axis, (model, x) in zip(axes, panels.items(), strict=True):
      _draw_panel(axis, [row for row in rows if row["model"] == model], x)
    axes[0].set(title="by size (40 leaves)", xlabel="parameters, millions")
    axes[1].set(title="by number of leaves (36 M parameters)", xlabel="leaves")
    axes[0].set_ylabel("ms")
    handles, names = axes[0].get_legend_handles_labels()
    place = {"loc": "outside lower center", "ncols": 3}
    figure.legend(handles, names, **place)
    plots.save(figure, RESULTS / f"{name}.png")
  return True


def draw_again(parser: argparse.ArgumentParser, name: str) -> None:
  """Draws the rows that were saved."""
  path = RESULTS / f"{name}.json"
  if not path.exists():
    known = ", ".join(sorted(it.stem for it in RESULTS.glob("*.json")))
    parser.error(f"{path} does not exist. Saved are: {known}.")
  saved = json.loads(path.read_text("utf-8"))
  if not draw(name, saved["about"]["device"], saved["rows"]):
    parser.error(
      f"{path} has no rows by size and by leaves, so there is nothing to draw. "
      "Run `gpu`, which measures them."
    )


def _draw_panel(axis: Any, rows: list[Row], x: str) -> None:
  for i, step in enumerate(dict.fromkeys(row["step"] for row in rows)):
    of_step = [row for row in rows if row["step"] == step]
    at = [row[x] for row in of_step]
    look = style.line(i)
    axis.loglog(at, [row["ms"] for row in of_step], label=step, **look)
    if step in (update.SGD, update.OURS):  # the textbook form has ⊥Grad's
      floor = [row["floor"] for row in of_step]
      dots = {"color": look["color"], "linestyle": ":", "linewidth": 1}
      name = f"floor of {step} (bytes / bandwidth)"
      axis.loglog(at, floor, label=name, **dots)
  for scale, keys in ((axis.xaxis, [x]), (axis.yaxis, ["ms", "floor"])):
    values = [row[key] for row in rows for key in keys]
    style.log_ticks(scale, min(values), max(values))


def check_gpu(parser: argparse.ArgumentParser, what: str, instead: str) -> None:
  """Ends the command, with what to do instead, if JAX does not use a GPU."""
  device = jax.devices()[0]
  if device.platform != "gpu":
    parser.error(
      f"jax uses {device.device_kind}, but {what} needs a GPU. Install jax for "
      f'it (`pip install "jax[cuda12]"`), or {instead}.'
    )


def main():
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "suite",
    nargs="?",
    default="cpu",
    choices=["cpu", "gpu", "draw"],
    help="what to measure (default: cpu), or `draw` to draw what was saved",
  )
  parser.add_argument(
    "--steps",
    type=int,
    help="updates in one program (default: cpu 1, gpu 25); a fifth as many for "
    "PyTorch and for training steps",
  )
  parser.add_argument(
    "--repeats", type=int, help="timings of each (default: cpu 15, gpu 9)"
  )
  parser.add_argument(
    "--name",
    help="save as benchmarks/results/NAME.json and .md, of gpu also .png",
  )
  args = parser.parse_args()
  if args.suite == "draw":
    if not args.name:
      parser.error("draw needs --name, of the rows to draw.")
    draw_again(parser, args.name)
    return
  on_gpu = args.suite == "gpu"
  if on_gpu:
    check_gpu(parser, "`gpu`", "run `cpu`")
  steps = args.steps or (25 if on_gpu else 1)
  repeats = args.repeats or (9 if on_gpu else 15)
  speed = update.bandwidth(2048 if on_gpu else 64)
  facts = about() | {"bandwidth": f"{speed / 1e12:.3f} TB/s"}
  print(", ".join(f"{k} {v}" for k, v in facts.items()), "\n", flush=True)
  print(HEADER)
  rows: list[Row] = []
  for measure in cases(args.suite):
    for row in measure(steps, repeats, speed):
      rows.append(row)
      print(line(row), flush=True)
    if args.name:  # after each case, in case that the run is cut off
      save(args.name, facts, rows)
  if args.name:
    draw(args.name, facts["device"], rows)


if __name__ == "__main__":
  main()
