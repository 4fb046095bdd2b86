"""What all tests of the report read: kept rows, and the page they make."""

import pytest

from experiments.report import kept as kept_rows
from experiments.report import replication


@pytest.fixture(scope="session")
def kept():
  return kept_rows.load(replication.STUDIES)


@pytest.fixture(scope="session")
def page(kept):
  return replication.make(kept)
