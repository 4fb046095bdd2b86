"""Rows of one config, asked for their numbers."""

import numpy as np

from experiments.report.compare import CORRUPTED, PAIR
from experiments.report.results import Results
from experiments.studies import extended, wide


def test_mean_over_the_last_epochs(kept, runs):
  found = Results(kept, wide.STUDY.config)
  fresh = range(5, 10)
  epochs = found.evaluated(PAIR, fresh)
  assert epochs == list(range(2, 101, 2))
  late = found.values("sgd", "loss", fresh, epoch=epochs[-5:])
  by_epoch = [
    runs(wide, "loss", fresh, epoch=epoch)[0] for epoch in (92, 94, 96, 98, 100)
  ]
  np.testing.assert_allclose(late, np.mean(by_epoch, axis=0), rtol=1e-12)
  # Of several sets of images, too, and of one epoch as if it were alone.
  found = Results(kept, extended.STUDY.config)
  epochs = [e for e in found.evaluated(PAIR, range(5), CORRUPTED[0]) if e > 400]
  assert epochs == [700, 1000]
  both = found.values("sgd", "ece", range(5), CORRUPTED, epochs, "scaled")
  each = [
    found.values("sgd", "ece", range(5), CORRUPTED, e, "scaled") for e in epochs
  ]
  np.testing.assert_allclose(both, (each[0] + each[1]) / 2, rtol=1e-12)
  np.testing.assert_array_equal(
    found.values("sgd", "ece", range(5), epoch=[1000]),
    found.values("sgd", "ece", range(5)),
  )


def test_only_what_every_run_has(kept):
  found = Results(kept, wide.STUDY.config)
  # Seeds 0 to 4 were evaluated every 10 epochs, the others every 2.
  assert found.evaluated(PAIR, range(10)) == list(range(10, 101, 10))
  assert found.seeds(PAIR) == list(range(10))
  assert found.seeds(PAIR, epochs=[2]) == list(range(5, 10))
  assert found.seeds(PAIR, CORRUPTED) == list(range(5))
  assert found.seeds(["orthograd_unnormalized"]) == []
