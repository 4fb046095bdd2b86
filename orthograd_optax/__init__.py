"""⊥Grad (OrthoGrad) for optax: gradient steps orthogonal to the weights."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
  from orthograd_optax._aliases import orthograd_adamw as orthograd_adamw
  from orthograd_optax._aliases import orthograd_sgd as orthograd_sgd
  from orthograd_optax._diagnostics import Alignment as Alignment
  from orthograd_optax._diagnostics import Diagnostics as Diagnostics
  from orthograd_optax._diagnostics import alignment as alignment
  from orthograd_optax._diagnostics import read_diagnostics as read_diagnostics
  from orthograd_optax._keep_norms import KeepNormsState as KeepNormsState
  from orthograd_optax._keep_norms import keep_norms as keep_norms
  from orthograd_optax._orthograd import OrthogradState as OrthogradState
  from orthograd_optax._orthograd import orthograd as orthograd

# A module is imported with the first of its names. The command line thus checks
# its arguments and files without waiting for JAX.
_HOMES = {
  "orthograd_adamw": "_aliases",
  "orthograd_sgd": "_aliases",
  "Alignment": "_diagnostics",
  "Diagnostics": "_diagnostics",
  "alignment": "_diagnostics",
  "read_diagnostics": "_diagnostics",
  "KeepNormsState": "_keep_norms",
  "keep_norms": "_keep_norms",
  "OrthogradState": "_orthograd",
  "orthograd": "_orthograd",
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
  module = importlib.import_module(f"orthograd_optax.{_HOMES[name]}")
  return globals().setdefault(name, getattr(module, name))


def __dir__() -> list[str]:
  return sorted({*globals(), *_HOMES})
