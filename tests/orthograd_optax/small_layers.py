"""A small network's parameters and gradients, projected in float64."""

import chex
import jax
import numpy as np
import reference


def tree(seed: int):
  keys = iter(jax.random.split(jax.random.key(seed), 5))
  normal = lambda *shape: jax.random.normal(next(keys), shape)
  return {
    "conv": {"kernel": normal(3, 3, 2, 4), "bias": normal(4)},
    "norm": {"scale": normal(4)},
    "dense": {"kernel": normal(4, 5), "bias": normal(5)},
  }


PARAMS, GRADS = tree(0), tree(1)


def update(transform, grads=GRADS, params=PARAMS):
  return transform.update(grads, transform.init(params), params)


def project_together(params, grads, **options):
  """The float64 reference for leaves that form one vector."""
  flat = [
    np.concatenate([np.ravel(x).astype(np.float64) for x in jax.tree.leaves(t)])
    for t in (params, grads)
  ]
  out = reference.project(*flat, **options)
  ends = np.cumsum([x.size for x in jax.tree.leaves(grads)])[:-1]
  parts = np.split(out, ends)
  leaves, treedef = jax.tree.flatten(grads)
  return treedef.unflatten(
    [p.reshape(x.shape) for p, x in zip(parts, leaves, strict=True)]
  )


def assert_close(got, want):
  chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-5)
