"""orthograd_sgd and orthograd_adamw, beside optax's and torch's."""

import inspect
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from small_trees import GRADS, PARAMS, update

from orthograd_optax import orthograd, orthograd_adamw, orthograd_sgd


def torch_like_sgd(w, grads, lr, momentum, nesterov, decay, **options):
  """⊥Grad, then torch's SGD as its documentation states it, in float64."""
  trace = None
  for g in grads:
    g = reference.project(w, g, **options) + decay * w
    if momentum:
      trace = g if trace is None else momentum * trace + g
      g = g + momentum * trace if nesterov else trace
    w = w - lr * g
  return w


def test_orthograd_sgd_takes_the_arguments_of_sgd():
  """In the same places; what it has besides must be named."""
  names = list(inspect.signature(optax.sgd).parameters)
  ours = inspect.signature(orthograd_sgd).parameters
  assert list(ours)[: len(names)] == names
  others = list(ours.values())[len(names) :]
  assert all(it.kind is it.KEYWORD_ONLY for it in others)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [None, 0.9])
@pytest.mark.parametrize("renormalize", [False, True])
def test_orthograd_sgd(momentum, nesterov, renormalize):
  rng = np.random.default_rng(0)
  start, grads = rng.standard_normal(7), rng.standard_normal((20, 7))
  want = torch_like_sgd(
    start, grads, 0.1, momentum, nesterov, 0.05, renormalize=renormalize
  )
  with jax.enable_x64(True):
    optimizer = orthograd_sgd(
      0.1, momentum, nesterov, weight_decay=0.05, renormalize=renormalize
    )
    w = jnp.asarray(start)
    state = optimizer.init(w)
    for g in grads:
      updates, state = optimizer.update(jnp.asarray(g), state, w)
      w = optax.apply_updates(w, updates)
  np.testing.assert_allclose(w, want, rtol=1e-12)


def test_orthograd_sgd_equals_torch():
  torch = pytest.importorskip("torch")
  rng = np.random.default_rng(0)
  start, grads = rng.standard_normal((5, 3)), rng.standard_normal((20, 5, 3))
  w = torch.tensor(start, requires_grad=True)
  sgd = torch.optim.SGD([w], lr=0.1, momentum=0.9, weight_decay=0.05)
  for g in grads:
    w.grad = torch.tensor(reference.project(w.detach().numpy(), g))
    sgd.step()
  with jax.enable_x64(True):
    optimizer = orthograd_sgd(0.1, momentum=0.9, weight_decay=0.05)
    ours = jnp.asarray(start)
    state = optimizer.init(ours)
    for g in grads:
      updates, state = optimizer.update(jnp.asarray(g), state, ours)
      ours = optax.apply_updates(ours, updates)
  np.testing.assert_allclose(ours, w.detach().numpy(), rtol=1e-12)


def test_weight_decay_mask():
  mask = lambda params: jax.tree.map(lambda x: x.ndim > 1, params)
  decayed, _ = update(
    orthograd_sgd(1.0, weight_decay=0.1, weight_decay_mask=mask)
  )
  plain, _ = update(orthograd_sgd(1.0))
  want = jax.tree.map(
    lambda u, w: u - 0.1 * w if w.ndim > 1 else u, plain, PARAMS
  )
  chex.assert_trees_all_close(decayed, want, rtol=1e-6)


def test_options_reach_the_projection():
  options = dict(
    renormalize=False,
    strength=0.5,
    group_by="layer",
    use_float64=False,
    diagnostics=True,
  )
  got, state = update(orthograd_sgd(1.0, projection_eps=0.5, **options))
  want, inner = update(orthograd(eps=0.5, **options))
  chex.assert_trees_all_close(got, jax.tree.map(jnp.negative, want), rtol=1e-6)
  chex.assert_trees_all_equal(
    optax.tree.get(state, "cosine"), optax.tree.get(inner, "cosine")
  )


@pytest.mark.parametrize("dtype", [None, jnp.bfloat16, jnp.float16], ids=str)
def test_accumulator_dtype(dtype):
  optimizer = orthograd_sgd(0.1, momentum=0.9, accumulator_dtype=dtype)
  state = optimizer.init(PARAMS)
  _, after = optimizer.update(GRADS, state, PARAMS)
  updates, last = optimizer.update(GRADS, after, PARAMS)
  for each in (state, after, last):
    trace = jax.tree.leaves(optax.tree.get(each, "trace"))
    assert {x.dtype for x in trace} == {jnp.dtype(dtype or jnp.float32)}
  want, _ = update(orthograd_sgd(0.19))
  chex.assert_trees_all_close(updates, want, rtol=2e-2)


ADAMW: dict[str, Any] = dict(
  b1=0.8,
  b2=0.95,
  eps=1e-6,
  eps_root=1e-9,
  mu_dtype=jnp.bfloat16,
  weight_decay=0.1,
  nesterov=True,
)
PROJECTION: dict[str, Any] = dict(
  renormalize=False,
  strength=0.5,
  group_by="global",
  batch_axes=None,
  mask=lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree),
  diagnostics=True,
)


def three_steps(optimizer):
  @jax.jit
  def step(params, state):
    grads = jax.tree.map(jnp.cos, params)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  params, state = PARAMS, optimizer.init(PARAMS)
  for _ in range(3):
    params, state = step(params, state)
  return params, state


def for_adamw(options: dict[str, Any]) -> dict[str, Any]:
  renamed = {"mask": "projection_mask", "eps": "projection_eps"}
  return {renamed.get(k, k): v for k, v in options.items()}


def test_orthograd_adamw_takes_the_arguments_of_adamw():
  """In the same places and with the same meaning; others are keywords."""
  names = list(inspect.signature(optax.adamw).parameters)
  ours = inspect.signature(orthograd_adamw).parameters
  assert list(ours)[: len(names)] == names
  others = list(ours.values())[len(names) :]
  assert all(it.kind is it.KEYWORD_ONLY for it in others)
  # Ported from optax, ``mask`` still says which parameters decay.
  biases = lambda tree: jax.tree.map(lambda x: x.ndim < 2, tree)
  options: dict[str, Any] = dict(weight_decay=0.5, mask=biases)
  chained = optax.chain(orthograd(), optax.adamw(0.1, **options))
  chex.assert_trees_all_close(
    three_steps(orthograd_adamw(0.1, **options)), three_steps(chained)
  )


def test_orthograd_adamw():
  decayed = lambda tree: jax.tree.map(lambda x: x.ndim < 2, tree)
  rates = optax.linear_schedule(0.1, 0.01, 3)
  ours = orthograd_adamw(
    rates, mask=decayed, **ADAMW, **for_adamw(PROJECTION | {"eps": 0.1})
  )
  chained = optax.chain(
    orthograd(eps=0.1, **PROJECTION),
    optax.adamw(rates, mask=decayed, **ADAMW),
  )
  chex.assert_trees_all_close(three_steps(ours), three_steps(chained))
  # Each option matters: without it, the result is another.
  for name in ("renormalize", "strength", "group_by", "mask"):
    fewer = {k: v for k, v in PROJECTION.items() if k != name} | {"eps": 0.1}
    other = orthograd_adamw(rates, mask=decayed, **ADAMW, **for_adamw(fewer))
    pair = three_steps(other)[0], three_steps(ours)[0]
    same = jax.tree.map(lambda x, y: bool(jnp.all(x == y)), *pair)
    assert not all(jax.tree.leaves(same)), name


def test_orthograd_adamw_by_default():
  chained = optax.chain(orthograd(), optax.adamw(0.1))
  chex.assert_trees_all_close(
    three_steps(orthograd_adamw(0.1)), three_steps(chained)
  )


def test_orthograd_adamw_with_injected_hyperparameters():
  factory = optax.inject_hyperparams(
    orthograd_adamw, static_args=("projection_mask", "mu_dtype")
  )
  rates = optax.linear_schedule(0.1, 0.01, 3)
  options = ADAMW | for_adamw(PROJECTION)
  params, state = three_steps(factory(rates, **options))
  want, _ = three_steps(orthograd_adamw(rates, **options))
  chex.assert_trees_all_close(params, want, rtol=1e-3)
  changeable = {"learning_rate", "b1", "weight_decay", "strength"}
  assert changeable <= set(state.hyperparams)
