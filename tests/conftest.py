"""Set-up of all tests: eight devices, and no silent broadcasting."""

import os

os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = " ".join(
  [
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",  # LLVM's, to save a third
    os.environ.get("XLA_FLAGS", ""),
  ]
)

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile(
  "default",
  deadline=None,
  derandomize=True,
  max_examples=50,
  print_blob=True,
)
hypothesis.settings.load_profile("default")


@pytest.fixture
def as_on_a_gpu(monkeypatch):
  """What is traced is what a GPU gets: sums of many groups taken together."""
  platform_dependent = lambda cpu, default: default()
  monkeypatch.setattr(jax.lax, "platform_dependent", platform_dependent)
