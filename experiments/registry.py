"""The optimizers, losses and models that runs are made of: one entry each.

To add a part, write the function that builds it, and add an entry. `Config` and
`Method` then allow its name, METHODS has a method for it, pages use its label,
and the memory estimate counts its state.
"""

from collections.abc import Callable, Mapping
import pkgutil
from typing import Any, NamedTuple


class Part(NamedTuple):
  """An optimizer, a loss or a model."""

  label: str  # on pages
  # A function, or its name as "module:function". A named function is imported
  # at the first call, so that commands without training don't wait.
  builder: str | Callable[..., Any]
  # Settings of a `config.Method` to pass to the builder, or for an optimizer
  # "hidden", a tree that is true for the kernels of hidden layers.
  takes: tuple[str, ...] = ()
  # Of the method in METHODS that is named after the part.
  settings: Mapping[str, Any] = {}

  def __call__(self, *arguments: Any, **options: Any) -> Any:
    """Calls the builder with these arguments."""
    function = self.builder
    if isinstance(function, str):
      function = pkgutil.resolve_name(function)
    return function(*arguments, **options)

  def build(self, settings: Mapping[str, Any], *arguments: Any) -> Any:
    """Calls the builder with these arguments and the settings that it takes."""
    return self(*arguments, **{name: settings[name] for name in self.takes})


_OPTIMIZERS = "experiments.engine.optimizers"
_LOSSES = "orthograd_optax.calibration"
_MODELS = "experiments.engine.models"

# Called with the weight decay, a tree of scalars like the parameters.
OPTIMIZERS = {
  "sgd": Part("SGD", f"{_OPTIMIZERS}:sgd", ("momentum", "nesterov")),
  "adamw": Part("AdamW", f"{_OPTIMIZERS}:adamw"),
  "lion": Part("Lion", f"{_OPTIMIZERS}:lion"),
  "muon": Part("Muon", f"{_OPTIMIZERS}:muon", ("hidden",)),
  "sgdp": Part(
    "SGDP", f"{_OPTIMIZERS}:sgdp", ("momentum", "nesterov"), {"nesterov": True}
  ),
}
# Called with logits (examples, classes) and labels (examples,).
LOSSES = {
  "cross_entropy": Part(
    "cross-entropy", "optax:softmax_cross_entropy_with_integer_labels"
  ),
  "label_smoothing": Part(
    "label smoothing", f"{_LOSSES}:smoothed", ("smoothing",)
  ),
  "focal": Part("focal loss", f"{_LOSSES}:focal", ("focus",)),
  "logit_norm": Part("LogitNorm", f"{_LOSSES}:logit_norm", ("temperature",)),
}
# Called with the options of `models.ResNet`.
MODELS = {
  "resnet18": Part("ResNet-18", f"{_MODELS}:resnet18"),
  "wrn28_10": Part("WRN-28-10", f"{_MODELS}:wrn28_10"),
  "small": Part("a small pre-activation ResNet", f"{_MODELS}:small"),
}
