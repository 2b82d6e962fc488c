"""Metrics of ``stratagem.metrics`` that are given to ``compile``.

Programs for TensorFlow do that: there ``tf.metrics`` is ``tf.keras.metrics``.
"""

from __future__ import annotations

from typing import Any

import keras

from stratagem._src.core.errors import InvalidArgumentError
from stratagem._src.training.metrics.metric import Metric

__all__ = ["as_keras_metrics"]

_OURS = Metric.__module__.rpartition(".")[0]


def as_keras_metrics(metrics: Any) -> Any:
    """Returns what ``compile`` is given, with Keras's metrics in the places of ours.

    Raises:
        InvalidArgumentError: If one is of a class of the user's own.
    """
    return keras.tree.map_structure(
        lambda one: _as_keras_metric(one) if isinstance(one, Metric) else one, metrics
    )


def _as_keras_metric(metric: Metric) -> Any:
    kind = type(metric)
    counterpart = getattr(keras.metrics, kind.__name__, None)
    if counterpart is None or kind.__module__.rpartition(".")[0] != _OURS:
        raise InvalidArgumentError(
            f"Keras computes metrics of keras.metrics, got {kind.__name__}, which derives from "
            "stratagem.metrics.Metric. Derive it from keras.metrics.Metric."
        )
    args, kwargs = metric.constructor_arguments
    return counterpart(*args, **kwargs)
