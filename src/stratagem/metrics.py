"""Metrics, as in ``tf.keras.metrics``."""

from typing import TYPE_CHECKING

from stratagem._src.core.lazy_names import lazy_names
from stratagem._src.training.metrics.accuracy import (
    Accuracy,
    BinaryAccuracy,
    SparseCategoricalAccuracy,
)
from stratagem._src.training.metrics.auc import AUC
from stratagem._src.training.metrics.metric import Metric
from stratagem._src.training.metrics.reductions import Mean, MeanMetricWrapper, Sum
from stratagem._src.training.metrics.regression import MeanSquaredError

__all__ = [
    "AUC",
    "Accuracy",
    "BinaryAccuracy",
    "Mean",
    "MeanMetricWrapper",
    "MeanSquaredError",
    "Metric",
    "SparseCategoricalAccuracy",
    "Sum",
]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__)
