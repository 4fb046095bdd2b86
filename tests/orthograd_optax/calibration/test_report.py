"""Reports: numbers, words, pages, files and the command line."""

import functools
import html.parser
import importlib.util
import io
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import zipfile

import jax
import numpy as np
import pytest
from scipy import stats as scipy_stats
from test_intervals import CLASSES, EXAMPLES, overconfident

from orthograd_optax import __main__ as command
from orthograd_optax import _files, calibration, plots
from orthograd_optax.calibration import (
  _predictions,
  _report,
  _resampling,
  _sample,
  _table,
  _text,
)

# Fewer draws than usual, for speed.
report = functools.partial(calibration.report, resamples=200)
ENV = os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).parents[3])}
QUESTIONS = [
  "How accurate is it?",
  "How confident is it?",
  "Does confidence match accuracy?",
  "Does a temperature fix it?",
  "Where is it worst?",
  "Is it more than noise?",
  "What to do next?",
]


@functools.cache
def made():
  logits, labels = overconfident()
  groups = np.where(np.arange(EXAMPLES) % 4 == 0, "few <&>", "many")
  names = ["cat", "dog", "<i>yak</i>"]
  return report(logits, labels, groups=groups, classes=names, name="a <b>")


class Page(html.parser.HTMLParser):
  """Checks that elements are closed in order, and keeps what is in them."""

  def __init__(self, text):
    super().__init__()
    self.open, self.headings, self.links, self.text = [], [], [], []
    self.feed(text)
    self.close()
    assert self.open == []

  def handle_starttag(self, tag, attrs):
    self.links += [v for k, v in attrs if k in ("src", "href")]
    if tag not in ("meta", "br", "link"):
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href")]

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if self.open and self.open[-1] == "h2":
      self.headings.append(data)
    self.text.append(data)


# Numbers.


def test_metrics_are_those_of_the_functions():
  logits, labels = overconfident()
  functions = {
    "accuracy": calibration.accuracy,
    "confidence": calibration.confidence,
    "nll": calibration.nll,
    "brier": calibration.brier,
    "ece": calibration.ece,
    "classwise_ece": calibration.classwise_ece,
    "auroc": calibration.auroc,
    "temperature": calibration.fit_temperature,
  }
  for name, function in functions.items():
    value, low, high = made().metrics[name]
    assert value == pytest.approx(float(function(logits, labels)), rel=1e-5)
    assert low < value < high
  assert list(made().metrics) == list(_table.METRICS)


def test_an_overconfident_model_is_found_out():
  result = made()
  assert result.p_calibrated <= 1 / 200
  assert result.metrics["ece"].value > result.ece_if_calibrated
  assert result.best == "temperature"
  half = result.fitted_temperature
  assert half is not None and half.low < 2 < half.high
  gain = result.recalibrated["temperature"]["nll_gain"]
  before, after = (
    result.recalibrated[k]["nll"].value for k in ("uncalibrated", "temperature")
  )
  assert gain.value == pytest.approx(before - after, abs=1e-6)
  assert 0 < gain.low < gain.value < gain.high
  # What it was fitted to, and what it was judged by.
  logits, labels = overconfident()
  fit, test = calibration.split(labels)
  recalibrate = calibration.fit(logits[fit], labels[fit])
  expected = calibration.nll(recalibrate(logits[test]), labels[test])
  assert after == pytest.approx(float(expected), rel=1e-5)
  kept = result.recalibrators["temperature"].temperature
  assert kept == pytest.approx(float(recalibrate.temperature), rel=1e-6)


def test_a_calibrated_model_is_left_unchanged():
  logits, labels = overconfident(temperature=1.0)
  result = report(logits, labels)
  assert result.p_calibrated > 0.05 and result.best is None
  assert result.metrics["ece"].value < result.ece_if_calibrated
  assert "Leave the model unchanged" in str(result)
  low, high = result.band
  for part, below, above in zip(result.bins, low, high, strict=True):
    if part.count > 20:
      assert below <= part.accuracy.high and part.accuracy.low <= above


def test_parts_and_errors():
  logits, labels = overconfident()
  result = made()
  assert sum(part.count for part in result.bins) == EXAMPLES
  assert sum(part.count for part in result.by_class) == EXAMPLES
  sizes = {part.name: part.count for part in result.by_group}
  assert sizes == {"few <&>": EXAMPLES / 4, "many": 3 * EXAMPLES / 4}
  confidence = np.asarray(jax.nn.softmax(logits)).max(axis=1)
  predicted = logits.argmax(axis=1)
  confidence[predicted == labels] = 0
  errors = result.confident_errors
  assert errors[0].row == confidence.argmax()
  assert errors[0].label == result.classes[labels[errors[0].row]]
  assert errors[0].predicted == result.classes[predicted[errors[0].row]]
  np.testing.assert_allclose(
    [e.confidence for e in errors], np.sort(confidence)[::-1][:10], rtol=1e-6
  )


def test_fit_on_a_validation_set():
  """All numbers are of the other examples."""
  logits, labels = overconfident(0, 3 * EXAMPLES // 2)
  validation = np.arange(len(labels)) % 3 == 0
  result = report(logits, labels, fit=validation)
  test = logits[~validation], labels[~validation]
  assert result.examples == EXAMPLES
  assert result.metrics["ece"].value == pytest.approx(
    float(calibration.ece(*test)), rel=1e-5
  )
  expected = calibration.fit(logits[validation], labels[validation])
  half = result.fitted_temperature
  assert half is not None
  assert half.value == pytest.approx(float(expected.temperature), rel=1e-5)
  rows = [error.row for error in result.confident_errors]
  assert all(row % 3 != 0 for row in rows)


def test_several_seeds_have_intervals_over_seeds():
  runs = [overconfident(seed) for seed in range(5)]
  logits = np.concatenate([z for z, _ in runs])
  labels = np.concatenate([y for _, y in runs])
  result = report(logits, labels, seeds=np.repeat(np.arange(5), EXAMPLES))
  assert result.seeds == 5 and result.examples == EXAMPLES
  values = [float(calibration.nll(*run)) for run in runs]
  expected = scipy_stats.ttest_1samp(values, 0).confidence_interval()
  value, low, high = result.metrics["nll"]
  assert value == pytest.approx(np.mean(values), rel=1e-5)
  np.testing.assert_allclose([low, high], expected, rtol=1e-4)
  assert "5 seeds, 400 examples, 3 classes" in str(result)
  Page(result.html())
  json.dumps(result.to_dict(), allow_nan=False)


def test_seeds_with_empty_bins():
  """Of a bin that one seed has no examples in, the others tell."""
  logits, labels = overconfident()
  result = report(np.stack([logits, 20 * logits]), labels)
  counts = [
    calibration.reliability(z, labels).count for z in (logits, 20 * logits)
  ]
  assert any((counts[0] > 0) & (counts[1] == 0))
  for part, a, b in zip(result.bins, *counts, strict=True):
    assert part.count == (a + b) / 2
    assert np.isfinite(part.gap.value) == (part.count > 0)
    if np.isfinite(part.accuracy.low):
      assert 0 <= part.accuracy.low <= part.accuracy.high <= 1
  assert result.metrics["ece"].low >= 0
  Page(result.html())


def test_groups_that_one_seed_has_not():
  logits, labels = overconfident()
  both = np.concatenate([logits, logits])
  groups = np.repeat(["a", "b", "a", "c"], EXAMPLES // 2)
  result = report(
    both,
    np.concatenate([labels, labels]),
    groups=groups,
    seeds=np.repeat([0, 1], EXAMPLES),
  )
  counts = {part.name: part.count for part in result.by_group}
  assert counts == {"a": 200, "b": 100, "c": 100}


def test_gaps_have_the_intervals_of_accuracies():
  for part in (*made().bins, *made().by_class, *made().by_group):
    if part.count:
      low = part.confidence - part.accuracy.high
      assert part.gap.low == pytest.approx(low, abs=1e-6)
      assert -1 <= part.gap.low <= part.gap.value <= part.gap.high <= 1


def test_names_of_classes():
  logits, labels = overconfident()
  names = np.array(["a", "b", "c"])
  by_name = report(logits, names[labels], classes=names)
  assert by_name.metrics == report(logits, labels).metrics
  with pytest.raises(ValueError, match=r"labels\[0\] is '.'.*classes are 'x'"):
    report(logits, names[labels], classes=["x", "y", "z"])
  with pytest.raises(
    ValueError, match="one name for each of the 3 columns.*has 2 names"
  ):
    report(logits, labels, classes=["x", "y"])
  with pytest.raises(TypeError, match="labels = "):
    report(logits, names[labels])


def test_impossible_labels():
  """An infinite loss is said to be one, and the rest is there."""
  logits, labels = overconfident()
  logits = logits.copy()
  logits[5, labels[5]] = -np.inf
  result = report(logits, labels)
  assert result.metrics["nll"].value == np.inf
  assert "The label of 1 example has a probability below 1e-30" in str(result)
  assert re.search(r"NLL \(log-loss\), nats +∞\n", str(result))
  assert np.isfinite(result.metrics["ece"]).all()
  assert result.to_dict()["nll"]["value"] is None
  Page(result.html())


def test_a_model_that_is_always_right():
  logits, _ = overconfident()
  result = report(logits, logits.argmax(axis=1))
  assert result.metrics["accuracy"].value == 1
  assert result.metrics["accuracy"].low < 0.995
  assert "No temperature helps" in _text.answers(result)["scale"].text
  assert result.best is None
  assert "Next: Leave the model unchanged. Every prediction to" in str(result)
  assert "all correct, or all wrong" in _text.answers(result)["confidence"].text
  assert "There are no errors" in result.html()
  assert result.confident_errors == []
  backwards = report(logits, logits.argmin(axis=1))
  assert "order of the classes" in backwards.notes[0]
  assert "uninformative" in _text.answers(backwards)["scale"].text


def test_classes_may_be_numbers():
  """Labels are then their names. Beside other names, labels are indices."""
  logits, labels = overconfident()
  expected = report(logits, labels).metrics["accuracy"]
  classes = [7, 1, 3, 5, 9][: logits.shape[1]]
  assert len(classes) == logits.shape[1]
  names = np.array(classes)[np.asarray(labels)]
  words = [f"class {c}" for c in classes]
  for given, known in (
    (names, classes),
    (names.astype(str), classes),
    (jax.numpy.asarray(names), classes),
    (labels, words),
  ):
    result = report(logits, given, classes=known)
    assert result.metrics["accuracy"] == expected
  with pytest.raises(ValueError, match="labels.*is '0', but the classes are"):
    report(logits, 0 * labels, classes=classes)


# Which classes and groups are off?


def calibrated(seed, classes, examples=1000, scale=2.0):
  """Labels are drawn from the model itself; some classes are rare."""
  random = np.random.default_rng(seed)
  logits = scale * random.normal(size=(examples, classes))
  logits -= np.linspace(0, 3, classes)
  labels = np.argmax(logits + random.gumbel(size=logits.shape), axis=1)
  return logits.astype(np.float32), labels


def parts(logits, labels, groups=None):
  checked = _predictions.check_all(logits, labels, groups=groups)
  sample = _sample.Sample(checked.runs[0].logits, checked.runs[0].labels)
  return _report._classes_and_groups([sample], checked, 0.95)


@pytest.mark.mostly_slow(4)
@pytest.mark.parametrize("classes", [50, 2, 10, 200])
def test_calibrated_models_are_not_accused(classes):
  accused, excluded, runs = 0, 0, 100
  for seed in range(runs):
    logits, labels = calibrated(seed, classes)
    groups = np.random.default_rng(seed).integers(0, 8, len(labels))
    result = [one for table in parts(logits, labels, groups) for one in table]
    accused += any(one.p_value < 0.05 for one in result)
    excluded += any(one.gap.low > 0 or one.gap.high < 0 for one in result)
  # Of 100 models, 5 are expected at most; 12 or more have p = 0.4 %.
  assert accused <= 11
  # The intervals on the page hold together, too. Wilson's are approximate.
  assert excluded <= 20


@pytest.mark.parametrize("classes", [2, 10, 50, 200])
def test_a_bad_class_and_a_bad_group_are_named(classes):
  logits, labels = calibrated(0, classes, 8000, scale=4.0)
  groups = np.arange(len(labels)) % 5
  bad_group = np.random.default_rng(1).random(len(labels)) < 0.4
  bad_group &= groups == 3
  labels = np.where(bad_group, (labels + 1) % classes, labels)
  by_class, by_group = parts(logits, labels, groups)
  assert by_group[0].name == "3" and by_group[0].p_value < 1e-6
  predicted = logits.argmax(axis=1)
  _, other = calibrated(0, classes, 8000, scale=4.0)
  wrong = (predicted == 1) & (np.random.default_rng(1).random(8000) < 0.5)
  other = np.where(wrong, (other + 1) % classes, other)
  by_class, _ = parts(logits, other)
  assert by_class[0].name == "1" and by_class[0].p_value < 0.001
  assert by_class[0].gap.low > 0


def test_p_values_are_exact():
  """Against sums over all outcomes, and SciPy's binomial test."""
  random = np.random.default_rng(0)
  p = random.uniform(0.1, 1, size=9)
  outcomes = np.array(list(itertools.product([0, 1], repeat=9)))
  mass = np.prod(np.where(outcomes, p, 1 - p), axis=1)
  number = outcomes.sum(axis=1)
  for right in range(10):
    tails = mass[number <= right].sum(), mass[number >= right].sum()
    result = _resampling._poisson_binomial(p, right)
    assert result == pytest.approx(min(2 * min(tails), 1), abs=1e-12)
  for n, share, right in ((3000, 0.99, 2950), (40_000, 0.6, 24_300)):
    result = _resampling._poisson_binomial(np.full(n, share), right)
    binomial = scipy_stats.binom(n, share)
    tails = binomial.cdf(right), binomial.sf(right - 1)
    assert result == pytest.approx(2 * min(tails), rel=0.02)
  assert _resampling._poisson_binomial(np.ones(5), 4) < 1e-12
  assert _resampling._poisson_binomial(np.full(4, 0.5), 2) == 1
  assert np.isnan(_resampling._poisson_binomial(np.ones(0), 0))


# Where a bootstrap has no interval.


def test_all_correct():
  logits = calibrated(0, 3, 100)[0]
  result = report(logits, logits.argmax(axis=1))
  for name in ("accuracy", "selective_risk"):
    value, low, high = result.metrics[name]
    assert value in (0, 1) and 0.02 < high - low < 0.05
  assert result.metrics["aurc"].value == 0
  assert np.isnan(result.metrics["aurc"][1:]).all()
  assert re.search(r"\nAURC +0.0000 +—\n", str(result))
  gap = result.metrics["overconfidence"]
  accuracy = result.metrics["accuracy"]
  assert gap.high - gap.low == pytest.approx(accuracy.high - accuracy.low)


def test_no_interval_has_zero_width():
  for examples in (1, 2, 3, 25):
    logits, labels = calibrated(1, 3, examples)
    for truth in (labels, logits.argmax(axis=1), logits.argmin(axis=1)):
      for value, low, high in report(logits, truth).metrics.values():
        assert not low == high, value


def test_two_examples_show_nothing():
  result = report(np.array([[1.0, -1.0], [2.0, 0.5]]), np.array([0, 0]))
  assert result.p_calibrated > 0.5
  text = result.html() + str(result)
  assert "underconfident" not in text.replace("can only reveal", "")
  assert "There is no evidence" in text


def test_useless_predictions_have_no_temperature():
  random = np.random.default_rng(0)
  logits, labels = random.normal(size=(300, 4)), random.integers(0, 4, 300)
  result = report(logits, labels)
  assert np.isnan(result.metrics["temperature"]).all()
  assert re.search(r"best temperature +none helps\n", str(result))
  assert "No temperature helps" in result.html()
  assert result.to_dict()["temperature"]["value"] is None


def test_own_metrics():
  logits, labels = overconfident()
  own = {"top <2>": lambda z, y: np.mean(np.asarray(z).max(axis=1))}
  result = report(logits, labels, metrics=own)
  value, low, high = result.metrics["top <2>"]
  assert value == pytest.approx(logits.max(axis=1).mean(), rel=1e-6)
  error = logits.max(axis=1).std() / 20
  assert high - low == pytest.approx(2 * 1.96 * error, rel=0.2)
  assert re.search(r"\ntop <2> +\d", str(result))
  assert "top &lt;2&gt;" in result.html() and "top <2>" in result.to_dict()
  several = report(np.stack([logits, 2 * logits]), labels, metrics=own)
  assert several.metrics["top <2>"].value == pytest.approx(1.5 * value)
  for wrong in (
    {"ece": own["top <2>"]},
    {"name": len},
    {"x": 3},
    {"\udc80": len},
  ):
    with pytest.raises(ValueError, match="functions of .* by new names"):
      report(logits, labels, metrics=wrong)


@pytest.mark.parametrize("classes", [2, 4])
def test_recalibrators_are_those_of_fit(classes):
  """Fitted to the same half; temperatures in NumPy and in JAX."""
  logits, labels = calibrated(0, classes, 600)
  logits = 2 * logits + np.arange(classes, dtype=np.float32)
  result = report(logits, labels).recalibrators
  fit, _ = calibration.split(labels)
  pair = logits[fit], labels[fit]
  assert ("platt" in result) == (classes == 2)
  for method, recalibrate in result.items():
    expected = calibration.fit(*pair, method)
    losses = [
      float(calibration.nll(one(pair[0]), pair[1]))
      for one in (recalibrate, expected)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5), method
    np.testing.assert_allclose(
      jax.nn.softmax(recalibrate(pair[0])),
      jax.nn.softmax(expected(pair[0])),
      atol=2e-3,
    )
  alike = report(np.full((60, 3), 0.3) + 5, labels[:60] % 3)
  assert alike.recalibrated["vector"]["nll"].value < 2  # and not 1e7


def test_recalibrators_take_what_the_report_took():
  """Also the scores of two classes, and the printed code works for them."""
  logits, labels = calibrated(0, 2, 300)
  scores = 3 * (logits[:, 1] - logits[:, 0])
  for given in (scores, scores[:, None], np.stack([0 * scores, scores], 1)):
    result = report(given, labels)
    assert result.metrics["nll"].value == pytest.approx(
      float(calibration.nll(given, labels)), rel=1e-5
    )
    for recalibrate in result.recalibrators.values():
      assert recalibrate.columns == (2 if given.shape == (300, 2) else 1)
      p = jax.nn.softmax(recalibrate(given))
      assert p.shape == (300, 2)
      np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)


def test_a_report_compiles_nothing():
  compiled = []
  name = "/jax/core/compile/backend_compile_duration"
  listen = lambda event, *_, **__: compiled.append(event)
  jax.monitoring.register_event_duration_secs_listener(listen)
  logits, labels = calibrated(0, 7, 311)
  jax.numpy.cumsum(jax.numpy.arange(311))
  assert name in compiled
  compiled.clear()
  report(logits, labels).html()
  assert name not in compiled


# Words and pages.


def test_one_number_for_each_name():
  """The page says which examples a number describes."""
  page, result = made().html(), made()
  assert result.fitted_temperature is not None
  fitted = result.fitted_temperature.value
  assert f"fitted temperature is {fitted:.3g}" in page
  assert result.fit_examples == result.held_out_examples == EXAMPLES // 2
  assert "on 200 held-out examples" in page
  assert "All numbers, on 400 examples" in page
  gap = 100 * result.metrics["overconfidence"].value
  before, after = (
    100 * result.recalibrated[k]["ece"].value
    for k in ("uncalibrated", "temperature")
  )
  answer = (
    f"No. It is overconfident by {gap:.1f} points. Dividing the logits by "
    f"{fitted:.3g} lowers ECE from {before:.1f} % to {after:.1f} % on 200 "
    "held-out examples."
  )
  assert f'<div class="box"><p>{answer}</p></div>' in page
  assert answer in str(result) and result.to_dict()["answer"] == answer


def test_table():
  text = str(made())
  for label in (m.label for m in _table.METRICS.values()):
    assert label in text
  value, low, high = made().metrics["ece"]
  assert re.search(rf"\nECE +{value:.4f} +\({low:.4f}, {high:.4f}\)\n", text)
  assert "Next: Recalibrate: temperature." in text
  assert 'calibration.fit(logits, labels, "temperature")' in text


def test_the_code_of_the_recommendation_runs(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  _, code = _text.recommendation(made())
  logits, labels = overconfident()
  names = {"logits": logits, "labels": labels, "new_logits": logits}
  exec(code, names)
  np.testing.assert_allclose(names["probabilities"].sum(axis=1), 1, rtol=1e-5)
  assert calibration.load("recalibrator.json").method == "temperature"


def test_dict_is_json():
  content = json.loads(json.dumps(made().to_dict(), allow_nan=False))
  for name in ("accuracy", "nll", "ece", "brier", "temperature"):
    assert set(content[name]) == {"value", "low", "high"}
  assert 0 < content["accuracy"]["value"] < 1
  assert content["examples"] == EXAMPLES
  assert len(content["bins"]) == 10
  # A bin of no examples has no accuracy.
  text = json.dumps(content)
  assert max(len(x) for x in re.findall(r"\d\.(\d+)", text)) < 12
  assert content["ece"]["value"] == float(f"{made().metrics['ece'].value:.7g}")
  empty = [b for b in content["bins"] if b["count"] == 0]
  assert empty and all(b["accuracy"]["value"] is None for b in empty)


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


@pytest.mark.parametrize(
  ("gap", "p", "words"),
  [
    ((0.1, 0.05, 0.15), 0.001, "No: it is overconfident"),
    ((-0.1, -0.15, -0.05), 0.001, "No: it is underconfident"),
    ((0.01, -0.05, 0.07), 0.001, "On average, yes, but not at every"),
    ((-0.1, -0.15, -0.05), 0.3, "There is no evidence"),
  ],
)
def test_words_follow_from_numbers(gap, p, words):
  """All verdicts of a page agree with p."""
  metrics = made().metrics | {"overconfidence": calibration.Estimate(*gap)}
  changed = {"metrics": metrics, "p_calibrated": p, "best": None}
  changed = calibration.Report(**(vars(made()) | changed))
  assert words in _text.answers(changed)["gap"].text
  assert _text.answer(changed).startswith("No." if p < 0.05 else "There is no")
  assert ("Yes." in _text.answers(changed)["noise"].text) == (p < 0.05)


# Bad input.


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"row": (7, np.nan)}, r"logits\[7\] has no .* a NaN.*leave it out"),
    ({"row": (9, np.inf)}, r"logits\[9\] has no softmax: it has ∞"),
    ({"row": (9, -np.inf)}, r"logits\[9\] has no softmax: it has only −∞"),
    ({"label": (5, 3)}, r"3 classes.*0 to 2, but labels\[5\] is 3"),
    ({"label": (5, -1)}, r"labels\[5\] is -1"),
    ({"cut": 3}, r"labels must have .* but has \(3,\)"),
    ({"groups": np.zeros(3)}, r"groups has shape \(3,\)"),
    ({"seeds": np.zeros(3)}, r"seeds has shape \(3,\)"),
    (
      {"cut": 3, "seeds": np.arange(EXAMPLES) % 2},
      r"labels must .* \(400,\) for logits .* \(400, 3\), but has \(3,\)",
    ),
    ({"label": (8, 3), "seeds": np.arange(EXAMPLES) % 2}, r"labels\[8\] is 3"),
    (
      {"row": (8, np.nan), "seeds": np.arange(EXAMPLES) % 2},
      r"logits\[8\] has",
    ),
    ({"fit": np.zeros(EXAMPLES)}, "fit has .* float64.*booleans"),
    ({"fit": np.zeros(EXAMPLES, bool)}, "fit must leave.* has 0 of 400"),
    ({"level": 95}, "level must be .* is 95"),
    ({"resamples": 0}, "resamples must be .* is 0"),
    ({"resamples": 19}, "resamples must be at least 20.* no p-value would"),
    ({"num_bins": 0}, "num_bins must be .* 0"),
  ],
)
def test_reports_refuse(change, message):
  logits, labels = overconfident()
  logits, labels = logits.copy(), labels.copy()
  if "row" in change:
    row, value = change.pop("row")
    logits[row] = value
  if "label" in change:
    row, value = change.pop("label")
    labels[row] = value
  labels = labels[: change.pop("cut", None)]
  with pytest.raises(ValueError, match=message):
    calibration.report(logits, labels, **change)


def test_more_refusals():
  logits, labels = overconfident()
  with pytest.raises(ValueError, match=r"seeds\[3\] is NaN"):
    seeds = np.where(np.arange(EXAMPLES) == 3, np.nan, 0)
    report(logits, labels, seeds=seeds)
  with pytest.raises(ValueError, match="'a' more than once"):
    report(logits, labels, classes=["a", "b", "a"])
  with pytest.raises(ValueError, match=r"labels\[0\] is '1111.*\.\.\."):
    report(logits, ["1" * 400] * EXAMPLES, classes=["a", "b", "c"])
  p = np.asarray(jax.nn.softmax(logits)).round(2)
  p[:, 0] *= 0.9
  for wrong in (p, np.stack([p, p]), p[:, 0], p[:, :1]):
    with pytest.raises(ValueError, match="look like probabilities"):
      report(wrong, labels % 2)
    with pytest.raises(ValueError, match="look like probabilities"):
      calibration.compare(wrong, wrong, labels % 2)
  outside = np.clip(logits, 0, 1)
  assert not np.allclose(outside.sum(axis=1), 1, atol=0.2)
  report(outside, labels)


def test_reports_are_made_on_the_host():
  logits, labels = overconfident()
  with pytest.raises(TypeError, match="outside of jit"):
    jax.jit(lambda z: calibration.report(z, labels).p_calibrated)(logits)
  with pytest.raises(
    ValueError, match="look like probabilities: all are from 0 to 1"
  ):
    calibration.report(jax.nn.softmax(logits), labels)
  with pytest.raises(TypeError, match="'bins'. Did you mean num_bins"):
    calibration.report(logits, labels, bins=15)


# Two models.


@functools.cache
def compared():
  logits, labels = overconfident()
  return calibration.compare(
    logits, logits / 2, labels, names=("hot", "cool"), resamples=200
  )


def test_compare_in_pairs():
  result = compared()
  logits, labels = overconfident()
  expected = calibration.ece(logits / 2, labels) - calibration.ece(
    logits, labels
  )
  assert result.difference["ece"].value == pytest.approx(
    float(expected), rel=1e-4
  )
  assert result.verdicts["ece"] == "cool is better"
  assert result.verdicts["confidence"] == "higher in hot"
  # Scaling changes no answer, and in pairs not even by noise.
  value, *interval = result.difference["accuracy"]
  assert value == 0 and np.isnan(interval).all()
  assert result.verdicts["accuracy"] == "no difference shown"
  # Losses of the same examples go together.
  gap = result.difference["nll"]
  alone = result.old["nll"]
  assert gap.high - gap.low < alone.high - alone.low
  assert "cool is better" in str(result)
  Page(result.html())
  assert result._repr_html_().startswith("<iframe")
  json.dumps(result.to_dict(), allow_nan=False)
  few = calibration.compare(logits[:19], logits[:19] / 2, labels[:19])
  assert set(few.verdicts.values()) == {""}
  assert "19 examples are too few for a verdict: use at least 20" in str(few)
  same = calibration.compare(logits, logits, labels, resamples=200)
  assert set(same.verdicts.values()) == {"no difference shown"}


@pytest.mark.parametrize("seeds", [3, 5])
def test_few_seeds_have_no_verdict(seeds):
  runs = [overconfident(seed) for seed in range(seeds)]
  logits = np.stack([z for z, _ in runs])
  labels = runs[0][1]
  result = calibration.compare(logits, logits / 2, labels, resamples=10)
  assert result.seeds == seeds
  differences = [
    float(calibration.nll(z / 2, labels) - calibration.nll(z, labels))
    for z in logits
  ]
  expected = scipy_stats.ttest_1samp(differences, 0).confidence_interval()
  np.testing.assert_allclose(result.difference["nll"][1:], expected, rtol=1e-3)
  if seeds < 5:
    assert set(result.verdicts.values()) == {""}
    assert "3 seeds are too few for a verdict" in str(result)
  else:
    assert result.verdicts["nll"] == "new is better"
  assert result.plot() is not None


def test_differences_are_new_minus_old():
  assert "difference (cool − hot)" in str(compared())
  assert "difference (cool − hot)" in compared().html()
  for key, metric in _table.METRICS.items():
    old, new = compared().old[key].value, compared().new[key].value
    difference = compared().difference[key].value
    assert difference == pytest.approx(new - old, abs=1e-12), metric.label
  assert compared().to_dict()["names"] == ["hot", "cool"]


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


def test_compare_refuses():
  logits, labels = overconfident()
  with pytest.raises(ValueError, match=r"\(400, 3\) and \(399, 3\)"):
    calibration.compare(logits, logits[1:], labels)


# Files and the command line.


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  return tmp_path


def run(capsys, *arguments):
  """Exit status, and what was printed."""
  status = command.main([*arguments, "--resamples", "200"])
  out, err = capsys.readouterr()
  return status, out, err


def write(folder, kind, logits, labels):
  p = np.asarray(jax.nn.softmax(logits))
  if kind == "logits.npz":
    np.savez(folder / "x.npz", logits=logits, labels=labels)
  elif kind == "probabilities.npz":
    np.savez(folder / "x.npz", probabilities=p, labels=labels)
  elif kind == "names.npz":
    names = np.array(["b", "c", "a"])
    pair = {"probabilities": p, "labels": names[labels], "classes": names}
    np.savez(folder / "x.npz", **pair)
  elif kind == "npy":
    np.save(folder / "x.npy", logits)
    np.save(folder / "labels.npy", labels)
    return ["x.npy", "--labels", "labels.npy"]
  elif kind == "csv":
    lines = ["label,logit_0,logit_1,logit_2"]
    lines += [
      ",".join([str(y), *map(str, row)])
      for y, row in zip(labels, logits, strict=True)
    ]
    (folder / "x.csv").write_text("\n".join(lines) + "\n")
    return ["x.csv"]
  elif kind == "parquet":
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    names = np.array(["b", "c", "a"])
    frame = pandas.DataFrame(p.astype(np.float64), columns=list(names))
    frame["label"] = names[labels]
    frame.to_parquet(folder / "x.parquet")
    return ["x.parquet"]
  return ["x.npz"]


KINDS = ["logits.npz", "probabilities.npz", "names.npz", "npy", "csv"]


@pytest.mark.parametrize("kind", [*KINDS, "parquet"])
def test_report_of_a_file(kind, folder, capsys):
  logits, labels = overconfident()
  files = write(folder, kind, logits, labels)
  status, out, err = run(capsys, "report", *files, "--json")
  assert status == 0 and err == ""
  content = json.loads(out)
  for name in ("accuracy", "nll", "ece", "brier", "temperature"):
    expected = made().metrics[name]._asdict()
    assert content[name] == pytest.approx(expected, rel=1e-4, abs=1e-5), name
  assert not list(folder.glob("*.html"))


def test_report_writes_a_page_and_prints_the_table(folder, capsys):
  write(folder, "logits.npz", *overconfident())
  status, out, err = run(capsys, "report", "x.npz")
  assert status == 0 and err == "Wrote x.html\n"
  assert "accuracy" in out and "Next: " in out
  assert "confidence of x be trusted" in (folder / "x.html").read_text("utf-8")
  options = ("--output", "page.html", "--name", "my model")
  assert run(capsys, "report", "x.npz", *options)[0] == 0
  assert "confidence of my model" in (folder / "page.html").read_text("utf-8")
  assert sorted(p.name for p in folder.iterdir()) == [
    *("page.html", "x.html", "x.npz")
  ]


def test_compare_files(folder, capsys):
  logits, labels = overconfident()
  np.savez("a.npz", logits=logits, labels=labels)
  np.savez("b.npz", logits=logits / 2, labels=labels)
  status, out, err = run(capsys, "compare", "a.npz", "b.npz", "--json")
  assert status == 0
  content = json.loads(out)
  assert content["verdicts"]["ece"] == "b is better"
  assert content["difference"]["ece"]["high"] < 0
  status, out, err = run(capsys, "compare", "a.npz", "b.npz")
  assert status == 0 and "b is better" in out and "a_or_b.html" in err
  assert (folder / "a_or_b.html").exists()
  other = labels.copy()
  other[3] = (other[3] + 1) % 3
  np.savez("b.npz", logits=logits / 2, labels=other)
  status, out, err = run(capsys, "compare", "a.npz", "b.npz")
  assert status == 2 and re.search(r"labels\[3\] is . in a.npz and . in b", err)
  np.savez("b.npz", logits=logits[1:], labels=labels[1:])
  status, out, err = run(capsys, "compare", "a.npz", "b.npz")
  assert status == 2 and "have 400 and 399 labels" in err


def test_compare_names_the_order_of_classes(folder, capsys):
  (folder / "a.csv").write_text("label,cat,dog\ncat,0.9,0.1\ndog,0.4,0.6\n")
  (folder / "b.csv").write_text("label,dog,cat\ncat,0.1,0.9\ndog,0.6,0.4\n")
  _, _, err = run(capsys, "compare", "a.csv", "b.csv")
  assert "the order differs: cat,dog and dog,cat. Reorder the columns" in err
  (folder / "sub").mkdir()
  (folder / "sub" / "a.csv").write_text((folder / "a.csv").read_text())
  status, out, _ = run(capsys, "compare", "a.csv", "sub/a.csv", "--json")
  assert status == 0 and json.loads(out)["names"] == ["a.csv", "sub/a.csv"]


def test_rounded_probabilities(folder, capsys):
  """Ten probabilities of two decimals sum to 0.97 to 1.03."""
  random = np.random.default_rng(0)
  logits = random.normal(size=(500, 10))
  labels = np.argmax(logits + random.gumbel(size=logits.shape), axis=1)
  p = np.asarray(jax.nn.softmax(logits)).round(2)
  assert np.ptp(p.sum(axis=1)) > 0.04
  exact = p / p.sum(axis=1, keepdims=True)
  expected = float(
    calibration.ece(calibration.from_probabilities(exact), labels)
  )
  for prefix in ("", "p_"):
    lines = [",".join(["label", *(f"{prefix}{c}" for c in range(10))])]
    lines += [
      ",".join(map(str, (y, *row))) for y, row in zip(labels, p, strict=True)
    ]
    (folder / "x.csv").write_text("\n".join(lines) + "\n\n")  # a blank line
    status, out, _ = run(capsys, "report", "x.csv", "--json")
    assert status == 0
    # Rounding may move a confidence to the next bin.
    assert json.loads(out)["ece"]["value"] == pytest.approx(expected, abs=2e-3)
  np.savez("x.npz", logits=p, labels=labels)
  status, _, err = run(capsys, "report", "x.npz")
  assert status == 2 and "look like probabilities" in err


@pytest.mark.parametrize("name", ["", "id", "Index", "Unnamed: 0", "age"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_an_index_is_not_a_class(name, kind, folder, capsys):
  logits, labels = overconfident()
  words = np.array(["cat", "dog", "yak"])
  columns = {name: np.arange(EXAMPLES, dtype=float)}
  columns |= dict(zip(words, logits.T.astype(float), strict=True))
  if kind == "npz":
    table = np.stack(list(columns.values()), axis=1)
    keys = {"classes": list(columns), "labels": words[labels]}
    np.savez("x.npz", logits=table, **keys)
    if name == "age":
      return  # The classes are given by name.
  elif kind == "csv":
    lines = [",".join(["label", *columns])]
    lines += [
      ",".join([words[y], *map(str, row)])
      for y, *row in zip(labels, *columns.values(), strict=True)
    ]
    (folder / "x.csv").write_text("\n".join(lines))
  else:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(columns | {"label": words[labels]})
    frame.to_parquet("x.parquet")
  status, _, err = run(capsys, "report", f"x.{kind}")
  assert status == 2 and repr(name) in err
  remedy = f"logit_{name} or p_{name}" if name == "age" else "index=False"
  assert remedy in err


def test_only_known_keys_are_read(folder, capsys, monkeypatch):
  logits, labels = overconfident()
  np.savez("x.npz", logits=logits, labels=labels, unused=np.zeros(10**6))
  limit = logits.nbytes + labels.nbytes + 1000
  monkeypatch.setattr(_files, "MAX_BYTES", limit)
  assert run(capsys, "report", "x.npz", "--json")[0] == 0
  monkeypatch.setattr(_files, "MAX_BYTES", limit - 2000)
  status, _, err = run(capsys, "report", "x.npz")
  assert status == 2 and f"at most {limit - 2000:,} bytes" in err
  assert "MAX_BYTES" in err


def damaged(kind):
  """An .npz file that NumPy does not write."""
  logits, labels = overconfident()
  content = {}
  for name, array in (("logits", logits), ("labels", labels)):
    out = io.BytesIO()
    np.save(out, array)
    content[name] = out.getvalue()
  if kind == "huge":
    tera = b"(999999999999, 2), }"
    header = content["logits"].replace(b"(400, 3), }" + b" " * 9, tera)
    assert len(header) == len(content["logits"]) and tera in header
    content["logits"] = header
  elif kind == "open":
    content["logits"] = content["logits"].replace(b"3), }", b"3(, }")
  methods = {"bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA}
  with zipfile.ZipFile(
    "x.npz", "w", methods.get(kind, zipfile.ZIP_STORED)
  ) as z:
    for name, data in content.items():
      z.writestr(f"{name}.npy", data)
  raw = bytearray(pathlib.Path("x.npz").read_bytes())
  if kind == "flipped":
    raw[2000] ^= 255
  elif kind == "cut":
    raw = raw[:-500]
  elif kind == "encrypted":
    for mark in (b"PK\x01\x02", b"PK\x03\x04"):
      at, offset = 0, 8 if mark == b"PK\x01\x02" else 6
      while (at := raw.find(mark, at)) >= 0:
        raw[at + offset] |= 1
        at += 4
  pathlib.Path("x.npz").write_bytes(raw)


@pytest.mark.parametrize(
  ("kind", "message"),
  [
    ("huge", r"damaged: .* bytes can't have shape \(999999999999, 2\)"),
    ("open", "multi-line statement"),
    ("flipped", "CRC"),
    ("cut", "not a zip"),
    ("encrypted", "is encrypted"),
    ("bzip2", "must be stored or deflated"),
    ("lzma", "must be stored or deflated"),
  ],
)
def test_damaged_and_hostile_npz(kind, message, folder, capsys):
  damaged(kind)
  status, out, err = run(capsys, "report", "x.npz")
  assert status == 2 and out == "" and re.search(message, err), err
  assert err.startswith("error: x.npz is not an .npz file")


@pytest.mark.parametrize(
  "note",
  [
    {"index_columns": ["a"], "columns": [{}], "column_indexes": []},
    {
      "index_columns": [],
      "columns": [],
      "column_indexes": [{"pandas_type": "uni#ode", "numpy_type": "object"}],
    },
  ],
)
def test_parquet_with_damaged_notes_of_pandas(note, folder, capsys):
  pyarrow = pytest.importorskip("pyarrow")
  parquet = pytest.importorskip("pyarrow.parquet")
  table = pyarrow.table({"a": [0.1, 0.9], "b": [0.9, 0.1], "label": ["a", "b"]})
  table = table.replace_schema_metadata({"pandas": json.dumps(note)})
  parquet.write_table(table, "x.parquet")
  status, out, err = run(capsys, "report", "x.parquet")
  assert status == 2 and out == "", err
  assert err.startswith("error: x.parquet is not a .parquet file"), err


def test_keys_of_a_wrong_length(folder, capsys):
  logits, labels = overconfident()
  np.savez("x.npz", logits=logits, labels=labels, split=["test"] * 3)
  _, _, err = run(capsys, "report", "x.npz")
  assert (
    "a split for each of its 400 labels, but the split has shape (3,)" in err
  )
  np.savez("x.npz", logits=logits, labels=labels, classes=["a", "b", "a"])
  assert "'a' more than once" in run(capsys, "report", "x.npz")[2]
  np.savez("x.npz", logits=logits, labels=labels, seed=labels * np.nan)
  assert "seeds[0] is NaN" in run(capsys, "report", "x.npz")[2]
  many = ["a"] * (logits.size + 2)
  for name in ("classes", "split", "labels"):
    np.savez("x.npz", **({"logits": logits, "labels": labels} | {name: many}))
    err = run(capsys, "report", "x.npz")[2]
    assert f"{name} for each example or class, but has 1,202" in err


def test_without_arguments(capsys):
  assert command.main([]) == 0
  assert "report on one model" in capsys.readouterr().out


def test_files_are_checked_before_jax_is_imported(folder):
  (folder / "bad.csv").write_text("label,p_a,p_b\na,x,1\n")
  (folder / "good.csv").write_text("label,p_a,p_b\na,0,1\n")
  code = (
    "import sys; from orthograd_optax.__main__ import main; "
    "status = main(sys.argv[1:]); assert 'jax' not in sys.modules; "
    "sys.exit(status)"
  )
  for arguments, message in (
    (["report", "missing.npz"], "no file missing.npz"),
    (["report", "bad.csv"], "'x' is not a number"),
    (["report", "good.csv", "--output", "no/x.html"], "no folder no"),
    (
      ["report", "good.csv", "--resamples", "0"],
      "--resamples must be at least",
    ),
  ):
    start = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(start, capture_output=True, text=True, env=ENV)
    assert done.returncode == 2 and message in done.stderr, done.stderr


BAD_FILES = {
  "nothing.npz": (None, "no file nothing.npz. Make one with np.savez"),
  "text.npz": ("hello", "text.npz is not an .npz file"),
  "x.txt": ("hello", r"ends in '.txt'.*np.savez"),
  "x.npy": ("hello", "no labels. Add --labels labels.npy"),
  "empty.csv": ("", "empty.csv has no rows"),
  "header.csv": ("label,a,b\n", "header.csv has no rows"),
  "short.csv": (
    "label,p_a,p_b\n0,0.5,0.5\n1,0.5\n",
    "line 3 must have 3 cells",
  ),
  "word.csv": (
    "label,p_a,p_b\n0,0.5,0.5\n1,x,0.5\n",
    "line 3, column p_a: 'x' is not",
  ),
  "twice.csv": ("label,a,a\n0,0.5,0.5\n", "two columns of the same name"),
  "nolabel.csv": ("a,b\n0.5,0.5\n", "must have a column label"),
  "missing.csv": ("label,0,1\n0,1,2\n,1,2\n", "line 3 has no label"),
  "semicolons.csv": ("label;0;1\n0;1;2\n", "Separate columns by commas"),
  "sum.csv": (
    "label,prob_a,prob_b\na,0.5,0.5\nb,0.5,0.9\n",
    r"probabilities\[1\] is 1.4",
  ),
  "name.csv": (
    "label,p_a,p_b\na,0.5,0.5\nc,0.5,0.5\n",
    r"labels\[1\] is 'c', but the classes are 'a', 'b'",
  ),
  "range.csv": (
    "label,logit_a,logit_b\n0,1.5,0.5\n7,2,-3\n",
    r"labels\[1\] is 7",
  ),
  "nan.csv": ("label,0,1\n0,1.5,0.5\n1,nan,2\n", r"logits\[1\] has no softmax"),
  "one.csv": ("label,score\nyes,0.5\nno,0.2\n", "Name the column after"),
  "cell.csv": (f"label,p_a\n0,{'1' * 140_000}\n", "line 2 is not valid CSV"),
  "digits.csv": (
    f"label,p_a,p_b\n{'1' * 400},0.5,0.5\n",
    r"labels\[0\] is '11",
  ),
  "twins.csv": ("label,p_a,logit_a\n0,0.5,0.5\n", "'a' more than once"),
  "split.csv": ("label,0,1,split\n0,1,2,train\n", "must have the split test"),
  "screen.csv": ("a,\x1b[2J\n0,1\n", r"has the columns a, \\x1b\[2J,"),
  "long.csv": (f"a{'x' * 10**5},b\n0,1\n", r"^.{500,1100}$"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(name, folder, capsys):
  """The row, the rule and the remedy; and nothing is written."""
  content, message = BAD_FILES[name]
  if content is not None:
    (folder / name).write_text(content)
  before = sorted(folder.iterdir())
  status, out, err = run(capsys, "report", name)
  assert status == 2 and out == ""
  assert err.startswith("error: ") and re.search(message, err)
  assert "Traceback" not in err
  assert sorted(folder.iterdir()) == before


def test_bad_keys_and_outputs(folder, capsys):
  logits, labels = overconfident()
  np.savez("x.npz", scores=logits, labels=labels)
  _, _, err = run(capsys, "report", "x.npz")
  assert "must have the key labels, and either logits or" in err
  assert "['scores', 'labels']" in err
  np.savez("x.npz", logits=logits, probabilities=logits, labels=labels)
  _, _, err = run(capsys, "report", "x.npz")
  assert "not both" in err
  np.savez("x.npz", logits=logits, labels=labels.astype(str).astype(object))
  _, _, err = run(capsys, "report", "x.npz")
  assert "astype(str)" in err
  np.savez("x.npz", logits=logits, labels=np.array(["a", "b", "c"])[labels])
  _, _, err = run(capsys, "report", "x.npz")
  assert "classes=model.classes_" in err
  np.savez("x.npz", logits=logits, labels=labels)
  for output, message in (("page.pdf", ".html"), ("no/x.html", "folder no")):
    status, _, err = run(capsys, "report", "x.npz", "--output", output)
    assert status == 2 and message in err
  status, _, err = run(capsys, "report", "x.npz", "--labels", "labels.npy")
  assert status == 2 and "no file labels.npy" in err
  status, _, err = run(capsys, "report", "x.npz", "--labels", "x.npz")
  assert status == 2 and "x.npz is not needed" in err
  monkeypatch = pytest.MonkeyPatch()
  with monkeypatch.context() as patch:
    patch.setattr(importlib.util, "find_spec", lambda _: None)
    status, _, err = run(capsys, "report", "x.npz")
  assert status == 2 and "pip install matplotlib" in err
  assert [p.name for p in folder.iterdir()] == ["x.npz"]


def test_keys_of_npz(folder):
  logits, labels = overconfident()
  split = np.where(np.arange(EXAMPLES) % 2, "test", "validation")
  np.savez(
    "x.npz", logits=logits, labels=labels, group=split, split=split, seed=labels
  )
  content = _files.read("x.npz")
  np.testing.assert_array_equal(content["fit"], split != "test")
  upper = {"split": np.char.upper(split), "class_names": ["a", "b", "c"]}
  np.savez("y.npz", logits=logits, labels=labels, **upper)
  again = _files.read("y.npz")
  np.testing.assert_array_equal(again["fit"], content["fit"])
  assert again["classes"] == ["a", "b", "c"]
  np.testing.assert_array_equal(content["groups"], split)
  np.testing.assert_array_equal(content["seeds"], labels)


def test_two_classes_of_csv(folder):
  """A column of scores is of the class that it is named after."""
  (folder / "x.csv").write_text(
    "label,probability_benign\nbenign,0.9\nmalignant,0.2\nmalignant,0.6\n"
  )
  content = _files.read("x.csv")
  assert content["classes"] == ["malignant", "benign"]
  assert content["labels"].tolist() == [1, 0, 0]
  assert content["kind"] == "probabilities"
  logits = _predictions.to_logits(content["predictions"], content["kind"])
  accuracy = calibration.accuracy(logits, content["labels"])
  assert accuracy == pytest.approx(2 / 3)


def test_help_teaches_by_example(capsys):
  for arguments in (["--help"], ["report", "--help"], ["compare", "--help"]):
    with pytest.raises(SystemExit) as stop:
      command.main(arguments)
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "python -m orthograd_optax report" in text or "compare old" in text
    assert max(map(len, text.splitlines())) <= 80


# What people have: slow, for each has a shape of its own to compile.


def naive_bayes(load):
  naive_bayes = pytest.importorskip("sklearn.naive_bayes")
  from sklearn import model_selection

  x, y = load(return_X_y=True)
  train, test, train_y, test_y = model_selection.train_test_split(
    x, y, test_size=0.5, random_state=0
  )
  return naive_bayes.GaussianNB().fit(train, train_y).predict_proba(
    test
  ), test_y


@pytest.mark.slow
@pytest.mark.parametrize("data", ["load_digits", "load_breast_cancer"])
def test_naive_bayes_is_too_sure(data):
  datasets = pytest.importorskip("sklearn.datasets")
  p, labels = naive_bayes(getattr(datasets, data))
  result = report(calibration.from_probabilities(p), labels, random_seed=1)
  confidence, right = p.max(axis=1), p.argmax(axis=1) == labels
  assert result.metrics["accuracy"].value == pytest.approx(right.mean())
  gap = result.metrics["overconfidence"]
  assert gap.value == pytest.approx(confidence.mean() - right.mean(), abs=1e-5)
  assert gap.low > 0 and result.p_calibrated < 0.01
  assert result.best is not None
  methods = result.recalibrated
  assert (
    methods[result.best]["ece"].value < methods["uncalibrated"]["ece"].value
  )
  assert ("platt" in methods) == (p.shape[1] == 2)
  Page(result.html())


@pytest.mark.slow
def test_few_examples_and_ties():
  """Neighbours' votes: few different probabilities, of 0 and 1 too."""
  datasets = pytest.importorskip("sklearn.datasets")
  from sklearn import neighbors

  x, y = datasets.load_wine(return_X_y=True)
  model = neighbors.KNeighborsClassifier(5).fit(x[::2], y[::2])
  p = model.predict_proba(x[1::2])
  assert np.unique(p).size <= 6
  result = report(calibration.from_probabilities(p), y[1::2])
  assert result.examples == 89
  assert result.notes[0].startswith("89 examples can only reveal")
  assert np.isfinite(
    [result.metrics["auroc"].low, result.metrics["ece"].high]
  ).all()
  Page(result.html())


@pytest.mark.slow
def test_one_example():
  result = report(np.array([[2.0, 0.0, 0.0]]), np.array([0]))
  assert result.metrics["accuracy"].value == 1
  assert 0 < result.metrics["accuracy"].low < 0.5
  assert np.isnan(result.metrics["auroc"].value)
  assert not result.recalibrated and "1 example can only reveal" in str(result)
  assert "Get more examples" in str(result)
  Page(result.html())
  json.dumps(result.to_dict(), allow_nan=False)


@pytest.mark.slow
def test_a_hundred_classes_of_which_one_never_occurs():
  random = np.random.default_rng(0)
  logits = 3 * random.normal(size=(1500, 100))
  logits[:, 7] -= 20
  labels = np.argmax(logits / 2 + random.gumbel(size=logits.shape), axis=1)
  assert not (labels == 7).any()
  result = report(logits, labels)
  assert result.best == "temperature"
  assert "1 of 100 classes never occur as a label: 7" in result.notes[0]
  assert len(result.by_class) <= 99
  assert "more</summary>" in result.html()


@pytest.mark.slow
def test_a_million_examples():
  logits, labels = overconfident(0, 1_000_000)
  start = time.process_time()
  result = calibration.report(logits, labels)
  # A minute of two cores, whatever else they have to do.
  assert time.process_time() - start < 120
  value, low, high = result.metrics["accuracy"]
  assert high - low == pytest.approx(
    2 * 1.96 * np.sqrt(value * (1 - value)) / 1e3, rel=0.01
  )
  gap = result.metrics["overconfidence"]
  confidence = np.asarray(jax.nn.softmax(logits)).max(axis=1)
  residual = confidence - (logits.argmax(axis=1) == labels)
  expected = 2 * 1.96 * residual.std() / 1e3
  assert gap.high - gap.low == pytest.approx(expected, rel=0.1)
  temperature = result.metrics["temperature"]
  assert temperature.low < 2 < temperature.high
  assert temperature.high - temperature.low < 0.02


@pytest.mark.slow
def test_as_a_process(folder):
  write(folder, "logits.npz", *overconfident())
  arguments = [sys.executable, "-m", "orthograd_optax", "report", "x.npz"]
  done = subprocess.run(
    arguments, capture_output=True, text=True, check=True, env=ENV
  )
  assert "Next: Recalibrate: temperature." in done.stdout
  assert (folder / "x.html").stat().st_size > 10_000
  assert CLASSES == 3
