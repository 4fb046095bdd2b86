"""Measures what each trick of `orthograd_optax/_sums.py` saves on a GPU.

Times an update with all tricks on, and with each one switched off, in turns in
one run. Rows and table are saved as `benchmarks/results/NAME_tricks.*`:

    python -m benchmarks.tricks --name h200
"""

import argparse
import contextlib
from typing import Any
from unittest import mock

import jax
import optax

from benchmarks import __main__ as command
from benchmarks import update
from orthograd_optax import _sums, orthograd

# To switch a trick off, replace this name of `_sums` by this value.
TRICKS: dict[str, tuple[str, Any]] = {
  "joint sums of one shape": ("MAX_JOINT", 1),
  "matrices summed by row": ("MIN_COLUMNS", 1 << 62),
  "weights in the gradient's layout": ("_in_layout_of", lambda g, w: w),
  "coefficients of all groups stacked": ("_stack_key", lambda sums: None),
}
ALL = "all on"


@contextlib.contextmanager
def without(trick: str):
  """Switches a trick off for what is traced within the context."""
  name, value = TRICKS.get(trick, ("MAX_JOINT", _sums.MAX_JOINT))
  jax.clear_caches()
  with mock.patch.object(_sums, name, value):
    yield
  jax.clear_caches()


def measure(model: str, shapes: update.Shapes, steps: int, repeats: int):
  """Yields a row for each trick: the time of an update without it."""
  params, grads = (update.arrays(shapes, "float32", seed) for seed in (0, 1))
  make = lambda transform: update.compiled(transform, params, grads, steps)
  contenders = {update.SGD: make(optax.identity())(grads)}
  for trick in [ALL, *TRICKS]:
    with without(trick):
      contenders[trick] = make(orthograd())(grads)
  rows = {row["step"]: row for row in update.rows(contenders, repeats)}
  for trick in TRICKS:
    longer = rows[trick]["ms"] / rows[ALL]["ms"] - 1
    yield {
      "model": model,
      "trick": trick,
      "ms": rows[ALL]["ms"],
      "ms_without": rows[trick]["ms"],
      "earns": longer,
      "compile": rows[ALL]["compile"],
      "compile_without": rows[trick]["compile"],
    }


def table(rows: list[dict[str, Any]]) -> str:
  """Returns a table of how much longer an update takes without each trick."""
  models = list(dict.fromkeys(row["model"] for row in rows))
  cells = {(row["model"], row["trick"]): row for row in rows}
  first = {row["model"]: row["ms"] for row in rows}
  lines = [
    "| switched off alone | " + " | ".join(models) + " |",
    "|---|" + "---:|" * len(models),
    "| nothing, ms | " + " | ".join(f"{first[m]:.3f}" for m in models) + " |",
  ]
  for trick in TRICKS:
    earned = (f"{100 * cells[m, trick]['earns']:+.1f} %" for m in models)
    lines.append(f"| {trick} | " + " | ".join(earned) + " |")
  return "\n".join(lines)


def main():
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks.tricks",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--steps", type=int, default=25, help="updates in one program (default: 25)"
  )
  parser.add_argument(
    "--repeats", type=int, default=5, help="timings of each (default: 5)"
  )
  parser.add_argument(
    "--name", help="save as benchmarks/results/NAME_tricks.json and .md"
  )
  parser.add_argument(
    "--small",
    action="store_true",
    help="a small model, to try the command; off a GPU the numbers are noise",
  )
  args = parser.parse_args()
  if not args.small:
    command.check_gpu(parser, "a trick", "try the command with --small")
  models = {
    "ResNet-18": update.network("resnet18"),
    "WRN-28-10": update.network("wrn28_10"),
    "GPT": update.decoder(24, 1024, 50257),
  }
  if args.small:
    models = {"small": update.decoder(1, 16)}
  about, rows = command.about(), []
  facts = ", ".join(f"{k} {v}" for k, v in about.items())
  for model, shapes in models.items():
    rows += measure(model, shapes, args.steps, args.repeats)
    print(facts, table(rows), sep="\n\n", flush=True)
    if args.name:  # after each model, in case that the run is cut off
      title = f"What each trick saves: {args.name}"
      command.write(f"{args.name}_tricks", title, table(rows), about, rows)


if __name__ == "__main__":
  main()
