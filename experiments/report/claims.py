"""What the paper says of ResNet-18: whether it is so, and what can't be."""

from typing import Any

import numpy as np

from experiments.report import compare, paper, resnet18
from experiments.report.compare import CORRUPTED, LEVEL, Compared
from experiments.report.formats import printed
from experiments.report.resnet18 import FIRST
from experiments.report.results import Results

UNCHANGED = ("top1", "top5", "weight_norm")


def facts(found: Results) -> dict[str, Any]:
  """Parts without rows are None."""
  seeds = resnet18.all_seeds(found)
  first, both = (compare.by_metric(found, s) for s in (FIRST, seeds))

  def scaled(metric: str) -> Compared:
    return compare.compare(found, metric, seeds, part="scaled")

  return {
    "seeds": len(seeds),
    "accuracy": equality(both["top1"]),
    "norm": equality(both["weight_norm"]),
    "differences": {
      metric: difference(theirs, first[metric], both[metric])
      for metric, theirs in paper.TABLE_1.items()
      if metric not in UNCHANGED
    },
    "scaled_ece": equality(scaled("ece")),
    "scaled_brier": equality(scaled("brier")),
    "corruption": corruption(found),
    "renormalization": renormalization(found),
  }


def difference(
  theirs: paper.Row, first: Compared, both: Compared
) -> dict[str, Any]:
  """Whether a metric differs as in the paper, by the first seeds and by all."""
  sign = np.sign(theirs.sgd - theirs.orthograd)
  trend = theirs.p is not None and theirs.p > LEVEL
  if np.sign(both.paired.d) != sign:
    verdict = "contradicted" if both.differs else "not confirmed"
  elif not both.differs:
    verdict = "trend in both" if trend else "trend here"
  elif trend:
    verdict = "trend there"
  elif not first.differs:
    verdict = "holds with all seeds"
  elif theirs.p is not None and first.welch.p < theirs.p:
    verdict = "holds more surely"
  else:
    verdict = "holds"
  return {
    "lower": sign > 0,
    "trend": trend,
    "verdict": verdict,
    "paper": printed(theirs),
    "ours": both,
  }


def equality(ours: Compared) -> dict[str, Any]:
  """Whether a metric is the same, within the tolerance."""
  within = paper.TOLERANCE[ours.metric]
  p_equal, differs = ours.p_equal(within), ours.paired.p < LEVEL
  if p_equal < LEVEL:
    verdict = "equal, nearly" if differs else "equal"
  else:
    verdict = "contradicted" if differs else "unknown"
  return {
    "verdict": verdict,
    "ours": ours,
    "within": within,
    "p_equal": p_equal,
  }


def corruption(found: Results) -> dict[str, Any] | None:
  if not found.has(compare.PAIR, FIRST, CORRUPTED):
    return None
  metrics = compare.UNDER_CORRUPTION
  rows = compare.by_metric(found, FIRST, CORRUPTED, metrics)
  effects = ("loss", "entropy", "max_softmax", "max_logit", "logit_variance")
  return {
    "accuracy": rows["top1"],
    "persist": [m for m in effects if rows[m].differs],
    "lost": [m for m in effects if not rows[m].differs],
  }


def renormalization(found: Results) -> dict[str, Any] | None:
  """Which means are equal or not, each with the images that it is of."""
  tables = resnet18.renormalization(found)
  if tables is None:
    return None
  lists = {name: [] for name in ("equal", "different", "rest", "doubtful")}
  for where, table in tables.items():
    for metric, row in table["rows"].items():
      kind = "equal" if table["p_equal"][metric] < LEVEL else "rest"
      lists["different" if row.differs else kind].append((metric, where))
      if row.paired.p < LEVEL:
        lists["doubtful"].append((metric, where))
  total = sum(len(table["rows"]) for table in tables.values())
  return {**lists, "total": total}


def paper_errors(found: Results) -> dict[str, Any]:
  seeds, metric = resnet18.all_seeds(found), "confidence_correlation"
  return {
    "paper": printed(paper.TABLE_1[metric]),
    "correlation": compare.compare(found, metric, seeds),
    "ece": {
      part: compare.compare(found, "ece", seeds, part=part)
      for part in ("scaled", "scaled_half")
    },
  }
