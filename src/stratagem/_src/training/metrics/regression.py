"""How far predictions are from what is right."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from stratagem._src.training.metrics.reductions import MeanMetricWrapper
from stratagem._src.training.metrics.weighting import same_shape

__all__ = ["MeanSquaredError"]


class MeanSquaredError(MeanMetricWrapper):
    """The mean of the squared differences between labels and predictions.

    Vectors are as columns: each value is a sample. (Keras takes the mean of a vector for one sample, so
    that batches count alike, whatever their sizes.)

    Args:
        name: Its name.
        dtype: Element type of the result; default ``float32``.

    >>> import stratagem as sg
    >>> metric = sg.metrics.MeanSquaredError()
    >>> metric.update_state([[0, 1], [0, 0]], [[1, 1], [0, 0]])
    >>> float(metric.result())
    0.25
    """

    def __init__(self, name: str = "mean_squared_error", dtype: Any = None) -> None:
        super().__init__(_squared_error, name, dtype)


def _squared_error(y_true: Any, y_pred: Any) -> Any:
    labels, predictions = same_shape("MeanSquaredError", y_true, y_pred)
    squared = jnp.square(labels - predictions)
    # Of a vector each value is a sample of its own, as it is of a column.
    return jnp.mean(squared, axis=-1) if squared.ndim > 1 else squared
