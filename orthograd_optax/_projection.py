"""The maths of groups of arrays, each of which together form one vector.

The rest of the package decides *which* arrays form a vector; what is done to
that vector stands here alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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

# At most so many arrays are stacked at once, for a GPU's programs have no more
# arguments.
STACKED = 32

# At most so many arrays of one shape, and of so many entries, are summed up in
# one program of a GPU, which needs registers for each and soon is long enough.
SUMMED, LONG = 8, 1 << 25

# Matrices of at least so many columns are summed up by row there. XLA takes a
# second program to end a sum over an array; that of rows does so for several.
WIDE = 256


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
  fuses into whatever follows, writes the result. A GPU computes in float64.
  Elsewhere, and for float64 itself, two more sweeps may come between, as where
  a group is of an extreme scale or nearly parallel to its parameters. Only the
  arrays of short vectors are reshaped and copied, and on a GPU parameters whose
  updates the compiler has laid out in another way.

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
    _Group(*arrays, _sums_in(*arrays[:2]))
    for arrays in zip(params, updates, axes, strict=True)
  ]
  small, large = _by_size(groups)
  found: dict[int, Projection] = {}
  for part in (small, large):
    for some in _alike(groups, part):
      alike = [groups[i] for i in some]
      bundle = _Bundle([_packed(alike)] if part is small else alike, strength)
      made = _project_bundle(bundle, eps, renormalize, axis_name)
      made = _unpacked(alike, *made) if part is small else made
      found |= zip(some, made, strict=True)
  return [found[i] for i in range(len(groups))]


def _project_bundle(
  bundle: "_Bundle", eps: Any, renormalize: bool, axis_name: Any
) -> list[Projection]:
  """The projections of all groups, as it suits the device."""

  dtype = bundle.dtype

  def project_by(measure, bundle):
    sums = measure(bundle, axis_name)
    return _apply(bundle, eps, sums, renormalize, dtype)

  def widely():
    with jax.enable_x64(True):
      return project_by(_measure_at_once, bundle.widened())

  in_sweeps = functools.partial(project_by, _measure_in_sweeps, bundle)

  def as_needed():
    return [
      _project_alone(
        *group.arrays,
        bundle.given,
        eps,
        axes=group.array_axes,
        dtype=dtype,
        renormalize=renormalize,
      )
      for group in bundle.groups
    ]

  # A GPU takes as long to begin a sum as to take one, and waits at branches,
  # but an H200 computes in float64 as fast as it reads. jax 0.8 lets it do so.
  has_wider = dtype == jnp.float32 and hasattr(jax, "enable_x64")
  on_gpu = widely if has_wider else in_sweeps
  # Devices that took different branches would wait for each other; and JAX has
  # no vmap of branches for what differs between the devices of a shard_map.
  alone = axis_name is None and not (bundle.groups[0].packed or bundle.varies)
  elsewhere = as_needed if alone else in_sweeps
  return lax.platform_dependent(cuda=on_gpu, rocm=on_gpu, default=elsewhere)


def _sums_in(params: Arrays, updates: Arrays) -> Any:
  """The dtype that is wide enough for all of them."""
  wide = any(jnp.finfo(x.dtype).bits == 64 for x in [*params, *updates])
  return jnp.float64 if wide else jnp.float32


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
_of_a_group = functools.partial(jax.jit, static_argnames=("axes", "dtype"))


class _Sums(NamedTuple):
  """Squared norms, of w / scale_w and g / scale_g if there are `scales`."""

  c: jax.Array  # ⟨w, g⟩ / ⟨w, w⟩
  ww: jax.Array
  gg: jax.Array
  rr: jax.Array  # of the residual g − s·c·w
  scales: tuple[jax.Array, ...] = ()


class _Group:
  """Real arrays w and g, in the dtype in which sums are taken.

  If it has `packed` others, its rows are copies of these, zeros behind them.
  """

  def __init__(
    self,
    params: Arrays,
    updates: Arrays,
    axes: Axes,
    dtype: Any,
    packed: Sequence["_Group"] = (),
  ):
    self.arrays, self.array_axes = (params, updates), axes
    self.dtype, self.packed = dtype, packed
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

  @property
  def lengths(self) -> Any:
    """The length of a vector; if it is packed, of those in each row."""
    if self.packed:
      return [group.lengths for group in self.packed]
    return self.size // max(math.prod(self.batch), 1)

  @property
  def kind(self) -> Any:
    """Groups of a kind have sums of the same shape, dtype and sharding.

    They are stored in the same dtypes, too.
    """
    total, *_ = self.sums(self.ws, self.gs)
    stored = (frozenset(x.dtype for x in xs) for xs in self.arrays)
    return jax.typeof(total), *stored

  @property
  def types(self) -> list[Any]:
    return [*map(jax.typeof, itertools.chain(*self.arrays))]

  @property
  def form(self) -> Any:
    """Groups of equal form are summed up in one program; those of None, alone.

    Arrays of one shape that the compiler shards may differ in how it does. And
    sums of several vectors each may take more memory than a GPU's program has.
    """
    if self.batch:
      return None
    meshes = [t.sharding.mesh for t in self.types]
    # That which is set may shard arrays that are yet to be placed.
    meshes.append(jax.sharding.get_abstract_mesh())
    if any(AxisType.Auto in mesh.axis_types for mesh in meshes):
      return None
    return *self.types, self.array_axes

  @property
  def first_axes(self) -> list[tuple[int, ...]]:
    """Over which a GPU sums up each array first: one, of a matrix, or all."""
    one = len(self.array_axes) == 1 and not self.is_sharded
    shape = self.gs[0].shape
    wide = len(shape) == 2 and shape[1] >= WIDE
    by_row = one and wide and self.form is not None
    return [(1,)] * len(self.gs) if by_row else self.axes

  @property
  def is_sharded(self) -> bool:
    """Whether an array is sharded, as far as types say."""
    return any(any(t.sharding.spec) for t in self.types)

  @property
  def can_be_packed(self) -> bool:
    """Whether it is short, and nothing is lost in a copy."""
    short = self.lengths <= SHORT and not self.is_sharded
    return short and all(
      len({x.dtype for x in xs}) == 1 and not jnp.iscomplexobj(xs[0])
      for xs in self.arrays
    )

  def flat(self, which: int) -> jax.Array:
    """w or g as one array, vectors along its last axis."""
    rows = [
      jnp.moveaxis(x, a, range(x.ndim - len(a), x.ndim)).reshape(
        *self.batch, math.prod(x.shape[i] for i in a)
      )
      for x, a in zip(self.arrays[which], self.array_axes, strict=True)
    ]
    return jnp.concatenate(rows, -1)

  def unflat(self, row: jax.Array) -> list[jax.Array]:
    """Such an array, if longer its beginning, as arrays of these shapes."""
    found, start = [], 0
    for x, a in zip(self.arrays[1], self.array_axes, strict=True):
      shape = [x.shape[i] for i in a]
      stop = start + math.prod(shape)
      part = row[..., start:stop].reshape(*self.batch, *shape)
      last = range(x.ndim - len(a), x.ndim)
      found.append(jnp.moveaxis(part, last, a))
      start = stop
    return found

  def sums(self, xs: Arrays, ys: Arrays) -> tuple[jax.Array, ...]:
    """⟨x, y⟩, ⟨x, x⟩ and ⟨y, y⟩."""
    return _added(map(_three_sums, self.axes, xs, ys))

  def scaled(self, xs: Arrays, factor: jax.Array) -> list[jax.Array]:
    return [
      x * jnp.expand_dims(factor, a) for x, a in zip(xs, self.axes, strict=True)
    ]

  def residuals(self, factor, *scales) -> list[jax.Array]:
    """What is left of g; the factor is that of w and g in scaled units."""
    # One factor after the other: their product may be out of range.
    factors = (1 / scales[0], factor, scales[1]) if scales else (factor,)
    parallel = functools.reduce(self.scaled, factors, self.ws)
    return [g - x for g, x in zip(self.gs, parallel, strict=True)]


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

  @property
  def varies(self) -> bool:
    """Whether an array may have other values on other devices."""
    arrays = jax.tree.leaves([group.arrays for group in self.groups])
    return any(map(_mapped_axes, [*arrays, self.strength]))

  def widened(self) -> "_Bundle":
    """The same, with sums in float64."""
    groups = [
      _Group(*group.arrays, group.array_axes, jnp.float64, group.packed)
      for group in self.groups
    ]
    return _Bundle(groups, self.given)

  def each(self, function: Callable[..., Any], *stacks: jax.Array) -> list[Any]:
    """Of each group, what the function makes of it and its rows."""
    if stacks and len(self.groups) > 1:
      shape = jnp.broadcast_shapes(*map(jnp.shape, stacks))
      one = jnp.stack([jnp.broadcast_to(x, shape) for x in stacks], 1)
      # As one array, which is not to be computed anew for each.
      rows = [*map(_rows, _rows(lax.optimization_barrier(one)))]
    else:
      rows = [[_rows(x)[0] for x in stacks]] * len(self.groups)
    return [
      function(*group.arrays, *row, axes=group.array_axes, dtype=group.dtype)
      for group, row in zip(self.groups, rows, strict=True)
    ]

  def totals(
    self,
    function: Callable[..., Any],
    *stacks: jax.Array,
    axis_name: Any = None,
  ) -> tuple[jax.Array, ...]:
    """The sums that the function takes of each group, stacked."""
    found = zip(*self.each(function, *stacks), strict=True)
    return _of_all_devices(tuple(map(jnp.stack, found)), axis_name)

  def column(self, number: Callable[[_Group], Any], like: jax.Array):
    """A number for each group, or for each of its rows, for each vector."""
    numbers = jnp.asarray([number(group) for group in self.groups], like.dtype)
    return jnp.expand_dims(numbers, (*range(numbers.ndim, like.ndim),))


def _packed(groups: list[_Group]) -> _Group:
  """All groups as one."""
  w, g = (
    _stack_padded([group.flat(which) for group in groups]) for which in (0, 1)
  )
  # Else each sweep over them would read from all groups.
  w, g = lax.optimization_barrier((w, g))
  return _Group([w], [g], ((w.ndim - 1,),), groups[0].dtype, groups)


def _unpacked(groups: list[_Group], one: Projection) -> list[Projection]:
  """What was found of all groups as one, for each."""
  # Else each would compute its row anew.
  [outs], *figures = lax.optimization_barrier(tuple(one))
  rows = zip(groups, *map(_rows, (outs, *figures)), strict=True)
  found = []
  for group, out, cosine, removed, closed in rows:
    # It is 0 there, but XLA makes one program of what follows only for arrays
    # that share more than one that is large, of which each reads another slice.
    shut = jnp.expand_dims(closed, -1)
    arrays = group.unflat(jnp.where(shut, jnp.zeros_like(out), out))
    found.append(Projection(arrays, cosine, removed, closed))
  return found


def _measure_at_once(bundle: _Bundle, axis_name: Any) -> _Sums:
  """The sums in one sweep, in a dtype twice as wide as the arrays'.

  It has all products exactly, whatever their scale, and digits enough for ‖g⊥‖²
  to be a difference of squares. That is 0 if it is lost in rounding, by as much
  as hundreds of additions in sequence may make; a GPU has fewer.
  """
  form = lambda group: group.form or id(group)
  most = lambda group: min(max(LONG // max(group.size, 1), 1), SUMMED)
  some = _some_alike(bundle.groups, form, most)
  sums = itertools.chain.from_iterable(map(_sums_of, some))
  totals = _added_up(sums, len(bundle.groups[0].batch))
  wg, ww, gg = _rows(_of_all_devices(totals, axis_name))
  c, removed = _solve(wg, ww, bundle.strength)
  rr = gg - removed
  rounding = 1024 * float(jnp.finfo(bundle.dtype).eps)
  return _Sums(c, ww, gg, jnp.where(rr <= rounding * gg, 0, rr))


def _sums_of(groups: list[_Group]) -> list[tuple[jax.Array, ...]]:
  """What :func:`_products_at_once` finds."""
  params, updates = zip(*(group.arrays for group in groups), strict=True)
  axes, dtype = groups[0].array_axes, groups[0].dtype
  return _products_at_once(params, updates, axes=axes, dtype=dtype)


def _measure_in_sweeps(bundle: _Bundle, axis_name: Any) -> _Sums:
  """The sums in three sweeps, the first for the scales."""
  _, ww, gg = bundle.totals(_plain_products, axis_name=axis_name)
  return _measure_anew(bundle, ww, gg, axis_name)


@functools.partial(jax.jit, static_argnames=("axes", "dtype", "renormalize"))
def _project_alone(
  params, updates, strength, eps, *, axes, dtype, renormalize
) -> Projection:
  """The projection of a group, traced once for all of the same shapes."""
  bundle = _Bundle([_Group(params, updates, axes, dtype)], strength)
  sums = _measure_as_needed(bundle)
  (found,) = _apply(bundle, eps, sums, renormalize, dtype)
  return found


def _measure_as_needed(bundle: _Bundle) -> _Sums:
  """The sums in one sweep, or three if that can't be trusted."""
  wg, ww, gg = bundle.totals(_plain_products)
  in_range = (_scale(bundle, ww) == 1) & (_scale(bundle, gg) == 1)
  square = _safe(gg, in_range)
  c, removed = _solve(_safe(wg, in_range), _safe(ww, in_range), bundle.strength)
  rr = square - removed
  sound = in_range & (2 * rr >= square)  # the difference has not cancelled
  one = jnp.ones_like(ww)
  plain = _Sums(c, ww, gg, rr, (one, one))
  # Vector by vector: a result does not depend on the other vectors'.
  mend = lambda: jax.tree.map(
    functools.partial(jnp.where, sound), plain, _measure_anew(bundle, ww, gg)
  )
  return lax.cond(jnp.all(sound), lambda: plain, mend)


def _measure_anew(
  bundle: _Bundle, ww: Any, gg: Any, axis_name: Any = None
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

  # In a loop, which compiles sooner than two sweeps. In a shard_map, what goes
  # in must vary over the axes over which what comes out does.
  none = jnp.where(ww + gg + strength == 0, 0, jnp.zeros_like(ww))
  _, (wr, ww, rr) = lax.scan(sweep, none, None, length=2)
  c, removed = _solve(wr[0], ww[0], strength)
  return _Sums(c, ww[0], rr[1] + removed, rr[1], scales)


def _scale(bundle: _Bundle, square: jax.Array) -> jax.Array:
  """A power of two that brings the entries of vectors into range.

  It is 1 where they are: where what underflowed in the sum of squares is lost
  in rounding, and nothing overflowed.
  """
  info = jnp.finfo(bundle.dtype)
  length = bundle.column(lambda group: group.lengths, square)
  low = length * (float(info.tiny) / float(info.eps))
  # Subnormal numbers become as large, and the largest so small, that squares of
  # them are normal.
  far = 2.0 ** (3 * info.maxexp // 4)
  scale = jnp.where(square <= float(info.max), jnp.ones_like(square), far)
  return jnp.where(square < low, 1 / far, scale)


def _apply(
  bundle: _Bundle, eps: Any, sums: _Sums, renormalize: bool, dtype: Any
) -> list[Projection]:
  """The projection of each group that the sums make, its figures in a dtype."""
  strength, info = bundle.strength, jnp.finfo(bundle.dtype)
  c, ww, gg, rr, scales = sums
  scale_w, scale_g = scales or (1, 1)
  untouched = (strength == 0) | (ww == 0)
  closed, gain = jnp.zeros_like(untouched), jnp.ones_like(rr)
  if renormalize:
    column = functools.partial(bundle.column, like=ww)
    noise = column(lambda group: _noise(*group.arrays, info))
    quantum_w, quantum_g = (
      column(lambda group, i=i: _quantum(group.arrays[i])) for i in (0, 1)
    )
    length = column(lambda group: group.lengths)
    floor_w, floor_g = quantum_w / scale_w, quantum_g / scale_g
    floor = length * (floor_g**2 + (c * floor_w) ** 2)
    closed = rr <= noise**2 * gg + floor
    norm = jnp.sqrt(_safe(rr, ~closed))
    norm += jnp.asarray(eps, bundle.dtype) / scale_g
    gain = jnp.where(closed, 0, jnp.sqrt(_safe(gg, ~closed)) / norm)
  rows = gain, untouched.astype(bundle.dtype), strength * c, *scales
  outs = bundle.each(_write, *rows)

  nonzero = (ww != 0) & (gg != 0)
  cosine = c * jnp.sqrt(_safe(ww, nonzero)) / jnp.sqrt(_safe(gg, nonzero))
  cosine = jnp.where(nonzero, cosine, 0)
  removed = strength * (2 - strength) * cosine * cosine
  figures = (
    cosine.astype(dtype),
    removed.astype(dtype),
    closed & nonzero & ~untouched,
  )
  return list(map(Projection, outs, *map(_rows, figures)))


@_of_a_group
def _plain_products(params, updates, *, axes, dtype):
  group = _Group(params, updates, axes, dtype)
  return group.sums(group.ws, group.gs)


@_of_a_group
def _products_at_once(params, updates, *, axes, dtype):
  """The sums of w·g, w² and g² of each of several groups of one form.

  If `first_axes` are not all, of each row.
  """
  groups = [
    _Group([*map(_laid_out_as, ws, gs)], gs, axes, dtype)
    for ws, gs in zip(params, updates, strict=True)
  ]
  ws = zip(*(group.ws for group in groups), strict=True)
  gs = zip(*(group.gs for group in groups), strict=True)
  parts = map(_sums_of_triples, groups[0].first_axes, ws, gs)
  return [_added(each) for each in zip(*parts, strict=True)]


@_of_a_group
def _residual_products(
  params, updates, factor, scale_w, scale_g, *, axes, dtype
):
  """The same of w / scale_w and what is left of g / scale_g."""
  group = _Group(params, updates, axes, dtype)
  ws = group.scaled(group.ws, 1 / scale_w)
  rest = group.residuals(factor, scale_w, scale_g)
  rest = group.scaled(rest, 1 / scale_g)
  return group.sums(ws, rest)


@_of_a_group
def _write(params, updates, gain, untouched, *rows, axes, dtype):
  group = _Group(params, updates, axes, dtype)
  outs = group.scaled(group.residuals(*rows), gain)
  outs = iter(
    [
      jnp.where(jnp.expand_dims(untouched != 0, a), g, out)
      for g, out, a in zip(group.gs, outs, group.axes, strict=True)
    ]
  )
  # Not as complex128, which JAX can't transpose twice outside of enable_x64.
  return [
    _join([next(outs).astype(part.dtype) for part in _split(g)])
    for g in updates
  ]


def _some_alike(
  xs: Iterable[Any], key: Callable[[Any], Any], most: Callable[[Any], int]
) -> Iterator[list[Any]]:
  """Lists of up to so many that follow each other and have the same key."""
  for _, alike in itertools.groupby(xs, key):
    same = list(alike)
    n = most(same[0])
    yield from (same[i : i + n] for i in range(0, len(same), n))


def _laid_out_as(w: jax.Array, g: jax.Array) -> jax.Array:
  """w, which the compiler shall lay out as it does g before it takes products.

  A convolution's backward pass gives g another layout than w has. Else XLA may
  write products down in float64, to lay those out.
  """
  if w.ndim < 3 or jnp.iscomplexobj(w) or jnp.iscomplexobj(g):
    return w
  # Ones, as far as they matter, but it can't know: where g is NaN, so are sums.
  return jnp.where(g == g, jnp.ones_like(w), -1) * w


def _stack_padded(xs: Arrays) -> jax.Array:
  """Stacks arrays whose last axes may differ, with zeros behind them.

  Those of a shape that follow each other are stacked first.
  """
  width = max(x.shape[-1] for x in xs)
  parts = []
  for same in _some_alike(xs, jnp.shape, lambda _: STACKED):
    stack = jnp.stack(same)
    padding = [(0, 0)] * (stack.ndim - 1) + [(0, width - stack.shape[-1])]
    parts.append(jnp.pad(stack, padding))
  return jnp.concatenate(parts)


def _rows(stack: jax.Array) -> list[jax.Array]:
  # Not slices: outside of enable_x64, JAX can't transpose float64's twice.
  rows = lax.split(stack, (1,) * stack.shape[0])
  return [lax.squeeze(row, (0,)) for row in rows]


def _added(sums: Iterable[tuple[jax.Array, ...]]) -> tuple[jax.Array, ...]:
  """Those of several arrays as those of one."""
  found = zip(*sums, strict=True)
  return tuple(functools.reduce(jnp.add, each) for each in found)


def _added_up(sums: Iterable[tuple[jax.Array, ...]], ndim: int) -> jax.Array:
  """Those of groups or of their rows, which have more axes, as one array.

  It has three rows, and a column for each group.
  """
  kind = lambda three: jax.typeof(three[0])
  found = []
  for some in _some_alike(sums, kind, lambda _: STACKED // 3):
    stack = jnp.stack([*map(jnp.stack, zip(*some, strict=True))])
    by_row = some[0][0].ndim > ndim
    found.append(lax.reduce_sum(stack, (stack.ndim - 1,)) if by_row else stack)
  return jnp.concatenate(found, 1)


def _of_all_devices(sums: Any, axis_name: Any) -> Any:
  return sums if axis_name is None else lax.psum(sums, axis_name)


def _three_sums(axes: tuple[int, ...], x: jax.Array, y: jax.Array):
  """⟨x, y⟩, ⟨x, x⟩ and ⟨y, y⟩ of two arrays."""
  # Not jnp.sum, which is float32 where _sums_of_triples is differentiated.
  return tuple(lax.reduce_sum(z, axes) for z in (x * y, x * x, y * y))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _sums_of_triples(axes: tuple[int, ...], xs: Arrays, ys: Arrays):
  """The same of pairs of arrays, all in one program of a GPU.

  It begins once and reads from all arrays at a time, whatever their layout:
  where a convolution's backward pass has given them another than their own, XLA
  may take three programs for three sums, and write products down in between.
  """

  def reduce(xs, ys):
    products = [
      z for x, y in zip(xs, ys, strict=True) for z in (x * y, x * x, y * y)
    ]
    zeros = (lax.full_like(products[0], 0, shape=()),) * len(products)
    add = lambda a, b: tuple(map(lax.add, a, b))
    sums = iter(lax.reduce(tuple(products), zeros, add, axes))
    return list(zip(sums, sums, sums, strict=True))

  def mapped_as(x, y):
    axes = [0 if x else None, 0 if y else None]
    return jax.vmap(reduce, axes) if x or y else reduce

  def reduce_mapped(size, mapped, xs, ys):
    del size
    # One pair at a time, or a program may take more memory than a GPU has for
    # it. JAX comes here outside of enable_x64.
    with jax.enable_x64(True):
      found = [
        mapped_as(*its)([x], [y])[0]
        for *its, x, y in zip(*mapped, xs, ys, strict=True)
      ]
    return found, [(any(its),) * 3 for its in zip(*mapped, strict=True)]

  mappable = jax.custom_batching.custom_vmap(reduce)
  mappable.def_vmap(reduce_mapped)
  return mappable(list(xs), list(ys))


@_sums_of_triples.defjvp
def _sums_of_triples_jvp(axes, primals, tangents):
  # JAX can't transpose a sum of triples. It comes here outside of enable_x64.
  three = functools.partial(_three_sums, axes)
  _, dots = jax.jvp(lambda xs, ys: [*map(three, xs, ys)], primals, tangents)
  # Not that one's sums: under vmap, their mapped axes must be as above. And all
  # of a program vary in a shard_map as one of them does.
  sums = _sums_of_triples(axes, *primals)
  vary = lambda dot, x: lax.add(dot, lax.full_like(x, 0))
  return sums, jax.tree.map(vary, dots, sums)


def _solve(wg, ww, strength) -> tuple[jax.Array, jax.Array]:
  """c, and by how much ‖g‖² shrinks."""
  c = wg / _safe(ww, ww != 0)
  # NaN if infinite: else finite entries would be left beside infinite ones. And
  # in a shard_map c varies with the strength, whichever way sums are taken.
  c = jnp.where(jnp.isfinite(strength * c), c, c - c)
  return c, strength * (2 - strength) * c * wg


def _mapped_axes(x: jax.Array) -> Any:
  """The axes of a shard_map over which it varies, as far as that checks."""
  kind: Any = jax.typeof(x)
  return kind.mat.varying if hasattr(kind, "mat") else getattr(kind, "vma", ())


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
