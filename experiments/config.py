"""What a run is. Every default is here, and every row has its settings.

A :class:`Config` is the recipe that all runs of a study share. A
:class:`Method` is one of the things that a study compares. A :class:`Study` has
a recipe, methods, seeds, and the images to evaluate on.
"""

import dataclasses
import functools
import hashlib
import importlib
import itertools
import json
import pathlib
import reprlib
import runpy
import traceback
from typing import Any, NamedTuple

import jax

from experiments import datasets, registry, shares
from experiments import studies as package
from experiments.fields import (
  ConfigError,
  Settings,
  check_distinct,
  check_fields,
  check_name,
  field,
  kind,
  parse,
  settable,
  unparse,
)
from experiments.files import UserError, parse_json
from orthograd_optax._files import brief

# In a hash only if they are set: earlier hashes are without them.
_LATER = "evaluate_on label_noise reserve calibrate seeds_per_subset".split()


@dataclasses.dataclass(frozen=True)
class Config(Settings):
  """The recipe: settings of a run besides its method and seed."""

  model: str = field("resnet18", one_of=tuple(registry.MODELS))
  # One of `datasets.DATASETS`, or an .npz file of your own.
  dataset: str = field("cifar10")
  # Training images of each class, drawn by the seed.
  per_class: int = field(500, at_least=1)
  epochs: int = field(100, at_least=1)
  batch_size: int = field(64, at_least=1)
  learning_rate: float = field(0.01, above=0.0)  # the largest of a schedule
  momentum: float = field(0.9, at_least=0.0, below=1.0)
  weight_decay: float = field(5e-4, at_least=0.0)  # added after ⊥Grad
  eps: float = field(1e-30, above=0.0)  # of ⊥Grad
  augment: bool = field(True)  # crop and mirror training images at random
  # Of convolutions. On a CPU, tf32 is float32.
  precision: str = field("bfloat16", one_of=("bfloat16", "tf32", "float32"))
  # The test images, or a tenth of the training images, balanced and the same
  # for all runs, which then train on others.
  evaluate_on: str = field("test", one_of=("test", "held_out"))
  # Fraction of a run's training images that get a wrong label, by the seed.
  label_noise: float = field(0.0, at_least=0.0, at_most=1.0)
  # Not to train on the images of evaluate_on=held_out when evaluated on test.
  reserve: bool = field(False)
  # Images of each class that a seed draws besides `per_class`, to fit a
  # temperature on.
  calibrate: int = field(0, at_least=0)
  # Number of seeds that draw the same images: with 5, seeds 0 to 4, 5 to 9, and
  # so on. With `calibrate`, each of them leaves out others.
  seeds_per_subset: int = field(1, at_least=1)

  def __post_init__(self):
    check_fields(self)
    name = self.dataset
    if datasets.npz.is_npz(name):
      object.__setattr__(self, "dataset", datasets.npz.pin(name))
      if name == self.dataset:
        return  # Pages of a finished study need no file.
    elif name not in datasets.DATASETS:
      known = ", ".join(datasets.DATASETS)
      raise ConfigError(
        f"dataset is {name!r}, but must be one of {known}, or an .npz file."
      )
    self.check_images()

  def check_images(self) -> None:
    """Raises a ConfigError if the data set has too few images."""
    data, most = self.data, self.data.per_class
    if self.reserve or self.evaluate_on == "held_out":
      most -= data.held_out
      if not data.held_out:
        raise ConfigError(
          f"{'reserve is true' if self.reserve else 'evaluate_on is held_out'},"
          f" but {data.name} has only {most} training images of a class, and "
          "must have 10."
        )
    if (images := self.per_class + self.calibrate) > most:
      names = "per_class + calibrate" if self.calibrate else "per_class"
      raise ConfigError(
        f"{names} is {images}, but must be at most {most}, the images of a "
        f"class that {data.name} has for training."
      )

  @property
  def data(self) -> datasets.Dataset:
    return datasets.find(self.dataset)

  @property
  def share(self) -> float:
    """Returns the fraction of the training images that a seed draws."""
    return self.per_class / self.data.per_class

  @property
  def images(self) -> int:
    """Returns the number of training images of a run."""
    return self.per_class * len(self.data.classes)

  @property
  def steps(self) -> int:
    """Steps of an epoch. The last step may have fewer images."""
    return -(-self.images // self.batch_size)

  def settings(self) -> dict[str, Any]:
    """Returns all settings, except newer ones that have their default."""
    settings = dataclasses.asdict(self)
    for name in _LATER:
      if settings[name] == getattr(Config, name):
        del settings[name]
    return settings

  @functools.cached_property
  def hash(self) -> str:
    settings = self.settings()
    if datasets.npz.is_npz(self.dataset):  # wherever the file is
      settings["dataset"] = datasets.npz.digest(self.dataset)
    content = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


# Parts of the parameters that ⊥Grad can act on alone: `engine/methods.py`.
PARTS = ("head", "body", "norms", "normed_kernels", "unnormed")


@dataclasses.dataclass(frozen=True)
class Method(Settings):
  """How a network is trained, besides the recipe. Studies compare methods.

  A method is a pytree. Its numbers are leaves, so runs that differ only in
  numbers train as one compiled program. Its other fields are structure: another
  value makes another program. `engine/methods.py` computes methods.
  """

  name: str = ""  # in rows, under `method`
  base: str = field("sgd", one_of=tuple(registry.OPTIMIZERS))
  nesterov: bool = field(False)  # the momentum of SGD and SGDP
  # Constant, or a linear warm-up and then a cosine to zero.
  schedule: str = field("constant", one_of=("constant", "cosine"))
  # The parameters that ⊥Grad acts on; "none" leaves ⊥Grad out.
  where: str = field("all", one_of=("all", *PARTS, "none"))
  renormalize: bool = field(True)  # as in `orthograd`
  # `group_by` of `orthograd`.
  partition: str = field("leaf", one_of=("leaf", "layer", "global"))
  loss: str = field("cross_entropy", one_of=tuple(registry.LOSSES))
  augmentation: str = field(
    "recipe", one_of=("recipe", "none", "crop", "mixup")
  )
  # SAM, or an average of the weights, which is then evaluated.
  wrapper: str = field("none", one_of=("none", "sam", "average"))
  # Strength of ⊥Grad at the first step, and after a linear ramp at the last.
  # None for no ramp, and for the recipe's learning rate, momentum and decay.
  strength: float = field(0.0, at_least=0.0, at_most=1.0)
  strength_at_end: float = field(None, at_least=0.0, at_most=1.0)
  learning_rate: float = field(None, above=0.0)
  momentum: float = field(None, at_least=0.0, below=1.0)
  weight_decay: float = field(None, at_least=0.0)
  head_decay: float = field(1.0, at_least=0.0)  # factor in the last layer
  warm_up: float = field(0.05, at_least=0.0, below=1.0)  # share of all steps
  smoothing: float = field(0.05, at_least=0.0, below=1.0)  # of labels
  focus: float = field(3.0, at_least=0.0)  # exponent of the focal loss
  temperature: float = field(0.04, above=0.0)  # of LogitNorm
  mixing: float = field(1.0, above=0.0)  # both parameters of mixup's beta
  radius: float = field(0.05, at_least=0.0)  # of SAM's ball
  # The share of the average that a step keeps.
  averaging: float = field(0.999, at_least=0.0, below=1.0)

  # Not in __post_init__: JAX rebuilds methods with arrays and placeholders.
  def check_settings(self) -> None:
    """Raises a ConfigError if a setting is not allowed."""
    check_name("A method's name", self.name)
    check_fields(self)

  def resolve(self, config: Config) -> "Method":
    """Returns the method, nameless, with the recipe's settings for None."""
    crop = "crop" if config.augment else "none"
    given = lambda value, default: default if value is None else value
    return self.replace(
      name="",
      augmentation=crop if self.augmentation == "recipe" else self.augmentation,
      strength_at_end=given(self.strength_at_end, self.strength),
      learning_rate=given(self.learning_rate, config.learning_rate),
      momentum=given(self.momentum, config.momentum),
      weight_decay=given(self.weight_decay, config.weight_decay),
    )


_IS_NUMBER = {f.name: kind(f) is float for f in dataclasses.fields(Method)}
jax.tree_util.register_dataclass(
  Method,
  data_fields=[name for name in _IS_NUMBER if _IS_NUMBER[name]],
  meta_fields=[name for name in _IS_NUMBER if not _IS_NUMBER[name]],
)


def with_orthograd(method: Method) -> Method:
  """Returns the method with ⊥Grad, for the same program."""
  name = "orthograd" if method.name == "sgd" else f"orthograd_{method.name}"
  return method.replace(name=name, strength=1.0)


SGD = Method("sgd")
ORTHOGRAD = with_orthograd(SGD)
_WITHOUT_ORTHOGRAD = {
  **{k: {"base": k, **its.settings} for k, its in registry.OPTIMIZERS.items()},
  **{k: {"loss": k, **its.settings} for k, its in registry.LOSSES.items()},
  "mixup": {"augmentation": "mixup"},
  "sam": {"wrapper": "sam"},
  "average": {"wrapper": "average"},
}
del _WITHOUT_ORTHOGRAD[SGD.loss]
_VARIANTS = {
  "unnormalized": {"renormalize": False},
  "global": {"partition": "global"},
  "ramped_in": {"strength": 0.0, "strength_at_end": 1.0},
  "ramped_out": {"strength_at_end": 0.0},
  **{part: {"where": part} for part in PARTS},
}
_plain = [Method(name, **its) for name, its in _WITHOUT_ORTHOGRAD.items()]
# Methods that studies and `--set methods=` can name: each base without ⊥Grad
# and with it, and variants of ⊥Grad.
METHODS = {
  method.name: method
  for method in (
    *_plain,
    *map(with_orthograd, _plain),
    *(
      ORTHOGRAD.replace(name=f"orthograd_{k}", **v)
      for k, v in _VARIANTS.items()
    ),
  )
}


class Run(NamedTuple):
  """One network to train."""

  method: Method
  seed: int


_OF = " ensemble of "


def ensemble(method: str, size: int) -> str:
  """Returns what rows call the ensembles of a method's runs."""
  return f"{method}{_OF}{size}"


def split_ensemble(name: str) -> tuple[str, str]:
  """Returns a row name's method and its ensemble's size, "" for none."""
  method, _, size = name.partition(_OF)
  return method, size


@dataclasses.dataclass(frozen=True)
class Study(Settings):
  """Runs, and the images to evaluate them on."""

  name: str  # of its file in `studies/`
  config: Config = Config()
  methods: tuple[Method, ...] = (SGD, ORTHOGRAD)
  # Names of methods, or of their ensembles, to compare in pairs, the second
  # minus the first; by default the first two methods.
  pairs: tuple[tuple[str, str], ...] = ()
  # The primary outcome, of `report/labels.toml`.
  outcome: str = field(
    "scaled_loss",
    one_of=("scaled_loss", "crossed_loss", "loss", "corrupted_accuracy"),
  )
  seeds: int = field(20, at_least=1)  # Every method is run with each.
  first_seed: int = field(0, at_least=0, at_most=2**31 - 1)
  # Epochs between evaluations; 0 for one evaluation at the end.
  evaluate_every: int = field(0, at_least=0)
  # To evaluate on at the end, and after these further epochs.
  corruptions: tuple[str, ...] = field((), one_of=datasets.ALL_CORRUPTIONS)
  corrupted_at: tuple[int, ...] = field((), each=int, at_least=1)
  # Sizes, such as 2 and 5, of ensembles to evaluate. An ensemble is the mean of
  # the probabilities of seeds that train together and follow each other: with
  # 5, the first five seeds, the next five, and so on.
  ensembles: tuple[int, ...] = field((), each=int, at_least=2)
  # Whether rows say how much of the gradient is along the weights.
  diagnostics: bool = field(False)
  # The study whose folder and trained models it shares.
  models_of: str = ""
  # The study whose kept rows have a temperature for each seed, fitted on images
  # of that seed.
  temperatures_of: str = ""
  # Studies of one method, to compare at each seed's own temperature: on pages,
  # each is a method of this study with the name of the arm.
  arms: tuple[str, ...] = ()
  # (3, 16) for the third of 16 shares of the runs.
  share: tuple[int, int] = (1, 1)

  def __post_init__(self):
    check_fields(self)
    if not isinstance(self.config, Config):
      raise ConfigError(
        f"config is {reprlib.repr(self.config)}, but must be a Config."
      )
    check_name("name", self.name)
    check_name("models_of", self.models_of or self.name)
    if self.config.dataset in datasets.DATASETS:
      self.check_images()
    if not self.methods:
      raise ConfigError("methods is empty, but must name at least one.")
    for method in self.methods:
      method.check_settings()
    check_distinct("methods", self.method_names)
    for name in itertools.chain(*self.pairs):
      if name not in self.comparable:
        raise ConfigError(
          f"pairs has {name!r}, but must name methods of the study: "
          f"{', '.join(self.comparable)}."
        )
    if self.corrupted_at and max(self.corrupted_at) > self.config.epochs:
      raise ConfigError(
        f"corrupted_at is {max(self.corrupted_at)}, but must be at most "
        f"epochs, {self.config.epochs}."
      )
    _ = self.runs  # It refuses a share that does not exist.

  def check_images(self) -> None:
    """Raises a ConfigError if the data set's images don't suit the study."""
    self.config.check_images()
    if self.corruptions and self.config.data.shape != (32, 32, 3):
      raise ConfigError(
        f"corruptions is {', '.join(self.corruptions)}, but must be none for "
        f"{self.config.dataset}: they are defined for colour images of 32 × 32 "
        f"pixels, and it has shape {self.config.data.shape}."
      )

  @property
  def method_names(self) -> tuple[str, ...]:
    """Returns the names of its methods, as in rows and on the command line."""
    return tuple(method.name for method in self.methods)

  @property
  def pooled(self) -> tuple[str, ...]:
    """Returns the names of its methods' ensembles, as in rows."""
    return tuple(
      ensemble(name, size)
      for size in self.ensembles
      for name in self.method_names
    )

  @property
  def comparable(self) -> tuple[str, ...]:
    """Returns all names that a pair may have."""
    return self.method_names + self.pooled + self.arms

  def block(self, seed: int) -> int:
    """Returns the number of the ensembles that a seed belongs to."""
    return (seed - self.first_seed) // max(self.ensembles, default=1)

  @property
  def folder(self) -> pathlib.Path:
    """Returns the default folder for rows and checkpoints."""
    folder = pathlib.Path("runs") / (self.models_of or self.name)
    number, count = self.share
    return folder / f"shares/{number}-of-{count}" if count > 1 else folder

  @functools.cached_property
  def runs(self) -> list[Run]:
    """Returns all runs of its share, seed by seed."""
    runs = [
      Run(method, seed)
      for seed in range(self.first_seed, self.first_seed + self.seeds)
      for method in self.methods
    ]
    return runs if self.share == (1, 1) else shares.take(self, runs)

  def epochs_evaluated(self) -> list[int]:
    """Epochs after which the test set is evaluated, including the last."""
    every = self.evaluate_every or self.config.epochs
    last = self.config.epochs
    return sorted({*range(every, last + 1, every), *self.corrupted_at, last})

  def datasets(self, epoch: int) -> list[str]:
    """Names of the sets of images that are evaluated after an epoch."""
    if epoch not in (*self.corrupted_at, self.config.epochs):
      return ["train", "clean"]
    sets = [f"{name}/{i}" for name in self.corruptions for i in range(1, 6)]
    return ["train", "clean", *sets]

  def comparing(self, *pairs: tuple[Method, Method], **changes: Any) -> "Study":
    """Returns the study with these pairs, and by default just their methods."""
    methods = tuple(dict.fromkeys(itertools.chain(*pairs)))
    names = tuple((one.name, other.name) for one, other in pairs)
    return self.replace(**{"methods": methods, "pairs": names} | changes)

  def override(self, settings: list[str]) -> "Study":
    """Returns the study with other settings, each of the form key=value.

    A key is a field of the study or of its config, or ``methods``. A list is
    separated by commas; ``all`` means all names.
    """
    own, recipe = settable(Study), settable(Config)
    known, values = own | recipe, {}
    for setting in settings:
      key, equals, text = setting.partition("=")
      if key == "methods" and equals:
        values["methods"] = self._named(list(filter(None, text.split(","))))
      elif equals and key in known:
        values[key] = parse(known[key], text)
      else:
        raise ConfigError(
          f"{setting!r} is not a setting. Write key=value with one of these "
          f"keys: {', '.join(sorted([*known, 'methods']))}."
        )
    changes = {key: values.pop(key) for key in recipe.keys() & values.keys()}
    config = self.config.replace(**changes)
    study = self.replace(config=config, pairs=(), **values)
    known = {*study.comparable}
    return study.replace(pairs=tuple(p for p in self.pairs if {*p} <= known))

  def settings(self) -> dict[str, str]:
    """Returns all that :meth:`override` can set, as text."""
    own = {name: getattr(self, name) for name in settable(Study)}
    own |= {"methods": self.method_names} | dataclasses.asdict(self.config)
    return {name: unparse(value) for name, value in own.items()}

  def _named(self, names: list[str]) -> tuple[Method, ...]:
    """Returns methods by name. The study's own come before METHODS."""
    known = METHODS | {method.name: method for method in self.methods}
    for name in names:
      if name not in known:
        raise ConfigError(
          f"methods is {name!r}, but must be one of {', '.join(known)}."
        )
    return tuple(known[name] for name in names)


@functools.cache  # Pages ask for the names 100,000 times.
def _paths(folders: tuple[str, ...]) -> dict[str, pathlib.Path]:
  paths = (path for it in folders for path in pathlib.Path(it).glob("*.py"))
  return {path.stem: path for path in sorted(paths) if path.stem[0].isalpha()}


def study_names() -> list[str]:
  """Returns the names of the clone's studies, without importing them."""
  return sorted(_paths(tuple(package.__path__)))


def describe(name: str) -> tuple[Study, str]:
  """Returns a study, by its name or the path of its file, and what it is.

  Raises a ConfigError if there is no such study, or if its file is broken.
  """
  own = _paths(tuple(package.__path__)).get(name)
  path = str(own or name)
  if not (path.endswith(".py") and pathlib.Path(path).is_file()):
    raise ConfigError(
      f"There is no study {name!r}; there are {', '.join(study_names())}. "
      "Give one of these names, or the path of a study file such as mine.py."
    )
  try:
    if own:
      content = vars(importlib.import_module(f"{package.__name__}.{name}"))
    else:
      content = runpy.run_path(path)
    study = content["STUDY"]
    if not isinstance(study, Study):
      raise TypeError(f"STUDY must be a Study, got {reprlib.repr(study)}")
  except (Exception, SystemExit) as error:
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if f.filename == path]
    where = f", line {lines[-1]}" if lines else ""
    problem = str(error)
    if not isinstance(error, UserError):  # which says what to do
      problem = (
        f"{brief(error).rstrip('.')}. Correct the file. It must define STUDY, "
        "an experiments.config.Study."
      )
    error_name = type(error).__name__
    raise ConfigError(f"{path}{where}: {error_name}: {problem}") from error
  return study, (content["__doc__"] or "").strip() or study.name


def load_study(name: str) -> Study:
  """Returns a study, by its name or the path of its file."""
  return describe(name)[0]


def own_study(name: str) -> Study | None:
  """Returns the clone's study of this name, or None if none can be loaded."""
  try:
    return load_study(name) if name in study_names() else None
  except ConfigError:
    return None


def studies() -> dict[str, Study]:
  """Returns the clone's studies by name, without those that are broken."""
  loaded = {name: own_study(name) for name in study_names()}
  return {name: study for name, study in loaded.items() if study is not None}


def differences(study: Study, other: Study) -> dict[str, str]:
  """Settings of a study that differ from another's, as text."""
  others = other.settings()
  return {k: v for k, v in study.settings().items() if v != others[k]}


def load_settings(folder: pathlib.Path) -> Study:
  """Returns the study that a folder's `study.json` describes."""
  path = folder / "study.json"
  try:
    content = path.read_bytes()
  except OSError as error:
    raise ConfigError(
      f"{folder} is not a study folder ({error}). Give a folder that `python "
      "-m experiments run` made."
    ) from error
  try:
    settings: dict[str, Any] = {
      key: tuple(value) if isinstance(value, list) else value
      for key, value in parse_json(content).items()
    }
    settings["config"] = Config(**settings["config"])
    settings["methods"] = tuple(Method(**it) for it in settings["methods"])
    settings["pairs"] = tuple(map(tuple, settings["pairs"]))
    return Study(**settings)
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ConfigError(
      f"{path} has no settings of a study ({error}). Remove it, and repeat the "
      "command `python -m experiments run` that made it."
    ) from error
