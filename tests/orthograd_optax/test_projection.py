"""Numerics of one group, for all kinds of w and g, against float64 NumPy."""

import functools

import chex
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import norm, real64
from small_pairs import amplification, expected, random_pair

from orthograd_optax import _projection, orthograd

HALF = ("float16", "bfloat16")
FULL = ("float32", "float64", "complex64", "complex128")


@functools.cache
def compiled(**options):
  def run(w, g, strength, eps):
    transform = orthograd(strength=strength, eps=eps, **options)
    return transform.update(g, transform.init(w), w)[0]

  return jax.jit(run)


# Numbers are traced, so that all tests share a few programs.
def apply(w, g, strength=1.0, eps=1e-30, **options):
  with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
    out = compiled(**options)(w, g, strength, eps)
  chex.assert_trees_all_equal_shapes_and_dtypes(out, g)
  return np.asarray(out)


def eps(x) -> float:
  return float(jnp.finfo(x.dtype).eps)


# XLA sums up to 32 terms in sequence, each with a rounding of half an eps: at
# worst, a sum of squares is off by 16 eps, and a norm by 8.
NORM = 8


def numbers(exponents, dtype):
  """Signed numbers with magnitudes of 10**exponents."""
  positive = st.floats(*exponents).map(lambda e: 10.0**e)
  real = st.builds(lambda x, s: s * x, positive, st.sampled_from([-1, 1]))
  return st.builds(complex, real, real) if "complex" in dtype else real


@st.composite
def vectors(draw, dtypes=FULL, exponents=(-3, 3), sizes=(2, 33)):
  """Pairs (w, g), every other one with g more or less parallel to w."""
  dtype = draw(st.sampled_from(dtypes))
  shape = (draw(st.sampled_from(sizes)),)
  array = hnp.arrays(
    "complex128" if "complex" in dtype else "float64",
    shape,
    elements=numbers(exponents, dtype),
  )
  w, g = draw(array), draw(array)
  if draw(st.booleans()):
    g = draw(st.floats(-2, 2)) * w + 10.0 ** draw(st.floats(-5, 0)) * g
  w, g = w.astype(jnp.dtype(dtype)), g.astype(jnp.dtype(dtype))
  assume(np.any(real64(g)) and np.all(np.isfinite(real64(g))))
  return w, g


def not_parallel(w, g, limit=0.01) -> float:
  """The amplification, if the result is more than rounding noise."""
  amplified = amplification(w, g)
  assume(amplified * eps(g) < limit)
  return amplified


@pytest.mark.usefixtures("on_each")
@given(vectors(dtypes=HALF + FULL, exponents=(-1, 1)), st.booleans())
def test_equals_float64(pair, renormalize):
  w, g = pair
  amplified = not_parallel(w, g)
  got = real64(apply(w, g, renormalize=renormalize))
  want = expected(w, g, renormalize=renormalize)
  compute = min(eps(g), eps(np.zeros(1, "float32")))
  # Rounding of the sums, amplified; and of the result, once. Its subnormal
  # entries are rounded to a fixed quantum.
  tolerance = 8 * compute * amplified + eps(g)
  quantum = float(jnp.finfo(g.dtype).smallest_subnormal)
  stored = quantum / 2 * np.sqrt(real64(g).size)
  assert norm(got - want) <= tolerance * norm(want) + stored


@given(vectors())
def test_orthogonal(pair):
  w, g = pair
  amplified = not_parallel(w, g)
  out, w = real64(apply(w, g)), real64(w)
  bound = 8 * eps(g) * amplified * norm(out) * norm(w)
  assert abs(np.sum(out * w)) <= bound


@pytest.mark.usefixtures("on_each")
@given(vectors())
def test_norm_is_kept(pair):
  w, g = pair
  not_parallel(w, g)
  ratio = norm(real64(apply(w, g))) / norm(real64(g))
  assert abs(ratio - 1) <= NORM * eps(g)


@given(vectors(dtypes=HALF + FULL), st.floats(0, 1))
def test_never_longer_without_renormalization(pair, strength):
  w, g = pair
  out = apply(w, g, strength, renormalize=False)
  assert norm(real64(out)) <= norm(real64(g)) * (1 + eps(g))


@given(vectors(), st.floats(0, 1))
def test_strength(pair, strength):
  w, g = pair
  amplified = not_parallel(w, g)
  want = expected(w, g, strength=strength)
  got = real64(apply(w, g, strength))
  assert norm(got - want) <= 10 * eps(g) * amplified * norm(want)


@given(vectors(dtypes=HALF + FULL))
@example((np.ones(2, "f"), np.float32([1e-45, -0.0])))
def test_strength_zero_is_the_identity(pair):
  w, g = pair
  np.testing.assert_array_equal(apply(w, g, 0.0, eps=0.1), g)


@given(vectors(dtypes=HALF + FULL))
def test_zero_parameters_pass_updates(pair):
  _, g = pair
  np.testing.assert_array_equal(apply(np.zeros_like(g), g, eps=0.1), g)


@given(vectors(dtypes=HALF + FULL), st.sampled_from([0.0, 1e-30]))
def test_zero_updates_stay_zero(pair, eps):
  w, _ = pair
  np.testing.assert_array_equal(apply(w, np.zeros_like(w), eps=eps), 0)


@pytest.mark.usefixtures("on_each")
@settings(max_examples=6 * settings().max_examples)
@given(vectors(dtypes=("float32",), exponents=(-30, 30)), st.booleans())
@example((np.full(2, 1e-30, "f"), np.float32([1e30, -2e30])), True)
@example((np.full(2, 1e30, "f"), np.float32([1e-30, -2e-30])), True)
@example((np.full(2, 1e-30, "f"), np.float32([1e-30, -2e-30])), True)
@example((np.full(2, 1e30, "f"), np.float32([1e30, -2e30])), False)
@example((np.full(2, 3e38, "f"), np.float32([3e38, 1e38])), False)
@example((np.float32([1e22, 1e22]), np.float32([3e-12, 1e-12])), True)
def test_range(pair, renormalize):
  w, g = pair
  not_parallel(w, g, limit=1e-6)
  got = real64(apply(w, g, renormalize=renormalize))
  want = expected(w, g, renormalize=renormalize)
  # XLA may flush subnormal entries to 0, to which a large eps can lead.
  flushed = float(jnp.finfo(g.dtype).tiny) * np.sqrt(g.size)
  assert norm(got - want) <= 1e-5 * norm(want) + flushed


@given(vectors(dtypes=("float32",), exponents=(-45, 38)), st.booleans())
@example((np.full(2, 1e-40, "f"), np.ones(2, "f")), True)
@example((np.ones(2, "f"), np.full(2, 1e-40, "f")), True)
def test_finite_in_finite_out(pair, renormalize):
  w, g = pair
  # A projection may have entries √n times larger than g has.
  assume(norm(real64(g)) < 3e38)
  chex.assert_tree_all_finite(apply(w, g, renormalize=renormalize))


@pytest.mark.usefixtures("on_each")
@given(
  st.sampled_from(HALF + FULL),
  st.sampled_from([1, 17, 1000]),
  st.floats(-6, 2),
  st.booleans(),
  st.integers(0, 2**32 - 1),
)
def test_gate_closes_on_parallel_updates(dtype, size, decades, swap, seed):
  factor = 10.0**decades  # float16 has no normal numbers under 6e-5
  rng = np.random.default_rng(seed)
  w = rng.standard_normal(size)
  if "complex" in dtype:
    w = w + 1j * rng.standard_normal(size)
  # Parallel before storage, so that both w and g carry rounding errors.
  pair = [x.astype(jnp.dtype(dtype)) for x in (w, factor * w)]
  assume(np.any(pair[1]))  # A w that is stored as 0 leaves g unchanged.
  np.testing.assert_array_equal(apply(*reversed(pair) if swap else pair), 0)


@pytest.mark.parametrize("params", ["float32", "float64"])
@pytest.mark.parametrize("updates", HALF)
def test_gate_knows_the_coarser_dtype(params, updates):
  w = np.random.default_rng(0).standard_normal(1000).astype(params)
  np.testing.assert_array_equal(apply(w, w.astype(jnp.dtype(updates))), 0)


@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize("other", ["float32", *HALF])
@pytest.mark.parametrize("dtype", HALF)
def test_where_the_gate_closes(dtype, other):
  """At the share of docs/numerics.md; half of it beside float32."""
  share = {"float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
  share *= 0.5 if other == "float32" else 1.0
  if {dtype, other} == set(HALF):
    share = (2e-3 + 1.6e-2) / 2
  w = np.float32([1, 0]).astype(jnp.dtype(dtype))
  for times, is_closed in ((0.9, True), (1.1, False)):
    g = np.float32([1, times * share]).astype(jnp.dtype(other))
    assert bool(apply(w, g)[1] == 0) == is_closed


@given(pair=vectors(dtypes=("float32", "float64")), decades=st.floats(1, 3))
def test_gate_stays_open_above_the_noise(on_each, pair, decades):
  w, g = (real64(x) for x in pair)
  perpendicular = reference.project(w, g, renormalize=False)
  assume(norm(perpendicular) > 0.1 * norm(g))
  # A residual of 100 to 10,000 times the rounding of an entry is a direction.
  share = 10 * eps(pair[1]) * 10.0**decades
  unit = perpendicular / norm(perpendicular)
  g = (w + share * norm(w) * unit).astype(pair[1].dtype)
  out = real64(apply(pair[0], g, eps=0.0))
  # If sums are wide, ‖g⊥‖² is ‖g‖² − ⟨w, g⟩²/‖w‖². Each sum is off by the
  # rounding of its last few additions in float64.
  wide = on_each != "tpu" and g.itemsize == 4
  off = 8 * eps(np.zeros(1)) / share**2 if wide else 0
  error = abs(norm(out) / norm(real64(g)) - 1)
  assert error <= NORM * eps(g) + off
  assert np.sum(out * unit) > 0.9 * norm(out)


@pytest.mark.usefixtures("on_each")
def test_gate_stays_open_where_squares_are_tiny():
  """In float32 the square of what is left, 5e-20, is subnormal."""
  w, g = np.float32([1, 0]), np.float32([1e-15, 5e-20])
  np.testing.assert_allclose(apply(w, g, eps=0.0), [0, 1e-15], rtol=1e-6)


@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("swap", [False, True])
def test_gate_closes_where_entries_are_flushed_to_zero(dtype, swap):
  """As XLA does with subnormal ones: then a parallel g does not look so."""
  tiny = float(jnp.finfo(dtype).tiny)
  small = np.array([0.9, 2.0, 0.5, 1.1]) * tiny
  pair = [x.astype(jnp.dtype(dtype)) for x in (small, small / tiny)]
  out = apply(*reversed(pair) if swap else pair)
  np.testing.assert_array_equal(out, 0)


@pytest.mark.usefixtures("on_each")
@given(vectors(dtypes=("float32",)), st.sampled_from([np.nan, np.inf, -np.inf]))
def test_not_finite_updates_give_nan_in_their_group_alone(pair, bad):
  w, g = pair
  poisoned = g.copy()
  poisoned[-1] = bad
  for renormalize in (True, False):
    transform = orthograd(renormalize=renormalize)
    params, updates = {"a": w, "b": w}, {"a": poisoned, "b": g}
    out, _ = transform.update(updates, transform.init(params), params)
    assert np.all(np.isnan(out["a"]))
    alone, _ = transform.update({"b": g}, transform.init(w), {"b": w})
    np.testing.assert_array_equal(out["b"], alone["b"])


@given(vectors(dtypes=HALF + FULL, sizes=(12,)))
def test_invariant_to_the_shape_of_a_leaf(pair):
  w, g = pair
  shape = (3, 1, 2, 2)
  got = apply(w.reshape(shape), g.reshape(shape)).reshape(-1)
  want = apply(w, g)
  amplified = not_parallel(w, g)
  difference = norm(real64(got) - real64(want))
  assert difference <= 8 * eps(g) * amplified * norm(real64(want))


@functools.cache
def mapped(axis):
  return jax.jit(jax.vmap(compiled(), (axis, axis, None, None), axis))


# In float64, so that 1e-6 leaves room for the amplification of rounding.
@given(
  vectors(dtypes=("float64", "complex128"), sizes=(24,)), st.integers(0, 2)
)
def test_batch_axes_equal_vmap(pair, axis):
  w, g = (x.reshape(2, 3, 4) for x in pair)
  with jax.enable_x64(True):
    want = mapped(axis)(w, g, 1.0, 1e-30)
  got = apply(w, g, batch_axes=axis)
  tolerance = 1e-6 * norm(real64(g))
  np.testing.assert_allclose(got, want, rtol=0, atol=tolerance)
  for same in (axis - 3, (axis,)):
    np.testing.assert_array_equal(apply(w, g, batch_axes=same), got)


@pytest.mark.mostly_slow(3)
@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize(
  "dtype, shape", [("complex64", (4, 5)), ("float32", (3, 300))]
)
def test_second_derivatives_by_reverse_mode(dtype, shape):
  w, g = map(jnp.asarray, random_pair(shape))
  transform = orthograd()
  turn = 1 + 2j if dtype == "complex64" else 1

  def value(g):
    out, _ = transform.update(g.astype(dtype), (), w.astype(dtype) * turn)
    return jnp.sum(jnp.real(out) ** 3 + jnp.imag(out) ** 2)

  got = jax.grad(lambda x: jnp.vdot(jax.grad(value)(x), g))(g)
  want = jax.jvp(jax.grad(value), (g,), (g,))[1]
  # The derivative of ⟨∇f(x), g⟩ at x = g, by reverse and by forward mode.
  np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * np.abs(want).max())


@pytest.mark.mostly_slow(3)
@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize(
  "batch_axes, axes, shape", [(None, (0, None), (300,)), (0, (1, 1), (4, 5))]
)
def test_gradients_flow_through_vmap(batch_axes, axes, shape):
  """One array is mapped, or both along another axis than the first."""
  transform = orthograd(batch_axes=batch_axes)

  def value(g, w):
    return jnp.sum(transform.update(g, (), w)[0] ** 3)

  def total(g, w):
    return jnp.sum(jax.vmap(value, axes)(g, w))

  def one_by_one(g, w):
    row = lambda x, i, axis: x if axis is None else x.take(i, axis)
    return sum(value(row(g, i, axes[0]), row(w, i, axes[1])) for i in range(3))

  w, g = map(jnp.asarray, random_pair((3, 3, *shape)))
  w = w[0] if axes[1] is None else w
  got, want = (jax.grad(f, (0, 1))(g, w) for f in (total, one_by_one))
  for x, y in zip(got, want, strict=True):
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


@pytest.mark.usefixtures("on_each")
def test_finite_gradients_stay_finite():
  """In float16, an entry of the norm of g may be out of range."""
  w, g = np.array([[1.0, 1.0, 0.0], [6e4, 6e4, 3e3]])
  g = g.astype("float16")
  want = expected(w.astype("float16"), g)
  assert norm(want) > 65504
  got = real64(apply(w.astype("float16"), g))
  assert np.all(np.isfinite(got)) and np.abs(got).max() == 65504
  # In a group with float32, the norm comes from the other leaf.
  ws = [[jnp.ones(2, "float16"), jnp.array([1.0, -1.0])]]
  gs = [[jnp.array([1.0, -2.0], "float16"), jnp.array([1e6, -1e6])]]
  (actual,) = _projection.project_groups(ws, gs, (((0,), (0,)),))
  chex.assert_tree_all_finite(actual.updates)
  # What is not finite stays visible.
  bad = np.array([np.inf, 1.0, 1.0], "float16")
  assert np.all(np.isnan(real64(apply(np.ones(3, "float16"), bad))))


@given(vectors(dtypes=("float32",)))
def test_without_float64(pair):
  """The switch for slow float64 gives the same updates, to float32's eps."""
  w, g = pair
  amplified = not_parallel(w, g)
  got = real64(apply(w, g, use_float64=False))
  want = expected(w, g)
  assert norm(got - want) <= 8 * eps(g) * (amplified + 1) * norm(want)


def test_no_float64_is_traced_without_it():
  transform = orthograd(use_float64=False)
  x = jnp.ones((3, 4))
  program = jax.make_jaxpr(lambda g, w: transform.update(g, (), w)[0])(x, x)
  assert "f64" not in str(program) and "platform_index" not in str(program)


def test_a_vector_does_not_depend_on_others():
  w, g = np.random.default_rng(0).normal(size=(2, 4, 9)).astype("float32")
  want = apply(w, g, batch_axes=0)
  for row in (w[3], 1e-30 * g[3], 0 * g[3], np.nan * g[3]):
    g[3] = row  # parallel, tiny, zero, no number
    got = apply(w, g, batch_axes=0)
    np.testing.assert_array_equal(got[:3], want[:3])


@pytest.mark.usefixtures("on_each")
@given(vectors(dtypes=("float64",)), st.sampled_from([1.0, 0.7]))
def test_gradients_flow_through(pair, strength):
  w, g = pair
  not_parallel(w, g, limit=1e-13)
  cotangent = np.cos(np.arange(len(g)))
  with jax.enable_x64(True):
    value = lambda w, g: jnp.vdot(compiled()(w, g, strength, 1e-30), cotangent)
    for i, x in enumerate((w, g)):
      direction = norm(x) * np.sin(1 + np.arange(len(g)))
      got = jax.grad(value, i)(jnp.asarray(w), jnp.asarray(g)) @ direction

      def along(t, i=i, direction=direction):
        moved = [w, g]
        moved[i] = moved[i] + t * direction
        out = reference.project(*moved, strength=strength)
        return out @ cotangent

      # Five points: a step of 1e-3 leaves an error of 1e-12 of the scale.
      h = 1e-3 / amplification(w, g)
      want = 8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))
      want /= 12 * h
      scale = norm(g) * norm(cotangent) * amplification(w, g)
      np.testing.assert_allclose(got, want, atol=1e-6 * scale)


@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_gradient_by_the_strength(strength):
  """Also of a strength that starts at 0, to be learned."""
  w, g = random_pair((7,))
  cotangent = np.cos(np.arange(7))
  value = lambda s: jnp.vdot(compiled()(w, g, s, 1e-30), cotangent)
  got = jax.grad(value)(jnp.float32(strength))
  along = lambda s: np.sum(
    reference.project(real64(w), real64(g), strength=s) * cotangent
  )
  h = 1e-3  # Four points, none of them below 0.
  at = [along(strength + i * h) for i in range(4)]
  want = (-11 * at[0] + 18 * at[1] - 9 * at[2] + 2 * at[3]) / (6 * h)
  assert abs(want) > 0.1
  np.testing.assert_allclose(got, want, rtol=1e-4)


@pytest.mark.usefixtures("on_each")
def test_a_group_may_mix_dtypes():
  rng = np.random.default_rng(0)
  tree = lambda: {
    dtype: rng.standard_normal(5).astype(jnp.dtype(dtype))
    for dtype in ("bfloat16", "float32")
  }
  w, g = tree(), tree()
  flat = lambda xs: np.concatenate([real64(xs[k]) for k in sorted(xs)])
  transform = orthograd(group_by="global")
  with jax.numpy_dtype_promotion("strict"):
    out, _ = transform.update(g, (), w)
  want = reference.project(flat(w), flat(g))
  chex.assert_trees_all_equal_dtypes(out, g)
  np.testing.assert_allclose(flat(out)[:5], want[:5], rtol=8e-3)
  np.testing.assert_allclose(flat(out)[5:], want[5:], rtol=1e-5)


@pytest.mark.mostly_slow(4)
@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize("shape", [(5,), (3, 4), (200, 300)])
def test_gradients_flow_through_float32(shape):
  """Whose sums a GPU takes in float64, while all else is float32."""
  w, g = random_pair(shape)
  cotangent = np.cos(np.arange(g.size)).reshape(shape)
  transform = orthograd()
  value = lambda g: jnp.vdot(transform.update(g, (), w)[0], cotangent)
  got = jax.jit(jax.grad(value))(jnp.asarray(g))
  chex.assert_type(got, jnp.float32)
  direction = np.sin(1 + np.arange(g.size)).reshape(shape)
  along = lambda t: np.sum(
    reference.project(real64(w), real64(g) + t * direction) * cotangent
  )
  want = (along(1e-4) - along(-1e-4)) / 2e-4
  scale = norm(cotangent) * norm(direction)
  assert abs(np.sum(got * direction) - want) <= 1e-6 * scale


def test_empty_batch():
  transform = orthograd(batch_axes=0)
  tree = {"a": jnp.ones((2, 300)), "b": jnp.zeros((0, 3))}
  out, _ = transform.update(tree, transform.init(tree), tree)
  chex.assert_trees_all_equal_shapes(out, tree)


@pytest.mark.mostly_slow(5)
@pytest.mark.usefixtures("on_each")
@pytest.mark.parametrize(
  ("w", "g"),
  [
    ([0.0, 0.0], [1.0, 2.0]),
    ([1.0, 2.0], [0.0, 0.0]),
    ([1.0, 2.0], [2.0, 4.0]),
  ],
)
@pytest.mark.parametrize("renormalize", [True, False])
def test_no_nan_gradients_at_the_edges(w, g, renormalize):
  transform = orthograd(renormalize=renormalize, eps=0.0)
  value = lambda w, g: jnp.sum(transform.update(g, (), w)[0] ** 2)
  grads = jax.grad(value, (0, 1))(jnp.asarray(w), jnp.asarray(g))
  chex.assert_tree_all_finite(grads)
