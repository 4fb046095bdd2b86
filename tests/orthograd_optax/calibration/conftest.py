"""Fixtures of the tests of calibration."""

from logit_sets import CASES, FAST
import pytest


@pytest.fixture(
  params=[
    x if x in FAST else pytest.param(x, marks=pytest.mark.slow) for x in CASES
  ]
)
def data(request):
  return CASES[request.param]()


@pytest.fixture
def folder(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  return tmp_path
