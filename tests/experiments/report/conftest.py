"""What all tests of the report read: kept rows, and the pages they make."""

import pytest
from reading import Runs

from experiments.report import replication, study


@pytest.fixture(scope="session")
def planned():
  return study.load_planned()


@pytest.fixture(scope="session")
def loaded():
  return replication.load()


@pytest.fixture(scope="session")
def kept(loaded):
  return loaded[0]


@pytest.fixture(scope="session")
def runs(kept):
  return Runs(kept)


@pytest.fixture(scope="session")
def later(loaded):
  """Seeds 20 to 39, trained again for CIFAR-10-C."""
  return Runs(loaded[2])


@pytest.fixture(scope="session")
def under_corruption(kept, loaded):
  """Of seeds 0 to 39, the rows on CIFAR-10-C."""
  return Runs(row for row in [*kept, *loaded[2]] if "/" in row["dataset"])


@pytest.fixture(scope="session")
def former(loaded):
  return Runs(loaded[1])


@pytest.fixture(scope="session")
def pages(loaded):
  return replication.make(*loaded)


@pytest.fixture(scope="session")
def page(pages):
  return pages["replication"]


@pytest.fixture(scope="session")
def appendix(pages):
  return pages["replication_appendix"]
