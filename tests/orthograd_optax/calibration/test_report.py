"""Numbers of reports against the functions, SciPy and what is known."""

import json
import re
import time

import jax
import numpy as np
import pytest
from scipy import stats
from small_reports import (
  EXAMPLES,
  Page,
  calibrated,
  made,
  overconfident,
  report,
)

from orthograd_optax import calibration
from orthograd_optax.calibration import (
  _predictions,
  _report,
  _sample,
  _table,
  _text,
)


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


def test_several_seeds_have_intervals_over_seeds():
  runs = [overconfident(seed) for seed in range(5)]
  logits = np.concatenate([z for z, _ in runs])
  labels = np.concatenate([y for _, y in runs])
  result = report(logits, labels, seeds=np.repeat(np.arange(5), EXAMPLES))
  assert result.seeds == 5 and result.examples == EXAMPLES
  values = [float(calibration.nll(*run)) for run in runs]
  expected = stats.ttest_1samp(values, 0).confidence_interval()
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


# Which classes and groups are off?


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
