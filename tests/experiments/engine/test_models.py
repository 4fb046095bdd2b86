"""The networks against PyTorch's, on the same weights."""

import collections
import importlib

from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import registry
from experiments.engine import models

X = np.random.default_rng(0).normal(size=(12, 32, 32, 3)).astype(np.float32)


@pytest.mark.parametrize(
  ("name", "expected"),
  [("resnet18", 11_173_962), ("wrn28_10", 36_479_194), ("small", 20_186)],
)
def test_number_of_parameters(name, expected):
  variables = jax.eval_shape(
    registry.MODELS[name]().init, jax.random.key(0), jnp.asarray(X)
  )
  sizes = [x.size for x in jax.tree.leaves(variables["params"])]
  assert sum(sizes) == expected
  dtypes = {x.dtype for x in jax.tree.leaves(variables)}
  assert dtypes == {jnp.dtype("float32")}


@pytest.mark.parametrize(
  ("name", "bare", "normed"), [("resnet18", 0, 20), ("wrn28_10", 15, 13)]
)
def test_kinds(name, bare, normed):
  """A pre-activation block's last convolution and its shortcut are bare."""
  model = registry.MODELS[name]()
  shapes = jax.eval_shape(lambda: models.init(model, jax.random.key(0)))
  actual = flatten_dict(models.kinds(model, shapes["params"]), sep="/")
  counts = collections.Counter(actual.values())
  assert counts["kernel, no norm"] == bare
  assert counts["kernel, then norm"] == normed
  assert counts["dense kernel"] == counts["dense bias"] == 1
  assert counts["norm scale"] == counts["norm bias"] >= 20
  if bare:
    inner = [k for k in actual if actual[k] == "kernel, then norm"]
    # With a shortcut, whose convolution comes first; and without.
    assert "PreActivationBlock_0/Conv_1/kernel" in inner
    assert "PreActivationBlock_1/Conv_0/kernel" in inner
    # What follows the stem goes through a norm, the first shortcut, too.
    assert "Conv_0/kernel" in inner


def torch_resnet18(torch):
  """torchvision's, or where it is not installed, one after its description."""
  nn = torch.nn

  class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
      super().__init__()
      conv = lambda n, s: nn.Conv2d(n, outputs, 3, s, 1, bias=False)
      self.conv1, self.bn1 = conv(inputs, stride), nn.BatchNorm2d(outputs)
      self.conv2, self.bn2 = conv(outputs, 1), nn.BatchNorm2d(outputs)
      self.downsample = None
      if stride > 1 or inputs != outputs:
        self.downsample = nn.Sequential(
          nn.Conv2d(inputs, outputs, 1, stride, bias=False),
          nn.BatchNorm2d(outputs),
        )

    def forward(self, x):
      y = self.bn1(self.conv1(x)).relu()
      y = self.bn2(self.conv2(y))
      return (y + (self.downsample(x) if self.downsample else x)).relu()

  try:
    torchvision = importlib.import_module("torchvision")
  except ImportError:
    net = nn.Module()
    net.bn1, net.fc = nn.BatchNorm2d(64), nn.Linear(512, 10)
    sizes = [64, 64, 128, 256, 512]
    for i in range(4):
      first = Block(sizes[i], sizes[i + 1], 1 if i == 0 else 2)
      layer = nn.Sequential(first, Block(sizes[i + 1], sizes[i + 1], 1))
      setattr(net, f"layer{i + 1}", layer)
  else:
    net = torchvision.models.resnet18(num_classes=10)
  net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)

  def forward(x):
    x = net.bn1(net.conv1(x)).relu()
    for layer in (net.layer1, net.layer2, net.layer3, net.layer4):
      x = layer(x)
    return net.fc(x.mean(dim=(2, 3)))

  return net, forward


def from_torch(net):
  """PyTorch's weights and statistics, where ours are."""
  params, batch_stats = {}, {}
  kernel = lambda w: np.transpose(w.detach().numpy(), (2, 3, 1, 0))
  array = lambda w: w.detach().numpy().copy()

  def convert(into, stats, pairs):
    for i, (conv, norm) in enumerate(pairs):
      into[f"Conv_{i}"] = {"kernel": kernel(conv.weight)}
      into[f"BatchNorm_{i}"] = {
        "scale": array(norm.weight),
        "bias": array(norm.bias),
      }
      stats[f"BatchNorm_{i}"] = {
        "mean": array(norm.running_mean),
        "var": array(norm.running_var),
      }

  convert(params, batch_stats, [(net.conv1, net.bn1)])
  number = 0
  for layer in (net.layer1, net.layer2, net.layer3, net.layer4):
    for block in layer:
      pairs = [(block.conv1, block.bn1), (block.conv2, block.bn2)]
      if block.downsample is not None:
        pairs.append((block.downsample[0], block.downsample[1]))
      name = f"BasicBlock_{number}"
      params[name], batch_stats[name] = {}, {}
      convert(params[name], batch_stats[name], pairs)
      number += 1
  params["Dense_0"] = {
    "kernel": array(net.fc.weight).T,
    "bias": array(net.fc.bias),
  }
  return {"params": params, "batch_stats": batch_stats}


def test_resnet18_is_pytorchs():
  torch = pytest.importorskip("torch")
  torch.manual_seed(0)
  net, forward = torch_resnet18(torch)
  with torch.no_grad():
    for module in net.modules():
      if isinstance(module, torch.nn.BatchNorm2d):
        module.weight.uniform_(0.5, 1.5)
        module.bias.uniform_(-0.5, 0.5)
        module.running_mean.uniform_(-0.2, 0.2)
        module.running_var.uniform_(0.8, 1.2)
  x = torch.from_numpy(np.transpose(X, (0, 3, 1, 2)).copy())
  model = registry.MODELS["resnet18"](method="patches")
  variables = from_torch(net)
  net.eval()
  expected = forward(x).detach().numpy()
  actual = jax.jit(model.apply)(variables, X)
  np.testing.assert_allclose(actual, expected, atol=1e-4)
  net.train()
  expected = forward(x).detach().numpy()
  actual, new = jax.jit(
    lambda v, x: model.apply(v, x, train=True, mutable=["batch_stats"])
  )(variables, X)
  np.testing.assert_allclose(actual, expected, atol=1e-4)
  after = from_torch(net)["batch_stats"]
  for ours, theirs in zip(
    jax.tree.leaves(new["batch_stats"]), jax.tree.leaves(after), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def check_kernel(kernel):
  """He-normal on the fan-out."""
  kernel = np.asarray(kernel)
  size, _, _, outputs = kernel.shape
  expected = np.sqrt(2 / (size * size * outputs))
  assert abs(kernel.std() / expected - 1) < 5 / np.sqrt(2 * kernel.size)
  assert abs(kernel.mean() / expected) < 5 / np.sqrt(kernel.size)


def check_dense(dense):
  bound = dense["kernel"].shape[0] ** -0.5
  for leaf in dense.values():
    assert 0.5 * bound < np.abs(leaf).max() <= bound
  expected = bound / np.sqrt(3)
  assert abs(np.asarray(dense["kernel"]).std() / expected - 1) < 0.1


def test_init_of_layers():
  images = jnp.zeros((1, 4, 4, 32))
  conv = models.Conv(64).init(jax.random.key(0), images)
  check_kernel(conv["params"]["kernel"])
  dense = models.Dense().init(jax.random.key(0), jnp.zeros((1, 512)))
  check_dense(dense["params"])


@pytest.mark.parametrize(
  "name",
  [
    "small",
    pytest.param("resnet18", marks=pytest.mark.slow),
    pytest.param("wrn28_10", marks=pytest.mark.slow),
  ],
)
def test_init(name):
  """All weights at once have the distributions that the layers ask for."""
  model = registry.MODELS[name]()
  make = jax.jit(lambda key: models.init(model, key))
  variables = make(jax.random.key(0))
  check_dense(variables["params"]["Dense_0"])
  leaves, _ = jax.tree_util.tree_flatten_with_path(variables)
  for path, leaf in leaves:
    if leaf.ndim == 4:
      check_kernel(leaf)
    elif path[-2].key != "Dense_0":
      np.testing.assert_array_equal(leaf, path[-1].key in ("scale", "var"))
  # No two of them begin alike.
  kernels = [x for x in jax.tree.leaves(variables) if x.ndim == 4]
  assert len({float(x.ravel()[0] / jnp.std(x)) for x in kernels}) == len(
    kernels
  )


def test_a_scale_of_a_kernel_before_batch_norm_does_not_count():
  """In a pre-activation network, the scale of a block's last kernel does."""
  model = registry.MODELS["small"]()
  variables = models.init(model, jax.random.key(0))
  apply = jax.jit(
    lambda v: model.apply(v, X, train=True, mutable=["batch_stats"])[0]
  )
  before = apply(variables)

  def scaled(layer):
    changed = jax.tree.map(jnp.copy, variables)
    kernel = changed["params"]["PreActivationBlock_0"][layer]["kernel"]
    changed["params"]["PreActivationBlock_0"][layer]["kernel"] = 3 * kernel
    return apply(changed)

  np.testing.assert_allclose(scaled("Conv_1"), before, atol=1e-3)
  assert np.abs(scaled("Conv_2") - before).max() > 0.05


@pytest.mark.parametrize("axis_name", [None, "batch"])
def test_batch_norm_and_its_gradient(axis_name):
  """Against the derivative of the definition, in float64, with a mask."""
  shape = 24, 4, 4, 3
  random = np.random.default_rng(0)
  x, out = random.normal(size=(2, *shape)).astype(np.float32) * 2 + 1
  scale, bias = random.normal(size=(2, 3)).astype(np.float32)
  mask = np.arange(24) < 17
  out[~mask] = 0  # The loss leaves these images out.

  def values(x, scale, bias, mask, out):
    y, pull, stats = jax.vjp(
      lambda *args: models.normalize(*args, mask, axis_name),
      x,
      scale,
      bias,
      has_aux=True,
    )
    to_x, *rest = pull(out)
    if axis_name is not None:
      rest = jax.lax.psum(rest, axis_name)
    return y, to_x, *rest, *stats

  def define(x, scale, bias):
    pixels = x[mask]
    mean, var = jnp.mean(pixels, (0, 1, 2)), jnp.var(pixels, (0, 1, 2))
    return scale * (x - mean) / jnp.sqrt(var + 1e-5) + bias

  weights = mask.astype(np.float32)
  if axis_name is None:
    actual = jax.jit(values)(x, scale, bias, weights, out)
  else:
    split = lambda v: v.reshape(4, 6, *v.shape[1:])
    mapped = jax.vmap(values, (0, None, None, 0, 0), axis_name=axis_name)
    args = split(x), scale, bias, split(weights), split(out)
    y, to_x, *rest = jax.jit(mapped)(*args)
    actual = y.reshape(shape), to_x.reshape(shape), *(v[0] for v in rest)
  with jax.enable_x64(True):
    args = [jnp.asarray(v, jnp.float64) for v in (x, scale, bias)]
    with jax.numpy_rank_promotion("allow"):
      y, pull = jax.vjp(define, *args)
      expected = y, *pull(jnp.asarray(out, jnp.float64))
  pixels = x[mask].astype(np.float64)
  stats = pixels.mean((0, 1, 2)), pixels.var((0, 1, 2)), 17 * 16
  for ours, theirs in zip(actual, (*expected, *stats), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_masked_images_have_no_part_in_the_statistics():
  model = registry.MODELS["small"]()
  variables = models.init(model, jax.random.key(0))
  apply = jax.jit(
    lambda x, mask: model.apply(
      variables, x, mask, train=True, mutable=["batch_stats"]
    )
  )
  x = np.concatenate([X[:5], 100 * X[5:8]])
  mask = np.arange(8) < 5
  logits, new = apply(x, mask)
  expected, alone = apply(X[:5], np.ones(5, bool))
  np.testing.assert_allclose(logits[:5], expected, atol=1e-4)
  for ours, theirs in zip(
    jax.tree.leaves(new), jax.tree.leaves(alone), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
