"""``BatchNormalization(synchronized=True)``: statistics of all replicas in a custom training loop.

Keras has it with TensorFlow only. Under ``fit``, statistics are those of the global batch anyway.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from stratagem._src.integrations.keras.keras_internals import (
    INIT_BATCH_NORMALIZATION,
    MOMENTS,
    Argument,
    KerasLayer,
)
from stratagem._src.integrations.keras.replicas import multi_replica_context

__all__ = ["SyncBatchNormalization", "synchronize_batch_normalization"]


def synchronize_batch_normalization() -> None:
    """Makes ``keras.layers.BatchNormalization`` take ``synchronized``, and ``fused`` of Keras 2."""
    keras.layers.BatchNormalization.__init__ = _init
    keras.layers.BatchNormalization._moments = _moments


# Without `functools.wraps`: Keras asks for the signature in two ways, which must agree.
def _init(
    self: KerasLayer,
    *args: Argument,
    synchronized: bool = False,
    fused: bool | None = None,
    **kwargs: Argument,
) -> None:
    # `fused` chose between two implementations of the same function.
    INIT_BATCH_NORMALIZATION(self, *args, **kwargs)
    self.synchronized = synchronized


def _moments(layer: KerasLayer, inputs: Argument, mask: Argument) -> Any:
    if not layer.synchronized:
        return MOMENTS(layer, inputs, mask)
    # Replicas may have different numbers of rows, or of rows that the mask leaves.
    if mask is None:  # Keras would refuse to synchronize here
        mean, variance = ops.moments(inputs, axes=layer._reduction_axes)
        count = ops.cast(ops.size(inputs) // inputs.shape[layer.axis], mean.dtype)
    else:
        mean, variance = MOMENTS(layer, inputs, mask)
        count = ops.sum(ops.cast(mask, mean.dtype))
    replica = multi_replica_context()
    if replica is None:
        return mean, variance
    sums = [count, count * mean, count * (variance + mean * mean)]
    rows, total, total_of_squares = replica.all_reduce("SUM", sums)
    rows = ops.maximum(rows, 1)
    mean = total / rows
    return mean, ops.maximum(total_of_squares / rows - mean * mean, 0)


@keras.saving.register_keras_serializable(package="stratagem")
class SyncBatchNormalization(keras.layers.BatchNormalization):  # type: ignore[misc]
    """The layer of Keras 2: ``BatchNormalization(synchronized=True)``."""

    def __init__(self, *args: Argument, **kwargs: Argument) -> None:
        super().__init__(*args, **{**kwargs, "synchronized": True})
