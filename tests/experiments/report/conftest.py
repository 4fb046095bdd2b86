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
