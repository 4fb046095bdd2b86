"""How honest a network's confidence is: metrics of (logits, labels).

Every metric takes logits of shape (images, classes), in any floating dtype, and
integer labels of shape (images,), and returns one number, in float32 (float64
for float64 logits). All of them run under ``jax.jit`` and ``jax.vmap``: for
many seeds on the same images, that is
``jax.vmap(evaluate, in_axes=(0, None))(logits, labels)``.

The *confidence* of a prediction is its largest softmax probability, and it is
*correct* if that is the label's. Among equal logits the first class counts as
the largest, as for ``argmax``. Logits without a softmax (NaN, +∞, or −∞ in all
classes) make every metric NaN. Labels out of range are an error; under ``jit``
and ``vmap``, where values can't be looked at, they make it NaN, too.
"""

from orthograd_optax._bins import Reliability as Reliability
from orthograd_optax._bins import Tally as Tally
from orthograd_optax._bins import average_reliability as average_reliability
from orthograd_optax._bins import reliability as reliability
from orthograd_optax._bins import tally as tally
from orthograd_optax._metrics import accuracy as accuracy
from orthograd_optax._metrics import aurc as aurc
from orthograd_optax._metrics import brier_score as brier_score
from orthograd_optax._metrics import classwise_ece as classwise_ece
from orthograd_optax._metrics import (
  confidence_correlation as confidence_correlation,
)
from orthograd_optax._metrics import debiased_ece as debiased_ece
from orthograd_optax._metrics import ece as ece
from orthograd_optax._metrics import entropy as entropy
from orthograd_optax._metrics import evaluate as evaluate
from orthograd_optax._metrics import logit_variance as logit_variance
from orthograd_optax._metrics import max_logit as max_logit
from orthograd_optax._metrics import max_softmax as max_softmax
from orthograd_optax._metrics import mce as mce
from orthograd_optax._metrics import nll as nll
from orthograd_optax._metrics import smooth_ece as smooth_ece
from orthograd_optax._recalibration import Isotonic as Isotonic
from orthograd_optax._recalibration import VectorScaling as VectorScaling
from orthograd_optax._recalibration import fit_temperature as fit_temperature
from orthograd_optax._recalibration import isotonic as isotonic
from orthograd_optax._recalibration import split as split
from orthograd_optax._recalibration import vector_scaling as vector_scaling
