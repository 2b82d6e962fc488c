"""``keras.layers.Embedding`` whose table is on parameter servers: only the rows of a batch are read."""

from __future__ import annotations

from typing import Any

import keras

from stratagem._src.core.types import Tensor
from stratagem._src.integrations.keras.keras_internals import (
    LOOK_UP,
    KerasLayer,
    in_stateless_scope,
)
from stratagem._src.integrations.keras.remote_apply import is_remote

__all__ = ["look_up"]


def look_up(layer: KerasLayer, inputs: Tensor) -> Any:
    """Replaces ``Embedding.call``; the gradient of the table is then an ``IndexedSlices`` of the rows."""
    table = layer._embeddings
    changed = layer.lora_enabled or layer.quantization_mode is not None
    if changed or in_stateless_scope() or not is_remote(table):
        return LOOK_UP(layer, inputs)
    if inputs.dtype not in ("int32", "int64"):
        inputs = keras.ops.cast(inputs, "int32")
    return keras.ops.cast(table.own_twin().sparse_read(inputs), layer.compute_dtype)
