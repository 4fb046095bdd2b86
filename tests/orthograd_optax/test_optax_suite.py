"""Runs optax's own test-suite, which its wheel ships, on this package.

The files of the suite are executed with their lists of optimizers, or what
builds them, replaced by ours; of their tests those that use these are kept.

One assertion is changed. The suite has optimizers find minima of a smaller norm
than the start, and these are out of reach: a step orthogonal to w never makes w
shorter. So the tests that end there (those with ``_CONVERGENCE`` below) get
another target, and compare directions. Their loops, and all else that they
check, remain the suite's.
"""

import ast
import collections
import functools
import os
import pathlib
import types
from typing import Any
import unittest
from unittest import mock
import warnings

from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib
from optax._src import alias
import pytest

from orthograd_optax import orthograd, orthograd_sgd

pytestmark = [
  # The suite trains scalars, too.
  pytest.mark.filterwarnings("ignore:orthograd can never move"),
  pytest.mark.mostly_slow(4),
]


@pytest.fixture(autouse=True)
def _config():
  """The suite expects JAX's defaults, and leaves x64 on where it fails."""
  # Nearly all of the time is spent in compiling what runs once or twice.
  jax.config.update("jax_disable_most_optimizations", True)
  with jax.numpy_rank_promotion("allow"):
    yield
  jax.config.update("jax_disable_most_optimizations", False)
  jax.config.update("jax_enable_x64", False)


class _Swapper(ast.NodeTransformer):
  """Has code use ours for a name, a module's attribute or a keyword's value."""

  def __init__(self, ours):
    self.ours, self.actual = ours, set()

  def swap(self, key: str, node):
    if key not in self.ours:
      return self.generic_visit(node)
    self.actual.add(key)
    return ast.parse(f"_ours[{key!r}]", mode="eval").body

  def visit_Name(self, node):
    return self.swap(node.id, node)

  def visit_Attribute(self, node):
    return self.swap(node.attr, node)

  def visit_keyword(self, node):
    node.value = self.swap(f"{node.arg}=", node.value)
    return node


def _load(file: str, *uses: str, swap: Any = None, **names: Any) -> Any:
  """Makes tests of a file of optax's suite ours, where pytest finds them.

  Args:
    file: relative to the package optax.
    *uses: pieces of code; the tests that have one of them are kept.
    swap: what to replace in which tests, by name; these are kept too.
    **names: globals of the file to replace.
  """
  path = pathlib.Path(optax.__file__).parent / file
  module = types.ModuleType(path.stem)
  if not path.exists():
    reason = f"optax {optax.__version__} has no {file}"
    test = unittest.skip(reason)(lambda self: None)
    globals()[path.stem] = type("Absent", (unittest.TestCase,), {"test": test})
    return module

  swap = swap or {}
  missing = {*uses, *swap}

  def keep(node: ast.AST) -> bool:
    name = getattr(node, "name", "")
    actual = {use for use in uses if use in ast.unparse(node)}
    if name in swap:
      swapper = _Swapper(swap[name])
      swapper.visit(node)
      actual |= {name} if swapper.actual == swap[name].keys() else set()
    missing.difference_update(actual)
    return bool(actual) or not name.startswith("test")

  def execute(nodes):
    tree = ast.fix_missing_locations(ast.Module(nodes, type_ignores=[]))
    exec(compile(tree, str(path), "exec"), vars(module))

  body = ast.parse(path.read_text()).body
  classes = [node for node in body if isinstance(node, ast.ClassDef)]
  for node in classes:
    node.body = [x for x in node.body if keep(x)] or [ast.Pass()]
  first = body.index(classes[0])
  with mock.patch.dict(os.environ), warnings.catch_warnings():
    # One of the files sets XLA_FLAGS, and has an optimizer that warns.
    warnings.filterwarnings("ignore", "Specifying a key")
    execute(body[:first])
    missing |= names.keys() - vars(module).keys()
    if missing:
      raise LookupError(
        f"{file} of optax {optax.__version__} has no {sorted(missing)}, or not"
        " what is to be replaced there: adapt this test to it."
      )
    vars(module).update(names, _ours=collections.ChainMap(*swap.values()))
    execute(body[first:])
  for name, value in vars(module).items():
    if isinstance(value, type) and issubclass(value, unittest.TestCase):
      globals()[f"{path.stem.strip('_')}_{name}"] = value
  return module


def _target(dtype):
  """A direction to find: a scale-invariant objective, and a bait.

  The cosines to the target are the same at all scales. The bait is minus the
  squared norm: ⊥Grad doesn't see it, and what does see it runs away.
  """
  start = jnp.array([-0.1, 1, 0.1], dtype), jnp.array([[1, 0], [0, 1]], dtype)
  final = jnp.array([1, -1, 1], dtype), jnp.array([[3, -2], [1, 4]], dtype)
  if jnp.issubdtype(dtype, jnp.complexfloating):
    final = jax.tree.map(lambda x: x * (1 + 1j), final)

  def objective(params):
    value = 0.0
    for w, v in zip(params, final, strict=True):
      ww, vv = jnp.vdot(w, w).real, jnp.vdot(v, v).real
      value -= jnp.vdot(v, w).real / jnp.sqrt(ww * vv) + ww / 2
    return value

  return start, final, objective


def _of_sam(dtype):
  """The test of SAM wants the gradient."""
  start, final, objective = _target(dtype)
  return start, final, jax.grad(objective)


def _assert_same_directions(params, final_params, rtol, atol):
  for x, y in zip(params, final_params, strict=True):
    x, y = x / jnp.linalg.norm(x), y / jnp.linalg.norm(y)
    np.testing.assert_allclose(x, y, rtol, atol)


def _behind(factory: Any) -> Any:
  """The factory of an optimizer with ⊥Grad in front; it takes the same."""

  @functools.wraps(factory)
  def chained(*args, **kwargs):
    return optax.chain(orthograd(), factory(*args, **kwargs))

  return chained


def _ramp(learning_rate: optax.ScalarOrSchedule):
  """Closes over the schedule, which inject_hyperparams would take over."""
  return orthograd_sgd(
    learning_rate,
    strength=optax.linear_schedule(0.0, 1.0, 100),
    group_by="layer",
    diagnostics=True,
  )


def _like_sgd(learning_rate, momentum=None):
  """SGD by way of ⊥Grad at strength 0, for tests that expect SGD's very steps.

  The trace is where SGD has it. If a test passes no parameters, any will do.
  """
  stateful = momentum is not None
  chain = optax.chain(
    optax.trace(momentum) if stateful else optax.identity(),
    orthograd(strength=0.0, group_by="layer", diagnostics=stateful),
    optax.scale(-learning_rate),
  )

  def update_fn(updates, state, params=None, **extra_args):
    params = updates if params is None else params
    return chain.update(updates, state, params, **extra_args)

  return optax.GradientTransformationExtraArgs(chain.init, update_fn)


def _with(module: Any, **ours: Any) -> Any:
  return types.SimpleNamespace(**{**vars(module), **ours})


def _case(name: str, learning_rate: float = 1e-2, **kwargs: Any):
  kwargs = {"learning_rate": learning_rate, **kwargs}
  return {"opt_name": name, "opt_kwargs": kwargs}


# Under optax's own names: the suite makes allowances for some of them.
_BEHIND = ("adafactor", "adam", "lamb", "lion")
_ALIAS = _with(
  alias,
  sgd=orthograd_sgd,
  ramp=_ramp,
  **{name: _behind(getattr(alias, name)) for name in _BEHIND},
)
_CASES = (
  _case("sgd"),
  _case("sgd", 1e-3, momentum=0.9, weight_decay=1e-2, renormalize=False),
  _case("ramp"),
)
_CHAINS = (_case("ramp"), *(_case(name) for name in _BEHIND))
_GLOBAL = _case("sgd", group_by="global")
_RATE = {"learning_rate": 1e-2}
_CONTRIB_CASES = (
  {**_case("muon"), "wrapper_name": None, "wrapper_kwargs": None},
  {**_GLOBAL, "wrapper_name": "schedule_free", "wrapper_kwargs": _RATE},
)
_CONVERGENCE = {
  "target=": (_target,),
  "assert_trees_all_close": _assert_same_directions,
}
_SHORTER = {"range": lambda n: range(min(n, 2000))}  # it is 10,000 or 50,000

alias_test = _load(
  "_src/alias_test.py",
  "_OPTIMIZERS_UNDER_TEST",
  swap={"test_optimization": _CONVERGENCE | _SHORTER},
  _OPTIMIZERS_UNDER_TEST=_CASES,
  alias=_ALIAS,
)
_load(
  "schedules/_schedule_test.py",
  "_OPTIMIZERS_UNDER_TEST",
  alias_test=_with(alias_test, _OPTIMIZERS_UNDER_TEST=_CHAINS),
  alias=_ALIAS,
)
_load(
  "contrib/_common_test.py",
  "_ALL_OPTIMIZERS_UNDER_TEST",
  "_MAIN_OPTIMIZERS_UNDER_TEST",
  swap={"test_optimizers": _CONVERGENCE},
  _ALL_OPTIMIZERS_UNDER_TEST=_CONTRIB_CASES,
  _MAIN_OPTIMIZERS_UNDER_TEST=_CONTRIB_CASES,
  alias=_ALIAS,
  contrib=_with(contrib, muon=_behind(contrib.muon)),
)
_load(
  "contrib/_sam_test.py",
  "_BASE_OPTIMIZERS_UNDER_TEST",
  swap={"test_optimization": _CONVERGENCE | _SHORTER | {"target=": (_of_sam,)}},
  _BASE_OPTIMIZERS_UNDER_TEST=[
    {"base_opt_name": "sgd", "base_opt_kwargs": _RATE}
  ],
  alias=_ALIAS,
)
# These tests compare versions of JAX as text, by which 0.10 is before 0.7.2.
_VERSION = {"__version__": "9" if jax.__version_info__ >= (0, 7, 2) else "0"}
_load(
  "_src/sharding_test.py",
  "OPTIMIZERS",
  swap={
    "test_state_sharding_type_init_match_update": _VERSION,
    "test_state_sharding_type_preserved_with_jit": _VERSION,
  },
  OPTIMIZERS={
    f"{i}_{c['opt_name']}": getattr(_ALIAS, c["opt_name"])(**c["opt_kwargs"])
    for i, c in enumerate((*_CASES[:2], _GLOBAL, *_CHAINS))
  },
)
_load(
  "_src/float64_test.py",
  "ALL_MODULES",
  ALL_MODULES=[
    ("leaf", orthograd, {}),
    ("global", orthograd, {"group_by": "global", "diagnostics": True}),
  ],
)
_one = lambda _: parameterized.named_parameters(("orthograd", orthograd))
_load(
  "_src/transform_test.py", swap={"test_scalers": {"named_parameters": _one}}
)
# Not test_explicit_dtype, which is about the wrapper's own state.
_SGD = {"sgd": orthograd_sgd}
_load(
  "contrib/_schedule_free_test.py",
  swap={"test_learning_rate_zero": _SGD, "test_scalar_preservance": _SGD},
)
_BUILDERS = {
  "_build_sgd": functools.partial(_like_sgd, 1.0),
  "_build_stateful_sgd": functools.partial(_like_sgd, 1.0, momentum=0.0),
}
_LIKE = _with(alias, sgd=_like_sgd)
_load("transforms/_masking_test.py", *_BUILDERS, **_BUILDERS)
_load(
  "transforms/_conditionality_test.py",
  *_BUILDERS,
  "alias.sgd",
  alias=_LIKE,
  **_BUILDERS,
)
_load("transforms/_combining_test.py", "alias.sgd", alias=_LIKE)
# Not test_multi_steps_mixed_precision, which takes a minute with any optimizer.
_load("transforms/_accumulation_test.py", "alias.sgd", alias=_LIKE)
