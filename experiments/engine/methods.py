"""Computes a method's parts: optimizer, schedule, ⊥Grad, loss, mixup.

The numbers of a :class:`~experiments.config.Method` are arrays here. In
functions of one run (:func:`per_example_loss`, :func:`mix`) they are scalars.
In functions of all runs (:func:`init`, :func:`update`) they have one entry for
each run, as every other array. `kinds` is a tree of the parameters' kinds.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from experiments import registry
from experiments.config import Method
from orthograd_optax import orthograd

# Whether ⊥Grad acts on a kind of parameter, of `models.kinds`.
WHERE = {
  "head": lambda kind: kind.startswith("dense"),
  "body": lambda kind: not kind.startswith("dense"),
  "norms": lambda kind: kind.startswith("norm"),
  "normed_kernels": lambda kind: kind == "kernel, then norm",
  "unnormed": lambda kind: kind != "kernel, then norm",
}


class OptimizerState(NamedTuple):
  """The states of ⊥Grad and of the base optimizer."""

  orthograd: Any
  base: Any


class Mix(NamedTuple):
  """The partners of a batch's images in mixup, and their share."""

  partner: jax.Array  # (images,), positions in the batch
  share: jax.Array  # of the images themselves


def per_example_loss(
  method: Method, logits: jax.Array, labels: jax.Array
) -> jax.Array:
  """Computes each example's training loss. A step minimizes the mean."""
  return registry.LOSSES[method.loss].build(vars(method), logits, labels)


def learning_rate(method: Method, progress: Any) -> jax.Array:
  """Returns the learning rate after a share `progress` of all steps."""
  rate = jnp.asarray(method.learning_rate)
  if method.schedule == "constant":
    return rate
  warm = jnp.minimum(progress / jnp.maximum(method.warm_up, 1e-12), 1.0)
  rest = (progress - method.warm_up) / (1 - method.warm_up)
  cosine = 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip(rest, 0.0, 1.0)))
  return rate * jnp.where(progress < method.warm_up, warm, cosine)


def strength(method: Method, progress: Any) -> jax.Array:
  """Returns the strength of ⊥Grad after a share `progress` of all steps."""
  change = jnp.asarray(method.strength_at_end) - method.strength
  return method.strength + progress * change


def _project(method: Method, kinds: Any, at: Any, eps: float, **options: Any):
  """Applies ⊥Grad to all runs. The run is the first axis of every parameter."""
  if method.where == "none":
    return optax.identity()
  everywhere = method.where == "all"
  return orthograd(
    renormalize=method.renormalize,
    eps=eps,
    strength=at,
    group_by=method.partition,
    batch_axes=0,
    mask=None if everywhere else jax.tree.map(WHERE[method.where], kinds),
    **options,
  )


def base(method: Method, kinds: Any) -> optax.GradientTransformation:
  """Returns the base optimizer of one run, without the learning rate."""

  def decay_of(kind):
    head = kind.startswith("dense")
    return method.weight_decay * (method.head_decay if head else 1.0)

  decay = jax.tree.map(decay_of, kinds)
  hidden = jax.tree.map(lambda kind: kind.startswith("kernel"), kinds)
  settings = vars(method) | {"hidden": hidden}
  return registry.OPTIMIZERS[method.base].build(settings, decay)


def init(
  method: Method, kinds: Any, params: Any, **options: Any
) -> OptimizerState:
  """Returns the optimizers' states, with further options of ⊥Grad."""
  projection = _project(method, kinds, 1.0, 0.0, **options)
  init = lambda method, params: base(method, kinds).init(params)
  return OptimizerState(projection.init(params), jax.vmap(init)(method, params))


def update(
  method: Method,
  kinds: Any,
  grads: Any,
  state: OptimizerState,
  params: Any,
  progress: Any,
  eps: float,
  **options: Any,
) -> tuple[Any, OptimizerState]:
  """Returns the parameters after a step, and the optimizers' new states.

  `progress` is the share of all steps that came before. `eps` is ⊥Grad's.
  """
  projection = _project(
    method, kinds, strength(method, progress), eps, **options
  )
  # No vmap over runs: ⊥Grad can pack only arrays that it sees whole.
  grads, projected = projection.update(grads, state.orthograd, params)

  @jax.vmap
  def step(method, rate, grads, state, params):
    updates, state = base(method, kinds).update(grads, state, params)
    updates = optax.tree.scale(-rate, updates)
    return optax.apply_updates(params, updates), state

  rates = learning_rate(method, progress)
  params, moved = step(method, rates, grads, state.base, params)
  return params, OptimizerState(projected, moved)


def mix(method: Method, key: jax.Array, mask: jax.Array) -> Mix | None:
  """Draws the mixup of one batch. The mask is false for padding."""
  if method.augmentation != "mixup":
    return None
  order, share = jax.random.split(key)
  noise = jax.random.uniform(order, mask.shape)
  partner = jnp.argsort(jnp.where(mask, noise, 2.0))  # images before none
  return Mix(partner, jax.random.beta(share, method.mixing, method.mixing))


def ascend(method: Method, params: Any, grads: Any) -> Any:
  """Returns the weights at which SAM takes its gradient, one step uphill."""
  grads = optax.tree.cast(grads, jnp.float32)
  norm = optax.tree.norm(grads)
  scale = method.radius / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny)
  return optax.tree.add_scale(params, scale, grads)


def average(method: Method, mean: Any, new: Any, steps: Any) -> Any:
  """Updates the runs' average of the weights, after `steps` steps."""
  # The first steps weigh more, so that the initial weights are forgotten.
  keep = jnp.minimum(jnp.asarray(method.averaging), (1 + steps) / (10 + steps))
  mix = lambda k, a, b: jax.tree.map(lambda a, b: k * a + (1 - k) * b, a, b)
  return jax.vmap(mix)(keep, mean, new)
