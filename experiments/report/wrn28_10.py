"""The report's second part: WRN-28-10, and ResNet-18 for 1000 epochs."""

import functools
import itertools
from typing import Any

import jax
import numpy as np
import scipy.stats

from experiments import cifar
from experiments.engine import models
from experiments.report import page, paper
from experiments.report.kept import Results
from experiments.report.study import METRICS, NAMES
from experiments.report.tables import (
  CORRUPTED,
  LEVEL,
  PAIR,
  SEVERITIES,
  beside_the_paper,
  by_severity,
  diagram,
  made_by,
  means,
  number,
  of_pair,
  over_sets,
  p_value,
  printed,
  scaled,
  sets,
  spread,
  starred,
)
from orthograd_optax import plots, stats

SEEDS, FRESH = range(5), range(5, 10)  # of wide and of wide_confirmation
BOTH = range(10)
FEW = range(2)  # of wide_tf32 and of unaugmented
# Epochs that wide, wide_confirmation and wide_tf32 evaluate.
WAY, FINER, EVERY_4 = range(10, 101, 10), range(2, 101, 2), range(4, 101, 4)
MILESTONES = (100, 200, 400, 700, 1000)
# Kinds of parameters on which ⊥Grad acts, as rows name them.
KINDS = (
  "kernel, then norm",
  "kernel, no norm",
  "norm scale",
  "norm bias",
  "dense kernel",
  "dense bias",
)


def has_wide(found: Results) -> bool:
  return found.has(PAIR, SEEDS, CORRUPTED) and found.has(
    PAIR, SEEDS, epochs=WAY
  )


def has_extended(found: Results) -> bool:
  return found.has(PAIR, SEEDS, ["clean", *CORRUPTED], MILESTONES)


def has_unaugmented(found: Results) -> bool:
  return found.has(PAIR, FEW, ["clean", *CORRUPTED])


def wide(found: Results, finer: Results, extended: Results) -> list[page.Block]:
  table = functools.partial(
    beside_the_paper, paper_rows=paper.WIDE, tolerance=paper.TOLERANCE_WIDE
  )
  confirmed = found.has(PAIR, FRESH, epochs=FINER)
  blocks: list[page.Block] = [
    "## WRN-28-10: 5 seeds",
    made_by(found, "wide"),
    table(found, SEEDS),
    "The learning rate is constant to the end, and what is evaluated is the "
    "last epoch, wherever a run is then. The authors’ published script keeps "
    "the epoch that is best on the test set, which passes over a run’s bad "
    "moments; “best” is what that gives here.",
    by_epoch(found, SEEDS, WAY),
    "### Temperature scaling",
    scaled(found, SEEDS, None, {}),
    "### CIFAR-10-C, averaged over 15 corruptions and 5 severities",
    over_sets(found, SEEDS, CORRUPTED),
    diagram(found, SEEDS, ["clean"], "wide_reliability"),
    diagram(found, SEEDS, CORRUPTED, "wide_reliability_corrupted"),
  ]
  if confirmed:
    blocks += [
      "### 5 more seeds",
      made_by(found, "wide_confirmation"),
      table(found, FRESH),
      by_epoch(found, FRESH, FINER),
      not_luck(found),
      f"All {len(BOTH)} seeds:",
      table(found, BOTH),
    ]
  if finer.has(PAIR, FEW, epochs=EVERY_4):
    blocks += [
      f"### In TF32, {len(FEW)} seeds",
      made_by(finer, "wide_tf32"),
      table(finer, FEW),
      by_epoch(finer, FEW, EVERY_4),
    ]
    if confirmed:
      blocks += not_precision(found, finer)
  if has_extended(extended):
    blocks += why(found, extended)
  return blocks


def best_epochs(
  found: Results, seeds: range, epochs: range, metric: str
) -> list[np.ndarray]:
  """Of SGD's and ⊥Grad's runs, after the epoch that is best on the test set."""
  values = []
  for name in PAIR:
    top1, its = (
      found.over_epochs(name, m, seeds, epochs) for m in ("top1", metric)
    )
    best = np.argmax(top1, axis=1)
    values.append(its[np.arange(len(seeds)), best])
  return values


def by_epoch(found: Results, seeds: range, epochs: range) -> page.Table:
  """How much hangs on the epoch after which a run is evaluated."""
  first = next(i for i, epoch in enumerate(epochs) if epoch >= 80)
  late = f"{epochs[first]} to {epochs[-1]}"
  lines = [["SGD / ⊥Grad", "paper", "epoch 100", f"mean of {late}", "best"]]
  within = {}
  for metric in ("top1", "loss", "max_logit"):
    values = [
      found.over_epochs(name, metric, seeds, epochs)[:, first:] for name in PAIR
    ]
    columns = (
      [x[:, -1] for x in values],
      [x.mean(axis=1) for x in values],
      best_epochs(found, seeds, epochs, metric),
    )
    lines.append(
      [
        METRICS[metric],
        " / ".join(printed(paper.WIDE[metric])),
        *(
          " / ".join(spread(metric, x.mean(), x.std(ddof=1)) for x in pair)
          for pair in columns
        ),
      ]
    )
    within[metric] = np.sqrt(np.mean(np.var(values, axis=2, ddof=1)))
  return page.Table(
    lines,
    f"Mean ± standard deviation over seeds {seeds[0]} to {seeds[-1]}. best: "
    f"for each run, the one of its {len(epochs)} evaluated epochs with the "
    "highest accuracy on the test set. Over the evaluated epochs from "
    f"{late}, one and the same run’s accuracy has a standard deviation of "
    f"{within['top1']:.1f} %, and its loss one of {within['loss']:.2f}.",
  )


def not_luck(found: Results) -> str:
  """What fresh seeds say of the distance to the paper's table."""

  def p_of(metric, i, values):
    row = paper.WIDE[metric]
    theirs = row.sgd, row.orthograd
    assert row.d
    # Cohen's d gives away the standard deviation that it is in units of.
    of_paper = theirs[i], abs((theirs[0] - theirs[1]) / row.d), len(SEEDS)
    ours = values.mean(), values.std(ddof=1), len(values)
    test = scipy.stats.ttest_ind_from_stats(*ours, *of_paper, equal_var=False)
    return float(test.pvalue)

  said, ps = [], []
  for metric in ("top1", "loss"):
    for i, values in enumerate(of_pair(found, metric, FRESH)):
      theirs = printed(paper.WIDE[metric])[i]
      said.append(
        f"{NAMES[PAIR[i]]}’s {METRICS[metric].removesuffix(', %')} is "
        f"{number(metric, values.mean())} where the paper has {theirs}"
      )
      ps.append(p_of(metric, i, values))
  adjusted = stats.holm(ps)
  listed = "; ".join(
    f"{words} (p {p_value(p)})" for words, p in zip(said, adjusted, strict=True)
  )
  best = [
    p_value(p_of("top1", i, values))
    for i, values in enumerate(best_epochs(found, FRESH, FINER, "top1"))
  ]
  return (
    f"Were it the luck of the first {len(SEEDS)} seeds, these would not show "
    f"it again. After the last epoch, {listed}: Welch’s test, Holm-adjusted "
    f"for the {len(ps)}, with the pooled standard deviations that the paper’s "
    "d implies. After the epoch that is best on the test set, neither accuracy "
    f"is far from the paper’s (p {' and '.join(best)}, unadjusted)."
  )


def not_precision(found: Results, finer: Results) -> list[page.Block]:
  """What TF32 changes, beside other seeds of bfloat16 at the same epochs."""
  since = (100, 80, 60)
  head = ["epoch 100", *(f"mean of {epoch} to 100" for epoch in since[1:])]
  lines, ps = [["TF32 less bfloat16", *head]], []
  for metric, name in itertools.product(("top1", "loss", "max_logit"), PAIR):
    cells = []
    for start in since:
      epochs = [epoch for epoch in EVERY_4 if epoch >= start]
      few, many = (
        of.over_epochs(name, metric, seeds, epochs).mean(axis=1)
        for of, seeds in ((finer, FEW), (found, FRESH))
      )
      test: Any = scipy.stats.ttest_ind(few, many)
      low, high = test.confidence_interval()
      values = (
        number(metric, x) for x in (few.mean() - many.mean(), low, high)
      )
      cells.append("{} ({}, {}), p {}".format(*values, p_value(test.pvalue)))
      ps.append(float(test.pvalue))
    lines.append([f"{NAMES[name]}’s {METRICS[metric]}", *cells])
  shown = sum(p < 0.05 for p in ps) or "none"
  return [
    "Is it the precision, then? One epoch of a few seeds can’t tell. Over the "
    f"epochs, beside the {len(FRESH)} seeds of wide_confirmation, p < 0.05 is "
    f"found for {shown} of {len(ps)} differences (the least is "
    f"{p_value(min(ps))}, unadjusted); but {len(FEW)} seeds would show large "
    "ones only.",
    page.Table(
      lines,
      "Of each run’s mean over the same epochs, every fourth, with a 95 % "
      f"interval and Student’s t test: {len(FEW)} seeds are too few for a "
      "variance of their own, as Welch’s has it.",
    ),
  ]


def why(found: Results, extended: Results) -> list[page.Block]:
  """Where ⊥Grad has something to remove, in both networks."""
  epochs = range(20, 101, 20)
  shares: dict[str, dict[str, dict[str, np.ndarray]]] = {}
  for network, of in {"ResNet-18": extended, "WRN-28-10": found}.items():
    has = of.rows["orthograd", 0, 100, "train"]["metrics"]
    for name in PAIR:
      shares.setdefault(name, {})[network] = {
        kind: 100 * of.over_epochs(name, metric, SEEDS, epochs, "train")
        for kind in KINDS
        if (metric := f"radial: {kind}") in has
      }

  def last(optimizer, network, kind):
    return shares[optimizer][network][kind][:, -1]

  def dense(optimizer, network):
    its = last(optimizer, network, "dense kernel")
    return f"{its.mean():.2f} ± {its.std(ddof=1):.2f} %"

  bare, normed = (
    last("orthograd", "WRN-28-10", f"kernel, {kind}").mean()
    for kind in ("no norm", "then norm")
  )
  model = models.MODELS["wrn28_10"]()
  shapes = jax.eval_shape(lambda: models.init(model, jax.random.key(0)))
  kinds = jax.tree.leaves(models.kinds(model, shapes["params"]))
  counts = [kinds.count(f"kernel, {kind}") for kind in ("no norm", "then norm")]
  return [
    "### Why the logits’ effect is larger than in ResNet-18",
    "⊥Grad can only remove what there is along the weights. A kernel that "
    "batch norm follows has nothing there but rounding, and in ResNet-18 all "
    "kernels but the last layer’s are such. In WRN-28-10, which has its norms "
    f"before the convolutions, {counts[0]} kernels of {sum(counts)} are not. "
    f"But after 100 epochs no more than {bare:.1g} % of ‖g‖² is along those, "
    f"beside {normed:.0e} % for the others. What sets the networks apart is "
    "the last layer. With SGD, of its kernel’s ‖g‖² "
    f"{dense('sgd', 'WRN-28-10')} is along it in WRN-28-10, and "
    f"{dense('sgd', 'ResNet-18')} in ResNet-18; with ⊥Grad, "
    f"{dense('orthograd', 'WRN-28-10')} and {dense('orthograd', 'ResNet-18')}; "
    "any direction of n entries has 1 / n by chance, which is 0.02 % in both. "
    "That layer sets the logits’ scale. (Its bias has 10 entries, and the 10 % "
    "of chance.) A share is no effect, though: to say which kind of parameter "
    "does it would take runs in which ⊥Grad acts on one kind alone.",
    page.Picture(
      plots.curves(shares["orthograd"], epochs, log=True),
      "radial",
      "The share of ‖g‖² along the weights, in %, by kind of parameter: mean "
      "over its tensors and over the steps of an epoch, 5 seeds of ⊥Grad.",
    ),
  ]


def extended(
  found: Results, short: Results, plain: Results
) -> list[page.Block]:
  blocks: list[page.Block] = [
    "## Extended training: ResNet-18 for 1000 epochs, 5 seeds",
    made_by(found, "extended"),
    "The paper has one seed. It says that SGD has the higher clean accuracy, "
    "but that ⊥Grad has lower loss and ECE from severity 2 on and the higher "
    "accuracy from severity 3 on, and at severity 5 a higher one than every "
    "run of 100 epochs.",
    overfit_table(found, SEEDS),
    overfit_claims(found, short),
    "These seeds were run once before, by slower code (commit 84e7345; its "
    "rows are in the history of extended.jsonl.gz), which rounds otherwise, "
    "so that runs of a seed part on the way. The verdicts were the same but "
    "for one: there, loss was lower at each severity, too, but with p < 0.05 "
    "from severity 4 on only (0.130 at 2, 0.063 at 3). And ⊥Grad’s lower "
    "accuracy, where it has p < 0.05 here, was 0.140 at severity 4, 0.112 at "
    "5 and 0.201 over all.",
    not_the_papers(found),
    by_severity(
      found,
      SEEDS,
      "extended",
      "After 1000 epochs, from the clean test set (0) to severity 5.",
    ),
    "### On the way",
    how_they_part(found),
    milestones(found),
    trajectories(found),
  ]
  if has_unaugmented(plain):
    blocks += [
      f"### Without augmentation, {len(FEW)} seeds",
      made_by(plain, "unaugmented"),
      "One thing that lowers accuracy is to train without random crops and "
      "flips, all else equal:",
      overfit_table(plain, FEW),
    ]
  return blocks


def overfit_table(found: Results, seeds: range) -> page.Table:
  lines = [["SGD / ⊥Grad", "clean", *(f"severity {i}" for i in range(1, 6))]]
  what = lambda metric, i: (metric, SEVERITIES[i])
  ours = starred(found, seeds, paper.EXTENDED, range(6), what)
  for (metric, theirs), line in zip(paper.EXTENDED.items(), ours, strict=True):
    clean = paper.EXTENDED_CLEAN if metric == "top1" else None
    pairs = [" / ".join(printed(row)) for row in (clean, *theirs)]
    lines.append(
      [f"{METRICS[metric]}, paper", pairs[0].strip(" /"), *pairs[1:]]
    )
    lines.append(["ours", *line[1:]])
  return page.Table(
    lines,
    f"After 1000 epochs; the paper’s one seed, our means over {len(seeds)} "
    "seeds and 15 corruptions. *: paired p < 0.05, Holm-adjusted for all "
    f"{6 * len(ours)}.",
  )


def not_the_papers(found: Results) -> str:
  """That the paper's accuracies can't be the luck of one seed or epoch."""
  late = [e for e in epochs_of(found) if e >= 800]
  every = [found.over_epochs(name, "top1", SEEDS, late) for name in PAIR]
  short, long = (
    [np.mean(values) for values in of_pair(found, "top1", SEEDS, epoch=e)]
    for e in (100, 1000)
  )
  return (
    "The paper’s clean accuracies, "
    f"{' and '.join(printed(paper.EXTENDED_CLEAN))} %, are below those that it "
    "has after 100 epochs. Here accuracy rises from epoch 100 to 1000, from "
    f"{short[0]:.1f} / {short[1]:.1f} to {long[0]:.1f} / {long[1]:.1f} %. Nor "
    "is it an unlucky moment: the learning rate is constant and accuracy goes "
    f"up and down, but the lowest of all {sum(map(np.size, every))} values "
    f"from epoch 800 on, of both optimizers, is {np.min(every):.1f} %. So that "
    "run of the paper was hardly one of the protocol that gives its Table 1."
  )


def how_they_part(found: Results) -> str:
  of = functools.partial(of_pair, found, seeds=SEEDS)

  def pair(metric, epoch, dataset="clean", digits=1):
    values = of(metric, datasets=[dataset], epoch=epoch)
    return [f"{np.mean(x):.{digits}f}" for x in values]

  def sure(datasets):
    sgd, ours = (
      f"{100 * np.mean(confidence):.1f} % at an accuracy of {np.mean(top1):.1f}"
      for confidence, top1 in zip(
        of("max_softmax", datasets=datasets),
        of("top1", datasets=datasets),
        strict=True,
      )
    )
    return f"{ours}, where SGD has {sgd}"

  def at_best(datasets):
    a, b = of("loss", datasets=datasets, part="scaled")
    p = stats.paired_t_test(a, b).pvalue
    return f"{a.mean():.3f} against {b.mean():.3f} (p {p_value(p)})"

  early, late = pair("max_logit", 100), pair("max_logit", 1000)
  before, after = (pair("loss", epoch, "train", 2) for epoch in (200, 1000))
  return (
    "What parts them is the scale. The weights’ norm falls from the start, and "
    "after about 100 epochs max logit does, too: from there on from "
    f"{early[0]} to {late[0]} with SGD, and from {early[1]} to {late[1]} with "
    "⊥Grad. That fits what it is made for: weight decay shrinks the weights, "
    "and it takes away the part of the gradient that would grow them back. "
    f"⊥Grad’s training loss rises again, from {before[1]} at epoch 200 to "
    f"{after[1]} (SGD: {before[0]} and {after[0]}), at a training accuracy "
    f"of {pair('top1', 1000, 'train')[1]} %. So it ends on the other side of "
    f"calibration: on clean images its mean confidence is {sure(['clean'])}. "
    "Its lower ECE under corruption comes with that: "
    f"{sure(CORRUPTED)}. But scale can be had without retraining, by "
    "temperature. At the best one for each set of images SGD’s mean loss is "
    f"the lower one: {at_best(CORRUPTED)} on corrupted images, "
    f"{at_best(['clean'])} on clean ones."
  )


def epochs_of(found: Results) -> list[int]:
  return sorted({key[2] for key in found.rows if key[3] == "train"})


def overfit_claims(found: Results, short: Results) -> page.Table:
  lines = [["The paper, after 1000 epochs", "", "here"]]

  def judge(claim, wins, of, here):
    verdict = "holds" if wins == of else "holds in part"
    lines.append([claim, f"**{verdict if wins else 'not confirmed'}**", here])

  def better(metric, severities, claim, lower):
    wins, words = 0, []
    for i in severities:
      datasets = sets(cifar.CORRUPTIONS, [i])
      a, b = of_pair(found, metric, SEEDS, datasets)
      test = scipy.stats.ttest_rel(b, a)
      change = float(np.mean(b - a))
      wins += bool((change < 0) == lower and test.pvalue < LEVEL)
      change, low, high = (
        number(metric, x) for x in (change, *test.confidence_interval())
      )
      words.append(f"{i}: {change} ({low}, {high}), p {p_value(test.pvalue)}")
    judge(claim, wins, len(severities), "; ".join(words))

  def accuracy(datasets, claim, sign):
    row = stats.compare(*of_pair(found, "top1", SEEDS, datasets), paired=True)
    judge(
      claim,
      row.p < LEVEL and sign * row.d > 0,
      True,
      f"{spread('top1', row.mean_a, row.std_a)} against "
      f"{spread('top1', row.mean_b, row.std_b)}, p {p_value(row.p)}",
    )

  accuracy(["clean"], "SGD has the higher clean accuracy", 1)
  better("loss", range(2, 6), "lower loss from severity 2 on", True)
  better("ece", range(2, 6), "lower ECE from severity 2 on", True)
  better("top1", range(3, 6), "higher accuracy from severity 3 on", False)
  accuracy(CORRUPTED, "higher accuracy over all of CIFAR-10-C", -1)
  hardest = sets(cifar.CORRUPTIONS, [5])
  long = found.values("orthograd", "top1", SEEDS, hardest)
  seeds = range(20)
  if short.has(PAIR, seeds, CORRUPTED):
    best = np.max(of_pair(short, "top1", seeds, hardest))
    above = int(np.sum(long > best))
    judge(
      "at severity 5, ⊥Grad is above every run of 100 epochs",
      above,
      len(long),
      f"{above} of {len(long)} seeds are above the best of 40 such runs, "
      f"{best:.2f} %; ⊥Grad has {long.mean():.2f} ± {long.std(ddof=1):.2f}",
    )
  return page.Table(
    lines,
    "Differences are ⊥Grad less SGD, by severity, with 95 % intervals and "
    "p-values of paired t-tests over 5 seeds, not adjusted; “holds”: so at "
    "each severity, with p < 0.05.",
    texts=(1, 2),
  )


def milestones(found: Results) -> page.Table:
  rows = {METRICS[m]: (m, "metrics") for m in ("top1", "loss", "ece")}
  rows |= {
    METRICS["max_softmax"]: ("max_softmax", "metrics"),
    "loss at the best T": ("loss", "scaled"),
  }
  lines = [["SGD / ⊥Grad", *(f"epoch {epoch}" for epoch in MILESTONES)]]
  for where, datasets in (("clean", ["clean"]), ("corrupted", CORRUPTED)):
    for title, (metric, part) in rows.items():
      cells = []
      for epoch in MILESTONES:
        a, b = of_pair(found, metric, SEEDS, datasets, epoch, part)
        star = " *" if stats.paired_t_test(a, b).pvalue < LEVEL else ""
        cells.append(means(metric, a, b) + star)
      lines.append([f"{title}, {where}", *cells])
  return page.Table(
    lines,
    "Means over 5 seeds. T is fitted on each set of images. *: paired p < "
    "0.05, not adjusted.",
  )


def trajectories(found: Results) -> page.Picture:
  epochs = epochs_of(found)
  panels = {
    "loss in training": ("train", "loss"),
    "accuracy in training, %": ("train", "top1"),
    "test loss": ("clean", "loss"),
    "test accuracy, %": ("clean", "top1"),
    "max logit": ("clean", "max_logit"),
    "norm of the weights": ("clean", "weight_norm"),
  }
  values = {
    title: {
      NAMES[name]: found.over_epochs(name, metric, SEEDS, epochs, dataset)
      for name in PAIR
    }
    for title, (dataset, metric) in panels.items()
  }
  return page.Picture(
    plots.curves(values, epochs),
    "trajectories",
    "How the two trajectories part: mean ± one standard deviation of 5 seeds.",
  )
