"""Can you trust a model's confidence? Metrics, reports, recalibration.

Start with :func:`report`: it computes all metrics, with intervals. Use
:func:`compare` for two models, :func:`fit` to recalibrate, and
:func:`bootstrap` for an interval of any metric. :func:`focal`,
:func:`logit_norm`, :func:`mbls`, :func:`smoothed` and
:func:`stablemax_cross_entropy` are losses to train with.

**Inputs.** Every metric takes logits of shape (..., classes), of any floating
dtype, and integer labels of shape (...): (examples,), or (batch, tokens) for a
language model. Where ``where``, of the same shape, is False, an example does
not count. It returns one number, in float32 (float64 for float64 logits). If
you have probabilities, pass ``from_probabilities(probabilities)``. For two
classes, you may pass the logit of the second class alone, of shape (examples,)
or (..., 1); the logit of the first class is then zero. Boolean labels count as
0 and 1. All metrics run under ``jax.jit`` and ``jax.vmap``: for many seeds on
the same examples, call ``jax.vmap(evaluate, in_axes=(0, None))(logits,
labels)``.

**Words.** The *confidence* of a prediction is its largest softmax probability.
The prediction is *correct* if that class is the label. Among equal logits, the
first class counts as the largest, as for ``argmax``. With two classes, use
:func:`classwise_ece` for the probability of the second class.

**Bad input.** Labels out of range raise an error. Under ``jit`` and ``vmap``
values can't be checked: there, labels out of range make the metric NaN. Logits
without a softmax (NaN, +∞, or −∞ in all classes) make every metric NaN. Metrics
can't tell probabilities from logits; :func:`report`, :func:`compare` and
:func:`fit` refuse probabilities.
"""

from ._bins import Reliability as Reliability
from ._bins import Tally as Tally
from ._bins import average_reliability as average_reliability
from ._bins import nnx_tally as nnx_tally
from ._bins import reliability as reliability
from ._bins import tally as tally
from ._compare import ModelComparison as ModelComparison
from ._compare import compare as compare
from ._errors import classwise_ece as classwise_ece
from ._errors import debiased_ece as debiased_ece
from ._errors import ece as ece
from ._errors import ks_calibration_error as ks_calibration_error
from ._errors import mce as mce
from ._errors import rms_calibration_error as rms_calibration_error
from ._errors import smooth_ece as smooth_ece
from ._errors import top_k_ece as top_k_ece
from ._fits import fit as fit
from ._fits import fit_temperature as fit_temperature
from ._fits import split as split
from ._inputs import from_probabilities as from_probabilities
from ._intervals import Estimate as Estimate
from ._losses import focal as focal
from ._losses import logit_norm as logit_norm
from ._losses import mbls as mbls
from ._losses import smoothed as smoothed
from ._losses import stablemax_cross_entropy as stablemax_cross_entropy
from ._ranking import aurc as aurc
from ._ranking import auroc as auroc
from ._ranking import confidence_correlation as confidence_correlation
from ._ranking import selective_risk as selective_risk
from ._recalibrators import Isotonic as Isotonic
from ._recalibrators import Platt as Platt
from ._recalibrators import Recalibrator as Recalibrator
from ._recalibrators import Temperature as Temperature
from ._recalibrators import VectorScaling as VectorScaling
from ._recalibrators import load as load
from ._report import Report as Report
from ._report import report as report
from ._resampling import bootstrap as bootstrap
from ._results import ConfidentError as ConfidentError
from ._results import Part as Part
from ._scores import Decomposition as Decomposition
from ._scores import accuracy as accuracy
from ._scores import brier as brier
from ._scores import brier_decomposition as brier_decomposition
from ._scores import confidence as confidence
from ._scores import entropy as entropy
from ._scores import evaluate as evaluate
from ._scores import logit_variance as logit_variance
from ._scores import max_logit as max_logit
from ._scores import nll as nll
from ._scores import nll_decomposition as nll_decomposition
from ._scores import sequence_confidence as sequence_confidence
