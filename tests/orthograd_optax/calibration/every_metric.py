"""Every metric of logits and labels, by name, some with options."""

import functools

from orthograd_optax import calibration

METRICS = {
  "accuracy": calibration.accuracy,
  "nll": calibration.nll,
  "brier": calibration.brier,
  "ece": calibration.ece,
  "mce": calibration.mce,
  "classwise_ece": calibration.classwise_ece,
  "classwise_ece_thresholded": functools.partial(
    calibration.classwise_ece, threshold=0.05
  ),
  "top_k_ece": functools.partial(calibration.top_k_ece, k=2),
  "rms_calibration_error": calibration.rms_calibration_error,
  "ks_calibration_error": calibration.ks_calibration_error,
  "selective_risk": functools.partial(calibration.selective_risk, coverage=0.8),
  "auroc": calibration.auroc,
  "debiased_ece": calibration.debiased_ece,
  "smooth_ece": calibration.smooth_ece,
  "entropy": calibration.entropy,
  "confidence": calibration.confidence,
  "max_logit": calibration.max_logit,
  "logit_variance": calibration.logit_variance,
  "confidence_correlation": calibration.confidence_correlation,
  "aurc": calibration.aurc,
  "ece_mass": functools.partial(calibration.ece, binning="mass"),
  "temperature": calibration.fit_temperature,
}
