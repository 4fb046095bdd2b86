"""Options under inject_hyperparams, export and derivatives."""

import chex
import jax
from jax import export
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_trees import PARAMS, assert_words, update

from orthograd_optax import orthograd, orthograd_adamw, orthograd_sgd


def required(factory) -> dict[str, float]:
  return {} if factory is orthograd else {"learning_rate": 0.1}


# optax.inject_hyperparams takes each callable for a schedule: it calls it with
# the count, and passes on what that returns.

MASKS = {
  "matrices": lambda tree: jax.tree.map(lambda x: x.ndim > 1, tree),
  "vectors": lambda tree: jax.tree.map(lambda x: x.ndim < 2, tree),
  "kernels": lambda tree: jax.tree_util.tree_map_with_path(
    lambda path, _: "kernel" in jax.tree_util.keystr(path), tree
  ),
  "arrays": lambda tree: jax.tree.map(lambda x: jnp.array(x.ndim > 1), tree),
}
MASK_OPTIONS = [
  (orthograd, "mask"),
  (orthograd_sgd, "projection_mask"),
  (orthograd_adamw, "projection_mask"),
  (orthograd_sgd, "weight_decay_mask"),
  (orthograd_adamw, "mask"),
]
each_mask_option = pytest.mark.parametrize(
  "factory, name",
  MASK_OPTIONS,
  ids=[f"{factory.__name__}, {name}" for factory, name in MASK_OPTIONS],
)


@each_mask_option
@pytest.mark.parametrize("mask", MASKS)
def test_injected_callable_mask(factory, name, mask):
  options = {name: MASKS[mask], **required(factory)}
  injected = optax.inject_hyperparams(factory)(**options)
  with pytest.raises(TypeError) as error:
    injected.init(PARAMS)
  rule = "a tree of Python bools", "a callable from the parameters to one"
  assert_words(error, f"{name} must be", *rule, f"name {name} in static_args")


@pytest.mark.mostly_slow(2)
@each_mask_option
def test_injected_static_mask(factory, name):
  options = {name: MASKS["matrices"], "weight_decay": 0.1, **required(factory)}
  if factory is orthograd:
    del options["weight_decay"]
  injected = optax.inject_hyperparams(factory, static_args=name)(**options)
  want, _ = update(factory(**options))
  # optax.adamw rounds its hyperparameters, once they are arrays, to float32.
  chex.assert_trees_all_close(update(injected)[0], want, rtol=1e-4)
  plain, _ = update(factory(**{**options, name: None}))
  assert not np.allclose(want["a"]["bias"], plain["a"]["bias"], rtol=1e-3)
  chex.assert_trees_all_close(
    want["a"]["kernel"], plain["a"]["kernel"], rtol=1e-6
  )


@each_mask_option
@pytest.mark.parametrize("of_leaves", [False, True])
def test_array_as_a_mask(factory, name, of_leaves):
  true = jnp.array(True)
  mask = jax.tree.map(lambda _: true, PARAMS) if of_leaves else true
  with pytest.raises(TypeError) as error:
    factory(**{name: mask}, **required(factory))
  rule = f"{name} must be a tree of Python bools"
  assert_words(error, rule, repr(true), f"name {name} in static_args")


def test_injected_callable_group_by():
  def together(path=(), leaf=None):  # the count is taken for a path
    del path, leaf
    return 0

  injected = optax.inject_hyperparams(orthograd)(group_by=together)
  with pytest.raises(ValueError) as error:
    injected.init(PARAMS)
  assert_words(error, "group_by must be", "not 0")
  injected = optax.inject_hyperparams(orthograd, static_args="group_by")(
    group_by=together
  )
  want, _ = update(orthograd(group_by="global"))
  chex.assert_trees_all_close(update(injected)[0], want, rtol=1e-6)


def test_traced_renormalize():
  run = lambda flag: update(orthograd(renormalize=flag))[0]
  with pytest.raises(TypeError) as error:
    jax.jit(run)(True)
  rule = "renormalize must be a Python bool, True or False"
  assert_words(error, rule, "name renormalize in static_args")
  for flag in (True, np.True_):
    chex.assert_trees_all_equal(run(flag), update(orthograd())[0])


# Shapes that are known later.


@pytest.mark.mostly_slow(5)
@pytest.mark.parametrize(
  "options",
  [
    {},
    {"group_by": "layer", "strength": 0.5},
    {"group_by": "global", "diagnostics": True},
    {"batch_axes": 0, "diagnostics": True},
  ],
  ids=str,
)
def test_symbolic_shapes(on_each, options):
  del on_each
  transform = orthograd(**options)
  step = lambda g, w: transform.update(g, transform.init(w), w)
  n, m = export.symbolic_shape("n, m")
  shapes = {"x": {"kernel": (3, n, m), "bias": (3, m)}, "y": {"bias": (3, 4)}}
  symbolic = jax.tree.map(
    lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
    shapes,
    is_leaf=lambda x: isinstance(x, tuple),
  )
  exported = export.export(jax.jit(step))(symbolic, symbolic)
  for sizes in ((5, 7), (60, 300)):
    rng = np.random.default_rng(0)
    of = dict(zip((n, m), sizes, strict=True))
    draw = lambda x, of=of, rng=rng: jnp.asarray(
      rng.normal(size=[of.get(d, d) for d in x.shape]), jnp.float32
    )
    w, g = (jax.tree.map(draw, symbolic) for _ in range(2))
    got, want = exported.call(g, w), step(g, w)
    chex.assert_trees_all_close(got, want, rtol=0, atol=1e-5)


# Complex leaves.


@pytest.mark.mostly_slow(3)
@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize("group_by", ["leaf", "global"])
def test_complex_leaves_are_pairs_of_real_ones(group_by):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(
    rng.normal(size=(*shape, 2)) @ [1, 1j], jnp.complex64
  )
  matrix, target = draw(6, 4), draw(6)
  params = {"w": draw(4), "shift": draw(6)}

  def loss(params):
    error = matrix @ params["w"] + params["shift"] - target
    return jnp.sum(jnp.abs(error) ** 2)

  split = lambda tree: jax.tree.map(lambda x: jnp.stack([x.real, x.imag]), tree)
  join = lambda tree: jax.tree.map(lambda x: x[0] + 1j * x[1], tree)
  pairs = split(params)
  transform = orthograd(group_by=group_by)
  want, _ = update(transform, jax.grad(lambda x: loss(join(x)))(pairs), pairs)
  grads = jax.grad(loss)(params)
  ascent = jax.tree.map(jnp.conj, grads)
  chex.assert_trees_all_close(
    split(update(transform, ascent, params)[0]), want, rtol=1e-4, atol=1e-4
  )
  wrong = split(update(transform, grads, params)[0])
  assert np.abs(wrong["w"] - want["w"]).max() > 0.1 * np.abs(want["w"]).max()


# Derivatives. (w, g) → ĝ is homogeneous: of degree 0 in w, 1 in g.

HUGE = 2.0**100  # about 1e30, and a factor that rounds nothing


@pytest.mark.mostly_slow(7)
@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize(
  "of_w, of_g",
  [
    (HUGE, HUGE),
    (1 / HUGE, 1 / HUGE),
    (HUGE, 1 / HUGE),
    (1 / HUGE, HUGE),
    (1.0, HUGE),
    (1 / HUGE, 1.0),
  ],
  ids=lambda x: f"{x:.0e}",
)
def test_derivatives_at_extreme_scales(of_w, of_g, renormalize):
  transform = orthograd(renormalize=renormalize, eps=0.0)
  run = jax.jit(lambda w, g: transform.update(g, (), w)[0])
  rng = np.random.default_rng(0)
  w, g, dw, dg, cotangent = (
    {k: np.float32(rng.normal(size=s)) for k, s in shapes.items()}
    for shapes in [{"short": (5,), "long": (40, 300)}] * 5
  )
  scale = lambda tree, factor: {k: np.float32(factor) * tree[k] for k in tree}
  scaled = scale(w, of_w), scale(g, of_g)

  got, got_along = jax.jvp(run, scaled, (scale(dw, of_w), scale(dg, of_g)))
  want, want_along = jax.jvp(run, (w, g), (dw, dg))
  close = lambda x, y, factor: chex.assert_trees_all_close(
    scale(x, 1 / factor), y, rtol=1e-4, atol=1e-5
  )
  close(got, want, of_g)
  close(got_along, want_along, of_g)

  def slopes(w, g, factor):
    _, back = jax.vjp(run, w, g)
    return back(jax.tree.map(jnp.asarray, scale(cotangent, factor)))

  # The derivative by w is of the scale of factor · g / w, which must fit.
  factor = float(np.sqrt(of_w / of_g))
  got_w, got_g = slopes(*scaled, factor)
  want_w, want_g = slopes(w, g, 1.0)
  close(got_w, want_w, factor * of_g / of_w)
  close(got_g, want_g, factor)


@pytest.mark.mostly_slow(5)
@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize("renormalize", [True, False])
def test_second_derivatives_at_strength_zero(renormalize):
  """They equal the plain formula's: by s twice, and by s and w."""
  rng = np.random.default_rng(0)
  w, g, cotangent = jnp.asarray(rng.normal(size=(3, 5)), jnp.float32)

  def ours(s, w):
    transform = orthograd(strength=s, renormalize=renormalize)
    return jnp.vdot(cotangent, transform.update(g, (), w)[0])

  def plain(s, w):
    rest = g - s * jnp.vdot(w, g) / jnp.vdot(w, w) * w
    gain = jnp.linalg.norm(g) / jnp.linalg.norm(rest) if renormalize else 1.0
    return jnp.vdot(cotangent, gain * rest)

  for derivative in (
    lambda f: jax.grad(f)(0.0, w),
    lambda f: jax.grad(jax.grad(f))(0.0, w),
    lambda f: jax.jacfwd(jax.grad(f), 1)(0.0, w),
    lambda f: jax.grad(lambda w: jax.grad(f)(0.0, w))(w),
    lambda f: jax.grad(lambda s: jnp.sum(jax.grad(f, 1)(s, w)))(0.0),
  ):
    np.testing.assert_allclose(
      derivative(ours), derivative(plain), rtol=1e-4, atol=1e-5
    )
