"""What tests of the report share: kept rows, and what is asked of them."""

import pytest

from experiments.report.compare import Comparisons
from experiments.rows import kept

from .reading import Runs


@pytest.fixture(scope="session")
def ask():
  return Comparisons()


@pytest.fixture(scope="session")
def runs():
  """Reads kept rows, by their files, without the report's code."""
  return lambda *files: Runs(kept.load(files))
