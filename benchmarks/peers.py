"""⊥Grad in PyTorch, with its fused SGD, as far as it is installed.

- pytorch_optimizer: `pip install pytorch_optimizer`.
- The authors' code: put `orthograd.py`, from the repository
  LucasPrietoAl/grokking-at-the-edge-of-numerical-stability, into a folder of
  `PYTHONPATH`. It is timed eagerly, in a CUDA graph, and with its projection
  compiled by torch.compile.

Before it is timed, each must make the same update as this package. One that
does not run is left out, with a message.
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
MAX_COMPILED_LEAVES = 100  # torch.compile takes minutes for more


def imported(name: str) -> Any:
  """Returns the module, or None."""
  try:
    return importlib.import_module(name)
  except ImportError:
    return None


def versions() -> dict[str, str]:
  """Returns the versions of the installed peers."""
  installed = {}
  for name in ("torch", "pytorch_optimizer"):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      installed[name] = importlib.metadata.version(name)
  return installed


def in_torch(params, grads, steps: int) -> dict[str, update.Contender]:
  """Returns the contenders that can be imported, on jax's device."""
  torch, optimizer = imported("torch"), imported("pytorch_optimizer")
  authors = imported("orthograd")
  contenders: dict[str, update.Contender] = {}
  if torch is None:
    return contenders
  on_gpu = jax.devices()[0].platform == "gpu" and torch.cuda.is_available()
  device = "cuda" if on_gpu else "cpu"
  wait = torch.cuda.synchronize if on_gpu else lambda: None
  transform = orthograd()
  expected, _ = transform.update(grads, transform.init(params), params)

  def tensors():
    ws = []
    for w, g in zip(params, grads, strict=True):
      w, g = (
        torch.from_numpy(np.array(x, np.float32)).to(
          device, getattr(torch, x.dtype.name)
        )
        for x in (w, g)
      )
      w.grad = g
      ws.append(w)
    return ws

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
    # All of them overwrite the gradients with the projected ones.
    assert_same(name, [w.grad for w in ws], expected)

    def run(times):
      for _ in range(times * steps):
        step()
      wait()

    contenders[name] = update.Contender(run, steps, seconds)

  def sgd(ws):
    return torch.optim.SGD(ws, fused=True, **OPTIONS)

  if authors is not None:
    make = lambda ws: authors.OrthoGrad(
      ws, torch.optim.SGD, fused=True, **OPTIONS
    )
    add(AUTHORS, lambda ws: make(ws).step)
    if on_gpu:
      add(f"{AUTHORS}, CUDA graph", lambda ws: captured(torch, make(ws)))
      if len(params) <= MAX_COMPILED_LEAVES:
        project = torch.compile(authors.OrthoGrad._orthogonalize_gradients)

        def both(ws):
          base = sgd(ws)
          return lambda: (project(ws), base.step())

        add(f"{AUTHORS}, torch.compile", both)
  if optimizer is not None:
    add("pytorch_optimizer", lambda ws: optimizer.OrthoGrad(sgd(ws)).step)
  return contenders


def assert_same(name: str, projected: list[Any], expected: Any) -> None:
  """Raises unless a peer's projected gradients equal this package's."""
  for x, y in zip(projected, expected, strict=True):
    x, y = (np.asarray(a, np.float64) for a in (x.cpu().float(), y))
    error = np.linalg.norm(x - y) / np.linalg.norm(y)
    if not error < 1e-3:
      raise AssertionError(
        f"{name} is off by {error:.2g} in an array of shape {y.shape}, but "
        "must make the same update as this package. Don't compare their times."
      )


def captured(torch, optimizer) -> Callable[[], Any]:
  """Returns a step as a CUDA graph."""
  stream = torch.cuda.Stream()
  stream.wait_stream(torch.cuda.current_stream())
  with torch.cuda.stream(stream):
    optimizer.step()
  torch.cuda.current_stream().wait_stream(stream)
  graph = torch.cuda.CUDAGraph()
  with torch.cuda.graph(graph):
    optimizer.step()
  return graph.replay
