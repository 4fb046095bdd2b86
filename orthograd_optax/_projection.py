"""⊥Grad of groups of arrays: sums → coefficients → update.

docs/how_it_is_computed.md explains this module, `_sums.py` and `_packing.py`.
"""

from collections.abc import Iterable, Sequence
import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from orthograd_optax import _packing, _sums
from orthograd_optax._sums import Arrays, Axes, Group, Sums


class Projection(NamedTuple):
  """The result of :func:`project` for one group.

  The figures (all fields but ``updates``) have one entry for each vector.

  Attributes:
    updates: the projected updates, each with its incoming shape and dtype.
    cosine: cos(w, g) of the incoming updates; 0 where w or g is 0.
    removed_fraction: the share of ‖g‖² that the projection removed, before any
      renormalization.
    gate_closed: whether the update was set to zero, because only rounding noise
      was left to renormalize.
  """

  updates: list[jax.Array]
  cosine: jax.Array
  removed_fraction: jax.Array
  gate_closed: jax.Array


class Options(NamedTuple):
  """Static options, known before tracing."""

  axes: tuple[Axes, ...]  # for each group
  renormalize: bool
  axis_name: Any


@functools.partial(
  jax.jit, static_argnames=("axes", "renormalize", "axis_name")
)
def project(
  params: Sequence[Arrays],
  updates: Sequence[Arrays],
  axes: tuple[Axes, ...],
  *,
  strength: Any = 1.0,
  renormalize: bool = True,
  eps: float | jax.Array = 1e-30,
  axis_name: Any = None,
) -> list[Projection]:
  r"""Projects the updates of each group orthogonally to its parameters.

  .. math::

    c = \Re\langle w, g\rangle / \langle w, w\rangle, \qquad
    g_\perp = g - s\,c\,w, \qquad
    \hat g = g_\perp \, \|g\| / (\|g_\perp\| + \varepsilon).

  Args:
    params: the arrays of w of each group.
    updates: the arrays of g of each group, in the shapes of ``params``.
    axes: the axes to sum over, of each array. The other axes index separate
      vectors, and have the same sizes in all arrays of the group.
    strength: s, the share of the parallel part to remove, from 0 to 1: one
      number, or one number for each vector.
    renormalize: whether to give the result the norm of g.
    eps: ε, added to ‖g⊥‖ in the renormalization.
    axis_name: mapped axes over which the arrays are sharded.

  Returns:
    A :class:`Projection` of each group.
  """
  strength, eps = (
    jnp.asarray(x, jnp.result_type(float)) for x in (strength, eps)
  )
  ws, gs = ([_split(x) for x in xs] for xs in (params, updates))
  axes = tuple(map(_split_axes, axes, updates))
  projections: dict[int, Projection] = {}
  for indices in _packing.group_by(
    range(len(gs)), lambda i: _has_float64([ws[i], gs[i]])
  ):
    pair = [[xs[i] for i in indices] for xs in (ws, gs)]
    options = Options(tuple(axes[i] for i in indices), renormalize, axis_name)
    projected = _project(options, *pair, strength, eps)
    projections |= zip(indices, projected, strict=True)
  return [
    projections[i]._replace(updates=_join(projections[i].updates, like))
    for i, like in enumerate(updates)
  ]


def _split(xs: Arrays) -> list[jax.Array]:
  """Splits complex arrays into their real and imaginary parts."""
  parts = lambda x: [x.real, x.imag] if jnp.iscomplexobj(x) else [x]
  return [part for x in xs for part in parts(x)]


def _split_axes(axes: Axes, xs: Arrays) -> Axes:
  return tuple(a for a, x in zip(axes, xs, strict=True) for _ in _split([x]))


def _join(parts: Arrays, like: Arrays) -> list[jax.Array]:
  """Undoes :func:`_split`."""
  rest = iter(parts)
  return [
    lax.complex(next(rest), next(rest)) if jnp.iscomplexobj(x) else next(rest)
    for x in like
  ]


def _has_float64(arrays: Any) -> bool:
  return any(jnp.finfo(x.dtype).bits > 32 for x in jax.tree.leaves(arrays))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _project(options: Options, *args: Any) -> list[Projection]:
  """Chooses the method by dtype and backend. This is the only such place."""
  exact, wide, wide_on_gpu = (
    functools.partial(method, options)
    for method in (_project_exact, _project_wide, _project_wide_on_gpu)
  )
  if _has_float64(args[:2]):
    return exact(*args)
  # A TPU has no float64. For a GPU with slow float64, write `cuda=exact` here.
  return lax.platform_dependent(
    *args, cpu=wide, cuda=wide_on_gpu, rocm=wide_on_gpu, default=exact
  )


@_project.defjvp
def _project_jvp(options: Options, primals, tangents):
  # Differentiate the exact method: it is the plain formula, after w and g are
  # divided by their largest entries. At strength 0 it returns g itself, which
  # has no derivative by the strength: take that at the least strength.
  exact = functools.partial(_project_exact, options)
  ws, gs, strength, eps = primals
  least = jnp.finfo(strength.dtype).tiny
  at = ws, gs, jnp.where(strength == 0, least, strength), eps
  return _project(options, *primals), jax.jvp(exact, at, tangents)[1]


def _project_exact(options: Options, ws, gs, strength, eps):
  """Computes in the dtype of the leaves, at least float32."""
  return _each(_exact, options, ws, gs, strength, eps)


def _each(method, options: Options, ws, gs, strength, eps) -> list[Projection]:
  """Applies a method to each group."""
  return [
    method(w, g, strength, eps, options=options._replace(axes=a))
    for w, g, a in zip(ws, gs, options.axes, strict=True)
  ]


# jit traces _exact, _wide and _write once for all groups of the same shapes.
@functools.partial(jax.jit, static_argnames="options")
def _exact(ws, gs, strength, eps, *, options) -> Projection:
  axes, renormalize, axis_name = options
  dtype = jnp.float64 if _has_float64([ws, gs]) else jnp.float32
  scale = lambda xs, factor: [
    x.astype(dtype) * number
    for x, number in zip(xs, _expand(factor, axes), strict=True)
  ]
  unit_w, unit_g = (
    _sums.magnitude(xs, axes, axis_name, dtype) for xs in (ws, gs)
  )
  scaled_ws, scaled_gs = scale(ws, 1 / unit_w), scale(gs, 1 / unit_g)
  sums = _sums.over_devices(_sums.exact(scaled_ws, scaled_gs, axes), axis_name)
  s = _strength_like(strength, sums.wg)
  c, _ = _solve(sums, s)
  parallel = scale(scaled_ws, s * c)
  rest = [g - x for g, x in zip(scaled_gs, parallel, strict=True)]
  # Measure ‖g⊥‖² on g⊥ itself. The difference of squares would cancel.
  rr = _sums.over_devices(_sums.exact(rest, rest, axes), axis_name).gg
  noise = _noise(_sums.group(ws, gs, axes), dtype, subtracted=False)
  noise = Noise(noise.relative, noise.w / unit_w, noise.g / unit_g)
  eps = eps.astype(dtype) / unit_g
  step, figures = _gate(sums, c, rr, s, eps, noise, renormalize)
  outs = scale(scale(rest, step.gain), unit_g)
  outs = [
    jnp.where(number, g, out.astype(g.dtype))
    for g, out, number in zip(
      gs, outs, _expand(step.untouched, axes), strict=True
    )
  ]
  return Projection(outs, *figures)


def _project_wide(options: Options, ws, gs, strength, eps):
  """Computes in float64, one group at a time."""
  with jax.enable_x64(True):
    return _each(_wide, options, ws, gs, strength, eps)


@functools.partial(jax.jit, static_argnames="options")
def _wide(ws, gs, strength, eps, *, options) -> Projection:
  group = _sums.group(ws, gs, options.axes)
  sums = Sums(*(x[None] for x in _sums.wide(group, by_row=True)))
  (projection,) = _finish([group], sums, strength, eps, options)
  return projection


def _project_wide_on_gpu(options: Options, ws, gs, strength, eps):
  """Computes in float64, in few kernels: see `_packing.py`."""
  groups = list(map(_sums.group, ws, gs, options.axes))
  with jax.enable_x64(True):
    packs = _packing.choose(groups)
    unpacked = sorted({*range(len(groups))}.difference(*packs))
    packed = [_packing.pack([groups[i] for i in pack]) for pack in packs]
    vectors = packed + [groups[i] for i in unpacked]
    of_vectors: dict[int, Projection] = {}
    for indices, sums in _packing.joint_sums(vectors):
      stacked = [vectors[i] for i in indices]
      projections = _finish(stacked, sums, strength, eps, options)
      of_vectors |= zip(indices, projections, strict=True)
    of_groups = {i: of_vectors[n] for n, i in enumerate(unpacked, len(packs))}
    for n, pack in enumerate(packs):
      (update,), *figures = of_vectors[n]
      members = [groups[i] for i in pack]
      updates = _packing.unpack(update, of_vectors[n].gate_closed, members)
      of_groups |= zip(pack, map(Projection, updates, *figures), strict=True)
  return [of_groups[i] for i in range(len(groups))]


def _finish(
  groups: Sequence[Group], sums: Sums, strength, eps, options: Options
) -> Iterable[Projection]:
  """Projects groups, given their sums in float64, stacked along axis 0."""
  sums = _sums.over_devices(sums, options.axis_name)
  noises = (_noise(group, jnp.float64, subtracted=True) for group in groups)
  columns = zip(*noises, strict=True)
  noise = Noise(*(_stack_like(sums.wg, column) for column in columns))
  s, eps = _strength_like(strength, sums.wg), eps.astype(jnp.float64)
  c, removed = _solve(sums, s)
  rr = sums.gg - removed
  step, figures = _gate(sums, c, rr, s, eps, noise, options.renormalize)
  figures = [x.astype(jnp.float32) for x in figures[:2]] + [figures[2]]
  steps = jnp.stack([x.astype(jnp.float64) for x in step], 1)
  updates = (
    _write(group.ws, group.gs, Step(*step), axes=group.axes)
    for group, step in zip(groups, steps, strict=True)
  )
  return map(Projection, updates, *figures)


class Step(NamedTuple):
  """Coefficients of ``g if untouched else gain * (g - factor * w)``."""

  factor: jax.Array
  gain: jax.Array
  untouched: jax.Array


@functools.partial(jax.jit, static_argnames="axes")
def _write(ws: Arrays, gs: Arrays, step: Step, *, axes: Axes):
  outs = []
  numbers = (_expand(x, axes) for x in step)
  for w, g, factor, gain, untouched in zip(ws, gs, *numbers, strict=True):
    out = gain * (g.astype(gain.dtype) - factor * w.astype(gain.dtype))
    outs.append(jnp.where(untouched.astype(bool), g, out.astype(g.dtype)))
  return outs


def _expand(number: jax.Array, axes: Axes) -> list[jax.Array]:
  """Gives a number of each vector the axes of each array, to multiply."""
  numbers = _sums.replicated([number] * len(axes))
  return [jnp.expand_dims(x, a) for x, a in zip(numbers, axes, strict=True)]


def _solve(sums: Sums, strength: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns c, and the part of ‖g‖² that is removed."""
  c = sums.wg / _safe(sums.ww, sums.ww != 0)
  # Turn an infinite c into NaN. Otherwise some entries would stay finite.
  c = jnp.where(jnp.isfinite(strength * c), c, jnp.nan)
  return c, strength * (2 - strength) * c * sums.wg


class Noise(NamedTuple):
  """A bound on ‖g⊥‖ that rounding alone leaves of a parallel g.

  Attributes:
    relative: ‖g⊥‖² as a share of ‖g‖², a number or an array.
    w: ‖g⊥‖ from subnormal entries of w, before it is multiplied by c.
    g: ‖g⊥‖ from subnormal entries of g.
  """

  relative: Any
  w: jax.Array
  g: jax.Array


def _noise(group: Group, dtype: Any, *, subtracted: bool) -> Noise:
  infos = [[jnp.finfo(x.dtype) for x in xs] for xs in (group.ws, group.gs)]
  # Storing an entry changes it by up to eps / 2 of its dtype: take eps, for
  # safety. Computing in float32 (float64 for float64) adds a few eps.
  stored = [max(float(info.eps) for info in each) for each in infos]
  computed = min(float(jnp.finfo(jnp.float32).eps), *stored)
  relative = (sum(stored) + 8 * computed) ** 2
  root = jnp.sqrt(jnp.asarray(group.length, dtype))
  if subtracted:
    # A difference of sums of n squares has an error of about √n eps.
    relative += float(jnp.finfo(dtype).eps) * root
  quanta = [max(map(_quantum, each)) for each in infos]
  return Noise(relative, *(quantum * root for quantum in quanta))


def _quantum(info: Any) -> float:
  """The error of a subnormal entry.

  Subnormals of float16 are rounded. XLA may flush those of float32, bfloat16
  and float64 to zero.
  """
  flushed = info.minexp <= jnp.finfo(jnp.float32).minexp
  return float(info.tiny) if flushed else float(info.smallest_subnormal) / 2


def _gate(sums: Sums, c, rr, strength, eps, noise: Noise, renormalize: bool):
  """Returns the step and the figures of a projection. rr is ‖g⊥‖²."""
  _, ww, gg = sums
  untouched = (strength == 0) | (ww == 0)
  closed, gain = jnp.zeros_like(untouched), jnp.ones_like(rr)
  if renormalize:
    stored = noise.g**2 + (c * noise.w) ** 2
    closed = rr <= noise.relative * gg + stored
    norm = jnp.sqrt(_safe(rr, ~closed)) + eps
    gain = jnp.where(closed, 0.0, jnp.sqrt(_safe(gg, ~closed)) / norm)
  nonzero = (ww != 0) & (gg != 0)
  cosine = c * jnp.sqrt(_safe(ww, nonzero)) / jnp.sqrt(_safe(gg, nonzero))
  cosine = jnp.where(nonzero, cosine, 0.0)
  share = strength * (2 - strength) * cosine * cosine  # of ‖g‖², removed
  figures = cosine, share, closed & nonzero & ~untouched
  return Step(strength * c, gain, untouched), figures


def _strength_like(strength: jax.Array, x: jax.Array) -> jax.Array:
  """Casts strength to x's dtype, and gives it axes that broadcast with x."""
  shape = (*(1,) * (x.ndim - strength.ndim), *strength.shape)
  return strength.astype(x.dtype).reshape(shape if strength.ndim else ())


def _stack_like(x: jax.Array, rows: Any) -> jax.Array:
  """Stacks the numbers of each group along axis 0, to broadcast with x."""
  rows = jnp.broadcast_arrays(*(jnp.asarray(row, x.dtype) for row in rows))
  return jnp.expand_dims(
    jnp.stack(rows), tuple(range(rows[0].ndim + 1, x.ndim))
  )


def _safe(x: jax.Array, ok: jax.Array) -> jax.Array:
  """x where ok, else 1. Avoids 0/0 and sqrt(0), also in gradients."""
  return jnp.where(ok, x, jnp.ones_like(x))
