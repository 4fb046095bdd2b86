"""Asks rows: a number of each seed, by study, method and outcome.

The rest of the report sees rows only through :class:`Results`.
"""

from collections.abc import Iterable, Iterator, Sequence
import itertools
import pathlib
import re
import tomllib
from typing import Any, NamedTuple

import numpy as np

from experiments import config, datasets, registry
from experiments.config import Study
from experiments.rows import RowsError, kept
from experiments.rows import read as read_rows

PLAN = pathlib.Path(__file__).parents[1] / "PLAN.md"
PAIR = ("sgd", "orthograd")
Pair = tuple[str, str]

LABELS = tomllib.loads(
  pathlib.Path(__file__).with_name("labels.toml").read_text("utf-8")
)
METRICS: dict[str, str] = LABELS["metrics"]
POOLS: dict[str, dict[str, Any]] = LABELS["pools"]
_PARTS = registry.OPTIMIZERS | registry.LOSSES
NAMES: dict[str, str] = {
  **{name: part.label for name, part in _PARTS.items()},
  **LABELS["methods"],
  **LABELS["parts"],
}


def method_name(method: str) -> str:
  """Returns the label of a method, by its name in rows.

  Examples:
    >>> print(method_name("orthograd"), method_name("orthograd_mixup"))
    ⊥Grad ⊥Grad, mixup
    >>> print(method_name("label_smoothing"), method_name("decay_0.002"))
    label smoothing SGD, decay 2e-3
    >>> print(method_name("orthograd_cosine_head"))
    ⊥Grad on the head, cosine
    >>> print(method_name("orthograd_sam ensemble of 5"))
    ⊥Grad, SAM, ensemble of 5
    >>> print(method_name("mixup_after_t"), "·", method_name("sgd_0.3_0.0005"))
    mixup · SGD, rate 0.3, decay 5e-4
  """
  method, size = config.split_ensemble(method)
  if size:
    return f"{method_name(method)}, ensemble of {size}"
  method = method.removesuffix("_after_t")  # all methods of such a study
  if method in NAMES:
    return NAMES[method]
  if match := re.fullmatch(r"(\w+?)_([\d.]+)_([\d.e-]+)", method):
    rate, decay = match[2], power(float(match[3]))
    return f"{method_name(match[1])}, rate {rate}, decay {decay}"
  plain = method.removeprefix("orthograd_")
  start = "" if plain == method else "⊥Grad, "
  if match := re.fullmatch(r"decay_([\d.e-]+)", plain):
    return f"{start or 'SGD, '}decay {power(float(match[1]))}"
  part = plain.removeprefix("cosine_")
  if part in LABELS["parts"]:
    tail = "" if part == plain else ", cosine"
    return f"⊥Grad on {LABELS['parts'][part]}{tail}"
  return start + NAMES.get(plain, plain.replace("_", " "))


def pair_name(pair: Pair) -> str:
  """Returns the label of a difference: of the second method minus the first.

  Examples:
    >>> print(pair_name(("cosine", "orthograd_cosine")))
    ⊥Grad − SGD, cosine
  """
  first, second = (method_name(method).split(", ") for method in pair)
  tail = []
  while first[1:] and second[1:] and first[-1] == second[-1]:
    tail.insert(0, f", {first.pop()}")
    second.pop()
  return f"{', '.join(second)} − {', '.join(first)}{''.join(tail)}"


def power(value: float) -> str:
  """Formats a weight decay with one digit.

  Examples:
    >>> print(power(0.0001), power(0.0))
    1e-4 0
  """
  return f"{value:.0e}".replace("e-0", "e-") if value else "0"


class Outcome(NamedTuple):
  """A number of each run."""

  label: str
  metric: str  # its name in rows
  part: str = "metrics"  # of rows; after temperature scaling, "scaled_half" …
  images: str = "clean"  # a set of images, or a name that `sets` knows
  sign: int = 1  # -1 if higher is better
  tested: bool = True  # by the plan, in every study


OUTCOMES = {name: Outcome(**it) for name, it in LABELS["outcomes"].items()}


def outcome(name: str, images: str = "", part: str = "") -> Outcome:
  """Returns an outcome by its name or a metric's, with other images or part."""
  it = OUTCOMES.get(name) or Outcome(METRICS.get(name, name), name)
  return it._replace(images=images or it.images, part=part or it.part)


def sets(name: str) -> tuple[str, ...]:
  """Returns the sets of images in rows behind a name."""
  names, severities = datasets.CORRUPTIONS, range(1, 6)
  if name == "severity 0":
    return ("clean",)
  if name in datasets.ALL_CORRUPTIONS:
    names = (name,)
  elif name == "extra":
    names = datasets.EXTRA_CORRUPTIONS
  elif match := re.fullmatch(r"severity (\d)", name):
    severities = [int(match[1])]
  elif name != "corrupted":
    return (name,)
  return tuple(f"{it}/{severity}" for it in names for severity in severities)


class Results:
  """Rows of one recipe, by method, seed, epoch and set of images."""

  def __init__(self, rows: Iterable[dict[str, Any]], recipe: config.Config):
    self.epochs = recipe.epochs
    self.rows = {
      (row["method"], row["seed"], row["epoch"], row["dataset"]): row
      for row in rows
      if row["config_hash"] == recipe.hash
    }
    self._seeds = sorted({seed for _, seed, _, _ in self.rows})
    self._images = {images for *_, images in self.rows}

  def sets(self, images: str) -> tuple[str, ...]:
    # Rows of former runs have means over sets, under the names of these.
    return (images,) if images in self._images else sets(images)

  def seeds(
    self,
    methods: Iterable[str],
    images: str = "clean",
    epochs: Iterable[int] = (0,),
  ) -> list[int]:
    """Returns the seeds that have rows of all these. Epoch 0 is the last."""
    wanted = [
      (method, epoch or self.epochs, name)
      for method, epoch in itertools.product(methods, epochs)
      for name in self.sets(images)
    ]
    has = lambda s: all((m, s, e, name) in self.rows for m, e, name in wanted)
    return list(filter(has, self._seeds))

  def evaluated(
    self, methods: Sequence[str], seeds: Iterable[int], images: str = "clean"
  ) -> list[int]:
    """Returns the epochs after which all of these runs were evaluated."""
    epochs, wanted = sorted({epoch for _, _, epoch, _ in self.rows}), set(seeds)
    return [e for e in epochs if wanted <= {*self.seeds(methods, images, [e])}]

  def get(
    self, method: str, seed: int, images: str = "clean", epoch: int = 0
  ) -> list[dict[str, Any]]:
    """Returns the rows of a run after an epoch, one for each set of images."""
    epoch = epoch or self.epochs
    return [self.rows[method, seed, epoch, it] for it in self.sets(images)]

  def measured(self, methods: Sequence[str], name: str, least: int = 2) -> bool:
    """Returns whether at least so many seeds have the outcome for all."""
    it = outcome(name)
    seeds = self.seeds(methods, it.images)
    return len(seeds) >= least and all(
      row.get(it.part, {}).get(it.metric) is not None
      for method, seed in itertools.product(methods, seeds)
      for row in self.get(method, seed, it.images)
    )

  def outcomes(
    self, groups: Sequence[Sequence[str]], first: str, least: int = 2
  ) -> list[str]:
    """Returns the outcomes of all groups of methods, a primary one first.

    After T, they are of half of the images if the primary one is, or if rows
    have no others; else of all images.
    """
    its = [
      it
      for it in dict.fromkeys([first, *OUTCOMES])
      if all(self.measured(methods, it, least) for methods in groups)
    ]
    crossed = first != "scaled_loss" and "crossed_loss" in its
    left_out = "scaled_half" if crossed else "scaled_crossed"
    return [it for it in its if OUTCOMES[it].part != left_out]

  def values(
    self,
    method: str,
    name: str = "scaled_loss",
    seeds: Iterable[int] | None = None,
    epoch: int = 0,
    images: str = "",
    part: str = "",
  ) -> np.ndarray:
    """Returns the outcome of each seed at the end, or after an epoch."""
    it = outcome(name, images, part)
    if seeds is None:
      seeds = self.seeds([method], it.images, [epoch])
    each = [
      [row[it.part][it.metric] for row in self.get(method, s, it.images, epoch)]
      for s in seeds
    ]
    return np.array(each, float).mean(axis=1)

  def over_epochs(
    self,
    method: str,
    name: str,
    seeds: Sequence[int],
    epochs: Sequence[int],
    images: str = "",
  ) -> np.ndarray:
    """Returns an outcome of shape (seeds, epochs)."""
    columns = [self.values(method, name, seeds, e, images) for e in epochs]
    return np.stack(columns, axis=1)


def load(folder: pathlib.Path) -> tuple[Study, Results]:
  """Returns the study of a folder, and its results."""
  study = config.load_settings(folder)
  results = Results(read_rows(folder / "rows.jsonl"), study.config)
  if not results.rows:
    raise RowsError(
      f"{folder / 'rows.jsonl'} has no rows of that study: `python -m "
      f"experiments resume {folder}` makes them."
    )
  return study, results


def arm_rows(study: Study) -> Iterator[dict[str, Any]]:
  """Yields the kept rows of a study's arms, as rows of its own methods."""
  for arm in study.arms:
    recipe = config.load_study(arm).config
    for row in kept.load([arm]):
      if row["config_hash"] == recipe.hash and "scaled_own" in row:
        metrics = row["metrics"] | row["scaled_own"]
        its = {"method": arm, "config_hash": study.config.hash}
        yield row | its | {"metrics": metrics}


def pairs(study: Study) -> list[Pair]:
  """Returns what a study compares: its pairs, or its first two methods."""
  first = tuple(study.method_names[:2])
  return list(study.pairs or ([(first[0], first[1])] if first[1:] else []))


def diverged(study: Study, results: Results) -> dict[str, list[int]]:
  """Returns the seeds of each method that diverged."""
  seeds: dict[str, list[int]] = {}
  for name, seed, _, images in sorted(results.rows):
    if images == "diverged" and name in study.method_names:
      seeds.setdefault(name, []).append(seed)
  return seeds


def planned() -> dict[str, str]:
  """Returns the link within PLAN.md of each study that has a section there."""
  known, links = config.study_names(), {}
  for heading in re.findall(r"^## (\d.*)$", PLAN.read_text("utf-8"), re.M):
    anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    for name in re.findall(r"`(\w+)`", heading):
      if name in known or name in ("grokking", "grokking_rates", "language"):
        links[name] = f"#{anchor}"
  return links
