"""Set-up of all tests: eight devices, and no silent broadcasting."""

import functools
import os

os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import hypothesis
import jax
import pytest

from orthograd_optax import _projection

jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile(
  "default",
  deadline=None,
  derandomize=True,
  max_examples=50,
  print_blob=True,
)
hypothesis.settings.load_profile("default")


@pytest.fixture(scope="module")
def one_sweep_first():
  """Has small groups measured as large ones are."""
  with pytest.MonkeyPatch.context() as patch:
    project = functools.partial(_projection.project, small=0)
    patch.setattr(_projection, "project", project)
    yield
