"""Accuracy metrics: the fraction of correct predictions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from stratagem._src.core.errors import ShapeMismatchError
from stratagem._src.core.types import DTypeLike, PyTree
from stratagem._src.training.metrics.reductions import MeanMetricWrapper
from stratagem._src.training.metrics.weighting import as_array, same_shape

__all__ = ["Accuracy", "BinaryAccuracy", "SparseCategoricalAccuracy"]


class Accuracy(MeanMetricWrapper):
    """The fraction of predictions that equal their labels.

    Args:
        name: Its name.
        dtype: Element type of the result; default ``float32``.

    >>> import stratagem as sg
    >>> metric = sg.metrics.Accuracy()
    >>> metric.update_state([1, 2, 3, 4], [0, 2, 3, 4])
    >>> float(metric.result())
    0.75
    """

    def __init__(self, name: str = "accuracy", dtype: DTypeLike = None) -> None:
        super().__init__(_equal, name, dtype)


class BinaryAccuracy(MeanMetricWrapper):
    """The fraction of predictions on the correct side of a threshold.

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
        self, name: str = "binary_accuracy", dtype: DTypeLike = None, threshold: float = 0.5
    ) -> None:
        super().__init__(_on_the_right_side, name, dtype, threshold=threshold)
        self.threshold: float = threshold


class SparseCategoricalAccuracy(MeanMetricWrapper):
    """The fraction of samples whose highest prediction is that of the label, a class index.

    Args:
        name: Its name.
        dtype: Element type of the result; default ``float32``.

    >>> import stratagem as sg
    >>> metric = sg.metrics.SparseCategoricalAccuracy()
    >>> metric.update_state([[2], [1]], [[0.1, 0.6, 0.3], [0.05, 0.95, 0.0]])
    >>> float(metric.result())
    0.5
    """

    def __init__(self, name: str = "sparse_categorical_accuracy", dtype: DTypeLike = None) -> None:
        super().__init__(_highest, name, dtype)


def _equal(y_true: PyTree, y_pred: PyTree) -> Any:
    labels, predictions = same_shape("Accuracy", y_true, y_pred)
    return labels == predictions


def _on_the_right_side(y_true: PyTree, y_pred: PyTree, threshold: float) -> Any:
    labels, predictions = same_shape("BinaryAccuracy", y_true, y_pred)
    return labels == (predictions > threshold)


def _highest(y_true: PyTree, y_pred: PyTree) -> Any:
    labels, predictions = as_array(y_true), as_array(y_pred)
    if labels.ndim == predictions.ndim and labels.shape[-1:] == (1,):
        labels = labels[..., 0]
    if predictions.ndim == 0 or labels.shape != predictions.shape[:-1]:
        raise ShapeMismatchError(
            "SparseCategoricalAccuracy needs a class index in y_true for each row of y_pred, got shapes "
            f"{labels.shape} and {predictions.shape}."
        )
    matches = labels == jnp.argmax(predictions, axis=-1)
    return matches[..., 0] if matches.ndim > 1 and matches.shape[-1] == 1 else matches
