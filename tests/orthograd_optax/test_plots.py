"""What is drawn, read back from the figures; not pixels."""

import builtins
import os
import re
import stat
import sys
import xml.etree.ElementTree as ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

from orthograd_optax import calibration, plots, stats


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


def labelled(axis):
  legend = axis.get_legend()
  if legend is None:
    return axis.get_legend_handles_labels()[1]
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
  mean = calibration.average_reliability(seeds)
  full = np.flatnonzero(mean.count)
  for top in figure.axes[:2]:
    _, _, height = bars(top, "accuracy")
    np.testing.assert_allclose(height, mean.accuracy[full])
    _, low, height = bars(top, "± 1 s.d. of 3 seeds")
    np.testing.assert_allclose(low + height / 2, mean.accuracy[full], rtol=1e-6)
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
  with pytest.raises(ValueError, match="has NaNs.*leave it out"):
    plots.reliability_diagram(bins)


def test_svg_has_no_background():
  figure = plots.reliability_diagram(reliabilities())
  text = plots.svg(figure)
  ElementTree.fromstring(text)
  background = re.search(r'<g id="patch_1">.*?</g>', text, re.DOTALL)
  assert background is None or "fill: none" in background[0]
  assert plots.svg(figure) == text


def test_severity_curves():
  random = np.random.default_rng(0)
  sgd, orthograd = random.random((2, 4, 5))
  figure = plots.severity_curves(
    {"SGD": sgd, "⊥Grad": orthograd}, metric="ECE", title="CIFAR-10-C"
  )
  (axis,) = figure.axes
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
  assert len(styles) == 2  # in grey, too
  expected = ["SGD (4 seeds, ± 1 s.d.)", "⊥Grad (4 seeds, ± 1 s.d.)"]
  assert labelled(axis) == expected and axis.get_legend() is not None


def test_severity_curve_of_one_seed():
  figure = plots.severity_curves(
    {"SGD": [0.1, 0.2]}, metric="loss", severities=[2, 4]
  )
  (axis,) = figure.axes
  assert not axis.collections
  np.testing.assert_allclose(axis.lines[0].get_xdata(), [2, 4])
  assert labelled(axis) == ["SGD"]


def test_many_curves_differ():
  values = {f"_{i}": [0.1 * i, 0.2 * i] for i in range(20)}
  (axis,) = plots.severity_curves(values, metric="loss").axes
  drawn = [line for line in axis.lines if len(line.get_xdata())]
  looks = {
    (line.get_color(), line.get_linestyle(), line.get_marker())
    for line in drawn
  }
  assert len(looks) == 20
  assert labelled(axis) == list(values)


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
  assert "SGD − ⊥Grad" in axis.get_xlabel() and "95 %" in axis.get_xlabel()
  assert "← SGD is lower    SGD is higher →" in axis.get_xlabel()
  for y, (row, container) in enumerate(
    zip(table.rows.values(), axis.containers, strict=True)
  ):
    point, _, (interval,) = container
    assert point.get_xdata()[0] == row.d and point.get_ydata()[0] == y
    ends = interval.get_segments()[0][:, 0]
    np.testing.assert_allclose(ends, row.interval)
  filled = [c[0].get_markerfacecolor() for c in axis.containers]
  assert filled[0] != "white" and filled[1] == "white"
  low, high = axis.get_ylim()
  assert low > high  # from top to bottom
  assert texts(axis)[1].startswith("−0.14 (−")


def test_forest_plot_without_spread():
  """An infinite effect is written, and the others are drawn."""
  a = {"top5": [99.0, 99.0], "loss": [1.0, 1.2]}
  b = {"top5": [98.0, 98.0], "loss": [1.1, 1.4]}
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
  # On the curve that is drawn, that of the mean.
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
  figure = plots.severity_curves({"SGD": [0.1, 0.2]}, metric="ECE")
  before = os.umask(umask)
  try:
    plots.save(figure, path)
  finally:
    os.umask(before)
  assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_save_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
  figure = plots.severity_curves({"SGD": [0.1, 0.2]}, metric="ECE")
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
  with pytest.raises(ValueError, match="'.gif'.*\\.svg, \\.png or \\.pdf"):
    plots.save(figure, tmp_path / "picture.gif")


def test_no_global_state():
  plots.severity_curves({"SGD": [0.1, 0.2]}, metric="ECE")
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
    ImportError, match=r"pip install 'orthograd-optax\[plots\]"
  ):
    plots.severity_curves({"SGD": [0.1, 0.2]}, metric="ECE")


def test_input_that_makes_no_sense():
  logits, labels = networks()
  with pytest.raises(ValueError, match="reliabilities is empty"):
    plots.reliability_diagram({})
  stacked = jax.tree.map(lambda x: x[None], reliabilities())
  with pytest.raises(ValueError, match=r"\(1, 3, 10\).*\(seeds, bins\)"):
    plots.reliability_diagram(stacked)
  with pytest.raises(ValueError, match="values is empty"):
    plots.severity_curves({}, metric="ECE")
  with pytest.raises(ValueError, match=r"\(2,\).*\(3,\).*same severities"):
    plots.severity_curves({"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]}, metric="x")
  with pytest.raises(ValueError, match=r"severities has shape \(3,\).*have 2"):
    plots.severity_curves({"a": [1.0, 2.0]}, metric="x", severities=[1, 2, 3])
  with pytest.raises(ValueError, match="logits is empty"):
    plots.temperature_curve({}, labels)
  for temperatures in ([0.0, 1.0], [], [np.inf], [np.nan]):
    with pytest.raises(ValueError, match="positive"):
      plots.temperature_curve(logits, labels, temperatures=temperatures)
  with pytest.raises(ValueError, match="The loss of SGD is not finite"):
    plots.temperature_curve({"SGD": np.nan * logits}, labels)
  with pytest.raises(ValueError, match="no examples"):
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
  with pytest.raises(ValueError, match="values is empty"):
    plots.curves({}, [1])
  with pytest.raises(ValueError, match=r"x has shape \(3,\).*loss has 4"):
    plots.curves(values, [1, 2, 3])
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
