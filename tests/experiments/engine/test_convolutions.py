"""The ways to compute many runs' convolutions agree."""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.config import Config
from experiments.engine import convolutions, train


@pytest.mark.mostly_slow(4)
@pytest.mark.parametrize(
  "stride, dtype", [(1, "float32"), (2, "float32"), (1, "bfloat16")]
)
@pytest.mark.parametrize("size", [1, 3])
def test_convolutions_agree(stride, size, dtype):
  """Values and gradients, of one run and of several."""
  runs, pixels = 3, 16
  keys = jax.random.split(jax.random.key(0), 3)
  normal = lambda key, *shape: jax.random.normal(key, (runs, *shape), dtype)
  x = normal(keys[0], 2, pixels, pixels, 16)
  kernel = normal(keys[1], size, size, 16, 4)
  out = normal(keys[2], 2, pixels // stride, pixels // stride, 4)

  def values(method, x, kernel, out):
    convolve = convolutions.CONVOLUTIONS[method]
    y, pull = jax.vjp(lambda x, k: convolve(x, k, stride), x, kernel)
    return y, *pull(out)

  def check(actual, expected):
    for ours, theirs in zip(actual, expected, strict=True):
      ours, theirs = (np.asarray(v, np.float64) for v in (ours, theirs))
      # Sums are taken in float32, and rounded to the dtype.
      rounding = float(jnp.finfo(dtype).eps) if dtype == "bfloat16" else 0
      np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=rounding)

  exact = [v.astype("float32") for v in (x, kernel, out)]
  expected = [values("direct", *args) for args in zip(*exact, strict=True)]
  expected = jax.tree.map(lambda *parts: jnp.stack(parts), *expected)
  for method in convolutions.CONVOLUTIONS:
    function = functools.partial(values, method)
    check(jax.jit(jax.vmap(function))(x, kernel, out), expected)
    one = jax.jit(function)(x[0], kernel[0], out[0])
    check(one, [v[0] for v in expected])


# The second shape has two tiles of channels and of features.
@pytest.mark.parametrize("shape", [(8, 4, 64, 128), (2, 8, 128, 64)])
def test_pallas_kernels(shape):
  """Interpreted, for several runs, against float64."""
  images, pixels, channels, features = shape
  random = np.random.default_rng(0)

  def draw(*shape):
    return jnp.asarray(random.normal(size=(2, *shape)), jnp.bfloat16)

  x = draw(images, pixels, pixels, channels)
  kernel = draw(3, 3, channels, features)
  out = draw(images, pixels, pixels, features)
  assert convolutions.fits_pallas(x[0], 3, 1, features)

  def values(convolve, x, kernel, out):
    y, pull = jax.vjp(lambda x, k: convolve(x, k, 1), x, kernel)
    return y, *pull(out)

  pallas = functools.partial(values, convolutions.pallas_conv)
  actual = jax.jit(jax.vmap(pallas))(x, kernel, out)
  with jax.enable_x64(True):
    arrays = [jnp.asarray(v, jnp.float64) for v in (x, kernel, out)]
    direct = functools.partial(values, convolutions.direct_conv)
    expected = [jax.jit(direct)(*run) for run in zip(*arrays, strict=True)]
  for ours, theirs in zip(actual, zip(*expected, strict=True), strict=True):
    assert ours.dtype == jnp.bfloat16
    # Rounded once, to 8 bits. Sums near 0 have the error of their terms.
    np.testing.assert_allclose(
      np.asarray(ours, np.float64), np.stack(theirs), rtol=2**-8, atol=1e-3
    )


def test_pallas_splits_long_sums(monkeypatch):
  """The gradient of the kernel, summed in blocks of pixels."""
  monkeypatch.setattr(convolutions, "PIXELS_PER_BLOCK", 64)
  test_pallas_kernels((8, 8, 64, 64))


def test_pallas_kernels_lower_for_a_gpu(monkeypatch):
  """Triton accepts the kernels: forward, and the two gradients."""
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

  def gradients(x, kernel):
    y, pull = jax.vjp(lambda *a: convolutions.pallas_conv(*a, 1), x, kernel)
    return pull(y)

  shapes = (10, 64, 32, 32, 64), (10, 3, 3, 64, 64)
  args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
  traced = jax.jit(jax.vmap(gradients)).trace(*args)
  text = traced.lower(lowering_platforms=("cuda",)).as_text()
  assert text.count("custom_call") == 3 and "concatenate" not in text


def test_which_convolutions_fit_pallas():
  fits = convolutions.fits_pallas
  x = jax.ShapeDtypeStruct((64, 8, 8, 256), jnp.bfloat16)
  assert all(fits(x, 3, 1, features) for features in (64, 128, 640))
  assert not fits(x, 3, 2, 256) and not fits(x, 1, 1, 256)
  assert not any(fits(x, 3, 1, features) for features in (32, 160, 320))
  assert not fits(x.update(dtype=jnp.float32), 3, 1, 256)
  assert not fits(x.update(shape=(1, 8, 8, 256)), 3, 1, 256)


def test_automatic_choice(monkeypatch):
  """Pallas where its kernels work, in bfloat16, if bits may differ."""
  config = Config(model="resnet18", precision="bfloat16")
  exact = dataclasses.replace(config, precision="tf32")
  choose = train.choose_convolutions
  assert choose("auto", config) == "patches"
  assert not convolutions.has_pallas()  # on a CPU
  monkeypatch.setenv("XLA_FLAGS", "")
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  assert choose("auto", config) == "mixed"
  with pytest.raises(ValueError, match="'pallas'.*Hopper.*Use auto"):
    choose("pallas", config)
  monkeypatch.setattr(train, "has_pallas", lambda: True)
  assert choose("auto", config) == choose("pallas", config) == "pallas"
  assert choose("auto", exact) == choose("mixed", config) == "mixed"
  assert choose("auto", dataclasses.replace(config, model="small")) == "patches"
  monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
  assert choose("auto", config) == "mixed"


def test_has_pallas(monkeypatch):
  """False if the backend is missing, or computes something else."""

  class Device:
    compute_capability = "9.0"

  check = convolutions.has_pallas.__wrapped__
  monkeypatch.setattr(jax, "devices", lambda: [Device()])
  assert check()  # The interpreter of a CPU stands in for the GPU.
  with monkeypatch.context() as patch:
    patch.setattr(convolutions, "pallas_conv", lambda x, kernel, _: 0 * x)
    assert not check()
  with monkeypatch.context() as patch:
    patch.setitem(sys.modules, "jax.experimental.pallas.triton", None)
    patch.delattr("jax.experimental.pallas.triton", raising=False)
    assert not check()
  Device.compute_capability = "7.5"
  assert not check()
