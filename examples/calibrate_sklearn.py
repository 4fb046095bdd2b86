"""Can you trust the confidence of a scikit-learn model? One call, one page.

    python examples/calibrate_sklearn.py

A naive Bayes classifier of handwritten digits is right about 83 % of the time
and says 99 %. Look at the page that is written, calibrate_sklearn.html: it says
so, with intervals, and what to do. What it recommends is then fitted, saved as
JSON, and used as one would at serving time.
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

  # The metrics take logits; probabilities become some with the same softmax.
  logits = calibration.from_probabilities(probabilities)
  report = calibration.report(logits, y_test, name="naive Bayes")
  print(report)
  report.save(output.with_suffix(".html"))
  plots.save(report.plot(), output)

  # Fit on one half, judge by the other.
  fit, judge = calibration.split(y_test)
  recalibrate = calibration.fit(logits[fit], y_test[fit], report.best)
  path = recalibrate.save(output.with_suffix(".json"))
  serve = jax.jit(calibration.load(path))
  before = calibration.ece(logits[judge], y_test[judge])
  after = calibration.ece(serve(logits[judge]), y_test[judge])
  right = np.mean(probabilities.argmax(1) == y_test)
  sure = probabilities.max(1).mean()
  print(f"right {right:.2f}, sure {sure:.2f}; ECE {before:.3f} → {after:.3f}")
  return report, float(before), float(after)


if __name__ == "__main__":
  main()
