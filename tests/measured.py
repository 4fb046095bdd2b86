"""Rows for tests, as an evaluation makes them."""


def row(seed=0, dataset="clean", **fields):
  return {
    "study": "tiny",
    "config_hash": "c",
    "method": "sgd",
    "seed": seed,
    "epoch": 1,
    "dataset": dataset,
    "metrics": {"loss": 0.25, "top1": 90.0},
    "versions": {"python": "3.12"},
    "commit": "0123456789ab",
  } | fields
