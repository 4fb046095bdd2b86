"""⊥Grad of groups of arrays: sums → coefficients → updates.

docs/how_it_is_computed.md explains this module and `_sums.py`.
"""

from collections.abc import Sequence
import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from orthograd_optax import _sharding, _sums
from orthograd_optax._sums import Arrays, Axes, Group, Sums


class Projection(NamedTuple):
  """The result of :func:`project_groups` for one group.

  Attributes:
    updates: the projected updates, each with its incoming shape and dtype.
    cosine: cos(w, g) of each vector's incoming updates; 0 where w or g is 0.
    gate_closed: whether each vector's update was set to zero, because only
      rounding noise was left to renormalize.
  """

  updates: list[jax.Array]
  cosine: jax.Array
  gate_closed: jax.Array


class Options(NamedTuple):
  """Static options, known before tracing."""

  renormalize: bool
  use_float64: bool
  axis_name: Any


@functools.partial(
  jax.jit, static_argnames=("axes", "renormalize", "use_float64", "axis_name")
)
def project_groups(
  params: Sequence[Arrays],
  updates: Sequence[Arrays],
  axes: tuple[Axes, ...],
  *,
  strength: Any = 1.0,
  eps: float | jax.Array = 1e-30,
  renormalize: bool = True,
  use_float64: bool = True,
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
    strength: s, the fraction of the parallel part to remove, from 0 to 1: one
      number, or one number for each vector.
    eps: ε, added to ‖g⊥‖ in the renormalization.
    renormalize: whether to give the result the norm of g.
    use_float64: whether to sum in float64 on devices that have it.
    axis_name: mapped axes over which the arrays are sharded.

  Returns:
    A :class:`Projection` of each group.
  """
  strength, eps = (
    jnp.asarray(x, jnp.result_type(float)) for x in (strength, eps)
  )
  groups = [
    Group(split(w), split(g), split_axes(a, g))
    for w, g, a in zip(params, updates, axes, strict=True)
  ]
  options = Options(renormalize, use_float64, axis_name)
  projections: dict[int, Projection] = {}
  for has_float64 in (False, True):
    chosen = {
      i: group
      for i, group in enumerate(groups)
      if _has_float64(group) == has_float64
    }
    if chosen:
      ws, gs, sum_axes = zip(*chosen.values(), strict=True)
      results = _project_by_backend((sum_axes, options), ws, gs, strength, eps)
      projections |= zip(chosen, results, strict=True)
  return [
    projections[i]._replace(updates=join(projections[i].updates, like))
    for i, like in enumerate(updates)
  ]


def split(xs: Arrays) -> list[jax.Array]:
  """Splits complex arrays into their real and imaginary parts."""
  parts = lambda x: [x.real, x.imag] if jnp.iscomplexobj(x) else [x]
  return [part for x in xs for part in parts(x)]


def split_axes(axes: Axes, xs: Arrays) -> Axes:
  return tuple(a for a, x in zip(axes, xs, strict=True) for _ in split([x]))


def join(parts: Arrays, like: Arrays) -> list[jax.Array]:
  """Undoes :func:`split`."""
  rest = iter(parts)
  return [
    lax.complex(next(rest), next(rest)) if jnp.iscomplexobj(x) else next(rest)
    for x in like
  ]


def _has_float64(group: Group) -> bool:
  return any(jnp.finfo(x.dtype).bits > 32 for x in [*group.ws, *group.gs])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _project_by_backend(
  static: tuple[tuple[Axes, ...], Options], ws, gs, strength, eps
) -> list[Projection]:
  """Selects the method. The backend is selected only here."""
  args = ws, gs, strength, eps
  exact, each_wide, wide_stacks = (
    functools.partial(method, static)
    for method in (_project_exact, _project_each_wide, _project_wide_stacks)
  )
  _, options = static
  if not options.use_float64 or _has_float64(Group(ws[0], gs[0], ())):
    return exact(*args)
  return lax.platform_dependent(
    *args, cpu=each_wide, cuda=wide_stacks, rocm=wide_stacks, default=exact
  )


@_project_by_backend.defjvp
def _project_jvp(static, primals, tangents):
  # Differentiate the exact method: it is the plain formula, after w and g are
  # divided by their largest entries. At strength 0 it returns g itself, which
  # is constant in the strength, so differentiate at the smallest positive one.
  ws, gs, strength, eps = primals
  smallest = jnp.where(strength == 0, jnp.finfo(strength.dtype).tiny, 0)
  at = ws, gs, strength + lax.stop_gradient(smallest), eps
  exact = functools.partial(_project_exact, static)
  return _project_by_backend(static, *primals), jax.jvp(exact, at, tangents)[1]


def _project_exact(static, ws, gs, strength, eps) -> list[Projection]:
  """Computes in the dtype of the leaves, at least float32."""
  return _project_each(_exact, static, ws, gs, strength, eps)


def _project_each_wide(static, ws, gs, strength, eps) -> list[Projection]:
  """Computes in float64, one group at a time."""
  with jax.enable_x64(True):
    return _project_each(_wide, static, ws, gs, strength, eps)


def _project_each(method, static, ws, gs, strength, eps) -> list[Projection]:
  axes, options = static
  return [
    method(w, g, strength, eps, axes=a, options=options)
    for w, g, a in zip(ws, gs, axes, strict=True)
  ]


# jit traces _exact, _wide and _write once for all groups of the same shapes,
# and _slope, _solve and _solve_wide once for all groups.
@functools.partial(jax.jit, static_argnames=("axes", "options"))
def _exact(ws, gs, strength, eps, *, axes, options: Options) -> Projection:
  group, axis_name = Group(ws, gs, axes), options.axis_name
  dtype = jnp.float64 if _has_float64(group) else jnp.float32
  unit_w, unit_g = (
    _sums.magnitude(xs, axes, axis_name, dtype) for xs in (ws, gs)
  )
  ws, gs = (
    scale([lax.convert_element_type(x, dtype) for x in xs], 1 / unit, axes)
    for xs, unit in ((ws, unit_w), (gs, unit_g))
  )
  sums = _sums.over_devices(_sums.exact(ws, gs, axes), axis_name)
  c, factor = _slope(sums, strength)
  rest = list(map(lax.sub, gs, scale(ws, factor, axes)))
  # Measure ‖g⊥‖² on g⊥ itself. The difference of squares would cancel.
  rr = _sums.over_devices(_sums.square(rest, axes), axis_name)
  noise = _noise(group, dtype)
  noise = Noise(noise.relative, noise.w / unit_w, noise.g / unit_g)
  eps = eps.astype(dtype) / unit_g
  solution = _solve(
    sums, c, rr, strength, eps, noise, renormalize=options.renormalize
  )
  outs = scale(scale(rest, solution.gain, axes), unit_g, axes)
  updates = keep(solution.untouched, group.gs, outs, axes)
  return Projection(updates, solution.cosine, solution.gate_closed)


@functools.partial(jax.jit, static_argnames=("axes", "options"))
def _wide(ws, gs, strength, eps, *, axes, options: Options) -> Projection:
  group = Group(ws, gs, axes)
  noise = _noise(group, jnp.float64, subtracted=True)
  factor, solution = _solve_wide(
    _sums.wide(group), strength, eps, noise, options=options
  )
  updates = _write(*group[:2], factor, *solution[:2], axes=axes)
  return Projection(updates, *solution[2:])


def _project_wide_stacks(static, ws, gs, strength, eps) -> list[Projection]:
  """Computes in float64, in few kernels."""
  axes, options = static
  groups = list(map(Group, ws, gs, axes))
  projections: dict[int, Projection] = {}
  with jax.enable_x64(True):
    for indices, sums in _sums.wide_stacks(groups):
      noises = [
        _noise(groups[i], jnp.float64, subtracted=True) for i in indices
      ]
      columns = zip(*noises, strict=True)
      noise = Noise(*(_stack(column, sums.wg.ndim) for column in columns))
      factor, solution = _solve_wide(
        sums, strength, eps, noise, options=options
      )
      rows = zip(*map(_unstack, (factor, *solution)), strict=True)
      for i, (*numbers, cosine, gate_closed) in zip(indices, rows, strict=True):
        updates = _write(ws[i], gs[i], *numbers, axes=axes[i])
        projections[i] = Projection(updates, cosine, gate_closed)
  return [projections[i] for i in range(len(groups))]


@functools.partial(jax.jit, static_argnames="axes")
def _write(
  ws: Arrays, gs: Arrays, factor, gain, untouched, *, axes: Axes
) -> list[jax.Array]:
  """Computes ``g if untouched else gain * (g - factor * w)`` in float64."""
  wide_ws, wide_gs = (
    [lax.convert_element_type(x, jnp.float64) for x in xs] for xs in (ws, gs)
  )
  rest = list(map(lax.sub, wide_gs, scale(wide_ws, factor, axes)))
  return keep(untouched, gs, scale(rest, gain, axes), axes)


def keep(untouched, gs: Arrays, outs: Arrays, axes: Axes) -> list[jax.Array]:
  """Returns g where it is untouched, else the result, in the dtype of g."""
  outs = [_cast(out, g.dtype) for out, g in zip(outs, gs, strict=True)]
  if not untouched.ndim:
    return [lax.select(untouched, *pair) for pair in zip(gs, outs, strict=True)]
  each = _sharding.replicated([untouched] * len(axes))
  each = map(jnp.expand_dims, each, axes)
  return list(map(jnp.where, each, gs, outs))


def _cast(x: jax.Array, dtype: Any) -> jax.Array:
  """Casts x. An entry out of float16's range becomes its largest number.

  A finite gradient of a large norm could otherwise become infinite.
  """
  info = jnp.finfo(dtype)
  if info.maxexp < jnp.finfo(jnp.float32).maxexp:
    largest = lax.full_like(x, info.max)
    x = lax.select(lax.gt(lax.abs(x), largest), lax.sign(x) * largest, x)
  return lax.convert_element_type(x, dtype)


def scale(xs: Arrays, number: jax.Array, axes: Axes) -> list[jax.Array]:
  """Multiplies each vector by its number."""
  return list(map(lax.mul, xs, _spread(number, xs, axes)))


def _spread(number: jax.Array, xs: Arrays, axes: Axes) -> list[jax.Array]:
  """Broadcasts one number for each vector to the shape of each array."""
  numbers = _sharding.replicated([number] * len(axes))
  return [
    lax.broadcast_in_dim(n, x.shape, [i for i in range(x.ndim) if i not in a])
    for n, x, a in zip(numbers, xs, axes, strict=True)
  ]


class Noise(NamedTuple):
  """A bound on the ‖g⊥‖ that rounding leaves if g is parallel to w.

  Attributes:
    relative: ‖g⊥‖² as a fraction of ‖g‖².
    w: ‖g⊥‖ from subnormal entries of w, not yet multiplied by c.
    g: ‖g⊥‖ from subnormal entries of g.
  """

  relative: Any
  w: Any
  g: Any


def _noise(group: Group, dtype: Any, *, subtracted: bool = False) -> Noise:
  """Returns the noise of a group, as numbers of this dtype.

  Args:
    group: the group.
    dtype: dtype of the sums.
    subtracted: whether ‖g⊥‖² is a difference of sums.
  """
  dtypes = [{x.dtype for x in xs} for xs in (group.ws, group.gs)]
  length = group.length
  if isinstance(length, int):
    numpy, root = np, np.sqrt(length)
  else:
    numpy, root = jnp, jnp.sqrt(jnp.asarray(length, dtype))
  # Storing an entry changes it by up to eps / 2 of its dtype: take eps, for
  # safety. Computing in float32 (float64 for float64) adds a few eps.
  stored = [max(float(jnp.finfo(d).eps) for d in each) for each in dtypes]
  computed = min(float(jnp.finfo(jnp.float32).eps), *stored)
  relative = (sum(stored) + 8 * computed) ** 2
  if subtracted:
    # A difference of sums of n squares has an error of about √n eps.
    relative += float(jnp.finfo(dtype).eps) * root
  quanta = (max(map(_quantum, each)) * root for each in dtypes)
  return Noise(*(numpy.asarray(x, dtype) for x in (relative, *quanta)))


@functools.cache
def _quantum(dtype: Any) -> float:
  """Returns the error of a subnormal entry.

  Float16 rounds subnormals. In float32, bfloat16 and float64, XLA may flush
  them to zero.
  """
  info = jnp.finfo(dtype)
  flushed = info.minexp <= jnp.finfo(jnp.float32).minexp
  return float(info.tiny) if flushed else float(info.smallest_subnormal) / 2


class Solution(NamedTuple):
  """How to update each vector.

  Attributes:
    gain: the factor that restores the norm; 0 where the gate is closed.
    untouched: whether g passes unchanged.
    cosine: cos(w, g).
    gate_closed: whether only rounding noise was left of g.
  """

  gain: jax.Array
  untouched: jax.Array
  cosine: jax.Array
  gate_closed: jax.Array


@functools.partial(jax.jit, static_argnames="options")
def _solve_wide(sums: Sums, strength, eps, noise: Noise, *, options: Options):
  """Returns the factor of w and the solution, given sums in float64."""
  sums = _sums.over_devices(sums, options.axis_name)
  eps = eps.astype(jnp.float64)
  c, factor = _slope(sums, strength)
  # The part of ‖g‖² that is left.
  rr = sums.gg - factor * (2 - _like(strength, c)) * sums.wg
  solution = _solve(
    sums, c, rr, strength, eps, noise, renormalize=options.renormalize
  )
  cosine = solution.cosine.astype(jnp.float32)
  return factor, solution._replace(cosine=cosine)


@jax.jit
def _slope(sums: Sums, strength) -> tuple[jax.Array, jax.Array]:
  """Returns c = ⟨w, g⟩ / ⟨w, w⟩, and s c."""
  c = sums.wg / _safe(sums.ww, sums.ww != 0)
  factor = _like(strength, c) * c
  # Turn an infinite c into NaN. Otherwise some entries would stay finite.
  finite = jnp.isfinite(factor)
  return jnp.where(finite, c, jnp.nan), jnp.where(finite, factor, jnp.nan)


@functools.partial(jax.jit, static_argnames="renormalize")
def _solve(
  sums: Sums, c, rr, strength, eps, noise: Noise, *, renormalize: bool
) -> Solution:
  """Returns the solution, given c = ⟨w, g⟩ / ⟨w, w⟩ and rr = ‖g⊥‖²."""
  _, ww, gg = sums
  nonzero = (ww != 0) & (gg != 0)
  cosine = c * jnp.sqrt(_safe(ww, nonzero)) / jnp.sqrt(_safe(gg, nonzero))
  cosine = jnp.where(nonzero, cosine, 0.0)
  untouched = (_like(strength, c) == 0) | (ww == 0)
  if not renormalize:
    never = jnp.zeros_like(untouched)
    return Solution(jnp.ones_like(rr), untouched, cosine, never)
  stored = noise.g**2 + (c * noise.w) ** 2
  closed = rr <= noise.relative * gg + stored
  norm = jnp.sqrt(_safe(rr, ~closed)) + eps
  gain = jnp.where(closed, 0.0, jnp.sqrt(_safe(gg, ~closed)) / norm)
  return Solution(gain, untouched, cosine, closed & nonzero & ~untouched)


def _like(strength: jax.Array, x: jax.Array) -> jax.Array:
  """Casts strength to x's dtype, and gives it axes that broadcast with x."""
  shape = (*(1,) * (x.ndim - strength.ndim), *strength.shape)
  return strength.astype(x.dtype).reshape(shape if strength.ndim else ())


def _stack(numbers: Sequence[Any], ndim: int) -> Any:
  """Stacks one number for each group, to broadcast with ``ndim`` axes."""
  known = all(isinstance(x, np.ndarray) for x in numbers)
  stacked = (np if known else jnp).stack(numbers)
  return stacked.reshape(-1, *(1,) * (ndim - 1))


def _unstack(x: jax.Array) -> list[jax.Array]:
  """Undoes a stack along axis 0. Traces faster than indexing."""
  return [lax.squeeze(row, (0,)) for row in lax.split(x, [1] * x.shape[0])]


def _safe(x: jax.Array, ok: jax.Array) -> jax.Array:
  """Returns x where ok, else 1. Avoids 0/0 and sqrt(0), also in gradients."""
  return jnp.where(ok, x, jnp.ones_like(x))
