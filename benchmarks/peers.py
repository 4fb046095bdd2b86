"""⊥Grad elsewhere: PyTorch's, with its fused SGD, as far as it is installed.

- pytorch_optimizer: `pip install pytorch_optimizer`;
- the authors': `orthograd.py` of the repository
  LucasPrietoAl/grokking-at-the-edge-of-numerical-stability, in a folder of
  `PYTHONPATH`: as it is, in a CUDA graph, and its projection by torch.compile.

Each must make the update that this package makes before it is timed; one that
does not run is left out, and that is said.
"""

from collections.abc import Callable
import contextlib
import importlib
import importlib.metadata
import sys
import time
from typing import Any

import jax
import numpy as np

from benchmarks import update
from orthograd_optax import orthograd

AUTHORS = "authors' PyTorch"
OPTIONS = {
  "lr": update.RATE,
  "momentum": update.MOMENTUM,
  "weight_decay": update.DECAY,
}
COMPILED_LEAVES = 100  # more take torch.compile minutes


def imported(name: str) -> Any:
  try:
    return importlib.import_module(name)
  except ImportError:
    return None


def versions() -> dict[str, str]:
  found = {}
  for name in ("torch", "pytorch_optimizer"):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  return found


def in_torch(params, grads, steps: int) -> dict[str, update.Contender]:
  """Those that can be imported, on the device that jax uses."""
  torch, optimizer = imported("torch"), imported("pytorch_optimizer")
  authors = imported("orthograd")
  found: dict[str, update.Contender] = {}
  if torch is None:
    return found
  on_gpu = jax.devices()[0].platform == "gpu" and torch.cuda.is_available()
  device = "cuda" if on_gpu else "cpu"
  wait = torch.cuda.synchronize if on_gpu else lambda: None
  transform = orthograd()
  wanted, _ = transform.update(grads, transform.init(params), params)

  def tensors():
    made = []
    for w, g in zip(params, grads, strict=True):
      w, g = (
        torch.from_numpy(np.array(x, np.float32)).to(
          device, getattr(torch, x.dtype.name)
        )
        for x in (w, g)
      )
      w.grad = g
      made.append(w)
    return made

  def add(name: str, make: Callable[[list[Any]], Callable[[], Any]]):
    ws = tensors()
    start = time.perf_counter()
    try:
      step = make(ws)
      step()
      wait()
    except RuntimeError as error:  # torch.compile may find no compiler
      print(f"{name} can't be timed: {error}", file=sys.stderr)
      return
    seconds = time.perf_counter() - start
    # They write to the gradients, which are orthogonal from now on.
    check(name, [w.grad for w in ws], wanted)

    def run(times):
      for _ in range(times * steps):
        step()
      wait()

    found[name] = update.Contender(run, steps, seconds)

  def sgd(ws):
    return torch.optim.SGD(ws, fused=True, **OPTIONS)

  if authors is not None:
    make = lambda ws: authors.OrthoGrad(
      ws, torch.optim.SGD, fused=True, **OPTIONS
    )
    add(AUTHORS, lambda ws: make(ws).step)
    if on_gpu:
      add(f"{AUTHORS}, CUDA graph", lambda ws: captured(torch, make(ws)))
      if len(params) <= COMPILED_LEAVES:
        project = torch.compile(authors.OrthoGrad._orthogonalize_gradients)

        def both(ws):
          base = sgd(ws)
          return lambda: (project(ws), base.step())

        add(f"{AUTHORS}, torch.compile", both)
  if optimizer is not None:
    add("pytorch_optimizer", lambda ws: optimizer.OrthoGrad(sgd(ws)).step)
  return found


def check(name: str, found: list[Any], wanted: Any) -> None:
  """That what it makes of the gradients is what this package makes of them."""
  for x, y in zip(found, wanted, strict=True):
    x, y = (np.asarray(a, np.float64) for a in (x.cpu().float(), y))
    error = np.linalg.norm(x - y) / np.linalg.norm(y)
    if not error < 1e-3:
      raise AssertionError(
        f"{name} is off by {error:.2g} in an array of shape {y.shape}: it does "
        "not compute what it is compared with."
      )


def captured(torch, optimizer) -> Callable[[], Any]:
  """A step as a CUDA graph."""
  stream = torch.cuda.Stream()
  stream.wait_stream(torch.cuda.current_stream())
  with torch.cuda.stream(stream):
    optimizer.step()
  torch.cuda.current_stream().wait_stream(stream)
  graph = torch.cuda.CUDAGraph()
  with torch.cuda.graph(graph):
    optimizer.step()
  return graph.replay
