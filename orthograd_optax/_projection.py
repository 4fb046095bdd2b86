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
from jax.sharding import AxisType

# Vectors of up to so many entries are copied into one array, as long as it has
# no more than this share of all entries: a sum of few takes as long to begin.
SHORT, SMALL = 1 << 14, 1 / 16

# How many arrays are stacked at once.
FEW = 32

# Where sums are taken together, at least so many entries of an array are summed
# up before they are stacked with those of others; but arrays of one shape, and
# of up to so many entries, are stacked before, in the program that sums them.
ROW, LONG = 64, 1 << 20


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
  fuses into whatever follows, writes the result. Two more come between where
  any of the long vectors is of an extreme scale or nearly parallel to its
  parameters. Only the arrays of short ones are reshaped and copied.

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
  small, large = (
    {
      some: _Bundle([groups[i] for i in some], strength)
      for some in _alike(groups, part)
    }
    for part in _by_size(groups)
  )
  sums = [_measure_packed(bundle, axis_name) for bundle in small.values()]
  sums += _measure_all(list(large.values()), axis_name)
  found: dict[int, Projection] = {}
  for (some, bundle), its in zip((small | large).items(), sums, strict=True):
    found |= zip(some, _apply(bundle, eps, its, renormalize), strict=True)
  return [found[i] for i in range(len(groups))]


def _by_size(groups: list["_Group"]) -> tuple[list[int], list[int]]:
  """The indices of the groups to be copied into one, and of the others."""
  small: list[int] = []
  most = SMALL * sum(group.size for group in groups)
  for i in sorted(range(len(groups)), key=lambda i: groups[i].size):
    group = groups[i]
    if group.can_be_packed and (len(small) + 1) * group.size <= most:
      small.append(i)
  return small, [i for i in range(len(groups)) if i not in small]


def _alike(groups: list["_Group"], indices: list[int]) -> list[tuple[int, ...]]:
  """The indices, by those of groups of a kind, the same shapes side by side."""
  found: dict[Any, list[int]] = {}
  for i in sorted(indices, key=lambda i: [x.shape for x in groups[i].gs]):
    found.setdefault(groups[i].kind, []).append(i)
  return list(map(tuple, found.values()))


# What is traced once for all groups of the same shapes.
_of_a_group = functools.partial(jax.jit, static_argnames=("axes", "together"))


class _Sums(NamedTuple):
  """Squared norms in scaled units: w is scale_w · w', g is scale_g · g'."""

  scale_w: jax.Array
  scale_g: jax.Array
  c: jax.Array  # ⟨w', g'⟩ / ⟨w', w'⟩
  ww: jax.Array
  gg: jax.Array
  rr: jax.Array  # of the residual g' − s·c·w'


class _Group:
  """Real arrays w and g, in the dtype in which sums are taken.

  If they are to be taken together with those of other groups, :meth:`sums` are
  over the axes `inner` alone, and those over `outer` are still to be taken.
  """

  def __init__(
    self, params: Arrays, updates: Arrays, axes: Axes, together: bool = False
  ):
    self.arrays, self.array_axes = (params, updates), axes
    self.together = together
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
    g, a = self.gs[0], self.axes[0]
    self.batch = tuple(n for i, n in enumerate(g.shape) if i not in a)
    self.length = self.size // max(math.prod(self.batch), 1)  # of a vector
    split = _inner_and_outer if together else lambda _, axes: (axes, ())
    self.inner, self.outer = zip(*map(split, self.gs, self.axes), strict=True)

  @property
  def kind(self) -> Any:
    """Groups of a kind have sums of the same shape, dtype and sharding.

    They are stored in the same dtypes, too.
    """
    products = _products(self.ws, self.gs)
    total = jax.typeof(functools.reduce(jnp.add, self.sums(products)))
    return total, *(frozenset(x.dtype for x in xs) for xs in self.arrays)

  @property
  def form(self) -> Any:
    """Groups of a form can be stacked; None if this one should not be.

    Arrays of one shape that the compiler shards may differ in how it does.
    """
    if not self.together or self.size > LONG:
      return None
    types = [*map(jax.typeof, itertools.chain(*self.arrays))]
    if any(AxisType.Auto in t.sharding.mesh.axis_types for t in types):
      return None
    return *types, self.array_axes

  @property
  def can_be_packed(self) -> bool:
    """Whether it is short, and nothing is lost in a copy."""
    return self.length <= SHORT and all(
      len({x.dtype for x in xs}) == 1
      and not jnp.iscomplexobj(xs[0])
      and not any(any(jax.typeof(x).sharding.spec) for x in xs)
      for xs in self.arrays
    )

  def flat(self, which: int) -> jax.Array:
    """w or g as one array, vectors along its last axis."""
    rows = [
      jnp.moveaxis(x, a, range(x.ndim - len(a), x.ndim)).reshape(
        *self.batch, -1
      )
      for x, a in zip(self.arrays[which], self.array_axes, strict=True)
    ]
    return jnp.concatenate(rows, -1)

  def sums(self, xs: Arrays) -> list[jax.Array]:
    return list(map(jnp.sum, xs, self.inner))

  def scaled(self, xs: Arrays, factor: jax.Array) -> list[jax.Array]:
    return [
      x * jnp.expand_dims(factor, a) for x, a in zip(xs, self.axes, strict=True)
    ]

  def residuals(self, factor, scale_w, scale_g) -> list[jax.Array]:
    # One factor after the other: their product may be out of range.
    parallel = self.scaled(self.scaled(self.ws, 1 / scale_w), factor)
    parallel = self.scaled(parallel, scale_g)
    return [g - x for g, x in zip(self.gs, parallel, strict=True)]


def _made_of(
  groups: list[_Group], function: Callable[..., Any], rows: list[list[Any]]
) -> list[Any]:
  """What the function makes of groups of one form; of several, as one."""
  group, *others = groups
  if not others:
    its = [row for (row,) in rows]
    options = {"axes": group.array_axes, "together": group.together}
    return [function(*group.arrays, *its, **options)]
  params, updates = (
    [jnp.stack(xs) for xs in zip(*each, strict=True)]
    for each in zip(*(group.arrays for group in groups), strict=True)
  )
  made = function(
    params,
    updates,
    *map(jnp.stack, rows),
    axes=tuple(tuple(1 + axis for axis in axes) for axes in group.array_axes),
    together=group.together,
  )
  leaves, tree = jax.tree.flatten(made)
  return [
    tree.unflatten([_row(x, i) for x in leaves]) for i in range(len(groups))
  ]


class _Bundle:
  """Groups of a kind. What is said of each is one array, a row for each."""

  def __init__(self, groups: list[_Group], strength: Any):
    self.groups, self.given = groups, strength  # as it was given
    self.dtype = groups[0].dtype
    # The same for each group, if not for each of its vectors.
    strength = jnp.asarray(strength, self.dtype)
    axes = 1 + len(groups[0].batch) - strength.ndim
    shape = (*(1,) * axes, *strength.shape) if strength.ndim else ()
    self.strength = strength.reshape(shape)

  def joined(self) -> "_Bundle":
    """The same, whose sums are taken together."""
    groups = [
      _Group(*group.arrays, group.array_axes, together=True)
      for group in self.groups
    ]
    return _Bundle(groups, self.given)

  def each(self, function: Callable[..., Any], *stacks: jax.Array) -> list[Any]:
    """Of each group, what the function makes of it and its rows."""
    if stacks and len(self.groups) > 1:
      # As one array, which is not to be computed anew for each.
      shape = jnp.broadcast_shapes(*map(jnp.shape, stacks))
      one = jnp.stack([jnp.broadcast_to(x, shape) for x in stacks])
      stacks = tuple(lax.optimization_barrier(one))
    same: dict[Any, list[int]] = {}
    for i, group in enumerate(self.groups):
      same.setdefault(group.form or i, []).append(i)
    found: dict[int, Any] = {}
    for indices in same.values():
      for first in range(0, len(indices), FEW):
        some = indices[first : first + FEW]
        rows = [[_row(stack, i) for i in some] for stack in stacks]
        made = _made_of([self.groups[i] for i in some], function, rows)
        found |= zip(some, made, strict=True)
    return [found[i] for i in range(len(self.groups))]

  def totals(
    self,
    function: Callable[..., Any],
    *stacks: jax.Array,
    axis_name: Any = None,
  ) -> tuple[jax.Array, ...]:
    """The sums that the function takes of each group, stacked.

    Those that it has left unfinished in the same shape are finished as one.
    """
    alike: dict[Any, list[tuple[int, int, jax.Array]]] = {}
    for i, sums in enumerate(self.each(function, *stacks)):
      for j, arrays in enumerate(sums):
        for x, axes in zip(arrays, self.groups[i].outer, strict=True):
          alike.setdefault((jax.typeof(x), axes), []).append((i, j, x))
    found: dict[int, dict[int, jax.Array]] = {}
    for (_, axes), entries in alike.items():
      # In the order in which they are stacked below: XLA takes long to find out
      # what to do with rows in another one.
      entries.sort(key=lambda entry: (entry[1], entry[0]))
      total = jnp.stack([x for *_, x in entries])
      if axes:
        total = jnp.sum(total, [1 + axis for axis in axes])
      for row, (i, j, _) in enumerate(entries):
        rows = found.setdefault(j, {})
        rows[i] = rows[i] + _row(total, row) if i in rows else _row(total, row)
    totals = tuple(
      jnp.stack([found[j][i] for i in range(len(self.groups))])
      for j in range(len(found))
    )
    return totals if axis_name is None else lax.psum(totals, axis_name)

  def column(self, number: Callable[[_Group], float], like: jax.Array):
    """A number for each group, for each of its vectors."""
    numbers = jnp.asarray([number(group) for group in self.groups], self.dtype)
    return numbers.reshape(-1, *(1,) * (like.ndim - 1))


def _measure_all(bundles: list[_Bundle], axis_name: Any) -> list[_Sums]:
  """The sums of all bundles, in the fewest sweeps that will do."""
  if axis_name is not None:
    # Devices that took different branches would wait for each other.
    return [_measure(bundle, axis_name) for bundle in bundles]

  def together():
    return _measure_as_needed([bundle.joined() for bundle in bundles])

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

  # A GPU waits at every branch, and takes as long to begin a sum as to take
  # one. A CPU does neither, but telling zeros takes it longer than the sums.
  return lax.platform_dependent(cpu=one_by_one, default=together)


@functools.partial(jax.jit, static_argnames="axes")
def _measure_alone(params, updates, strength, *, axes) -> _Sums:
  bundle = _Bundle([_Group(params, updates, axes)], strength)
  return _measure_as_needed([bundle])[0]


def _measure_as_needed(bundles: list[_Bundle]) -> list[_Sums]:
  """The plain sums if all can be trusted, else others for those that can't."""
  if not bundles:
    return []
  plain, sound = zip(*map(_measure_plainly, bundles), strict=True)

  # A CUDA graph can hold a branch, but no loop; a CPU compiles loops sooner.
  unroll = bundles[0].groups[0].together

  def mend():
    # Vector by vector: a result does not depend on the other vectors'.
    return [
      jax.tree.map(
        functools.partial(jnp.where, ok),
        sums,
        _measure_anew(bundle, sums.ww, sums.gg, unroll=unroll),
      )
      for bundle, sums, ok in zip(bundles, plain, sound, strict=True)
    ]

  # With nothing to do in the one branch: else XLA takes both for cheap, and
  # always runs both on a GPU.
  all_sound = functools.reduce(jnp.logical_and, map(jnp.all, sound))
  stacks = [jnp.stack(sums) for sums in plain]
  found = lax.cond(
    all_sound, lambda: stacks, lambda: [jnp.stack(sums) for sums in mend()]
  )
  return [_Sums(*stack) for stack in found]


def _measure_packed(bundle: _Bundle, axis_name: Any) -> _Sums:
  """The sums of all groups of the bundle as those of one."""
  w, g = (
    _stack_padded([group.flat(which) for group in bundle.groups])
    for which in (0, 1)
  )
  # Else each sweep over them would read from all groups.
  w, g = lax.optimization_barrier((w, g))
  packed = _Group([w], [g], ((w.ndim - 1,),))
  sums = _measure(_Bundle([packed], bundle.given), axis_name)
  return jax.tree.map(lambda x: _row(x, 0), sums)


def _measure(bundle: _Bundle, axis_name: Any) -> _Sums:
  """The sums, right for any w and g."""
  _, ww, gg = bundle.totals(_plain_products, axis_name=axis_name)
  return _measure_anew(bundle, ww, gg, axis_name)


def _measure_plainly(bundle: _Bundle) -> tuple[_Sums, jax.Array]:
  """The sums in one sweep, and whether those of each vector can be trusted.

  A sum of squares that is zero can only be trusted if nothing underflowed.
  """
  tell_zeros = bundle.groups[0].together
  products = _telling_products if tell_zeros else _plain_products
  wg, ww, gg = bundle.totals(products)
  trusted = [_scale(bundle, x) == 1 for x in (ww, gg)]
  if tell_zeros:
    trusted = [ok | (x == 0) for ok, x in zip(trusted, (ww, gg), strict=True)]
  in_range = functools.reduce(jnp.logical_and, trusted)
  square = _safe(gg, in_range)
  c, removed = _solve(_safe(wg, in_range), _safe(ww, in_range), bundle.strength)
  rr = square - removed
  sound = in_range & (2 * rr >= square)  # the difference has not cancelled
  # Of sound, not of ww: jax 0.6 forgets over which mapped axes ones vary.
  one = jnp.where(sound, jnp.ones_like(ww), 1)
  return _Sums(one, one, c, ww, gg, rr), sound


def _measure_anew(
  bundle: _Bundle, ww: Any, gg: Any, axis_name: Any = None, unroll: bool = True
) -> _Sums:
  """The sums in two sweeps, given squared norms that may be out of range.

  In the second one ‖g⊥‖ is measured on the residual exactly as it will be
  written: the difference of squares would cancel.
  """
  strength, scales = bundle.strength, (_scale(bundle, ww), _scale(bundle, gg))

  def sweep(c, _):
    wr, ww, rr = bundle.totals(
      _residual_products, strength * c, *scales, axis_name=axis_name
    )
    return _solve(wr, ww, strength)[0], (wr, ww, rr)

  none = jnp.where(ww + gg == 0, 0, jnp.zeros_like(ww))
  # Opaque, for the two sweeps to be the same programs.
  none = lax.optimization_barrier(none)
  _, (wr, ww, rr) = lax.scan(sweep, none, None, length=2, unroll=unroll)
  c, removed = _solve(wr[0], ww[0], strength)
  return _Sums(*scales, c, ww[0], rr[1] + removed, rr[1])


def _scale(bundle: _Bundle, square: jax.Array) -> jax.Array:
  """A power of two that brings the entries of vectors into range.

  It is 1 where they are: where what underflowed in the sum of squares is lost
  in rounding, and nothing overflowed.
  """
  info = jnp.finfo(bundle.dtype)
  low = bundle.column(
    lambda group: group.length * float(info.tiny) / float(info.eps), square
  )
  # Subnormal numbers become as large, and the largest so small, that squares of
  # them are normal.
  far = 2.0 ** (3 * info.maxexp // 4)
  scale = jnp.where(square <= info.max, jnp.ones_like(square), far)
  return jnp.where(square < low, 1 / far, scale)


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
    length = column(lambda group: group.length)
    floor_w, floor_g = quantum_w / scale_w, quantum_g / scale_g
    floor = length * (floor_g**2 + (c * floor_w) ** 2)
    closed = rr <= noise**2 * gg + floor
    norm = jnp.sqrt(_safe(rr, ~closed))
    norm += jnp.asarray(eps, bundle.dtype) / scale_g
    gain = jnp.where(closed, 0, jnp.sqrt(_safe(gg, ~closed)) / norm)
  rows = strength * c, scale_w, scale_g, gain, untouched.astype(bundle.dtype)
  outs = bundle.each(_write, *rows)

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
def _plain_products(params, updates, *, axes, together):
  group = _Group(params, updates, axes, together)
  ws, gs = group.ws, group.gs
  return tuple(
    group.sums(_products(*pair)) for pair in ((ws, gs), (ws, ws), (gs, gs))
  )


@_of_a_group
def _telling_products(params, updates, *, axes, together):
  """The same, but sums of squares are zero for no other vector than zero."""
  group = _Group(params, updates, axes, together)
  tiny = jnp.finfo(group.dtype).tiny
  square = lambda x: jnp.where(x == 0, 0, jnp.maximum(x * x, tiny))
  return (
    group.sums(_products(group.ws, group.gs)),
    *(group.sums(list(map(square, xs))) for xs in (group.ws, group.gs)),
  )


@_of_a_group
def _residual_products(
  params, updates, factor, scale_w, scale_g, *, axes, together
):
  """The same, of w' and the residual of g', in scaled units."""
  group = _Group(params, updates, axes, together)
  ws = group.scaled(group.ws, 1 / scale_w)
  rest = group.residuals(factor, scale_w, scale_g)
  rest = group.scaled(rest, 1 / scale_g)
  pairs = ((ws, rest), (ws, ws), (rest, rest))
  return tuple(group.sums(_products(*pair)) for pair in pairs)


@_of_a_group
def _write(
  params, updates, factor, scale_w, scale_g, gain, untouched, *, axes, together
):
  group = _Group(params, updates, axes, together)
  outs = group.scaled(group.residuals(factor, scale_w, scale_g), gain)
  outs = iter(
    [
      jnp.where(jnp.expand_dims(untouched != 0, a), g, out)
      for g, out, a in zip(group.gs, outs, group.axes, strict=True)
    ]
  )
  return [
    _join([next(outs) for _ in _split(g)]).astype(g.dtype) for g in updates
  ]


def _inner_and_outer(
  x: jax.Array, axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
  """The axes of long enough rows, and the other axes."""
  size, first = 1, len(axes)
  while first and size < ROW:
    first -= 1
    size *= x.shape[axes[first]]
  return axes[first:], axes[:first]


def _stack_padded(xs: Arrays) -> jax.Array:
  """Stacks arrays whose last axes may differ, with zeros behind them.

  Those of a shape that follow each other are stacked first, a few at a time: a
  GPU's programs have at most so many arguments.
  """
  width = max(x.shape[-1] for x in xs)
  parts = []
  for shape, group in itertools.groupby(xs, jnp.shape):
    padding = [(0, 0)] * len(shape) + [(0, width - shape[-1])]
    same = list(group)
    parts += [
      jnp.pad(jnp.stack(same[i : i + FEW]), padding)
      for i in range(0, len(same), FEW)
    ]
  return jnp.concatenate(parts)


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


def _safe(x: jax.Array, ok: jax.Array) -> jax.Array:
  """x where ok, else 1: keeps 0/0 and sqrt(0) out of values and gradients."""
  return jnp.where(ok, x, jnp.ones_like(x))
