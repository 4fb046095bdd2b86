"""WRN-28-10 after 100 epochs."""

import numpy as np
from reading import (
  METRICS,
  by_metric,
  check_comparison,
  check_grid,
  corrupted,
  holm,
  section,
  tables,
)
import scipy.stats

from experiments.report import paper
from experiments.studies import wide, wide_tf32


def test_every_cell(kept, runs, page, appendix):
  values = {m: runs(wide, m, range(10)) for m in METRICS.values()}
  lines = by_metric(tables(page, "WRN-28-10")[0])
  assert list(lines) == list(paper.WIDE)
  adjusted = check_comparison(lines, {m: values[m] for m in lines}, values)
  confirmed = {m for m in lines if lines[m]["verdict"] == "confirmed"}
  assert confirmed == {m for m in lines if adjusted[m] < 0.05}
  assert confirmed == {"entropy", "max_softmax", "max_logit", "logit_variance"}
  assert lines["loss"]["paper"] == "1.05 / 0.88"
  clean, way, _, dirty, _ = tables(appendix, "WRN-28-10")
  check_comparison(by_metric(clean), values)
  parts = [(m, "metrics") for m in METRICS.values()]
  parts += [("loss", "scaled_half")]
  check_grid(
    [line[1:] for line in way[1:]],
    [
      [runs(wide, m, range(10), part=part, epoch=e) for e in range(20, 101, 20)]
      for m, part in parts
    ],
  )
  sets = corrupted(kept)
  few = {m: runs(wide, m, range(5), sets) for m in list(METRICS.values())[:-2]}
  check_comparison(by_metric(dirty), few)


def test_which_epoch_is_evaluated(runs, appendix):
  _, _, (_, *lines), _, _ = tables(appendix, "WRN-28-10")
  epochs = range(10, 101, 10)
  over = lambda m: np.array(
    [runs(wide, m, range(10), epoch=epoch) for epoch in epochs]
  )
  top1 = over("top1")  # epochs, optimizers, seeds
  best = np.argmax(top1, axis=0)[None]
  spread = lambda x, n: f"{np.mean(x):.{n}f} ± {np.std(x, ddof=1):.{n}f}"
  for line, metric, n in zip(
    lines, ("top1", "loss", "max_logit"), (2, 3, 2), strict=True
  ):
    its = over(metric)
    chosen = np.take_along_axis(its, best, axis=0)[0]
    for cell, (a, b) in zip(
      line[2:], (its[-1], its[-3:].mean(axis=0), chosen), strict=True
    ):
      assert cell == f"{spread(a, n)} / {spread(b, n)}"
  within = np.sqrt(np.mean(np.var(top1[-3:], axis=0, ddof=1)))
  text = section(appendix, "WRN-28-10")
  assert f"accuracy has a standard deviation of {within:.1f} points" in text


def test_precision(runs, appendix):
  (*_, (_, *lines)) = tables(appendix, "WRN-28-10")
  ps = []
  for i, line in enumerate(lines):
    metric, n = (("top1", 2), ("loss", 3), ("max_logit", 2))[i // 2]
    for cell, since in zip(line[1:], (100, 80, 60), strict=True):
      epochs = range(since, 101, 4)
      few, many = (
        np.mean(
          [runs(study, metric, seeds, epoch=e)[i % 2] for e in epochs], axis=0
        )
        for study, seeds in ((wide_tf32, range(2)), (wide, range(5, 10)))
      )
      # Student's t, written out.
      squares = sum(np.sum((x - np.mean(x)) ** 2) for x in (few, many))
      error = np.sqrt(squares / 5 * (1 / 2 + 1 / 5))
      change, law = np.mean(few) - np.mean(many), scipy.stats.t(5)
      margin = law.ppf(0.975) * error
      low, high = change - margin, change + margin
      assert cell == f"{change:+.{n}f} ({low:+.{n}f}, {high:+.{n}f})"
      ps.append(2 * law.sf(abs(change) / error))
  text = section(appendix, "WRN-28-10")
  assert f"least of the 18 p is {min(holm(ps)):.3f} after" in text
