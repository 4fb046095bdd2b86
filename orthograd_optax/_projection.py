"""The maths of groups of arrays, each of which together form one vector.

The rest of the package decides *which* arrays form a vector; what is done to
that vector stands here alone.
"""

from collections.abc import Sequence
import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

# Groups of up to so many entries share a branch of their own: they are parallel
# more often than large ones, and sweeps over them cost next to nothing.
SMALL = 2**16


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


Arrays = Sequence[jax.Array]
Axes = tuple[tuple[int, ...], ...]


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

  One sweep over w and g measures the sums, and another, which the compiler
  fuses into whatever follows, writes the result. Three more come between where
  any of the vectors is of an extreme scale or nearly parallel to its
  parameters. No array is reshaped or gathered.

  Args:
    params: for each group, the arrays of w.
    updates: for each group, those of g, in the shapes of ``params``.
    axes: for each array, the axes to sum over; the others index separate
      vectors, and have the same sizes in all arrays of the group.
    strength: s, the share of the parallel part to remove, from 0 to 1; a
      number, or one for each vector.
    renormalize: whether to give the result the norm of g.
    eps: ε, added to ‖g⊥‖ in the renormalization.
    axis_name: mapped axes over which the arrays are sharded.

  Returns:
    For each group, a :class:`Projection`.
  """
  groups = list(zip(params, updates, axes, strict=True))
  sums = {}
  for is_large in (False, True):
    some = {
      i: group
      for i, group in enumerate(groups)
      if (sum(g.size for g in group[1]) > SMALL) == is_large
    }
    if some:
      found = _measure_all(list(some.values()), strength, axis_name)
      sums |= zip(some, found, strict=True)
  return [
    _apply(*group, strength, eps, sums[i], renormalize=renormalize)
    for i, group in enumerate(groups)
  ]


class _Sums(NamedTuple):
  """Squared norms in scaled units: w is scale_w · w', g is scale_g · g'."""

  scale_w: jax.Array
  scale_g: jax.Array
  c: jax.Array  # ⟨w', g'⟩ / ⟨w', w'⟩
  ww: jax.Array
  gg: jax.Array
  rr: jax.Array  # of the residual g' − s·c·w'


class _Group:
  """Real arrays w and g, in the dtype in which sums are taken."""

  def __init__(self, params: Arrays, updates: Arrays, axes: Axes, axis_name):
    wide = any(jnp.finfo(x.dtype).bits == 64 for x in [*params, *updates])
    self.dtype = jnp.float64 if wide else jnp.float32
    self.ws, self.gs = (
      [part.astype(self.dtype) for x in xs for part in _split(x)]
      for xs in (params, updates)
    )
    self.axes = [
      a for a, g in zip(axes, updates, strict=True) for _ in _split(g)
    ]
    self.axis_name = axis_name
    self.size = sum(g.size for g in self.gs)

  def totals(self, *terms) -> tuple[jax.Array, ...]:
    sums = tuple(
      functools.reduce(jnp.add, map(jnp.sum, xs, self.axes)) for xs in terms
    )
    return sums if self.axis_name is None else lax.psum(sums, self.axis_name)

  def scaled(self, xs: Arrays, factor: jax.Array) -> list[jax.Array]:
    return [
      x * jnp.expand_dims(factor, a) for x, a in zip(xs, self.axes, strict=True)
    ]

  def residuals(self, factor, scale_w, scale_g) -> list[jax.Array]:
    # One factor after the other: their product may be out of range.
    parallel = self.scaled(self.scaled(self.ws, 1 / scale_w), factor)
    parallel = self.scaled(parallel, scale_g)
    return [g - x for g, x in zip(self.gs, parallel, strict=True)]


def _measure_all(groups, strength, axis_name) -> Sequence[_Sums]:
  """The sums of several groups, each in the fewest sweeps that will do."""
  if axis_name is not None:
    # Devices that took different branches would wait for each other.
    return [_measure(*group, strength, axis_name=axis_name) for group in groups]

  def together():
    return _measure_if_needed(groups, strength, tell_zeros=True)

  def one_by_one():
    return tuple(
      sums
      for group in groups
      for sums in _measure_if_needed([group], strength, tell_zeros=False)
    )

  # A GPU waits for the host at every branch, but takes any number of sums from
  # a sweep; a CPU doesn't wait, and sweeps once more for each sum.
  return lax.platform_dependent(cpu=one_by_one, default=together)


def _measure_if_needed(groups, strength, tell_zeros) -> tuple[_Sums, ...]:
  """The plain sums if all can be trusted, else others for those that can't."""
  found = [
    _measure_plainly(*group, strength, tell_zeros=tell_zeros)
    for group in groups
  ]
  plain, sound = map(tuple, zip(*found, strict=True))

  def mend():
    # Vector by vector: a result does not depend on the other vectors'.
    return tuple(
      jax.tree.map(
        functools.partial(jnp.where, ok),
        sums,
        _measure(*group, strength, axis_name=None),
      )
      for group, sums, ok in zip(groups, plain, sound, strict=True)
    )

  all_sound = functools.reduce(jnp.logical_and, map(jnp.all, sound))
  # Few arrays, since on a GPU a branch copies each that it returns; and nothing
  # to do in the one branch, else XLA takes both for cheap and always runs both.
  stacks = _stack(plain)
  stacks = lax.cond(all_sound, lambda: stacks, lambda: _stack(mend()))
  return _unstack(stacks, plain)


def _by_type(tree: Any) -> list[list[int]]:
  """Which leaves are of the same shape, dtype and sharding."""
  indices: dict[Any, list[int]] = {}
  for i, x in enumerate(jax.tree.leaves(tree)):
    indices.setdefault(jax.typeof(x), []).append(i)
  return list(indices.values())


def _stack(tree: Any) -> list[jax.Array]:
  """All leaves of a type as one array."""
  leaves = jax.tree.leaves(tree)
  return [jnp.stack([leaves[i] for i in kind]) for kind in _by_type(tree)]


def _unstack(stacks: list[jax.Array], like: Any) -> Any:
  """Undoes :func:`_stack`."""
  leaves, structure = jax.tree.flatten(like)
  for stack, kind in zip(stacks, _by_type(like), strict=True):
    for i, x in zip(kind, stack, strict=True):
      leaves[i] = x
  return jax.tree.unflatten(structure, leaves)


@functools.partial(jax.jit, static_argnames=("axes", "axis_name"))
def _measure(params, updates, axes, strength, *, axis_name) -> _Sums:
  """The sums, right for any w and g.

  w and g are scaled by powers of two near their l1 norms, so that no product
  leaves the range of the dtype, and ‖g⊥‖ is measured on the residual exactly as
  it will be written: the difference of squares would cancel.
  """
  group = _Group(params, updates, axes, axis_name)
  strength = jnp.asarray(strength, group.dtype)
  norms = group.totals(*(map(jnp.abs, xs) for xs in (group.ws, group.gs)))
  scale_w, scale_g = map(_power_of_two, norms)
  ws, gs = (
    group.scaled(group.ws, 1 / scale_w),
    group.scaled(group.gs, 1 / scale_g),
  )
  wg, ww = group.totals(_products(ws, gs), _products(ws, ws))
  c, removed = _solve(wg, ww, strength)
  rest = group.residuals(strength * c, scale_w, scale_g)
  rest = group.scaled(rest, 1 / scale_g)
  (rr,) = group.totals(_products(rest, rest))
  return _Sums(scale_w, scale_g, c, ww, rr + removed, rr)


@functools.partial(jax.jit, static_argnames=("axes", "tell_zeros"))
def _measure_plainly(
  params, updates, axes, strength, *, tell_zeros
) -> tuple[_Sums, jax.Array]:
  """The sums in one sweep, and whether those of each vector can be trusted.

  A sum of squares that is zero can only be trusted if something else tells that
  nothing has underflowed.
  """
  group = _Group(params, updates, axes, None)
  strength, info = jnp.asarray(strength, group.dtype), jnp.finfo(group.dtype)
  ws, gs = group.ws, group.gs
  wg, ww, gg = group.totals(
    *(_products(*pair) for pair in ((ws, gs), (ws, ws), (gs, gs)))
  )
  # What underflowed is lost in rounding, and nothing overflowed or is NaN.
  low = group.size * float(info.tiny) / float(info.eps)
  trusted = [(low <= square) & (square <= info.max) for square in (ww, gg)]
  if tell_zeros:
    norms = group.totals(*(map(jnp.abs, xs) for xs in (ws, gs)))
    trusted = [
      ok | (norm == 0) for ok, norm in zip(trusted, norms, strict=True)
    ]
  in_range = functools.reduce(jnp.logical_and, trusted)
  wg, ww, gg = (_safe(x, in_range) for x in (wg, ww, gg))
  c, removed = _solve(wg, ww, strength)
  rr = gg - removed
  sound = in_range & (2 * rr >= gg)  # the difference has not cancelled
  # Of sound, not of ww: jax 0.6 forgets over which mapped axes ones vary.
  one = jnp.where(sound, jnp.ones_like(ww), 1)
  return _Sums(one, one, c, ww, gg, rr), sound


@functools.partial(jax.jit, static_argnames=("axes", "renormalize"))
def _apply(
  params, updates, axes, strength, eps, sums, *, renormalize
) -> Projection:
  """The projection that the sums make."""
  group = _Group(params, updates, axes, None)
  strength = jnp.asarray(strength, group.dtype)
  scale_w, scale_g, c, ww, gg, rr = sums
  outs = group.residuals(strength * c, scale_w, scale_g)
  untouched = (strength == 0) | (ww == 0)
  closed = jnp.zeros_like(untouched)
  if renormalize:
    size = group.size / max(ww.size, 1)
    noise = _noise(params, updates, jnp.finfo(group.dtype))
    floor_w, floor_g = (
      _quantum(xs) / scale
      for xs, scale in ((params, scale_w), (updates, scale_g))
    )
    floor = size * (floor_g**2 + (c * floor_w) ** 2)
    closed = rr <= noise**2 * gg + floor
    length = jnp.sqrt(_safe(rr, ~closed))
    length += jnp.asarray(eps, group.dtype) / scale_g
    outs = group.scaled(
      outs, jnp.where(closed, 0, jnp.sqrt(_safe(gg, ~closed)) / length)
    )
  outs = iter(
    [
      jnp.where(jnp.expand_dims(untouched, a), g, out)
      for g, out, a in zip(group.gs, outs, group.axes, strict=True)
    ]
  )

  nonzero = (ww != 0) & (gg != 0)
  cosine = c * jnp.sqrt(_safe(ww, nonzero)) / jnp.sqrt(_safe(gg, nonzero))
  cosine = jnp.where(nonzero, cosine, 0)
  return Projection(
    updates=[
      _join([next(outs) for _ in _split(g)]).astype(g.dtype) for g in updates
    ],
    cosine=cosine,
    removed_fraction=strength * (2 - strength) * cosine * cosine,
    gate_closed=closed & nonzero & ~untouched,
  )


def _products(xs: Arrays, ys: Arrays) -> list[jax.Array]:
  return [x * y for x, y in zip(xs, ys, strict=True)]


def _solve(wg, ww, strength) -> tuple[jax.Array, jax.Array]:
  """c, and by how much ‖g‖² shrinks."""
  c = wg / _safe(ww, ww != 0)
  # NaN if infinite: else finite entries would be left beside infinite ones.
  c = jnp.where(jnp.isfinite(c), c, c - c)
  return c, strength * (2 - strength) * c * wg


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
