"""The maths of one group of arrays, which together form one vector.

The rest of the package decides *which* arrays form a vector; what is done to
that vector stands here alone.
"""

from collections.abc import Sequence
import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp


class Projection(NamedTuple):
  """What :func:`project` found; each figure has one entry for each vector.

  Attributes:
    updates: the projected updates, each with its incoming shape and dtype.
    cosine: cos(w, g) of the incoming updates; 0 where w or g is 0.
    removed_fraction: the share of ‖g‖² that the projection took away, before
      any renormalization.
    gate_closed: whether the update was set to zero because nothing but rounding
      noise was left to renormalize.
  """

  updates: list[jax.Array]
  cosine: jax.Array
  removed_fraction: jax.Array
  gate_closed: jax.Array


class _Sums(NamedTuple):
  """Squared norms in scaled units: w is scale_w · w', g is scale_g · g'."""

  scale_w: jax.Array
  scale_g: jax.Array
  c: jax.Array  # ⟨w', g'⟩ / ⟨w', w'⟩
  ww: jax.Array
  gg: jax.Array
  rr: jax.Array  # of the residual g' − s·c·w'


@functools.partial(
  jax.jit, static_argnames=("axes", "renormalize", "axis_name")
)
def project(
  params: Sequence[jax.Array],
  updates: Sequence[jax.Array],
  axes: tuple[tuple[int, ...], ...],
  *,
  strength: Any = 1.0,
  renormalize: bool = True,
  eps: float | jax.Array = 1e-30,
  axis_name: Any = None,
) -> Projection:
  r"""Projects the updates of one group orthogonally to its parameters.

  .. math::

    c = \Re\langle w, g\rangle / \langle w, w\rangle, \qquad
    g_\perp = g - s\,c\,w, \qquad
    \hat g = g_\perp \, \|g\| / (\|g_\perp\| + \varepsilon).

  Three sweeps over w and g measure the sums, and a fourth, which the compiler
  fuses into whatever follows, writes the result. On a CPU, one sweep comes
  first, which will do unless w or g are zero or of an extreme scale, or g is
  nearly parallel to w. No array is reshaped or gathered.

  Args:
    params: the arrays of w.
    updates: the arrays of g, in the shapes of ``params``.
    axes: for each array, the axes to sum over; the others index separate
      vectors, and have the same sizes in all arrays of the group.
    strength: s, the share of the parallel part to remove, from 0 to 1.
    renormalize: whether to give the result the norm of g.
    eps: ε, added to ‖g⊥‖ in the renormalization.
    axis_name: mapped axes over which the arrays are sharded.

  Returns:
    A :class:`Projection`.
  """
  counts = [len(_split(g)) for g in updates]
  axes = tuple(a for a, n in zip(axes, counts, strict=True) for _ in range(n))
  wide = any(jnp.finfo(x.dtype).bits == 64 for x in [*params, *updates])
  dtype = jnp.float64 if wide else jnp.float32
  info = jnp.finfo(dtype)
  strength, eps = jnp.asarray(strength, dtype), jnp.asarray(eps, dtype)

  def widened():
    return tuple(
      [part.astype(dtype) for x in xs for part in _split(x)]
      for xs in (params, updates)
    )

  def totals(*terms) -> tuple[jax.Array, ...]:
    sums = tuple(
      functools.reduce(jnp.add, map(jnp.sum, xs, axes)) for xs in terms
    )
    return sums if axis_name is None else lax.psum(sums, axis_name)

  def inner(xs, ys):
    return [x * y for x, y in zip(xs, ys, strict=True)]

  def scaled(xs, factor):
    return [
      x * jnp.expand_dims(factor, a) for x, a in zip(xs, axes, strict=True)
    ]

  def residuals(ws, gs, c, scale_w, scale_g):
    # One factor after the other: their product may be out of range.
    parallel = scaled(scaled(ws, 1 / scale_w), strength * c)
    parallel = scaled(parallel, scale_g)
    return [g - x for g, x in zip(gs, parallel, strict=True)]

  def solve(wg, ww):
    c = wg / _safe(ww, ww != 0)
    # NaN if infinite: else finite entries would be left beside infinite ones.
    c = jnp.where(jnp.isfinite(c), c, c - c)
    return c, strength * (2 - strength) * c * wg

  def measure():
    """The sums, right for any w and g.

    w and g are scaled by powers of two near their l1 norms, so that no product
    leaves the range of the dtype, and ‖g⊥‖ is measured on the residual exactly
    as it will be written: the difference of squares would cancel.
    """
    ws, gs = widened()  # here, so that no wide copy is made for a branch
    norms = totals([jnp.abs(w) for w in ws], [jnp.abs(g) for g in gs])
    scale_w, scale_g = map(_power_of_two, norms)
    unit_ws, unit_gs = scaled(ws, 1 / scale_w), scaled(gs, 1 / scale_g)
    wg, ww = totals(inner(unit_ws, unit_gs), inner(unit_ws, unit_ws))
    c, removed = solve(wg, ww)
    rest = scaled(residuals(ws, gs, c, scale_w, scale_g), 1 / scale_g)
    (rr,) = totals(inner(rest, rest))
    return _Sums(scale_w, scale_g, c, ww, rr + removed, rr)

  def measure_if_needed():
    """The plain sums, in one sweep, if they can be trusted."""
    ws, gs = widened()
    sums = totals(inner(ws, gs), inner(ws, ws), inner(gs, gs))
    # What underflowed is lost in rounding, and nothing overflowed or is NaN.
    low = sum(g.size for g in gs) * float(info.tiny) / float(info.eps)
    in_range = functools.reduce(
      jnp.logical_and, [(low <= x) & (x <= info.max) for x in sums[1:]]
    )
    wg, ww, gg = (_safe(x, in_range) for x in sums)
    c, removed = solve(wg, ww)
    rr = gg - removed
    sound = in_range & (2 * rr >= gg)  # the difference has not cancelled
    # Of sound, not of ww: jax 0.6 forgets over which mapped axes ones vary.
    one = jnp.where(sound, jnp.ones_like(ww), 1)
    plain = lambda: _Sums(one, one, c, ww, gg, rr)
    return lax.cond(jnp.all(sound), plain, measure)

  if axis_name is None:
    # A GPU waits for the host at every branch, and a sweep takes it less.
    sums = lax.platform_dependent(cpu=measure_if_needed, default=measure)
  else:  # devices that took different branches would wait for each other
    sums = measure()

  scale_w, scale_g, c, ww, gg, rr = sums
  ws, gs = widened()
  outs = residuals(ws, gs, c, scale_w, scale_g)
  untouched = (strength == 0) | (ww == 0)
  closed = jnp.zeros_like(untouched)
  if renormalize:
    size = sum(g.size for g in gs) / max(ww.size, 1)
    noise = _noise(params, updates, info)
    floor_w, floor_g = (
      _quantum(xs) / scale
      for xs, scale in ((params, scale_w), (updates, scale_g))
    )
    floor = size * (floor_g**2 + (c * floor_w) ** 2)
    closed = rr <= noise**2 * gg + floor
    length = jnp.sqrt(_safe(rr, ~closed)) + eps / scale_g
    outs = scaled(
      outs, jnp.where(closed, 0, jnp.sqrt(_safe(gg, ~closed)) / length)
    )
  outs = iter(
    [
      jnp.where(jnp.expand_dims(untouched, a), g, out)
      for g, out, a in zip(gs, outs, axes, strict=True)
    ]
  )

  nonzero = (ww != 0) & (gg != 0)
  cosine = c * jnp.sqrt(_safe(ww, nonzero)) / jnp.sqrt(_safe(gg, nonzero))
  cosine = jnp.where(nonzero, cosine, 0)
  return Projection(
    updates=[
      _join([next(outs) for _ in range(n)]).astype(g.dtype)
      for n, g in zip(counts, updates, strict=True)
    ],
    cosine=cosine,
    removed_fraction=strength * (2 - strength) * cosine * cosine,
    gate_closed=closed & nonzero & ~untouched,
  )


def _split(x: jax.Array) -> list[jax.Array]:
  """The real arrays that make up ``x``: a complex array is a pair of them."""
  return [x.real, x.imag] if jnp.iscomplexobj(x) else [x]


def _join(parts: Sequence[jax.Array]) -> jax.Array:
  """Undoes :func:`_split`."""
  return lax.complex(*parts) if len(parts) == 2 else parts[0]


def _noise(params, updates, info) -> float:
  """How much of ‖g‖ may be left of a parallel g by rounding alone.

  Storing an entry of w or of g changes it by up to eps/2 of *its* dtype; this
  is doubled, and rounding in the sums adds a few eps of theirs.
  """
  stored = [
    max(float(jnp.finfo(x.dtype).eps) for x in xs) for xs in (params, updates)
  ]
  return sum(stored) + 8 * float(info.eps)


def _quantum(arrays) -> float:
  """How much storing changes an entry too small to be a normal number."""
  infos = [jnp.finfo(x.dtype) for x in arrays]
  return max(float(info.smallest_subnormal) for info in infos) / 2


def _power_of_two(norm: jax.Array) -> jax.Array:
  """A power of two near the norm, whose reciprocal is a normal number too.

  The projection does not depend on it, so no gradient flows through it.
  """
  info = jnp.finfo(norm.dtype)
  norm = jnp.clip(lax.stop_gradient(norm), info.tiny, 0.25 / info.tiny)
  return lax.reduce_precision(norm, exponent_bits=info.nexp, mantissa_bits=0)


def _safe(x: jax.Array, ok: jax.Array) -> jax.Array:
  """x where ok, else 1: keeps 0/0 and sqrt(0) out of values and gradients."""
  return jnp.where(ok, x, jnp.ones_like(x))
