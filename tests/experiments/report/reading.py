"""Reads the report's Markdown and the rows, without the report's own code."""

import numpy as np


def section(page, title):
  """The text below a heading, up to the next of its level."""
  (found,) = (
    part
    for part in page.markdown.split("\n## ")[1:]
    if title in part.partition("\n")[0]
  )
  return found


def tables(page, title):
  """For each table of a section its lines of cells, the header first."""
  blocks = [b for b in section(page, title).split("\n\n") if b[0] == "|"]
  cells = lambda line: [cell.strip() for cell in line[1:-1].split("|")]
  found = []
  for header, _, *lines in map(str.splitlines, blocks):
    found.append([cells(line) for line in (header, *lines)])
    assert len(set(map(len, found[-1]))) == 1
  return found


def is_resnet(row):
  """Whether it is of ResNet-18 after the last of 100 epochs."""
  found = row["model"], row["config"]["epochs"], row["epoch"]
  return found == ("resnet18", 100, 100)


def is_corrupted(row):
  name, _, severity = row["dataset"].partition("/")
  extra = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
  return severity and name not in extra


def column(kept, optimizer, metric, seeds, dataset="clean", part="metrics"):
  """Of ResNet-18, by seed."""
  found = {
    row["seed"]: row[part][metric]
    for row in kept
    if (row["optimizer"], row["dataset"]) == (optimizer, dataset)
    and is_resnet(row)
  }
  return np.array([found[seed] for seed in seeds])


def values(kept, study, optimizer, metric, dataset="clean", part="metrics"):
  """Of any study, by seed and by epoch."""
  found: dict[int, dict[int, float]] = {}
  wanted = study.STUDY.config.hash, optimizer, dataset
  for row in kept:
    if (row["config_hash"], row["optimizer"], row["dataset"]) == wanted:
      at = found.setdefault(row["seed"], {})
      at[row["epoch"]] = row[part][metric]
  return found
