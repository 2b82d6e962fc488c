"""How often predictions are right."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from stratagem._src.core.errors import ShapeMismatchError
from stratagem._src.training.metrics.reductions import MeanMetricWrapper
from stratagem._src.training.metrics.weighting import as_array, same_shape

__all__ = ["Accuracy", "BinaryAccuracy", "SparseCategoricalAccuracy"]


class Accuracy(MeanMetricWrapper):
    """The share of predictions that equal their labels.

    Args:
        name: Its name.
        dtype: Element type of the result; default ``float32``.

    >>> import stratagem as sg
    >>> metric = sg.metrics.Accuracy()
    >>> metric.update_state([1, 2, 3, 4], [0, 2, 3, 4])
    >>> float(metric.result())
    0.75
    """

    def __init__(self, name: str = "accuracy", dtype: Any = None) -> None:
        super().__init__(_equal, name, dtype)


class BinaryAccuracy(MeanMetricWrapper):
    """The share of predictions on the right side of a threshold.

    Args:
        name: Its name.
        dtype: Element type of the result; default ``float32``.
        threshold: Predictions above it mean 1, others 0.

    >>> import stratagem as sg
    >>> metric = sg.metrics.BinaryAccuracy()
    >>> metric.update_state([[1], [1], [0], [0]], [[0.98], [1.0], [0.0], [0.6]])
    >>> float(metric.result())
    0.75
    """

    def __init__(
        self, name: str = "binary_accuracy", dtype: Any = None, threshold: float = 0.5
    ) -> None:
        super().__init__(_on_the_right_side, name, dtype, threshold=threshold)
        self.threshold: float = threshold


class SparseCategoricalAccuracy(MeanMetricWrapper):
    """The share of samples whose highest prediction is that of the label, a class number.

    Args:
        name: Its name.
        dtype: Element type of the result; default ``float32``.

    >>> import stratagem as sg
    >>> metric = sg.metrics.SparseCategoricalAccuracy()
    >>> metric.update_state([[2], [1]], [[0.1, 0.6, 0.3], [0.05, 0.95, 0.0]])
    >>> float(metric.result())
    0.5
    """

    def __init__(self, name: str = "sparse_categorical_accuracy", dtype: Any = None) -> None:
        super().__init__(_highest, name, dtype)


def _equal(y_true: Any, y_pred: Any) -> Any:
    labels, predictions = same_shape("Accuracy", y_true, y_pred)
    return labels == predictions


def _on_the_right_side(y_true: Any, y_pred: Any, threshold: float) -> Any:
    labels, predictions = same_shape("BinaryAccuracy", y_true, y_pred)
    return labels == (predictions > threshold)


def _highest(y_true: Any, y_pred: Any) -> Any:
    labels, predictions = as_array(y_true), as_array(y_pred)
    if labels.ndim == predictions.ndim and labels.shape[-1:] == (1,):
        labels = labels[..., 0]
    if predictions.ndim == 0 or labels.shape != predictions.shape[:-1]:
        raise ShapeMismatchError(
            "SparseCategoricalAccuracy needs a class number in y_true for each row of y_pred, got shapes "
            f"{labels.shape} and {predictions.shape}."
        )
    matches = labels == jnp.argmax(predictions, axis=-1)
    return matches[..., 0] if matches.ndim > 1 and matches.shape[-1] == 1 else matches
