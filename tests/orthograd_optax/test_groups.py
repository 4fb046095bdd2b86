"""Which leaves form a vector, against float64 NumPy."""

from typing import Any

from absl.testing import parameterized
import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from small_layers import (
  GRADS,
  PARAMS,
  assert_close,
  project_together,
  tree,
  update,
)
import small_trees
from small_trees import assert_words

from orthograd_optax import orthograd, read_diagnostics

PROJECTED = {
  "leaf": jax.tree.map(project_together, PARAMS, GRADS),
  "layer": {k: project_together(PARAMS[k], GRADS[k]) for k in PARAMS},
  "global": project_together(PARAMS, GRADS),
}


class GroupByTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True, with_pmap=True)
  @parameterized.parameters(*PROJECTED)
  def test_group_by(self, group_by):
    transform = orthograd(group_by=group_by)
    project: Any = self.variant(lambda g, w: update(transform, g, w)[0])
    got = project(GRADS, PARAMS)
    chex.assert_trees_all_equal_shapes_and_dtypes(got, GRADS)
    assert_close(got, PROJECTED[group_by])


def test_flattened_is_global():
  assert_close(update(optax.flatten(orthograd()))[0], PROJECTED["global"])


def test_group_by_callable():
  def kind(path, leaf):
    assert leaf.shape
    return path[-1].key == "kernel"

  pick = lambda tree, test: {
    k: {n: x for n, x in v.items() if test(n)} for k, v in tree.items()
  }
  got, _ = update(orthograd(group_by=kind))
  for test in (lambda n: n == "kernel", lambda n: n != "kernel"):
    want = project_together(pick(PARAMS, test), pick(GRADS, test))
    assert_close(pick(got, test), want)


def test_batch_axes_of_a_tree_and_of_a_callable():
  stacked = lambda *trees: jax.tree.map(lambda *x: jnp.stack(x), *trees)
  params, grads = stacked(tree(0), tree(2)), stacked(tree(1), tree(3))
  whole, _ = update(orthograd(), grads, params)
  apart, _ = update(orthograd(batch_axes=0), grads, params)
  dense = dict(kernel=apart["dense"]["kernel"], bias=whole["dense"]["bias"])
  want = dict(conv=apart["conv"], norm=whole["norm"], dense=dense)

  dense = {"kernel": (0,), "bias": ()}
  axes = {"conv": 0, "norm": {"scale": None}, "dense": dense}
  choose = lambda path, leaf: (
    0 if path[0].key == "conv" or leaf.shape == (2, 4, 5) else None
  )
  for batch_axes in (axes, choose):
    got, _ = update(orthograd(batch_axes=batch_axes), grads, params)
    assert_close(got, want)


def test_layers_of_stacked_leaves():
  # Two leaves whose layers are stacked along different axes.
  params = {"kernel": PARAMS["dense"]["kernel"], "bias": jnp.arange(5.0) + 1}
  grads = {"kernel": GRADS["dense"]["kernel"], "bias": jnp.ones(5)}
  axes = {"kernel": 1, "bias": 0}
  got, state = update(
    orthograd(group_by="layer", batch_axes=axes, diagnostics=True),
    grads,
    params,
  )
  for i in range(5):
    column = lambda t, i=i: {"kernel": t["kernel"][:, i], "bias": t["bias"][i]}
    assert_close(column(got), project_together(column(params), column(grads)))
  assert optax.tree.get(state, "cosine")["all"].shape == (5,)


@pytest.mark.parametrize(
  ("batch_axes", "error", "words"),
  [
    (2, ValueError, r"\['bias'\].*shape \(5,\).*not \(2,\)"),
    ((0, -1), ValueError, r"\['bias'\].*each once"),
    (0, ValueError, "same sizes.*5.*4"),
    (True, TypeError, r"\['bias'\].*not True"),
    ("0", TypeError, r"\['bias'\].*not '0'"),
    ({"kernel": 0}, ValueError, "a prefix of it"),
    ({"kernel": 0.5, "bias": 0}, TypeError, r"\['kernel'\].*not 0.5"),
    (jnp.array(0), TypeError, "static_args"),
  ],
)
def test_impossible_batch_axes(batch_axes, error, words):
  transform = orthograd(group_by="layer", batch_axes=batch_axes)
  with pytest.raises(error, match=words):
    update(transform, GRADS["dense"], PARAMS["dense"])


# Labels and axes that don't fit.

LEAVES = {k: jnp.arange(1.0, 4.0) + i for i, k in enumerate("abc")}


@pytest.mark.parametrize(
  "labels, names",
  [
    (("x", "y", "x"), {"x", "y"}),
    ((1, 2, 1), {"1", "2"}),
    ((np.int64(1), 2, 1), {"1", "2"}),
    ((("x", 1), ("x", 2), ("x", 1)), {"('x', 1)", "('x', 2)"}),
    (((), ("x", (1, "y")), ()), {"()", "('x', (1, 'y'))"}),
    ((1, "1", 1), {"1", "'1'"}),
    (((1,), ("1",), (1,)), {"(1,)", "('1',)"}),
    (("(1,)", (1,), "(1,)"), {"'(1,)'", "(1,)"}),
  ],
)
def test_labels(labels, names):
  """In each case a and c form a vector, and b is another."""
  of = dict(zip("abc", labels, strict=True))
  transform = orthograd(group_by=lambda p, _: of[p[0].key], diagnostics=True)
  grads = jax.tree.map(jnp.cos, LEAVES)
  got, state = update(transform, grads, LEAVES)
  assert set(read_diagnostics(state)) == names
  pairs = [
    (reference.real64(LEAVES[k]), reference.real64(grads[k])) for k in of
  ]
  joined = np.concatenate([pairs[0], pairs[2]], 1)
  want_a, want_c = np.split(reference.project(*joined), 2)
  for key, want in (
    ("a", want_a),
    ("b", reference.project(*pairs[1])),
    (
      "c",
      want_c,
    ),
  ):
    np.testing.assert_allclose(got[key], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  "label", [Ellipsis, 1.5, None, [1], (1, None), (1, 1.5)], ids=repr
)
def test_impossible_labels(label):
  give = lambda path, _: label if path[0].key == "b" else "x"
  transform = orthograd(group_by=give)
  with pytest.raises(TypeError) as error:
    transform.update(LEAVES, optax.EmptyState(), LEAVES)
  rule = "group_by must return a str, an int or a tuple of these"
  kind = type(label).__name__
  assert_words(error, rule, "['b']", repr(label), kind, "Return a name instead")


def test_surplus_entry_of_batch_axes():
  axes = {"a": {"kernel": 0, "bias": None}, "b": None}
  orthograd(batch_axes=axes).update(small_trees.GRADS, (), small_trees.PARAMS)
  for surplus, name in (
    ({**axes, "c": None}, "['c']"),
    ({**axes, "a": {**axes["a"], "scale": 0}}, "['a']['scale']"),
    ({**axes, "b": {"kernel": {"value": 0}}}, "['b']['kernel']['value']"),
  ):
    with pytest.raises(ValueError) as error:
      orthograd(batch_axes=surplus).update(
        small_trees.GRADS, (), small_trees.PARAMS
      )
    rule = f"batch_axes has an entry at {name}, but params have no leaf there"
    assert_words(error, rule, "Remove the entry, or use the name that params")


def test_string_in_batch_axes():
  axes = {"a": "kernel", "b": None}
  with pytest.raises(TypeError) as error:
    orthograd(batch_axes=axes).update(small_trees.GRADS, (), small_trees.PARAMS)
  assert_words(error, "batch_axes at ['a']", "int or a tuple of ints")
  assert_words(error, "not 'kernel'")
