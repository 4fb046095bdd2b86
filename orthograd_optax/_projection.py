"""The maths of groups of arrays, each of which together form one vector.

The rest of the package decides *which* arrays form a vector; what is done to
that vector stands here alone.
"""

from collections.abc import Callable, Sequence
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

# The smallest groups, up to this share of all entries, have a branch of their
# own: they are parallel more often than large ones, and cost next to nothing.
SMALL = 1 / 16


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
  groups = [
    _Group(*arrays) for arrays in zip(params, updates, axes, strict=True)
  ]
  found: dict[int, Projection] = {}
  for part in _by_size([group.size for group in groups]):
    bundles: dict[Any, dict[int, _Group]] = {}
    for i in part:
      bundles.setdefault(groups[i].kind, {})[i] = groups[i]
    some = [
      _Bundle(list(bundle.values()), strength) for bundle in bundles.values()
    ]
    sums = _measure_all(some, axis_name)
    for indices, bundle, its in zip(bundles.values(), some, sums, strict=True):
      found |= zip(indices, _apply(bundle, eps, its, renormalize), strict=True)
  return [found[i] for i in range(len(groups))]


def _by_size(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
  """The indices of the small ones, and of the others."""
  order = sorted(range(len(sizes)), key=sizes.__getitem__)
  sums = itertools.accumulate(sizes[i] for i in order)
  small = sum(total <= SMALL * sum(sizes) for total in sums)
  return order[:small], order[small:]


# What is compiled once for all groups of the same shapes.
_of_a_group = functools.partial(jax.jit, static_argnames="axes")


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

  def __init__(self, params: Arrays, updates: Arrays, axes: Axes):
    self.arrays, self.array_axes = (params, updates), axes
    wide = any(jnp.finfo(x.dtype).bits == 64 for x in [*params, *updates])
    self.dtype = jnp.float64 if wide else jnp.float32
    self.ws, self.gs = (
      [part.astype(self.dtype) for x in xs for part in _split(x)]
      for xs in (params, updates)
    )
    self.axes = [
      a for a, g in zip(axes, updates, strict=True) for _ in _split(g)
    ]
    self.size = sum(g.size for g in self.gs)

  @property
  def kind(self) -> Any:
    """Groups of a kind have sums of the same shape, dtype and sharding."""
    return jax.typeof(self.total(_products(self.ws, self.gs)))

  def total(self, xs: Arrays) -> jax.Array:
    return functools.reduce(jnp.add, map(jnp.sum, xs, self.axes))

  def scaled(self, xs: Arrays, factor: jax.Array) -> list[jax.Array]:
    return [
      x * jnp.expand_dims(factor, a) for x, a in zip(xs, self.axes, strict=True)
    ]

  def residuals(self, factor, scale_w, scale_g) -> list[jax.Array]:
    # One factor after the other: their product may be out of range.
    parallel = self.scaled(self.scaled(self.ws, 1 / scale_w), factor)
    parallel = self.scaled(parallel, scale_g)
    return [g - x for g, x in zip(self.gs, parallel, strict=True)]


class _Bundle:
  """Groups of a kind. What is said of each is one array, a row for each."""

  def __init__(self, groups: list[_Group], strength: Any):
    self.groups, self.given = groups, strength  # as it was given
    self.dtype = groups[0].dtype
    # The same for each group, if not for each of its vectors.
    strength = jnp.asarray(strength, self.dtype)
    self.strength = strength[None] if strength.ndim else strength

  def each(self, function: Callable[..., Any], *stacks: jax.Array) -> list[Any]:
    """Of each group, what the function makes of it and its rows."""
    if stacks and len(self.groups) > 1:  # not to be computed anew for each
      stacks = lax.optimization_barrier(stacks)
    return [
      function(
        *group.arrays,
        *(_row(stack, i) for stack in stacks),
        axes=group.array_axes,
      )
      for i, group in enumerate(self.groups)
    ]

  def totals(
    self, function: Callable[..., Any], *stacks: jax.Array
  ) -> tuple[jax.Array, ...]:
    """The sums that the function takes of each group, stacked."""
    sums = self.each(function, *stacks)
    return jax.tree.map(lambda *rows: jnp.stack(rows), *sums)

  def column(self, number: Callable[[_Group], float], like: jax.Array):
    """A number for each group, for each of its vectors."""
    numbers = jnp.asarray([number(group) for group in self.groups], self.dtype)
    return numbers.reshape(-1, *(1,) * (like.ndim - 1))


def _measure_all(bundles: list[_Bundle], axis_name: Any) -> list[_Sums]:
  """The sums of all bundles, each in the fewest sweeps that will do."""
  if axis_name is not None:
    # Devices that took different branches would wait for each other.
    return [_measure(bundle, axis_name) for bundle in bundles]

  def together():
    return _measure_if_needed(bundles, tell_zeros=True)

  def one_by_one():
    return [
      jax.tree.map(
        lambda *rows: jnp.concatenate(rows),
        *(
          _measure_alone(*group.arrays, bundle.given, axes=group.array_axes)
          for group in bundle.groups
        ),
      )
      for bundle in bundles
    ]

  # A GPU waits for the host at every branch. A CPU doesn't, but telling zeros
  # takes it longer than the sums themselves.
  return lax.platform_dependent(cpu=one_by_one, default=together)


@_of_a_group
def _measure_alone(params, updates, strength, *, axes) -> _Sums:
  bundle = _Bundle([_Group(params, updates, axes)], strength)
  return _measure_if_needed([bundle], tell_zeros=False)[0]


def _measure_if_needed(bundles: list[_Bundle], tell_zeros: bool) -> list[_Sums]:
  """The plain sums if all can be trusted, else others for those that can't."""
  if not bundles:
    return []
  found = [_measure_plainly(bundle, tell_zeros) for bundle in bundles]
  plain, sound = map(list, zip(*found, strict=True))

  def mend():
    # Vector by vector: a result does not depend on the other vectors'.
    return [
      jax.tree.map(functools.partial(jnp.where, ok), sums, _measure(bundle))
      for bundle, sums, ok in zip(bundles, plain, sound, strict=True)
    ]

  # With nothing to do in the one branch: else XLA takes both for cheap, and
  # always runs both on a GPU.
  all_sound = functools.reduce(jnp.logical_and, map(jnp.all, sound))
  return lax.cond(all_sound, lambda: plain, mend)


def _measure(bundle: _Bundle, axis_name: Any = None) -> _Sums:
  """The sums, right for any w and g.

  w and g are scaled by powers of two near their l1 norms, so that no product
  leaves the range of the dtype, and ‖g⊥‖ is measured on the residual exactly as
  it will be written: the difference of squares would cancel.
  """

  def totals(*args):
    sums = bundle.totals(*args)
    return sums if axis_name is None else lax.psum(sums, axis_name)

  scale_w, scale_g = map(_power_of_two, totals(_l1_norms))
  wg, ww = totals(_scaled_products, scale_w, scale_g)
  c, removed = _solve(wg, ww, bundle.strength)
  (rr,) = totals(_residual_square, bundle.strength * c, scale_w, scale_g)
  return _Sums(scale_w, scale_g, c, ww, rr + removed, rr)


def _measure_plainly(
  bundle: _Bundle, tell_zeros: bool
) -> tuple[_Sums, jax.Array]:
  """The sums in one sweep, and whether those of each vector can be trusted.

  A sum of squares that is zero can only be trusted if nothing underflowed.
  """
  info = jnp.finfo(bundle.dtype)
  products = _telling_products if tell_zeros else _plain_products
  wg, ww, gg = bundle.totals(products)
  # What underflowed is lost in rounding, and nothing overflowed or is NaN.
  low = bundle.column(
    lambda group: group.size * float(info.tiny) / float(info.eps), ww
  )
  trusted = [(low <= x) & (x <= info.max) for x in (ww, gg)]
  if tell_zeros:
    trusted = [ok | (x == 0) for ok, x in zip(trusted, (ww, gg), strict=True)]
  in_range = functools.reduce(jnp.logical_and, trusted)
  wg, ww, gg = (_safe(x, in_range) for x in (wg, ww, gg))
  c, removed = _solve(wg, ww, bundle.strength)
  rr = gg - removed
  sound = in_range & (2 * rr >= gg)  # the difference has not cancelled
  # Of sound, not of ww: jax 0.6 forgets over which mapped axes ones vary.
  one = jnp.where(sound, jnp.ones_like(ww), 1)
  return _Sums(one, one, c, ww, gg, rr), sound


def _apply(
  bundle: _Bundle, eps: Any, sums: _Sums, renormalize: bool
) -> list[Projection]:
  """The projection of each group that the sums make."""
  strength, info = bundle.strength, jnp.finfo(bundle.dtype)
  scale_w, scale_g, c, ww, gg, rr = sums
  untouched = (strength == 0) | (ww == 0)
  closed, gain = jnp.zeros_like(untouched), jnp.ones_like(rr)
  if renormalize:
    column = functools.partial(bundle.column, like=ww)
    noise = column(lambda group: _noise(*group.arrays, info))
    quantum_w, quantum_g = (
      column(lambda group, i=i: _quantum(group.arrays[i])) for i in (0, 1)
    )
    vectors = max(math.prod(ww.shape[1:]), 1)  # of a group
    size = column(lambda group: group.size / vectors)
    floor_w, floor_g = quantum_w / scale_w, quantum_g / scale_g
    floor = size * (floor_g**2 + (c * floor_w) ** 2)
    closed = rr <= noise**2 * gg + floor
    length = jnp.sqrt(_safe(rr, ~closed))
    length += jnp.asarray(eps, bundle.dtype) / scale_g
    gain = jnp.where(closed, 0, jnp.sqrt(_safe(gg, ~closed)) / length)
  outs = bundle.each(_write, strength * c, scale_w, scale_g, gain, untouched)

  nonzero = (ww != 0) & (gg != 0)
  cosine = c * jnp.sqrt(_safe(ww, nonzero)) / jnp.sqrt(_safe(gg, nonzero))
  cosine = jnp.where(nonzero, cosine, 0)
  figures = (
    cosine,
    strength * (2 - strength) * cosine * cosine,
    closed & nonzero & ~untouched,
  )
  return [
    Projection(out, *(_row(x, i) for x in figures))
    for i, out in enumerate(outs)
  ]


@_of_a_group
def _plain_products(params, updates, *, axes):
  group = _Group(params, updates, axes)
  ws, gs = group.ws, group.gs
  return tuple(
    group.total(_products(*pair)) for pair in ((ws, gs), (ws, ws), (gs, gs))
  )


@_of_a_group
def _telling_products(params, updates, *, axes):
  """The same, but sums of squares are zero for no other vector than zero."""
  group = _Group(params, updates, axes)
  tiny = jnp.finfo(group.dtype).tiny
  square = lambda x: jnp.where(x == 0, 0, jnp.maximum(x * x, tiny))
  return (
    group.total(_products(group.ws, group.gs)),
    *(group.total(list(map(square, xs))) for xs in (group.ws, group.gs)),
  )


@_of_a_group
def _l1_norms(params, updates, *, axes):
  group = _Group(params, updates, axes)
  return tuple(
    group.total(list(map(jnp.abs, xs))) for xs in (group.ws, group.gs)
  )


@_of_a_group
def _scaled_products(params, updates, scale_w, scale_g, *, axes):
  group = _Group(params, updates, axes)
  ws = group.scaled(group.ws, 1 / scale_w)
  gs = group.scaled(group.gs, 1 / scale_g)
  return group.total(_products(ws, gs)), group.total(_products(ws, ws))


@_of_a_group
def _residual_square(params, updates, factor, scale_w, scale_g, *, axes):
  group = _Group(params, updates, axes)
  rest = group.residuals(factor, scale_w, scale_g)
  rest = group.scaled(rest, 1 / scale_g)
  return (group.total(_products(rest, rest)),)


@_of_a_group
def _write(params, updates, factor, scale_w, scale_g, gain, untouched, *, axes):
  group = _Group(params, updates, axes)
  outs = group.scaled(group.residuals(factor, scale_w, scale_g), gain)
  outs = iter(
    [
      jnp.where(jnp.expand_dims(untouched, a), g, out)
      for g, out, a in zip(group.gs, outs, group.axes, strict=True)
    ]
  )
  return [
    _join([next(outs) for _ in _split(g)]).astype(g.dtype) for g in updates
  ]


def _row(stack: jax.Array, i: int) -> jax.Array:
  return lax.index_in_dim(stack, i, keepdims=False)


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
