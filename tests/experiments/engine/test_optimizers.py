"""The optimizers against their papers in float64, PyTorch, and optax."""

import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.engine import optimizers

RANDOM = np.random.default_rng(0)
SHAPES = {
  "conv": (3, 3, 4, 5),
  "wide": (1, 1, 4, 7),  # fewer inputs than outputs
  "inner": (6, 3),
  "head": (5, 3),
  "bias": (3,),
  "scale": (5,),
}
PARAMS = {k: RANDOM.normal(size=shape) for k, shape in SHAPES.items()}
DECAY = dict(zip(SHAPES, [0.1, 0.2, 0.0, 0.4, 0.05, 0.3], strict=True))
HIDDEN = {k: k != "head" for k in SHAPES}
STEPS, RATE = 6, 0.05
NOISE = [
  {k: RANDOM.normal(size=shape) for k, shape in SHAPES.items()}
  for _ in range(STEPS)
]


def gradient(name, w, step):
  """Noise; orthogonal to some kernels' channels, or to others as a whole."""
  g = NOISE[step][name]
  if name == "conv":
    return g - w * (g * w).sum((0, 1, 2)) / (w * w).sum((0, 1, 2))
  if name == "wide":
    return g - w * (g * w).sum() / (w * w).sum()
  return g


def take(tree, names):
  return {k: tree[k] for k in names}


@functools.cache
def stepper(optimizer):
  return jax.jit(optimizer.update)


def train(optimizer, names=tuple(SHAPES)):
  """Parameters after each step, all in float64."""
  params, actual = take(PARAMS, names), []
  with jax.enable_x64(True):
    state = optimizer.init(params)
    for step in range(STEPS):
      grads = {k: gradient(k, w, step) for k, w in params.items()}
      updates, state = stepper(optimizer)(grads, state, params)
      params = {k: w - RATE * np.asarray(updates[k]) for k, w in params.items()}
      actual.append(params)
  return actual


def sgd(name, decay, momentum, nesterov):
  w, buffer = PARAMS[name], 0.0
  for step in range(STEPS):
    g = gradient(name, w, step) + decay * w
    buffer = momentum * buffer + g
    w = w - RATE * (g + momentum * buffer if nesterov else buffer)
    yield w


def adamw(name, decay, b1=0.9, b2=0.999, eps=1e-8):
  w, m, v = PARAMS[name], 0.0, 0.0
  for step in range(STEPS):
    g = gradient(name, w, step)
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
    m_hat, v_hat = m / (1 - b1 ** (step + 1)), v / (1 - b2 ** (step + 1))
    w = w - RATE * (m_hat / (np.sqrt(v_hat) + eps) + decay * w)
    yield w


def lion(name, decay, b1, b2):
  w, m = PARAMS[name], 0.0
  for step in range(STEPS):
    g = gradient(name, w, step)
    w = w - RATE * (np.sign(b1 * m + (1 - b1) * g) + decay * w)
    m = b2 * m + (1 - b2) * g
    yield w


def muon(name, decay):
  if name in ("head", "bias", "scale"):
    yield from adamw(name, decay)
    return
  w, buffer = PARAMS[name], 0.0
  for step in range(STEPS):
    g = gradient(name, w, step)
    buffer = 0.95 * buffer + g
    x = (g + 0.95 * buffer).reshape(-1, w.shape[-1])
    x = x / np.linalg.norm(x)
    for _ in range(5):  # as the polynomial of the singular values
      u, s, v = np.linalg.svd(x, full_matrices=False)
      x = (u * (3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5)) @ v
    update = 0.2 * np.sqrt(max(x.shape)) * x.reshape(w.shape)
    w = w - RATE * (update + decay * w)
    yield w


def sgdp(name, decay, momentum, nesterov, delta=0.1, ratio=0.1, views=None):
  """As the paper has it, one output channel after the other."""
  w, buffer = PARAMS[name], 0.0
  for step in range(STEPS):
    g = gradient(name, w, step)
    buffer = momentum * buffer + g
    u = g + momentum * buffer if nesterov else buffer
    by_channel = [(..., i) for i in range(w.shape[-1])]
    view = "none"
    for kind, parts in [("channel", by_channel), ("layer", [...])]:
      if w.ndim < 2 or view != "none":
        continue
      cosines = [
        abs((g[i] * w[i]).sum())
        / np.sqrt((g[i] ** 2).sum() * (w[i] ** 2).sum())
        for i in parts
      ]
      if max(cosines) < delta / np.sqrt(w[parts[0]].size):
        view, u = kind, u.copy()
        for i in parts:
          u[i] -= (u[i] * w[i]).sum() / (w[i] ** 2).sum() * w[i]
    if views is not None:
      views.add((name, view))
    shrink = decay * (1 if view == "none" else ratio) / (1 - momentum)
    w = w - RATE * (u + shrink * w)
    yield w


CASES = {
  "sgd": (
    optimizers.sgd(DECAY, 0.9),
    functools.partial(sgd, momentum=0.9, nesterov=False),
  ),
  "nesterov": (
    optimizers.sgd(DECAY, 0.8, nesterov=True),
    functools.partial(sgd, momentum=0.8, nesterov=True),
  ),
  "adamw": (optimizers.adamw(DECAY), adamw),
  "lion": (optimizers.lion(DECAY), functools.partial(lion, b1=0.9, b2=0.99)),
  "muon": (optimizers.muon(DECAY, HIDDEN), muon),
  "sgdp": (
    optimizers.sgdp(DECAY, 0.9),
    functools.partial(sgdp, momentum=0.9, nesterov=True),
  ),
  "sgdp without nesterov": (
    optimizers.sgdp(DECAY, 0.5, nesterov=False),
    functools.partial(sgdp, momentum=0.5, nesterov=False),
  ),
}


@pytest.mark.parametrize("case", CASES)
def test_paper(case):
  optimizer, oracle = CASES[case]
  actual = train(optimizer)
  for name in SHAPES:
    for step, expected in enumerate(oracle(name, DECAY[name])):
      np.testing.assert_allclose(
        actual[step][name], expected, rtol=1e-6, atol=1e-7, err_msg=name
      )


def test_that_sgdp_was_tried_in_all_views():
  views = set()
  for name in SHAPES:
    list(sgdp(name, DECAY[name], 0.9, True, views=views))
  assert {("conv", "channel"), ("wide", "layer"), ("head", "none")} <= views


@pytest.mark.parametrize("case", ["sgd", "nesterov", "adamw"])
def test_pytorch(case):
  torch = pytest.importorskip("torch")
  params = {k: torch.tensor(w, requires_grad=True) for k, w in PARAMS.items()}
  groups = [{"params": w, "weight_decay": DECAY[k]} for k, w in params.items()]
  make = torch.optim.SGD
  optimizer = {
    "sgd": lambda: make(groups, RATE, momentum=0.9),
    "nesterov": lambda: make(groups, RATE, momentum=0.8, nesterov=True),
    "adamw": lambda: torch.optim.AdamW(groups, RATE),
  }[case]()
  actual = train(CASES[case][0])
  for step in range(STEPS):
    for k, w in params.items():
      w.grad = torch.tensor(gradient(k, w.detach().numpy(), step))
    optimizer.step()
    for k, w in params.items():
      np.testing.assert_allclose(
        actual[step][k], w.detach(), rtol=1e-9, atol=1e-10
      )


def test_pytorch_muon():
  """Of matrices; to the precision of bfloat16, in which it computes."""
  torch = pytest.importorskip("torch")
  names = ("inner", "head")
  optimizer = optimizers.muon(take(DECAY, names), dict.fromkeys(names, True))
  actual = train(optimizer, names)
  params = {k: torch.tensor(PARAMS[k], requires_grad=True) for k in names}
  reference = torch.optim.Muon(
    [{"params": [params[k]], "weight_decay": DECAY[k]} for k in names],
    RATE,
    adjust_lr_fn="match_rms_adamw",
  )
  for step in range(STEPS):
    for k, w in params.items():
      w.grad = torch.tensor(gradient(k, w.detach().numpy(), step))
    reference.step()
    for k, w in params.items():
      np.testing.assert_allclose(actual[step][k], w.detach(), atol=5e-3)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_optaxs_to_the_bit(nesterov):
  cast = lambda tree: {k: np.float32(x) for k, x in tree.items()}
  expected = optax.chain(
    optax.add_decayed_weights(5e-4), optax.trace(0.9, nesterov)
  )
  actual = optimizers.sgd(dict.fromkeys(SHAPES, 5e-4), 0.9, nesterov)
  trained = []
  for optimizer in (actual, expected):
    params = cast(PARAMS)
    state = optimizer.init(params)
    for noise in NOISE:
      updates, state = stepper(optimizer)(cast(noise), state, params)
      params = {k: w - np.asarray(updates[k]) for k, w in params.items()}
    trained.append(params)
  jax.tree.map(np.testing.assert_array_equal, *trained)


FEW = ("conv", "bias")
MAKERS = {
  "sgd": optimizers.sgd,
  "adamw": lambda decay, _: optimizers.adamw(decay),
  "lion": lambda decay, _: optimizers.lion(decay),
  "muon": lambda decay, momentum: optimizers.muon(
    decay, take(HIDDEN, FEW), momentum
  ),
  "sgdp": optimizers.sgdp,
}
every_optimizer = pytest.mark.parametrize("name", MAKERS)


@every_optimizer
def test_runs_with_hyperparameters_of_their_own(name):
  """Mapped over runs is each alone: decay and momentum may be traced."""

  def step(decay, momentum, params, state, grads):
    optimizer = MAKERS[name](decay, momentum)
    return optimizer.update(grads, state, params)

  # Gradients that SGDP projects for in two runs, and not in the third.
  runs = [take(PARAMS, FEW), take(NOISE[5], FEW), take(NOISE[4], FEW)]
  grads = [
    [{k: gradient(k, run[k], t) for k in FEW} for run in runs[:2]]
    + [take(NOISE[t], FEW)]
    for t in range(2)
  ]
  stack = lambda trees: jax.tree.map(lambda *x: np.stack(x), *trees)
  decays = [{k: (i + 1) * DECAY[k] for k in FEW} for i in range(3)]
  momenta = np.array([0.0, 0.5, 0.9])
  init = MAKERS[name](decays[0], 0.0).init
  with jax.enable_x64(True):
    alone, together = jax.jit(step), jax.jit(jax.vmap(step))
    states = [init(params) for params in runs]
    all_states = stack(states)
    for batch in grads:
      actual, all_states = together(
        stack(decays), momenta, stack(runs), all_states, stack(batch)
      )
      single = [
        alone(*args)
        for args in zip(decays, momenta, runs, states, batch, strict=True)
      ]
      states = [state for _, state in single]
      jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-12),
        actual,
        stack([updates for updates, _ in single]),
      )


@functools.cache
def two_ways(name):
  """The first direction and state by gradients of bfloat16, and of float32."""
  optimizer = MAKERS[name](take(DECAY, FEW), 0.9)

  @jax.jit
  def update(grads, params):
    state = optimizer.init(params)
    full = optax.tree.cast(grads, jnp.float32)
    return [optimizer.update(g, state, params) for g in (grads, full)]

  return update


@every_optimizer
def test_gradients_of_less_precision(name):
  """They count as float32, in which moments and directions are."""
  params = {k: PARAMS[k].astype(np.float32) for k in FEW}
  grads = {k: NOISE[0][k].astype(jnp.bfloat16) for k in FEW}
  half, full = two_ways(name)(grads, params)
  jax.tree.map(np.testing.assert_array_equal, half, full)
  dtypes = {str(x.dtype) for x in jax.tree.leaves(half)}
  assert dtypes <= {"float32", "int32"}


@every_optimizer
def test_zeros(name):
  """Without gradients, and without weights, nothing moves."""
  zeros = lambda dtype: {k: np.zeros(SHAPES[k], dtype) for k in FEW}
  (updates, _), _ = two_ways(name)(zeros(jnp.bfloat16), zeros(np.float32))
  jax.tree.map(np.testing.assert_array_equal, updates, zeros(np.float32))


def matrices(draw):
  """Full rank, with singular values from 0.2 to 1 times a scale."""
  rows, columns = draw(st.sampled_from([(4, 4), (7, 3)]))
  random = np.random.default_rng(draw(st.integers(0, 2**32)))
  u, _, v = np.linalg.svd(
    random.normal(size=(rows, columns)), full_matrices=False
  )
  s = random.uniform(0.2, 1, min(rows, columns))
  matrix = (u * s) @ v * 10 ** draw(st.floats(-3, 3))
  return matrix if draw(st.booleans()) else matrix.T


one_muon = optimizers.muon(0.0, hidden=True)


def orthogonalize(g):
  with jax.enable_x64(True):
    state = one_muon.init(jnp.zeros_like(g))
    return np.asarray(stepper(one_muon)(g, state, np.zeros_like(g))[0])


@settings(max_examples=20)
@given(g=st.composite(matrices)())
def test_muon_is_about_orthogonal(g):
  """Whatever the gradient's scale, layout and singular values."""
  u, _, v = np.linalg.svd(g, full_matrices=False)
  actual = orthogonalize(g)
  # Singular vectors are kept; singular values end near 1.
  s = u.T @ actual @ v.T / (0.2 * np.sqrt(max(g.shape)))
  np.testing.assert_allclose(s, np.diag(np.diag(s)), atol=1e-6)
  assert np.all((np.diag(s) > 0.6) & (np.diag(s) < 1.25))
  assert 0.12 < np.sqrt(np.mean(actual**2)) < 0.25
  np.testing.assert_allclose(orthogonalize(g.T), actual.T, atol=1e-9)


@pytest.mark.parametrize("hidden", [True, False])
def test_muon_of_all_or_nothing(hidden):
  """Biases go by AdamW in any case, and so does what is not hidden."""
  names = ("inner", "head", "bias")
  decay = take(DECAY, names)
  actual = train(optimizers.muon(decay, dict.fromkeys(names, hidden)), names)
  expected = train(CASES["adamw"][0])
  for k in names:
    same = np.allclose(actual[-1][k], expected[-1][k], rtol=1e-12)
    assert same == (not hidden or k == "bias")


@jax.jit
def second_step(w, old, g, momentum):
  optimizer = optimizers.sgdp(0.0, momentum)
  _, state = optimizer.update(old, optimizer.init(w), w)
  return optimizer.update(g, state, w)[0]


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), momentum=st.floats(0, 0.9))
def test_sgdp_of_scale_invariant_weights(seed, momentum):
  """Steps are orthogonal to them; for other weights they are SGD's."""
  w, old, g = np.random.default_rng(seed).normal(size=(3, 8, 5))
  g -= w * (g * w).sum(0) / (w * w).sum(0)
  with jax.enable_x64(True):
    invariant = np.asarray(second_step(w, old, g, momentum))
    plain = np.asarray(second_step(g, old, g, momentum))
  np.testing.assert_allclose((invariant * w).sum(0), 0, atol=1e-6)
  expected = (1 + momentum) * g + momentum**2 * old
  np.testing.assert_allclose(plain, expected, rtol=1e-9, atol=1e-12)
