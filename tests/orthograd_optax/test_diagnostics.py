"""read_diagnostics and alignment: the angle of weights and gradients."""

import warnings

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from small_trees import GRADS, PARAMS, update

from orthograd_optax import (
  alignment,
  orthograd,
  orthograd_adamw,
  orthograd_sgd,
  read_diagnostics,
)


def test_read_diagnostics_of_one_instance():
  for optimizer in (
    orthograd(diagnostics=True),
    optax.chain(optax.clip(1e3), orthograd(diagnostics=True), optax.adam(0.1)),
    orthograd_sgd(0.1, momentum=0.9, diagnostics=True),
    optax.inject_hyperparams(orthograd_adamw)(0.1, diagnostics=True),
  ):
    _, state = update(optimizer)
    diagnostics = read_diagnostics(state)
    assert set(diagnostics) == {"a/kernel", "a/bias", "b/kernel"}
    w, g = (reference.real64(t["a"]["kernel"]) for t in (PARAMS, GRADS))
    cosine = np.sum(w * g) / reference.norm(w) / reference.norm(g)
    each = diagnostics["a/kernel"]
    np.testing.assert_allclose(each.cosine, cosine, rtol=1e-5)
    assert (
      not each.gate_closed and diagnostics["a/bias"].gate_closed
    )  # parallel


def test_read_diagnostics_of_instances_with_distinct_names():
  labels = {"a": "hard", "b": "soft"}
  optimizer = optax.partition(
    {
      "hard": orthograd(diagnostics=True),
      "soft": orthograd(diagnostics=True, strength=0.5),
    },
    labels,
  )
  diagnostics = read_diagnostics(update(optimizer)[1])
  assert set(diagnostics) == {"a/kernel", "a/bias", "b/kernel"}
  hard = read_diagnostics(update(orthograd(diagnostics=True))[1])
  chex.assert_trees_all_equal(diagnostics, hard)  # before the projection


def test_read_diagnostics_of_instances_with_clashing_names():
  both = optax.chain(
    orthograd(diagnostics=True, group_by="global"),
    optax.scale(2.0),
    orthograd(diagnostics=True, group_by="global"),
  )
  diagnostics = read_diagnostics(update(both)[1])
  assert set(diagnostics) == {"[0] all", "[2] all"}
  assert abs(diagnostics["[0] all"].cosine) > 0.01
  assert abs(diagnostics["[2] all"].cosine) < 1e-6  # already projected


@pytest.mark.parametrize(
  "optimizer",
  [orthograd(), orthograd(strength=lambda step: 0.5), optax.sgd(0.1)],
)
def test_read_diagnostics_where_there_are_none(optimizer):
  state = optimizer.init(PARAMS)
  words = rf"orthograd\(diagnostics=True\).* in this {type(state).__name__}"
  with pytest.raises(ValueError, match=words):
    read_diagnostics(state)


def watched_linear():
  """A Flax NNX optimizer after one step, and its wanted diagnostics."""
  nnx = pytest.importorskip("flax.nnx")
  model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
  transform = optax.chain(orthograd(diagnostics=True), optax.sgd(0.1))
  optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)
  grads = nnx.grad(lambda m: jnp.sum(m(jnp.ones((4, 3))) ** 2))(model)
  arrays = {"kernel": model.kernel[...], "bias": model.bias[...]}
  want = alignment({k: grads[k][...] for k in arrays}, arrays).cosine
  optimizer.update(model, grads)
  return nnx, optimizer, want


def test_read_diagnostics_of_flax_nnx():
  """As plain arrays, which can be formatted and compared."""
  nnx, optimizer, want = watched_linear()
  for state in (optimizer, optimizer.opt_state, nnx.state(optimizer)):
    diagnostics = read_diagnostics(state)
    assert f"{diagnostics['kernel'].cosine:.6f}" == f"{want['kernel']:.6f}"
    assert not diagnostics["kernel"].gate_closed
    assert isinstance(diagnostics["bias"].gate_closed, jax.Array)


def test_read_diagnostics_that_orbax_restored(tmp_path):
  """Without a target, it returns dictionaries and lists."""
  orbax = pytest.importorskip("orbax.checkpoint")
  optimizer = optax.chain(orthograd(diagnostics=True), optax.sgd(0.1, 0.9))
  _, state = update(optimizer)
  with orbax.StandardCheckpointer() as checkpointer:
    checkpointer.save(tmp_path / "state", state)
    checkpointer.wait_until_finished()
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      restored = checkpointer.restore(tmp_path / "state")
  assert isinstance(restored, list)
  chex.assert_trees_all_equal(
    read_diagnostics(restored), read_diagnostics(state)
  )


def test_read_diagnostics_of_parameters_with_the_names_of_fields():
  params = {"cosine": {"w": jnp.ones(3)}, "gate_closed": {"w": jnp.ones(3)}}
  optimizer = optax.chain(orthograd(diagnostics=True), optax.sgd(0.1, 0.9))
  _, state = update(optimizer, params, params)
  assert set(read_diagnostics(state)) == {"cosine/w", "gate_closed/w"}


def test_alignment():
  angles = alignment(GRADS, PARAMS, group_by="layer")
  _, state = update(orthograd(diagnostics=True, group_by="layer"))
  chex.assert_trees_all_equal(angles.cosine, optax.tree.get(state, "cosine"))
  assert angles.size == {"a": 9, "b": 4}
  lines = str(angles).splitlines()
  assert len(lines) == 3 and len(set(map(len, lines))) == 1


def test_alignment_of_stacked_layers():
  angles = alignment(jnp.eye(3), jnp.ones((3, 3)), batch_axes=0)
  np.testing.assert_allclose(
    angles.cosine["all"], np.full(3, 3**-0.5), rtol=1e-6
  )
