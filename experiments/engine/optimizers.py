"""Base optimizers of one run. The engine maps them over runs.

Each is an optax transformation from gradients to a *direction*, which includes
weight decay. The engine multiplies the direction by -learning_rate × schedule
and adds it to the parameters.

`decay` is a tree of scalars like the parameters, so the head may have another
weight decay. It and the momentum may be traced, so runs with different ones
share a compiled program. Kernels are HWIO, dense kernels (inputs, outputs): the
output is the last axis. Gradients may have less precision than the parameters;
states and directions have the parameters'.

Examples:
  >>> import jax.numpy as jnp
  >>> params, grads = {"w": jnp.array(2.0)}, {"w": jnp.array(1.0)}
  >>> optimizer = sgd({"w": 0.5}, momentum=0.9)
  >>> state = optimizer.init(params)
  >>> direction, state = optimizer.update(grads, state, params)
  >>> print(direction["w"])
  2.0
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
import optax
from optax import contrib


def _cast() -> optax.GradientTransformation:
  """Casts gradients to the parameters' dtype, so that moments don't round."""
  cast: Any = lambda g, w: g.astype(w.dtype)
  return optax.stateless_with_tree_map(cast)


def _add_decay(decay: Any) -> optax.GradientTransformation:
  """Adds decay × w, with each leaf's own decay."""
  add = lambda u, w, d: u + d * w
  return optax.stateless(
    lambda updates, params: jax.tree.map(add, updates, params, decay)
  )


def sgd(
  decay: Any, momentum: ArrayLike, nesterov: bool = False
) -> optax.GradientTransformation:
  """Creates SGD with momentum and coupled weight decay, as PyTorch's."""
  return optax.chain(
    _cast(), _add_decay(decay), optax.trace(momentum, nesterov)
  )


def adamw(decay: Any) -> optax.GradientTransformation:
  """Creates `AdamW <https://arxiv.org/abs/1711.05101>`_ as optax's."""
  return optax.chain(_cast(), optax.scale_by_adam(), _add_decay(decay))


def lion(decay: Any) -> optax.GradientTransformation:
  """Creates `Lion <https://arxiv.org/abs/2302.06675>`_ as optax's."""
  return optax.chain(_cast(), optax.scale_by_lion(), _add_decay(decay))


def _sides(x: Any) -> tuple[int, int]:
  return x.size // x.shape[-1], x.shape[-1]  # all inputs, outputs


def _orthogonalize(updates: Any) -> Any:
  """Maps each leaf U S Vᵀ to about U Vᵀ, as a matrix (all inputs, outputs)."""

  def dimensions(x):
    rows, columns = _sides(x)
    inputs, outputs = tuple(range(x.ndim - 1)), (x.ndim - 1,)
    # optax 0.2.6 also scales by √(output / reduction) if that is above 1. To
    # avoid it, reduce over the longer side; transposing changes nothing else.
    if rows < columns:
      inputs, outputs = outputs, inputs
    return contrib.MuonDimensionNumbers(inputs, outputs)

  # Without optax's momentum, which corrects for bias; the paper's does not.
  newton_schulz = contrib.scale_by_muon(
    beta=0.0,
    nesterov=False,
    weight_dimension_numbers=lambda tree: jax.tree.map(dimensions, tree),
  )
  return newton_schulz.update(updates, newton_schulz.init(updates))[0]


def muon(
  decay: Any, hidden: Any, momentum: ArrayLike = 0.95
) -> optax.GradientTransformation:
  r"""Creates Muon for hidden layers' kernels, AdamW for all else.

  .. math::
    m_t = \mu m_{t-1} + g_t, \quad
    u_t = 0.2 \sqrt{\max(\text{rows}, \text{columns})} \;
      \mathrm{NewtonSchulz}_5(g_t + \mu m_t)

  A kernel HWIO counts as a matrix of H·W·I rows and O columns. The root mean
  square of an update's entries is about 0.2, as AdamW's is in practice, so both
  share a learning rate. Weight decay is decoupled in both. `hidden` is a tree
  of booleans; AdamW also takes all leaves of fewer than two axes.

  References:
    Jordan et al., `Muon: An optimizer for hidden layers in neural networks
    <https://kellerjordan.github.io/posts/muon/>`_, 2024

    Liu et al., `Muon is Scalable for LLM Training
    <https://arxiv.org/abs/2502.16982>`_, 2025
  """

  def labels(params):
    label = lambda x, hidden: "muon" if hidden and x.ndim > 1 else "adam"
    return jax.tree.map(label, params, hidden)

  def match_rms(updates, _):
    scale = lambda x: 0.2 * max(_sides(x)) ** 0.5 * x
    return jax.tree.map(scale, _orthogonalize(updates))

  by_muon = optax.chain(
    optax.trace(momentum, nesterov=True), optax.stateless(match_rms)
  )
  by_adam = optax.scale_by_adam()
  return optax.chain(
    _cast(),
    optax.partition({"muon": by_muon, "adam": by_adam}, labels),
    _add_decay(decay),
  )


DELTA, DECAY_RATIO, EPS = 0.1, 0.1, 1e-8  # of SGDP, as its authors have them


def _project(w, g, u, channels: int):
  """Projects u off w, column by column, as matrices of `channels` columns.

  Also returns whether g is nearly orthogonal to w in all columns.
  """
  shape = u.shape
  w, g, u = (x.reshape(-1, channels) for x in (w, g, u))
  dot = lambda x, y: jnp.sum(x * y, axis=0, keepdims=True)
  norm = lambda x: jnp.sqrt(dot(x, x))
  lengths = jnp.maximum(norm(w), EPS) * jnp.maximum(norm(g), EPS)
  cosine = jnp.max(jnp.abs(dot(w, g) / lengths))
  unit = w / (norm(w) + EPS)
  projected = u - unit * dot(unit, u)
  return cosine < DELTA / len(w) ** 0.5, projected.reshape(shape)


def sgdp(
  decay: Any, momentum: ArrayLike, nesterov: bool = True
) -> optax.GradientTransformation:
  r"""Creates `SGDP <https://arxiv.org/abs/2006.08217>`_.

  A kernel counts as scale-invariant if its gradient is nearly orthogonal to
  it: :math:`|\cos(g, w)| < 0.1 / \sqrt{d}` for all of its output channels, of d
  weights each, or else for all of it. Then the update loses its part along the
  weights, of each channel or of all, and the ratio below falls from 1 to 0.1.
  The direction is

  .. math:: \Pi(u_t) + \frac{\text{ratio}}{1 - \mu} \lambda w_{t-1}

  for SGD's :math:`u_t` without weight decay. The momentum is kept unprojected.
  """
  trace = optax.trace(momentum, nesterov)

  def direction(w, g, u, decay):
    ratio, projected = 1.0, u
    # The layer comes first: if both are nearly orthogonal, channels win.
    for channels in (1, w.shape[-1]) if w.ndim > 1 else ():
      invariant, tangent = _project(w, g, u, channels)
      projected = jnp.where(invariant, tangent, projected)
      ratio = jnp.where(invariant, DECAY_RATIO, ratio)
    return projected + decay * ratio / (1 - momentum) * w

  def update(updates, state, params=None):
    grads = updates
    updates, state = trace.update(grads, state)
    return jax.tree.map(direction, params, grads, updates, decay), state

  return optax.chain(_cast(), optax.GradientTransformation(trace.init, update))
