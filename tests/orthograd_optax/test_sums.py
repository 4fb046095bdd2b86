"""Sums of many groups: taken together, by row, and traced once."""

import collections

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import norm, real64
from small_pairs import amplification, expected, random_pair

from orthograd_optax import _projection, _sums, orthograd

EDGES = {
  "ordinary": lambda w, g: (w, g),
  "parallel": lambda w, g: (w, 3 * w + 1e-3 * g),
  "tiny": lambda w, g: (1e-25 * w, 1e-28 * g),
  "huge": lambda w, g: (1e25 * w, 1e28 * g),
  "no weights": lambda w, g: (0 * w, g),
  "no gradient": lambda w, g: (w, 0 * g),
}


def check_all(pairs, project):
  """Projects pairs of arrays, all axes of each a vector's, as one tree."""
  ws, gs = ([[jnp.asarray(x)] for x in xs] for xs in zip(*pairs, strict=True))
  axes = tuple((tuple(range(w.ndim)),) for w, _ in pairs)
  actual = project(ws, gs, axes)
  for (w, g), projection in zip(pairs, actual, strict=True):
    want = expected(w, g)
    got = real64(projection.updates[0])
    amplified = min(amplification(w, g), 1e4)
    assert norm(got - want) <= 1e-5 * amplified * norm(want)


@pytest.mark.mostly_slow(7)
@pytest.mark.parametrize("last", EDGES)
@pytest.mark.parametrize(
  "shape", [(7,), (9, 100), (3, 300), (1000,), (3, 2, 80)]
)
@pytest.mark.usefixtures("on_one_gpu")
def test_groups_measured_together(monkeypatch, last, shape):
  """Those alike in one reduction, and in another what is too many for one."""
  monkeypatch.setattr(_sums, "MAX_JOINT", 3)
  pairs = [random_pair(shape, seed) for seed in range(5)]
  pairs[-1] = EDGES[last](*pairs[-1])
  check_all(pairs, _projection.project_groups)


@pytest.mark.mostly_slow(5)
@pytest.mark.usefixtures("on_one_gpu")
@pytest.mark.parametrize(
  "mapped", [jax.vmap, lambda f, *a: jax.jit(jax.vmap(f, *a))]
)
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(4, 5, 6), (2, 256, 260)])
def test_groups_measured_together_in_vmap(mapped, axis, shape):
  """Each alone, as far as they are mapped: of some, both w and g are not."""
  pairs = [random_pair(shape, seed) for seed in range(4)]
  (wa, ga), (wb, gb), (wc, gc), (wd, gd) = pairs
  wb, gb, wc = (x.take(0, axis) for x in (wb, gb, wc))
  params, updates = [wa, wb, wc, wd], [ga, gb, gc, gd]
  transform = orthograd()
  update = lambda g, w: transform.update(g, (), w)[0]
  axes = [axis, None, axis, axis], [axis, None, None, axis]
  actual = mapped(update, axes)(updates, params)
  for w, g, out in zip(params, updates, actual, strict=True):
    for i, got in enumerate(out):
      w_i, g_i = (x.take(i, axis) if x.ndim == 3 else x for x in (w, g))
      np.testing.assert_allclose(got, expected(w_i, g_i), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("on_one_gpu")
def test_matrices_measured_by_row():
  """Also complex ones, and those that form a vector with what is none."""
  (wa, ga), (wb, gb) = (random_pair((3, 300), seed) for seed in (0, 1))
  wc, gc = random_pair((300,))
  params = {"complex": wa + 1j * wb, "layer": {"kernel": wb, "bias": wc}}
  updates = {"complex": ga + 1j * gb, "layer": {"kernel": gb, "bias": gc}}
  transform = orthograd(group_by="layer")
  actual, _ = jax.jit(transform.update)(updates, transform.init(params), params)
  for layer in params:
    flat = lambda tree, layer=layer: np.concatenate(
      [real64(x).ravel() for x in jax.tree.leaves(tree[layer])]
    )
    want = expected(flat(params), flat(updates))
    np.testing.assert_allclose(flat(actual), want, rtol=0, atol=1e-5)


def equations(jaxpr):
  for one in jaxpr.eqns:
    yield one
    parts = jax.tree.leaves(one.params, is_leaf=lambda x: hasattr(x, "eqns"))
    for part in parts:
      if hasattr(part, "eqns"):
        yield from equations(part)


def reductions(transform, leaves, mapped=False, shape=(3, 40, 50)):
  """The number of results of each reduction of several arrays."""
  tree = [jnp.ones(shape) for _ in range(leaves)]
  update = lambda g, w: transform.update(g, (), w)[0]
  update = jax.vmap(update) if mapped else update
  actual = equations(jax.make_jaxpr(update)(tree, tree))
  return [len(x.outvars) for x in actual if x.primitive.name == "reduce"]


@pytest.mark.usefixtures("on_one_gpu")
def test_how_many_are_summed_up_at_once(monkeypatch):
  assert reductions(orthograd(), 15) == [24, 21]
  for entries, wanted in ((12000, [6] * 5), (11999, [3] * 10), (1, [3] * 10)):
    monkeypatch.setattr(_sums, "MAX_JOINT_ENTRIES", entries)
    jax.clear_caches()
    assert reductions(orthograd(), 10) == wanted
  assert reductions(orthograd(), 10, mapped=True) == [3] * 10
  # Batch axes must come first.
  assert reductions(orthograd(batch_axes=0), 10) == [3] * 10
  assert reductions(orthograd(batch_axes=1), 10) == [3] * 10
  monkeypatch.undo()
  jax.clear_caches()
  assert reductions(orthograd(batch_axes=0), 10) == [24, 6]
  assert reductions(orthograd(batch_axes=1), 10) == [3] * 10


@pytest.mark.parametrize("part", ["w is 0", "w is 0 elsewhere", "neither"])
@pytest.mark.usefixtures("on_one_gpu")
def test_where_a_gradient_is_nan(part):
  """There, w is not itself in a GPU's sums; but no result depends on it."""
  w, g = random_pair((3, 60, 100))
  g[0, 0, 0] = np.nan
  w *= {"w is 0": 0, "w is 0 elsewhere": np.isnan(g), "neither": 1}[part]
  (actual,) = _projection.project_groups([[w]], [[g]], (((0, 1, 2),),))
  wanted = g if part == "w is 0" else np.full_like(g, np.nan)
  np.testing.assert_array_equal(actual.updates[0], wanted)


def test_each_shape_is_traced_once(monkeypatch):
  """Tracing thousands of leaves must take seconds."""
  traced = collections.Counter()
  for name in ("exact", "wide", "_reduce"):
    inner = getattr(_sums, name)

    def counted(*args, inner=inner, name=name):
      traced[name] += 1
      return inner(*args)

    monkeypatch.setattr(_sums, name, counted)
  shapes = [(3, 4), (5,)] * 40
  tree = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  jax.clear_caches()
  jax.eval_shape(lambda g, w: orthograd().update(g, (), w)[0], tree, tree)
  # _reduce is for wide sums on CPUs, and for those on GPUs.
  assert traced == {"exact": 2, "wide": 2, "_reduce": 4}
  jax.clear_caches()


@pytest.mark.usefixtures("on_one_gpu")
def test_vectors_of_many_shapes_solved_as_one():
  shapes = [(3,)] * 6 + [(7,), (5, 6)] + [(2, 3)] * 6
  pairs = [random_pair(shape, seed) for seed, shape in enumerate(shapes)]
  pairs[-6:] = [
    edge(*pair) for edge, pair in zip(EDGES.values(), pairs[-6:], strict=True)
  ]
  pairs.append(random_pair((256, 256)))
  groups = [
    _sums.Group([w], [g], (tuple(range(g.ndim)),))
    for w, g in (map(jnp.asarray, pair) for pair in pairs)
  ]
  with jax.enable_x64(True):
    ((indices, sums),) = _sums.wide_stacks(groups)
  assert sorted(indices) == list(range(len(pairs)))
  chex.assert_shape(sums.wg, (len(pairs),))
  check_all(pairs, _projection.project_groups)


@pytest.mark.usefixtures("on_one_gpu")
def test_groups_of_any_arrays_solved_as_one():
  """Wherever the batch axis is, of several arrays, and in several dtypes."""
  (wa, ga), (wb, gb), (wc, gc) = (
    random_pair((5, 3, 4), 0),
    random_pair((2, 3), 1),
    random_pair((256, 256), 2),
  )
  half = jnp.asarray(gb).astype("bfloat16")
  actual = _projection.project_groups(
    [[wa, wb], [wb], [wb], [wc]],
    [[ga, gb], [gb], [half], [gc]],
    (((0, 2), (0,)), ((0,),), ((0, 1),), ((0, 1),)),
  )
  for i in range(3):
    w = np.concatenate([wa[:, i].ravel(), wb[:, i]])
    g = np.concatenate([ga[:, i].ravel(), gb[:, i]])
    a, b = (np.asarray(x)[:, i].ravel() for x in actual[0].updates)
    np.testing.assert_allclose(
      np.concatenate([a, b]), expected(w, g), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
      actual[1].updates[0][:, i], expected(wb[:, i], gb[:, i]), rtol=1e-4
    )
  chex.assert_shape([actual[0].cosine, actual[1].cosine], (3,))
  chex.assert_type(actual[2].updates, jnp.bfloat16)
  np.testing.assert_allclose(
    real64(actual[2].updates[0]), expected(wb, half), rtol=0.02, atol=0.01
  )
