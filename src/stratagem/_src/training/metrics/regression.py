"""Regression metrics."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from stratagem._src.core.types import DTypeLike, PyTree
from stratagem._src.training.metrics.reductions import MeanMetricWrapper
from stratagem._src.training.metrics.weighting import same_shape

__all__ = ["MeanSquaredError"]


class MeanSquaredError(MeanMetricWrapper):
    """The mean of the squared differences between labels and predictions.

    A vector is treated as a column: each value is a sample. (Keras treats the mean of a vector as one
    sample, so that all batches have the same weight, regardless of their sizes.)

    Args:
        name: Its name.
        dtype: Element type of the result; default ``float32``.

    >>> import stratagem as sg
    >>> metric = sg.metrics.MeanSquaredError()
    >>> metric.update_state([[0, 1], [0, 0]], [[1, 1], [0, 0]])
    >>> float(metric.result())
    0.25
    """

    def __init__(self, name: str = "mean_squared_error", dtype: DTypeLike = None) -> None:
        super().__init__(_squared_error, name, dtype)


def _squared_error(y_true: PyTree, y_pred: PyTree) -> Any:
    labels, predictions = same_shape("MeanSquaredError", y_true, y_pred)
    squared = jnp.square(labels - predictions)
    # Each value of a vector is a sample, as in a column.
    return jnp.mean(squared, axis=-1) if squared.ndim > 1 else squared
