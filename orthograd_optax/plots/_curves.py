"""Metrics by epoch or severity, and the loss by temperature."""

from collections.abc import Mapping, Sequence
import itertools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from orthograd_optax.calibration import _fits, _scores
from orthograd_optax.stats._runs import expect

from . import style

if TYPE_CHECKING:
  from matplotlib.figure import Figure

MAX_MARKERS = 20  # of a line


def curves(
  values: Mapping[str, Mapping[str, Any]],
  x: Sequence[float],
  *,
  xlabel: str = "epoch",
  log: bool = False,
  title: str | None = None,
) -> "Figure":
  """Draws metrics against the epoch, the step or the severity.

  Args:
    values: by metric and then by method, an array of shape (seeds, epochs), or
      (epochs,) for one seed.
    x: the epochs.
    xlabel: label of the x axis.
    log: whether all metrics share one logarithmic scale.
    title: title of the figure.

  Returns:
    A figure with one axis for each metric.

  Examples:
    >>> from orthograd_optax import plots
    >>> sgd = [[0.20, 0.25, 0.31], [0.21, 0.24, 0.33]]
    >>> orthograd = [[0.19, 0.22, 0.27], [0.18, 0.23, 0.26]]
    >>> ece = {"ECE": {"SGD": sgd, "⊥Grad": orthograd}}
    >>> figure = plots.curves(ece, [1, 2, 3], xlabel="severity")
  """
  names = list(dict.fromkeys(itertools.chain(*values.values())))
  expect(names, "the values of at least one method", "none")
  columns = 2 if len(values) in (2, 4) else min(len(values), 3)
  lines = math.ceil(len(values) / columns)
  size = 3.1 * columns, 2.6 * lines + 0.4
  with style.figure(*size, title, literal=True) as figure:
    grid = figure.subplots(lines, columns, squeeze=False, sharey=log)
    axes = list(grid.flat)[: len(values)]
    for axis in grid.flat[len(values) :]:
      axis.remove()
    for axis, (metric, methods) in zip(axes, values.items(), strict=True):
      for name, seeds in methods.items():
        array = np.atleast_2d(np.asarray(seeds))
        expected = f"an array of shape (seeds, {len(x)}), one value for each x"
        got = f"{np.shape(seeds)} as {metric} of {name}"
        expect(array.shape[1:] == (len(x),), expected, got)
        # Give a method the same look in all panels.
        look = _draw_line(axis, names.index(name), x, array)
        every = math.ceil(len(x) / MAX_MARKERS)
        axis.lines[-1].set(marker=look["marker"], markevery=every)
        count = f" ({len(array)} seeds, ± 1 s.d.)" if len(array) > 1 else ""
        axis.plot([], [], **look, label=name + count)
      if len(x) <= 12:
        axis.set_xticks(x)
      axis.set(xlabel=xlabel, ylabel=metric)
    if log:
      axes[0].set_yscale("log")
      style.log_ticks(axes[0].yaxis, *axes[0].get_ylim())
    ncols = min(len(names), columns)
    _legend(figure, axes, loc="outside lower center", ncols=ncols)
  return figure


def temperature_curve(
  logits: Any,
  labels: Any,
  *,
  temperatures: Sequence[float] | None = None,
  title: str | None = None,
) -> "Figure":
  """Draws the loss against the temperature, with its minimum.

  Args:
    logits: array of shape (examples, classes) or (seeds, examples, classes), or
      several of these by name.
    labels: integer array of shape (examples,).
    temperatures: the temperatures. By default 60 numbers, from a quarter of the
      lowest best temperature to four times the highest, clipped to 0.01 and 100
      before that.
    title: title of the figure.

  Returns:
    A figure with one axis.

  Examples:
    >>> from orthograd_optax import calibration, plots
    >>> logits = calibration.from_probabilities([0.1, 0.1, 0.7])
    >>> figure = plots.temperature_curve({"SGD": logits}, [0, 1, 1])
  """
  named = logits if isinstance(logits, Mapping) else {"": logits}
  expect(named, "at least one set of logits", "none")
  stacks = {k: jnp.asarray(v) for k, v in named.items()}
  stacks = {k: v[None] if v.ndim == 2 else v for k, v in stacks.items()}
  over_seeds = lambda f: jax.vmap(f, in_axes=(0, None))
  for name, stack in stacks.items():
    # Values can't be checked under vmap.
    finite = np.isfinite(_scores.nll(stack[0], labels))
    got = f"NaN or infinity for {name or 'the logits'}"
    advice = "Leave out examples with such logits."
    expect(finite, "logits with a finite loss", got, advice)
  labels = jnp.asarray(labels)
  best = {
    name: np.asarray(over_seeds(_fits.fit_temperature)(stack, labels))
    for name, stack in stacks.items()
  }
  if temperatures is None:
    ends = np.clip(np.concatenate(list(best.values())), 0.01, 100)
    temperatures = np.geomspace(ends.min() / 4, ends.max() * 4, 60).tolist()
  grid = np.asarray(temperatures, np.float32)
  positive = np.all((grid > 0) & (grid < np.inf))
  valid = grid.ndim == 1 and grid.size and positive
  expect(valid, "positive temperatures", temperatures)

  def losses(logits, labels):
    one = lambda t: _scores.nll(logits / t, labels)
    return jax.lax.map(one, jnp.asarray(grid))

  with style.figure(4.2, 3.1, title, literal=True) as figure:
    axis = figure.subplots()
    axis.axvline(1, color=style.GREY, linewidth=1, linestyle=":")
    for i, (name, stack) in enumerate(stacks.items()):
      y = np.asarray(over_seeds(losses)(stack, labels))
      look = _draw_line(axis, i, grid, y)
      middle = np.mean(best[name])
      text = f"T = {middle:.3g}"
      if len(stack) > 1:
        text += f" ± {np.std(best[name], ddof=1):.2g} ({len(stack)} seeds)"
      if grid.min() <= middle <= grid.max():
        there = over_seeds(_scores.nll)(stack / middle, labels)
        axis.plot(middle, np.mean(there), **look)
      axis.plot([], [], **look, label=f"{name}: {text}" if name else text)
    axis.set_xscale("log")
    style.log_ticks(axis.xaxis, grid.min(), grid.max())
    axis.set(xlabel="temperature", ylabel="loss")
    _legend(axis, [axis])
  return figure


def _draw_line(axis, i, x, seeds) -> dict[str, Any]:
  """Draws the mean over seeds and its band. Returns the look of the line."""
  look = style.line(i)
  mean = seeds.mean(axis=0)
  axis.plot(x, mean, color=look["color"], linestyle=look["linestyle"])
  if len(seeds) > 1:
    spread = seeds.std(axis=0, ddof=1)
    band = {"color": look["color"], "alpha": 0.2, "linewidth": 0}
    axis.fill_between(x, mean - spread, mean + spread, **band)
  return look


def _legend(where, axes, **place):
  """Draws a legend of the lines without data, also of names like "_x"."""
  handles = {
    line.get_label(): line
    for axis in axes
    for line in axis.lines
    if not len(line.get_xdata())
  }
  where.legend(handles.values(), handles.keys(), **place)
