"""What a run is: every default lives here, and every row carries it.

A :class:`Config` is all that decides a run's numbers but for its optimizer and
its seed; a :class:`Study` is a config, a list of those, and what to evaluate.
"""

import dataclasses
import hashlib
import importlib
import json
import pathlib
import pkgutil
from typing import Any

from experiments import cifar
from experiments.files import UserError


class ConfigError(UserError, ValueError):
  """A setting that is unknown or can't be, and what it can be."""


@dataclasses.dataclass(frozen=True)
class Optimizer:
  """SGD with momentum and weight decay, behind ⊥Grad of some strength."""

  strength: float
  renormalize: bool = True


OPTIMIZERS = {
  "sgd": Optimizer(0.0),
  "orthograd": Optimizer(1.0),
  "orthograd_unnormalized": Optimizer(1.0, renormalize=False),
}


def _field(default: Any, **rule: Any) -> Any:
  """A field, of its default's type, and what it may be.

  Args:
    default: its default.
    **rule: ``at_least``, ``above``, ``below`` or ``one_of``; of a tuple that
      is for each of its entries, and ``each`` their type.
  """
  return dataclasses.field(default=default, metadata={"rule": rule})


def _parse(field: dataclasses.Field, text: str) -> Any:
  kind = type(field.default)
  try:
    if kind is bool:
      return {"true": True, "false": False}[text.lower()]
    if kind is tuple:
      rule = field.metadata["rule"]
      if text == "all" and "one_of" in rule:
        return tuple(rule["one_of"])
      return tuple(map(rule.get("each", str), filter(None, text.split(","))))
    return kind(text)
  except (KeyError, ValueError):
    name = "true or false" if kind is bool else f"of type {kind.__name__}"
    name = "whole numbers" if kind is tuple else name
    raise ConfigError(
      f"{field.name} is {text!r}, but must be {name}."
    ) from None


def _check(config: Any) -> None:
  for field in dataclasses.fields(config):
    if not field.metadata:
      continue
    value, rule = getattr(config, field.name), field.metadata["rule"]
    kind = type(field.default)
    if type(value) is not kind and not (kind is float and type(value) is int):
      raise ConfigError(
        f"{field.name} is {value!r}, but must be of type {kind.__name__}."
      )
    tests = {
      "at_least": lambda v, limit: v >= limit,
      "above": lambda v, limit: v > limit,
      "below": lambda v, limit: v < limit,
      "one_of": lambda v, allowed: v in allowed,
    }
    for name, limit in rule.items():
      if name == "each":
        continue
      values = value if isinstance(value, tuple) else (value,)
      for v in values:
        if not tests[name](v, limit):
          wanted = name.replace("_", " ")
          if name == "one_of":
            limit = ", ".join(limit)
          raise ConfigError(
            f"{field.name} is {v!r}, but must be {wanted} {limit}."
          )
    if isinstance(value, tuple) and len(set(value)) < len(value):
      listed = ", ".join(map(str, value))
      raise ConfigError(f"{field.name} has one twice: {listed}.")


@dataclasses.dataclass(frozen=True)
class Config:
  """What decides the numbers of a run, besides its optimizer and seed.

  Attributes:
    model: the network.
    dataset: all of CIFAR-10, or the sample that comes with the code.
    per_class: training images of each class, drawn by the seed.
    epochs: times through them.
    batch_size: images a step.
    learning_rate: of every step.
    momentum: of SGD.
    weight_decay: times the weights, added after ⊥Grad.
    eps: of ⊥Grad.
    augment: whether to crop and mirror training images at random.
    precision: of convolutions; a CPU takes tf32 for float32.
  """

  model: str = _field("resnet18", one_of=("resnet18", "wrn28_10", "small"))
  dataset: str = _field("cifar10", one_of=("cifar10", "sample"))
  per_class: int = _field(500, at_least=1)
  epochs: int = _field(100, at_least=1)
  batch_size: int = _field(64, at_least=1)
  learning_rate: float = _field(0.01, above=0.0)
  momentum: float = _field(0.9, at_least=0.0, below=1.0)
  weight_decay: float = _field(5e-4, at_least=0.0)
  eps: float = _field(1e-30, above=0.0)
  augment: bool = _field(True)
  precision: str = _field("bfloat16", one_of=("bfloat16", "tf32", "float32"))

  def __post_init__(self):
    _check(self)

  @property
  def steps(self) -> int:
    """Of an epoch; the last may have fewer images."""
    return -(-10 * self.per_class // self.batch_size)

  @property
  def hash(self) -> str:
    content = json.dumps(dataclasses.asdict(self), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Study:
  """Runs to make and what to evaluate them on.

  Attributes:
    name: of its file in `studies/`.
    config: of all runs.
    optimizers: which to train.
    seeds: runs of each optimizer.
    first_seed: the seed of the first of them.
    evaluate_every: epochs between evaluations; 0 for one at the end.
    corruptions: of CIFAR-10-C, on which to evaluate at the end.
    corrupted_at: epochs after which to do so, too.
    diagnostics: whether to note where gradients lie relative to the weights.
    models_of: the study whose folder it shares, so that what either has trained
      serves both; by default none.
  """

  name: str
  config: Config = Config()
  optimizers: tuple[str, ...] = _field(
    ("sgd", "orthograd"), one_of=tuple(OPTIMIZERS)
  )
  seeds: int = _field(20, at_least=1)
  first_seed: int = _field(0, at_least=0)
  evaluate_every: int = _field(0, at_least=0)
  corruptions: tuple[str, ...] = _field((), one_of=cifar.ALL_CORRUPTIONS)
  corrupted_at: tuple[int, ...] = _field((), each=int, at_least=1)
  diagnostics: bool = _field(False)
  models_of: str = ""

  def __post_init__(self):
    _check(self)
    if not self.optimizers:
      raise ConfigError("optimizers is empty, but must name at least one.")
    if self.corrupted_at and max(self.corrupted_at) > self.config.epochs:
      raise ConfigError(
        f"corrupted_at is {max(self.corrupted_at)}, but must be at most "
        f"epochs, {self.config.epochs}."
      )

  @property
  def folder(self) -> pathlib.Path:
    """Where its rows and checkpoints are, unless another is given."""
    return pathlib.Path("runs") / (self.models_of or self.name)

  @property
  def runs(self) -> list[tuple[str, int]]:
    """(optimizer, seed): those of a seed are neighbours."""
    return [
      (optimizer, seed)
      for seed in range(self.first_seed, self.first_seed + self.seeds)
      for optimizer in self.optimizers
    ]

  def epochs_evaluated(self) -> list[int]:
    """Epochs after which the test set is evaluated, the last among them."""
    every = self.evaluate_every or self.config.epochs
    last = self.config.epochs
    return sorted({*range(every, last + 1, every), *self.corrupted_at, last})

  def datasets(self, epoch: int) -> list[str]:
    """What is evaluated after an epoch."""
    if epoch not in (*self.corrupted_at, self.config.epochs):
      return ["train", "clean"]
    sets = [f"{name}/{i}" for name in self.corruptions for i in range(1, 6)]
    return ["train", "clean", *sets]

  def override(self, settings: list[str]) -> "Study":
    """With settings of the form key=value in place of its own.

    Args:
      settings: keys are the fields of the study or of its config; a list of
        names is separated by commas, and ``all`` is all of them.
    """
    mine: dict[str, Any] = {}
    configs: dict[str, Any] = {}
    known = {f.name: (f, mine) for f in dataclasses.fields(Study)}
    known = {
      k: v for k, v in known.items() if k not in ("name", "config", "models_of")
    }
    known |= {f.name: (f, configs) for f in dataclasses.fields(Config)}
    for setting in settings:
      key, equals, text = setting.partition("=")
      if not equals or key not in known:
        raise ConfigError(
          f"{setting!r} is no setting: write key=value, where key is one of "
          f"{', '.join(sorted(known))}."
        )
      field, values = known[key]
      values[key] = _parse(field, text)
    if configs:
      mine["config"] = dataclasses.replace(self.config, **configs)
    return dataclasses.replace(self, **mine)


def studies() -> dict[str, tuple[Study, str]]:
  """Each study's name, what it is, and its description."""
  from experiments import studies as package

  modules = {
    found.name: importlib.import_module(f"{package.__name__}.{found.name}")
    for found in pkgutil.iter_modules(package.__path__)
  }
  return {
    name: (module.STUDY, module.__doc__ or "")
    for name, module in modules.items()
  }


def load_study(name: str) -> Study:
  """The study of a name; there is one file for each in `studies/`."""
  found = studies()
  if name not in found:
    raise ConfigError(
      f"There is no study {name!r}; there are {', '.join(sorted(found))}. "
      f"A study is a file in {pathlib.Path(__file__).parent / 'studies'}."
    )
  return found[name][0]
