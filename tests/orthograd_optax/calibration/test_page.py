"""Pages and figures of reports."""

import re

import numpy as np
import pytest
from small_reports import Page, made, overconfident, report

from orthograd_optax import calibration, plots

QUESTIONS = [
  "How accurate is it?",
  "How confident is it?",
  "Does confidence match accuracy?",
  "Does a temperature fix it?",
  "Where is it worst?",
  "Is it more than noise?",
  "What to do next?",
]


def test_page(tmp_path):
  path = tmp_path / "page.html"
  assert made().save(path) == path
  text = path.read_text("utf-8")
  page = Page(text)
  assert page.headings[:7] == QUESTIONS
  # Nothing is fetched; names are text.
  assert all(link.startswith("#") for link in page.links)
  assert "@import" not in text and "url(http" not in text
  assert "<script" not in text and "<yak" not in text and "a &lt;b&gt;" in text
  assert "prefers-color-scheme: dark" in text and "@media print" in text
  assert 'name="viewport"' in text
  assert text.count("<svg") == 3  # bins, classes, groups
  # Figures have names of their own, and colours of the page.
  names = re.findall(r'\bid="([^"]+)"', text)
  assert len(set(names)) == len(names)
  assert set(re.findall(r"url\(#([^)]+)\)", text)) <= set(names)
  assert "currentColor" in text and "fill: #000000" not in text
  assert "fill: #ffffff" not in text and "stroke: #ffffff" not in text
  assert made().html() == text  # the same bytes each time


def test_notebooks_show_it():
  text = made()._repr_html_()
  assert text.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
  assert text.count("<") == 2


def test_without_matplotlib(monkeypatch):
  def no_plots(_):
    raise ImportError("matplotlib")

  monkeypatch.setattr(plots, "report_diagram", no_plots)
  text = made()._repr_html_()
  assert text.startswith("<pre>a &lt;b&gt;: 400 examples")


def test_diagram():
  top, bottom = made().plot().axes
  (band,) = [
    c for c in top.containers if c.get_label() == "if calibrated, 95 %"
  ]
  full = [i for i, part in enumerate(made().bins) if part.count]
  low, high = made().band[:, full]
  np.testing.assert_allclose([r.get_y() for r in band], low)
  np.testing.assert_allclose([r.get_y() + r.get_height() for r in band], high)
  assert bottom.get_xlabel() == "confidence"
  (axis,) = plots.gap_plot(made().by_class).axes
  names = [label.get_text() for label in axis.get_yticklabels()]
  assert names == [part.name for part in made().by_class]
  with pytest.raises(ValueError, match="parts is empty"):
    plots.gap_plot([])


def test_names_that_are_not_utf_8(tmp_path):
  """As of files whose names are bytes; two names must stay different."""
  logits, labels = overconfident()
  logits, labels = logits[:, :2], labels % 2
  odd, shown = "\udc80", r"\udc80"
  groups = np.array([odd, "x"])[labels]
  options = {"classes": [odd, "x"], "resamples": 20}
  one = report(logits, labels, **options, groups=groups, name=odd)
  two = calibration.compare(logits, logits / 2, labels, names=(odd, "x"))
  for result in (one, two):
    assert shown in str(result)
    assert shown in result.save(tmp_path / "page.html").read_text("utf-8")
  assert one.name == one.classes[0] == two.names[0] == shown
  assert {part.name for part in one.by_group} == {shown, "x"}
  with pytest.raises(ValueError, match="more than once"):
    report(logits, labels, classes=[odd, shown])
  with pytest.raises(ValueError, match="names must differ"):
    calibration.compare(logits, logits, labels, names=(odd, shown))


def test_names_are_text(recwarn):
  """Also where they look like a formula, or have no glyph in the font."""
  logits, labels = overconfident()
  names = (r"a $\frac{$", "模型")
  result = calibration.compare(
    logits, logits / 2, labels, names=names, resamples=20
  )
  page = result.html()
  assert "模型</text>" in page and "Glyph" not in str(recwarn.list)
  classes = [r"$\frac{$ x", "猫", "c"]
  assert "猫</text>" in report(logits, labels, classes=classes).html()
  with pytest.raises(ValueError, match="names must differ"):
    calibration.compare(logits, logits, labels, names=("a", "a"))
