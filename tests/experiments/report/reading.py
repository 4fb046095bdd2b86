"""Reads the report's Markdown and the rows, without the report's own code.

Nor does it use the package's statistics: tests are written out, with Student's
distribution from SciPy.
"""

import numpy as np
import scipy.stats

PAIR = ("sgd", "orthograd")
CLEAN = ("clean",)
EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
METRICS = {
  "top-1 accuracy": "top1",
  "top-5 accuracy": "top5",
  "loss": "loss",
  "ECE": "ece",
  "Brier score": "brier",
  "entropy": "entropy",
  "max softmax": "max_softmax",
  "max logit": "max_logit",
  "logit variance": "logit_variance",
  "confidence correlation": "confidence_correlation",
  "optimal temperature": "temperature",
  "norm of the weights": "weight_norm",
}


def section(page, title):
  """The text below a heading, up to the next of its level."""
  (actual,) = (
    part
    for part in page.markdown.split("\n## ")[1:]
    if part.partition("\n")[0].startswith(title)
  )
  return actual


def tables(page, title):
  """For each table of a section its lines of cells, the header first."""
  blocks = [b for b in section(page, title).split("\n\n") if b[0] == "|"]
  cells = lambda line: [cell.strip() for cell in line[1:-1].split("|")]
  actual = []
  for header, _, *lines in map(str.splitlines, blocks):
    actual.append([cells(line) for line in (header, *lines)])
    assert len(set(map(len, actual[-1]))) == 1
  return actual


def by_metric(table):
  """The lines of a table by metric, each with its cells by column."""
  header, *lines = table
  return {
    METRICS[line[0].removesuffix(", %")]: dict(zip(header, line, strict=True))
    for line in lines
  }


def corrupted(kept, severity=None):
  """Names of CIFAR-10-C's sets: 15 corruptions, of one severity or all."""
  actual = {row["dataset"] for row in kept if "/" in row["dataset"]}
  return sorted(
    name
    for name in actual
    if name.split("/")[0] not in EXTRA
    and severity in (None, int(name.split("/")[1]))
  )


class Runs:
  """Rows by what they are of."""

  def __init__(self, rows):
    self.rows = {
      (r["config_hash"], r["method"], r["seed"], r["epoch"], r["dataset"]): r
      for r in rows
    }

  def __call__(
    self,
    study,
    metric,
    seeds,
    datasets=CLEAN,
    part="metrics",
    epoch=None,
    pair=PAIR,
  ):
    """A metric of two optimizers, by seed: the mean over sets of images."""
    config = study.STUDY.config
    return [
      np.array(
        [
          np.mean(
            [
              self.rows[config.hash, name, seed, epoch or config.epochs, of][
                part
              ][metric]
              for of in datasets
            ]
          )
          for seed in seeds
        ]
      )
      for name in pair
    ]


def paired(a, b):
  """Mean difference, 95 % interval and p: the paired t-test, written out."""
  change = np.asarray(b) - np.asarray(a)
  error = np.std(change, ddof=1) / np.sqrt(len(change))
  law = scipy.stats.t(len(change) - 1)
  mean, margin = np.mean(change), law.ppf(0.975) * error
  return mean, mean - margin, mean + margin, 2 * law.sf(abs(mean) / error)


def holm(ps):
  """Step down: the least p times all, the next times all but one, and so on."""
  ps, adjusted, least = np.asarray(ps), np.empty(len(ps)), 0.0
  for rank, i in enumerate(np.argsort(ps)):
    least = max(least, min(1.0, ps[i] * (len(ps) - rank)))
    adjusted[i] = least
  return adjusted


def cohens_d(a, b):
  """Of the second minus the first."""
  pooled = np.sqrt((np.var(a, ddof=1) + np.var(b, ddof=1)) / 2)
  return (np.mean(b) - np.mean(a)) / pooled


def digits(text):
  """After the point, of the first number."""
  return len(text.split()[0].strip(":,()").partition(".")[2])


def pair_text(a, b, like):
  return " / ".join(f"{np.mean(x):.{digits(like)}f}" for x in (a, b))


def change_text(a, b, like, star):
  """What a cell says of a difference, with as many digits as it has."""
  form = f"+.{digits(like)}f"
  mean, low, high, _ = paired(a, b)
  text = f"{mean:{form}} ({low:{form}}, {high:{form}})"
  return text + (" *" if star else "")


def p_text(p):
  return f"{p:.3f}" if p >= 0.001 else f"{p:.2g}".replace("e-0", "e-")


def check_comparison(lines, values, family=None):
  """Every cell of a table of one comparison.

  Args:
    lines: by metric, what :func:`by_metric` gives.
    values: by metric, both optimizers' runs.
    family: the comparisons for which p is adjusted, if more than these.
  """
  assert list(lines) == list(values)
  family = family or values
  ps = holm([paired(*x)[-1] for x in family.values()])
  adjusted = dict(zip(family, ps, strict=True))
  for metric, cells in lines.items():
    a, b = values[metric]
    means = cells.get("ours") or cells["means"]
    assert means == pair_text(a, b, means)
    star = adjusted[metric] < 0.05
    said = cells["difference"]
    assert said == change_text(a, b, said, star)
    assert cells["d"] == f"{cohens_d(a, b):+.2f}"
    assert cells["p"] == p_text(adjusted[metric])
  return adjusted


def check_grid(lines, values):
  """Every cell of a table of means, with p adjusted for all of them."""
  cells = [cell for line in lines for cell in line]
  runs = [pair for line in values for pair in line]
  stars = holm([paired(*x)[-1] for x in runs]) < 0.05
  for cell, (a, b), star in zip(cells, runs, stars, strict=True):
    assert cell == pair_text(a, b, cell) + (" *" if star else "")
