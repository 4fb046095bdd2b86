"""What is drawn, read back from the figures; not pixels."""

import builtins
import os
import re
import stat
import sys
import types
import warnings
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
from matplotlib import font_manager
from matplotlib.text import Text
import numpy as np
import PIL.Image
import pytest

from orthograd_optax import calibration, plots, stats


def one_curve(x=(1, 2)):
  return plots.curves({"ECE": {"SGD": [0.1, 0.2]}}, x)


def networks(seeds=3, images=400):
  """Overconfident logits of several seeds, on the same images."""
  random = np.random.default_rng(0)
  labels = np.arange(images) % 5
  noise = random.normal(size=(seeds, images, 5))
  logits = 3 * (noise + 1.5 * np.eye(5)[labels][None])
  return logits.astype(np.float32), labels


def reliabilities(seeds=3):
  logits, labels = networks(seeds)
  return jax.vmap(calibration.reliability, (0, None))(logits, labels)


def bars(axis, label):
  """(centre, bottom, height) of the bars with this label."""
  (container,) = (c for c in axis.containers if c.get_label() == label)
  return np.array(
    [
      (r.get_x() + r.get_width() / 2, r.get_y(), r.get_height())
      for r in container
    ]
  ).T


def texts(axis):
  return [text.get_text() for text in axis.texts]


def labelled(where):
  """The names in the legend of a figure, or of an axis."""
  if hasattr(where, "legends"):
    (legend,) = where.legends
  elif (legend := where.get_legend()) is None:
    return where.get_legend_handles_labels()[1]
  return [text.get_text() for text in legend.get_texts()]


def test_reliability_of_one_seed():
  logits, labels = networks()
  bins = calibration.reliability(logits[0], labels)
  top, bottom = plots.reliability_diagram(bins).axes
  full = np.flatnonzero(bins.count)
  centre, low, height = bars(top, "accuracy")
  np.testing.assert_allclose(centre, (full + 0.5) / 10)
  np.testing.assert_allclose(low + height, bins.accuracy[full])
  centre, low, height = bars(top, "gap to confidence")
  np.testing.assert_allclose(low, bins.accuracy[full])
  np.testing.assert_allclose(low + height, bins.confidence[full], rtol=1e-6)
  heights = [patch.get_height() for patch in bottom.patches]
  np.testing.assert_allclose(heights, 100 * bins.count[full] / 400)
  np.testing.assert_allclose(sum(heights), 100)
  # Bars that are too low to see have their counts instead.
  few = [count for count in bins.count.tolist() if count < 4]
  assert texts(bottom) == [f" n = {count}" for count in few] and 0 in few
  error = calibration.ece(logits[0], labels)
  assert texts(top) == [f"ECE {error:.3f}"]
  assert labelled(top) == ["accuracy", "gap to confidence"]
  assert len(top.figure.legends) == 1
  means = [line.get_xdata()[0] for line in bottom.lines]
  expected = [
    calibration.accuracy(logits[0], labels),
    calibration.confidence(logits[0]),
  ]
  np.testing.assert_allclose(means, expected, rtol=1e-6)


def test_reliability_of_seeds_has_a_band():
  seeds = reliabilities()
  figure = plots.reliability_diagram({"SGD": seeds, "⊥Grad": seeds}, title="T")
  assert figure.get_suptitle() == "T"
  assert len(figure.axes) == 4
  assert [a.get_title() for a in figure.axes[:2]] == ["SGD", "⊥Grad"]
  full = np.flatnonzero(seeds.count.sum(axis=0))
  accuracies = np.asarray(seeds.accuracy, np.float64)[:, full]
  accuracy = np.average(accuracies, axis=0, weights=seeds.count[:, full])
  for top in figure.axes[:2]:
    _, _, height = bars(top, "accuracy")
    np.testing.assert_allclose(height, accuracy)
    _, low, height = bars(top, "± 1 s.d. of 3 seeds")
    np.testing.assert_allclose(low + height / 2, accuracy, rtol=1e-6)
    # Over images, of their seed's accuracy in the bin, with Bessel's factor.
    for b, band in zip(full, height, strict=True):
      of_images = np.repeat(seeds.accuracy[:, b], seeds.count[:, b])
      expected = 2 * np.sqrt(3 / 2) * np.std(of_images)
      np.testing.assert_allclose(band, expected, rtol=1e-4, atol=1e-6)
    logits, labels = networks()
    errors = np.array([calibration.ece(z, labels) for z in logits])
    expected = f"ECE {errors.mean():.3f} ± {errors.std(ddof=1):.3f}"
    assert texts(top) == [expected]
  (legend,) = figure.legends
  assert [t.get_text() for t in legend.get_texts()] == [
    "accuracy",
    "gap to confidence",
    "± 1 s.d. of 3 seeds",
    "accuracy, all bins",
    "confidence, all bins",
  ]


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_the_legend_fits(panels):
  bins = {f"model {i}": reliabilities(3) for i in range(panels)}
  figure = plots.reliability_diagram(bins)
  figure.draw_without_rendering()
  (legend,) = figure.legends
  box = legend.get_window_extent()
  assert box.x0 >= 0 and box.x1 <= figure.bbox.width
  assert box.y0 >= 0


def test_reliability_without_a_softmax():
  logits, labels = networks()
  logits[0, 7] = np.nan
  bins = calibration.reliability(logits[0], labels)
  with pytest.raises(ValueError, match="got NaN.*leave it out"):
    plots.reliability_diagram(bins)


def test_svg_has_no_background():
  figure = plots.reliability_diagram(reliabilities())
  text = plots.svg(figure)
  ElementTree.fromstring(text)
  background = re.search(r'<g id="patch_1">.*?</g>', text, re.DOTALL)
  assert background is None or "fill: none" in background[0]
  assert plots.svg(figure) == text


def test_curves_by_severity():
  random = np.random.default_rng(0)
  sgd, orthograd = random.random((2, 4, 5))
  values = {"ECE": {"SGD": sgd, "⊥Grad": orthograd}}
  figure = plots.curves(values, range(1, 6), xlabel="severity", title="T")
  (axis,) = figure.axes
  assert figure.get_suptitle() == "T"
  assert axis.get_ylabel() == "ECE" and axis.get_xlabel() == "severity"
  drawn = [line for line in axis.lines if len(line.get_xdata())]
  for line, values in zip(drawn, (sgd, orthograd), strict=True):
    np.testing.assert_allclose(line.get_xdata(), [1, 2, 3, 4, 5])
    np.testing.assert_allclose(line.get_ydata(), values.mean(axis=0))
  for band, values in zip(axis.collections, (sgd, orthograd), strict=True):
    y = band.get_paths()[0].vertices[:, 1]
    mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1)
    np.testing.assert_allclose(y.max(), (mean + spread).max())
    np.testing.assert_allclose(y.min(), (mean - spread).min())
  styles = {(line.get_linestyle(), line.get_marker()) for line in drawn}
  assert len(styles) == 2  # also in grey
  expected = ["SGD (4 seeds, ± 1 s.d.)", "⊥Grad (4 seeds, ± 1 s.d.)"]
  assert labelled(figure) == expected


def test_curve_of_one_seed():
  figure = one_curve([2, 4])
  (axis,) = figure.axes
  assert not axis.collections
  np.testing.assert_allclose(axis.lines[0].get_xdata(), [2, 4])
  assert labelled(figure) == ["SGD"]


def test_many_curves_differ():
  values = {f"_{i}": [0.1 * i, 0.2 * i] for i in range(20)}
  figure = plots.curves({"loss": values}, [1, 2])
  drawn = [line for line in figure.axes[0].lines if len(line.get_xdata())]
  looks = {
    (line.get_color(), line.get_linestyle(), line.get_marker())
    for line in drawn
  }
  assert len(looks) == 20
  assert labelled(figure) == list(values)


def every_plot(name):
  """Each kind of figure, with a name wherever a user can give one."""
  logits, labels = networks()
  runs = {name: [1.0, 2.0, 4.0]}, {name: [1.5, 2.0, 3.0]}
  part = types.SimpleNamespace(name=name, gap=(0.1, 0.0, 0.2), p_value=1)
  title = {"title": name}
  return {
    "reliability_diagram": lambda: plots.reliability_diagram(
      {name: reliabilities()}, **title
    ),
    "curves": lambda: plots.curves(
      {name: {name: [0.1, 0.2]}}, [1, 2], xlabel=name, log=True, **title
    ),
    "temperature_curve": lambda: plots.temperature_curve(
      {name: logits[0]}, labels, temperatures=[1.0, 2.0], **title
    ),
    "forest_plot": lambda: plots.forest_plot(
      stats.compare_table(*runs, names=(name, name)), **title
    ),
    "gap_plot": lambda: plots.gap_plot([part], **title),
  }


@pytest.mark.parametrize("kind", every_plot(""))
@pytest.mark.parametrize("name", ["$_{$", "模型", "मॉडल"])
def test_names_are_drawn_as_they_are(kind, name, tmp_path):
  """Half a formula does not raise, and a missing glyph does not warn."""
  figure = every_plot(name)[kind]()
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    text = plots.svg(figure)
    plots.save(figure, tmp_path / "figure.png")
  ElementTree.fromstring(text)
  drawn = [text for text in figure.findobj(Text) if name in text.get_text()]
  assert len(drawn) >= 2
  installed = set(font_manager.get_font_names())
  if name == "模型" and not installed & set(plots.style._FALLBACK_FONTS):
    assert name in text  # for the fonts of the browser
  assert not any(text.get_parse_math() for text in drawn)


@pytest.mark.parametrize("kind", every_plot(""))
def test_names_that_are_not_utf_8_are_escaped(kind):
  assert r"\udc80" in plots.svg(every_plot("\udc80")[kind]())


def test_style_is_public():
  with plots.style.figure(3, 2, "$x^2$") as figure:
    axis = figure.subplots()
    axis.plot([1, 2], [1, 100], **plots.style.line(1))
    axis.set_yscale("log")
    plots.style.log_ticks(axis.yaxis, 1, 100)
  assert figure.get_size_inches().tolist() == [3, 2]
  assert axis.lines[0].get_color() == plots.style.COLORS[1]
  assert figure.findobj(Text)[-1].get_parse_math()  # formulas are for users
  figure.draw_without_rendering()
  assert "10" in [label.get_text() for label in axis.get_yticklabels()]


def test_forest_plot():
  random = np.random.default_rng(0)
  a = {"loss": random.normal(size=9), "ece": random.normal(size=9)}
  b = {"loss": a["loss"] - 4, "ece": a["ece"] + 0.1}
  table = stats.compare_table(a, b, names=("SGD", "⊥Grad"))
  (axis,) = plots.forest_plot(table).axes
  assert [t.get_text() for t in axis.get_yticklabels()] == [
    "loss (lower is better)",
    "ece (lower is better)",
  ]
  assert "⊥Grad − SGD" in axis.get_xlabel() and "95 %" in axis.get_xlabel()
  assert "← ⊥Grad is lower    ⊥Grad is higher →" in axis.get_xlabel()
  for y, (row, container) in enumerate(
    zip(table.rows.values(), axis.containers, strict=True)
  ):
    point, _, (interval,) = container
    assert point.get_xdata()[0] == row.d and point.get_ydata()[0] == y
    ends = interval.get_segments()[0][:, 0]
    np.testing.assert_allclose(ends, row.d_interval)
  filled = [c[0].get_markerfacecolor() for c in axis.containers]
  assert filled[0] != "white" and filled[1] == "white"
  low, high = axis.get_ylim()
  assert low > high  # from top to bottom
  assert texts(axis)[1].startswith("0.14 (−")
  assert texts(axis)[0].startswith("−")


def test_forest_plot_without_spread():
  """An infinite effect is written, and the others are drawn."""
  a = {"top5": [98.0, 98.0], "loss": [1.0, 1.2]}
  b = {"top5": [99.0, 99.0], "loss": [1.1, 1.4]}
  (axis,) = plots.forest_plot(stats.compare_table(a, b)).axes
  assert texts(axis)[0] == "inf (inf, inf)"
  assert np.all(np.isfinite(axis.get_xlim()))
  assert len(axis.containers) == 1
  assert [
    line.get_xdata()[0] for line in axis.lines if line.get_marker() == ">"
  ] == [0.99]


def test_temperature_curve():
  logits, labels = networks()
  figure = plots.temperature_curve(
    {"SGD": logits, "one": logits[0]}, labels, temperatures=[0.5, 1.0, 2.0, 4.0]
  )
  (axis,) = figure.axes
  assert axis.get_xscale() == "log"
  curves = [line for line in axis.lines if len(line.get_xdata()) == 4]
  for line, stack in zip(curves, (logits, logits[:1]), strict=True):
    losses = [
      np.mean([calibration.nll(z / np.float32(t), labels) for z in stack])
      for t in np.asarray(line.get_xdata())
    ]
    np.testing.assert_allclose(line.get_ydata(), losses, rtol=1e-5)
  best = [float(calibration.fit_temperature(z, labels)) for z in logits]
  minima = [line for line in axis.lines if len(line.get_xdata()) == 1]
  np.testing.assert_allclose(minima[0].get_xdata(), np.mean(best), rtol=1e-6)
  np.testing.assert_allclose(minima[1].get_xdata(), best[0], rtol=1e-6)
  # The minimum lies on the curve of the mean, which is drawn.
  there = [
    calibration.nll(z / np.float32(np.mean(best)), labels) for z in logits
  ]
  np.testing.assert_allclose(minima[0].get_ydata(), np.mean(there), rtol=1e-5)
  assert labelled(axis) == [
    f"SGD: T = {np.mean(best):.3g} ± {np.std(best, ddof=1):.2g} (3 seeds)",
    f"one: T = {best[0]:.3g}",
  ]


def test_temperature_curve_spans_the_minimum():
  logits, labels = networks()
  (axis,) = plots.temperature_curve(logits[0], labels).axes
  curve = next(line for line in axis.lines if len(line.get_xdata()) == 60)
  lowest = np.argmin(curve.get_ydata())
  assert 10 < lowest < 50
  best = float(calibration.fit_temperature(logits[0], labels))
  assert abs(np.log(curve.get_xdata()[lowest] / best)) < 0.05


@pytest.mark.parametrize("pick", [np.argmax, np.argmin])
def test_temperature_curve_without_a_minimum(pick):
  logits, _ = networks()
  labels = pick(logits[0], axis=1)
  figure = plots.temperature_curve(logits[0], labels)
  (axis,) = figure.axes
  curve = next(line for line in axis.lines if len(line.get_xdata()) == 60)
  assert 0.001 < min(curve.get_xdata()) < max(curve.get_xdata()) < 1000
  assert labelled(axis) == ["T = 1e-08" if pick is np.argmax else "T = 1e+08"]
  figure.draw_without_rendering()
  assert len([t for t in axis.get_xticklabels() if t.get_text()]) >= 2


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_save(tmp_path, suffix):
  figure = plots.reliability_diagram({"⊥Grad": reliabilities()})
  path = tmp_path / f"picture{suffix}"
  path.write_text("old")
  assert plots.save(figure, path) == path
  first = path.read_bytes()
  plots.save(figure, str(path))
  assert path.read_bytes() == first
  assert [p.name for p in tmp_path.iterdir()] == [path.name]
  if suffix == ".svg":
    assert ElementTree.fromstring(first).tag.endswith("svg")
  if suffix == ".png":
    with PIL.Image.open(path) as image:
      assert image.width > 600


@pytest.mark.skipif(sys.platform == "win32", reason="there is no umask")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o007])
def test_saved_files_have_the_permissions_of_the_umask(tmp_path, umask):
  path = tmp_path / "picture.svg"
  figure = one_curve()
  before = os.umask(umask)
  try:
    plots.save(figure, path)
  finally:
    os.umask(before)
  assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_save_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
  figure = one_curve()
  path = tmp_path / "picture.svg"
  path.write_text("old")

  def fail(name, **_):
    with open(name, "w") as file:
      file.write("half")
    raise OSError("No space left on device")

  monkeypatch.setattr(figure, "savefig", fail)
  with pytest.raises(OSError, match="No space"):
    plots.save(figure, path)
  assert path.read_text() == "old"
  assert len(list(tmp_path.iterdir())) == 1
  with pytest.raises(
    ValueError, match=r"\.svg, \.png or \.pdf file, got .*\.gif"
  ):
    plots.save(figure, tmp_path / "picture.gif")


def test_no_global_state():
  one_curve()
  assert (
    "matplotlib.pyplot" not in sys.modules
    or not sys.modules["matplotlib.pyplot"].get_fignums()
  )


def test_without_matplotlib(monkeypatch):
  original = builtins.__import__

  def absent(name, *args, **kwargs):
    if name.startswith("matplotlib"):
      raise ImportError(name)
    return original(name, *args, **kwargs)

  monkeypatch.setattr(builtins, "__import__", absent)
  with pytest.raises(
    ImportError, match="needs matplotlib: pip install matplotlib"
  ):
    one_curve()


def test_input_that_makes_no_sense():
  logits, labels = networks()
  with pytest.raises(ValueError, match="at least one reliability"):
    plots.reliability_diagram({})
  stacked = jax.tree.map(lambda x: x[None], reliabilities())
  with pytest.raises(ValueError, match=r"\(seeds, bins\), got.*\(1, 3, 10\)"):
    plots.reliability_diagram(stacked)
  with pytest.raises(ValueError, match="at least one set of logits"):
    plots.temperature_curve({}, labels)
  for temperatures in ([0.0, 1.0], [], [np.inf], [np.nan]):
    with pytest.raises(ValueError, match="positive temperatures"):
      plots.temperature_curve(logits, labels, temperatures=temperatures)
  with pytest.raises(ValueError, match="finite loss.*for SGD"):
    plots.temperature_curve({"SGD": np.nan * logits}, labels)
  with pytest.raises(ValueError, match="got empty bins"):
    zero = jax.tree.map(
      jnp.zeros_like, calibration.reliability(logits[0], labels)
    )
    plots.reliability_diagram(zero)
  with pytest.raises(ValueError, match=r"labels\[0\] is 9"):
    plots.temperature_curve(logits, jnp.full(400, 9))


def test_curves():
  random = np.random.default_rng(0)
  values = {
    "loss": {"SGD": random.random((3, 4)), "⊥Grad": random.random((3, 4))},
    "ECE": {"SGD": random.random(4)},
  }
  figure = plots.curves(values, [10, 20, 30, 40])
  first, second = figure.axes
  assert [axis.get_ylabel() for axis in figure.axes] == ["loss", "ECE"]
  (legend,) = figure.legends
  assert [text.get_text() for text in legend.get_texts()] == [
    "SGD (3 seeds, ± 1 s.d.)",
    "⊥Grad (3 seeds, ± 1 s.d.)",
    "SGD",
  ]
  line = first.lines[0]
  np.testing.assert_allclose(line.get_xdata(), [10, 20, 30, 40])
  expected = values["loss"]["SGD"].mean(axis=0)
  np.testing.assert_allclose(line.get_ydata(), expected)
  np.testing.assert_allclose(second.lines[0].get_ydata(), values["ECE"]["SGD"])
  for empty in ({}, {"loss": {}}):
    with pytest.raises(ValueError, match="at least one method"):
      plots.curves(empty, [1])
  expected = r"\(seeds, 3\).*got \(3, 4\) as loss of SGD"
  with pytest.raises(ValueError, match=expected):
    plots.curves(values, [1, 2, 3])
  with pytest.raises(ValueError, match=r"got \(3,\) as x of b"):
    plots.curves({"x": {"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]}}, [1, 2])
  with pytest.raises(ValueError, match=r"got \(1, 1, 2\) as x of a"):
    plots.curves({"x": {"a": [[[1.0, 2.0]]]}}, [1, 2])
  # An optimizer looks the same everywhere.
  swapped = {"a": values["loss"], "b": {"⊥Grad": [1e-3] * 4, "SGD": [1.0] * 4}}
  figure = plots.curves(swapped, [1, 2, 3, 4], log=True)
  colors = [axis.lines[0].get_color() for axis in figure.axes]
  assert colors[0] != colors[1] == figure.axes[0].lines[2].get_color()
  assert {axis.get_yscale() for axis in figure.axes} == {"log"}
  assert len({axis.get_ylim() for axis in figure.axes}) == 1
  many = {str(i): values["loss"] for i in range(5)}
  figure = plots.curves(many, [1, 2, 3, 4], xlabel="severity")
  assert [axis.get_ylabel() for axis in figure.axes] == list(many)
  assert {axis.get_xlabel() for axis in figure.axes} == {"severity"}
