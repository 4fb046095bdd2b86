"""The sets of images that a study evaluates."""

import numpy as np
import pytest

from experiments import datasets
from experiments.engine import evaluate

SAMPLE = datasets.load_sample()


def test_sets_of_images():
  clean, labels = evaluate.images_of("clean", SAMPLE)
  np.testing.assert_array_equal(clean, SAMPLE.test_images)
  first, _ = evaluate.images_of("gaussian_noise/3", SAMPLE)
  again, _ = evaluate.images_of("gaussian_noise/3", SAMPLE)
  other, _ = evaluate.images_of("gaussian_noise/4", SAMPLE)
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other) and len(labels) == 1000
  with pytest.raises(ValueError, match="severity is 7"):
    evaluate.images_of("fog/7", SAMPLE)
