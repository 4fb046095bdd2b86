"""Can you trust the confidence of a scikit-learn model? One call, one page.

    python examples/calibrate_sklearn.py

A naive Bayes classifier of handwritten digits has an accuracy of 83 % and a
mean confidence of 99 %. Look at the page, calibrate_sklearn.html: it shows the
gap, with intervals, and recommends a method to recalibrate the model. This
example then fits that method, saves it as JSON, and uses it as a server would.
"""

import pathlib

import jax
import numpy as np
from sklearn import datasets, model_selection, naive_bayes

from orthograd_optax import calibration, plots


def main(output="calibrate_sklearn.png"):
  output = pathlib.Path(output)
  x, y = datasets.load_digits(return_X_y=True)
  x_train, x_test, y_train, y_test = model_selection.train_test_split(
    x, y, test_size=0.5, random_state=0
  )
  model = naive_bayes.GaussianNB().fit(x_train, y_train)
  probabilities = model.predict_proba(x_test)

  # Metrics take logits. These have the probabilities as their softmax.
  logits = calibration.from_probabilities(probabilities)
  report = calibration.report(logits, y_test, name="naive Bayes")
  print(report)
  report.save(output.with_suffix(".html"))
  plots.save(report.plot(), output)

  # Fit on one half of the examples, and evaluate on the other.
  fit, test = calibration.split(y_test)
  recalibrate = calibration.fit(logits[fit], y_test[fit], report.best)
  path = recalibrate.save(output.with_suffix(".json"))
  serve = jax.jit(calibration.load(path))
  before = calibration.ece(logits[test], y_test[test])
  after = calibration.ece(serve(logits[test]), y_test[test])
  right = np.mean(probabilities.argmax(1) == y_test)
  confidence = probabilities.max(1).mean()
  print(f"accuracy {right:.2f}, mean confidence {confidence:.2f}")
  print(f"ECE {before:.3f} before recalibration, {after:.3f} after")
  return report, float(before), float(after)


if __name__ == "__main__":
  main()
