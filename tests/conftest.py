"""Set-up of all tests: eight devices, and no silent broadcasting."""

import collections
import contextlib
import gc
import os
import pathlib
import re
import shutil

os.environ["JAX_PLATFORMS"] = os.environ.get("JAX_PLATFORMS", "cpu")
# Most of the time is spent compiling what runs once or twice. Each flag is here
# once, also in a worker, which inherits the flags of its parent process.
os.environ["XLA_FLAGS"] = " ".join(
  dict.fromkeys(
    [
      "--xla_force_host_platform_device_count=8",
      "--xla_backend_optimization_level=0",  # LLVM's, to save a third
      *os.environ.get("XLA_FLAGS", "").split(),
    ]
  )
)
# What one test, worker, process or run has compiled, others find: also what
# is small, for `traced_for` has JAX forget it all. Keys have versions and flags
# in them. JAX could limit the size, but reads the whole folder at each entry.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  programs = pathlib.Path(__file__).parents[1] / ".jax_cache"
  if sum(x.stat().st_size for x in programs.glob("*")) > 2**30:
    shutil.rmtree(programs, ignore_errors=True)
  os.environ["JAX_COMPILATION_CACHE_DIR"] = str(programs)
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import hypothesis
import jax
import pytest

# To look for garbage after every 700 objects, of the many that JAX keeps, would
# take 6 % of the time.
gc.set_threshold(100_000)

jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile(
  "default",
  deadline=None,
  derandomize=True,
  max_examples=50,
  print_blob=True,
  # on_each holds for all examples of a test.
  suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("default")
# Of `make test`; `make test-slow` has all of these tests again, with the above.
hypothesis.settings.register_profile(
  "quick", hypothesis.settings.get_profile("default"), max_examples=10
)


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
  """Of each test that is mostly slow, marks all cases but every nth as slow."""
  cases = collections.Counter()
  for item in items:
    if (mark := item.get_closest_marker("mostly_slow")) is not None:
      # absl, by which optax has its cases, numbers them: test_update3. chex has
      # the values in the name: test_update_('sgd')__with_jit.
      name = re.split(r"\[|_?\d|_\(", item.name)[0]
      test = item.nodeid.removesuffix(item.name) + name
      if cases[test] % mark.args[0]:
        item.add_marker("slow")
      cases[test] += 1


@contextlib.contextmanager
def traced_for(platform: str, devices: int | None = None):
  """What is traced is what this platform gets; it has so many devices."""

  def platform_dependent(*args, **ways):
    return ways.get(platform, ways["default"])(*args)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(jax.lax, "platform_dependent", platform_dependent)
    if devices is not None:
      patch.setattr(jax, "device_count", lambda: devices)
    jax.clear_caches()
    yield
  jax.clear_caches()


@pytest.fixture
def on_one_gpu():
  """What is traced is what a single GPU gets."""
  with traced_for("cuda", devices=1):
    yield


@pytest.fixture(params=["cpu", "one GPU", "tpu"])
def on_each(request):
  """What is traced is what a single device of each platform gets."""
  platform = {"one GPU": "cuda"}.get(request.param, request.param)
  with traced_for(platform, devices=1):
    yield platform


@pytest.fixture(params=["cpu", "cuda", "tpu"])
def on_many(request):
  """What is traced is what eight devices of each platform get."""
  with traced_for(request.param):
    yield request.param
