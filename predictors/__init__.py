"""Predictors of activity: recorded, trained, calibrated and measured here; loaded by the runtime.

Goal: for every layer a low-rank map from the feed-forward input to "this neuron will be active",
with its errors known on text that neither training nor calibration saw. Not here: running them.
Source: LLM in a flash (arXiv 2312.11514), section 3.1.
"""

from .activity_only import measure_activity, measure_predictors
from .calibration_texts import check_calibration, find_calibration
from .neuron_order import learn_order
from .report import Activity, LayerReport, Report
from .targets import Targets
from .train import train_predictors

__all__ = [
    "Activity",
    "LayerReport",
    "Report",
    "Targets",
    "check_calibration",
    "find_calibration",
    "learn_order",
    "measure_activity",
    "measure_predictors",
    "train_predictors",
]
