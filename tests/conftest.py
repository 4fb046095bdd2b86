"""Set-up of all tests: eight devices, and no silent broadcasting."""

import contextlib
import os
import tempfile

os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = " ".join(
  [
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",  # LLVM's, to save a third
    os.environ.get("XLA_FLAGS", ""),
  ]
)
# What one test, worker or process has compiled, others find.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  programs = tempfile.TemporaryDirectory()  # until this process ends
  os.environ["JAX_COMPILATION_CACHE_DIR"] = programs.name
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.05"

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
  # on_both holds for all examples of a test.
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("default")


@contextlib.contextmanager
def traced_for_a_gpu():
  platform_dependent = lambda cuda, **others: cuda()
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax.lax, "platform_dependent", platform_dependent)
    jax.clear_caches()
    yield
  jax.clear_caches()


@pytest.fixture
def as_on_a_gpu():
  """What is traced is what a GPU gets: sums of triples, in float64."""
  with traced_for_a_gpu():
    yield


@pytest.fixture(params=["as here", "as on a GPU"])
def on_both(request):
  """Once what is traced for a CPU, and once what a GPU gets."""
  on_gpu = request.param == "as on a GPU"
  with traced_for_a_gpu() if on_gpu else contextlib.nullcontext():
    yield on_gpu
